// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// lanes emits the instructions of one instruction set: 16 lanes with AVX-512,
// 8 with AVX2. A kernel is written once against it. Registers are virtual; the
// allocator of avo places them.
type lanes struct {
	width  int // floats in a register
	suffix string
	low    bool // arrays are bfloat16; with AVX-512 only

	// While masked is set, loads and stores touch the tail's lanes only, and
	// loads give zeros in the others.
	masked  bool
	opmask  Register // AVX-512: one bit a lane
	vecmask Register // AVX2: one word a lane

	hoisted int // constants held in registers by this function
	labels  int
}

func (g *lanes) wide() bool { return g.width == 16 }

func (g *lanes) vec() VecVirtual {
	if g.wide() {
		return ZMM()
	}
	return YMM()
}

// label returns a name that is unique in the function.
func (g *lanes) label(name string) string {
	g.labels++
	return fmt.Sprintf("%s%d", name, g.labels)
}

// begin opens a function; its pointer arguments do not escape.
func (g *lanes) begin(name, signature, doc string) {
	g.masked, g.hoisted, g.labels = false, 0, 0
	name += g.suffix
	if g.low {
		name = strings.TrimSuffix(name, g.suffix) + "Low" + g.suffix
		signature = strings.ReplaceAll(signature, "[]float32", "[]uint16")
		doc += " Arrays are bfloat16."
	}
	TEXT(name, 4 /* NOSPLIT */, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
}

func end() {
	VZEROUPPER()
	RET()
}

// pointer loads the address of a slice argument.
func pointer(name string) Register { return Load(Param(name).Base(), GP64()) }

// length loads the length of a slice argument.
func length(name string) Register { return Load(Param(name).Len(), GP64()) }

func argument(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	return b.Addr
}

// broadcast fills a register with the float at an address.
func (g *lanes) broadcast(m Op) VecVirtual {
	v := g.vec()
	VBROADCASTSS(m, v)
	return v
}

// Constants live in one read-only table, each repeated over 16 lanes so that
// it can be an operand of any width.
var (
	constantOrder []uint32
	constantAt    = map[uint32]int{}
)

func constantMem(bits uint32) Mem {
	at, ok := constantAt[bits]
	if !ok {
		at = 64 * len(constantOrder)
		constantAt[bits] = at
		constantOrder = append(constantOrder, bits)
	}
	return NewDataAddr(NewStaticSymbol("vectorConstants"), at)
}

// emitTables writes the constants and the masks of AVX2's tails.
func emitTables() {
	GLOBL("vectorConstants", 8|16 /* RODATA|NOPTR */)
	for i, bits := range constantOrder {
		for lane := range 16 {
			DATA(64*i+4*lane, U32(bits))
		}
	}
	GLOBL("vectorMasks", 8|16)
	for i := range 16 {
		DATA(4*i, U32(0xffffffff*uint32((15-i)/8))) // eight of ones, eight of zeros
	}
}

// bits is a constant by its bit pattern. With 32 registers to place, the first
// ones asked for stay in registers: ask before the loop.
func (g *lanes) bits(u uint32) Op {
	m := constantMem(u)
	if g.wide() && g.hoisted < 12 {
		g.hoisted++
		v := g.vec()
		VMOVUPS(m, v)
		return v
	}
	return m
}

func (g *lanes) constant(f float64) Op { return g.bits(math.Float32bits(float32(f))) }

// register gives an operand that must be a register, not memory.
func (g *lanes) register(o Op) VecVirtual {
	if v, ok := o.(VecVirtual); ok {
		return v
	}
	v := g.vec()
	VMOVUPS(o, v)
	return v
}

func (g *lanes) zero() VecVirtual {
	v := g.vec()
	if g.wide() {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
	return v
}

// The second operand of the arithmetic below may be memory.

func (g *lanes) add(a VecVirtual, b Op) VecVirtual { v := g.vec(); VADDPS(b, a, v); return v }
func (g *lanes) sub(a VecVirtual, b Op) VecVirtual { v := g.vec(); VSUBPS(b, a, v); return v }
func (g *lanes) mul(a VecVirtual, b Op) VecVirtual { v := g.vec(); VMULPS(b, a, v); return v }
func (g *lanes) div(a VecVirtual, b Op) VecVirtual { v := g.vec(); VDIVPS(b, a, v); return v }
func (g *lanes) and(a VecVirtual, b Op) VecVirtual { v := g.vec(); VANDPS(b, a, v); return v }
func (g *lanes) or(a VecVirtual, b Op) VecVirtual  { v := g.vec(); VORPS(b, a, v); return v }
func (g *lanes) xor(a VecVirtual, b Op) VecVirtual { v := g.vec(); VXORPS(b, a, v); return v }
func (g *lanes) sqrt(a Op) VecVirtual              { v := g.vec(); VSQRTPS(a, v); return v }

// max and min give b where either is NaN, so b is where a NaN would be.
func (g *lanes) max(a Op, b VecVirtual) VecVirtual {
	v := g.vec()
	VMAXPS(b, g.register(a), v)
	return v
}

func (g *lanes) min(a Op, b VecVirtual) VecVirtual {
	v := g.vec()
	VMINPS(b, g.register(a), v)
	return v
}

// accumulate adds x·y to acc in place; subtractProduct takes it away.
func (g *lanes) accumulate(acc, x VecVirtual, y Op)      { VFMADD231PS(y, x, acc) }
func (g *lanes) subtractProduct(acc, x VecVirtual, y Op) { VFNMADD231PS(y, x, acc) }

// fma returns x·y + z with one rounding.
func (g *lanes) fma(x, y VecVirtual, z Op) VecVirtual {
	v := g.vec()
	VMOVAPS(x, v)
	VFMADD213PS(z, y, v)
	return v
}

// polynomial evaluates c[0] + c[1]·x + … by Horner's rule.
func (g *lanes) polynomial(x VecVirtual, c []Op) VecVirtual {
	v := g.vec()
	VMOVUPS(c[len(c)-1], v)
	for i := len(c) - 2; i >= 0; i-- {
		VFMADD213PS(c[i], x, v)
	}
	return v
}

func (g *lanes) constants(fs ...float64) []Op {
	var ops []Op
	for _, f := range fs {
		ops = append(ops, g.constant(f))
	}
	return ops
}

// round rounds to the nearest integer.
func (g *lanes) round(a VecVirtual) VecVirtual {
	v := g.vec()
	if g.wide() {
		VRNDSCALEPS(Imm(0), a, v)
	} else {
		VROUNDPS(Imm(0), a, v)
	}
	return v
}

// bySign selects negative where the sign bit of s is set, else positive.
func (g *lanes) bySign(s, negative, positive VecVirtual) VecVirtual {
	v := g.vec()
	if g.wide() {
		k := K()
		VPMOVD2M(s, k)
		VBLENDMPS(negative, positive, k, v)
	} else {
		VBLENDVPS(s, negative, positive, v)
	}
	return v
}

// Predicates of compare.
const (
	less      = 0x11
	greater   = 0x1e
	unordered = 0x03
)

// choose selects yes where "a predicate b" holds, else no.
func (g *lanes) choose(predicate int, a VecVirtual, b Op, yes, no VecVirtual) VecVirtual {
	v := g.vec()
	if g.wide() {
		k := K()
		VCMPPS(Imm(uint64(predicate)), b, a, k)
		VBLENDMPS(yes, no, k, v)
	} else {
		m := g.vec()
		VCMPPS(Imm(uint64(predicate)), b, a, m)
		VBLENDVPS(m, yes, no, v)
	}
	return v
}

// load reads a vector, or its tail with zeros after it.
func (g *lanes) load(m Mem) VecVirtual {
	v := g.vec()
	switch {
	case g.low && g.masked:
		VPMOVZXWD_Z(m, g.opmask, v)
		VPSLLD(Imm(16), v, v)
	case g.low:
		VPMOVZXWD(m, v)
		VPSLLD(Imm(16), v, v)
	case !g.masked:
		VMOVUPS(m, v)
	case g.wide():
		VMOVUPS_Z(m, g.opmask, v)
	default:
		VMASKMOVPS(m, g.vecmask, v)
	}
	return v
}

func (g *lanes) store(v Register, m Mem) {
	switch {
	case g.low && g.masked:
		VPMOVDW(g.rounded(v), g.opmask, m)
	case g.low:
		VPMOVDW(g.rounded(v), m)
	case !g.masked:
		VMOVUPS(v, m)
	case g.wide():
		VMOVUPS(v, g.opmask, m)
	default:
		VMASKMOVPS(v, g.vecmask, m)
	}
}

// rounded returns floats rounded to bfloat16, to nearest even, in the low halves
// of lanes: what is cut off counts by an addition that carries. A NaN stays one.
func (g *lanes) rounded(v Register) VecVirtual {
	r, k := g.vec(), K()
	VPSRLD(Imm(16), v, r)
	VPANDD(constantMem(1), r, r)
	VPADDD(constantMem(0x7fff), r, r)
	VPADDD(v, r, r)
	VCMPPS(Imm(unordered), v, v, k)
	VPORD(constantMem(0x00400000), v, k, r)
	VPSRLD(Imm(16), r, r)
	return r
}

// tailOnly clears the lanes beyond the tail, so that they add nothing.
func (g *lanes) tailOnly(v VecVirtual) VecVirtual {
	if !g.masked {
		return v
	}
	if !g.wide() {
		return g.and(v, g.vecmask)
	}
	w := g.vec()
	VMOVAPS_Z(v, g.opmask, w)
	return w
}

// tailOr puts another value into the lanes beyond the tail.
func (g *lanes) tailOr(v, other VecVirtual) VecVirtual {
	if !g.masked {
		return v
	}
	w := g.vec()
	if g.wide() {
		VBLENDMPS(v, other, g.opmask, w)
	} else {
		VBLENDVPS(g.vecmask, v, other, w)
	}
	return w
}

// tail prepares the mask of the n % width last elements.
func (g *lanes) tail(n Register) {
	if g.wide() {
		MOVQ(n, RCX)
		ANDQ(Imm(15), RCX)
		bits := GP32()
		MOVL(U32(1), bits)
		SHLL(CL, bits)
		DECL(bits)
		k := K()
		KMOVW(bits, k)
		g.opmask = k
		return
	}
	r, at := GP64(), GP64()
	LEAQ(NewDataAddr(NewStaticSymbol("vectorMasks"), 32), at)
	MOVQ(n, r)
	ANDQ(Imm(7), r)
	SHLQ(Imm(2), r)
	SUBQ(r, at)
	m := YMM()
	VMOVUPS(Mem{Base: at}, m)
	g.vecmask = m
}

// cursor addresses element j + u·width of an array.
type cursor struct {
	g *lanes
	j Register
	u int
}

func (c cursor) of(base Register) Mem {
	size := 4
	if c.g.low {
		size = 2
	}
	return Mem{Base: base, Index: c.j, Scale: uint8(size), Disp: size * c.g.width * c.u}
}

// over walks over n elements: unrolled, then by vectors, then the tail under
// its mask, which tail has prepared. The body is emitted for each; u tells the
// copies of the unrolled one apart.
func (g *lanes) over(n Register, unroll int, body func(c cursor)) {
	j, next := GP64(), GP64()
	XORQ(j, j)
	done := g.label("done")
	steps := []int{unroll, 1}
	if unroll == 1 {
		steps = steps[1:]
	}
	for _, step := range steps {
		loop, after := g.label("loop"), g.label("after")
		Label(loop)
		LEAQ(Mem{Base: j, Disp: step * g.width}, next)
		CMPQ(next, n)
		JGT(LabelRef(after))
		for u := range step {
			body(cursor{g, j, u})
		}
		MOVQ(next, j)
		JMP(LabelRef(loop))
		Label(after)
	}
	CMPQ(j, n)
	JGE(LabelRef(done))
	g.masked = true
	body(cursor{g, j, 0})
	g.masked = false
	Label(done)
}

// horizontal reduces a vector to one value in every lane of the result.
func (g *lanes) horizontal(v VecVirtual, op func(a, b, dst Op)) VecVirtual {
	half := v.AsY()
	x, y := XMM(), XMM()
	if g.wide() {
		upper := YMM()
		VEXTRACTF64X4(Imm(1), v, upper)
		op(upper, v.AsY(), upper)
		half = upper
		VEXTRACTF32X4(Imm(1), half, x)
	} else {
		VEXTRACTF128(Imm(1), half, x)
	}
	op(x, half.(Vec).AsX(), x)
	VPERMILPS(Imm(0b01_00_11_10), x, y)
	op(x, y, x)
	VPERMILPS(Imm(0b10_11_00_01), x, y)
	op(x, y, x)
	return g.broadcast(x)
}

func (g *lanes) horizontalSum(v VecVirtual) VecVirtual {
	return g.horizontal(v, func(a, b, dst Op) { VADDPS(a, b, dst) })
}
