// SPDX-License-Identifier: Apache-2.0

// Command image writes the assembly of images of bytes. Run it by go generate in
// internal/kernel. The Go twins are in image_portable.go.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	inverseDCT()
	upsample("upsampleRow256", false)
	upsample("upsampleRows256", true)
	ycbcrToRGB()
	scaleRow()
	scaleColumns()
	bytesToPlanes()
	Generate()
	for _, name := range []string{"out", "stubs"} {
		addLicence(flag.Lookup(name).Value.String())
	}
}

func addLicence(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	text = append([]byte("// SPDX-License-Identifier: Apache-2.0\n\n"), bytes.TrimLeft(text, "\n")...)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		log.Fatal(err)
	}
}

var known = map[string]Mem{}

// dwords is a constant of 32 bytes.
func dwords(v ...int32) Mem {
	name := "image" + fmt.Sprintf("%x", v)
	clean := []byte(name)
	for i, c := range clean {
		switch c {
		case '[', ']', ' ':
			clean[i] = '_'
		case '-':
			clean[i] = 'm'
		}
	}
	name = string(clean)
	if m, ok := known[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	for i, x := range v {
		DATA(4*i, U32(uint32(x)))
	}
	known[name] = m
	return m
}

func all(v int32) Mem { return dwords(v, v, v, v, v, v, v, v) }

func words(v int16) Mem { return all(int32(uint32(uint16(v)) | uint32(uint16(v))<<16)) }

// shuffle is a constant of 16 bytes for each half; -1 is a zero byte.
func shuffle(low, high [16]int) Mem {
	var v [8]int32
	for i := range 16 {
		v[i/4] |= int32(uint32(uint8(low[i])) << (8 * (i % 4)))
		v[4+i/4] |= int32(uint32(uint8(high[i])) << (8 * (i % 4)))
	}
	return dwords(v[:]...)
}

func load(name string) Register { return Load(Param(name), GP64()) }

func add(a, b Op) VecVirtual { return three(VPADDD, b, a) }

func sub(a, b Op) VecVirtual { return three(VPSUBD, b, a) }

func mul(a Op, c int32) VecVirtual { return three(VPMULLD, all(c), a) }

func three(f func(...Op), a, b Op) VecVirtual {
	r := YMM()
	f(a, b, r)
	return r
}

// inverse8 transforms the eight vectors lane by lane.
func inverse8(x [8]VecVirtual, shift uint64, round int32) [8]VecVirtual {
	a := mul(add(x[2], x[6]), 4433)
	even2 := sub(a, mul(x[6], 15137))
	even3 := add(a, mul(x[2], 6270))
	even0, even1 := add(x[0], x[4]), sub(x[0], x[4])
	for _, e := range []VecVirtual{even0, even1} {
		VPSLLD(U8(13), e, e)
		VPADDD(all(round), e, e)
	}
	e := [4]VecVirtual{add(even0, even3), add(even1, even2), sub(even1, even2), sub(even0, even3)}
	z3, z4 := add(x[7], x[3]), add(x[5], x[1])
	z5 := mul(add(z3, z4), 9633)
	z3, z4 = add(mul(z3, -16069), z5), add(mul(z4, -3196), z5)
	z1 := mul(add(x[7], x[1]), -7373)
	z2 := mul(add(x[5], x[3]), -20995)
	o := [4]VecVirtual{}
	o[0] = add(add(mul(x[1], 12299), z1), z4)
	o[3] = add(add(mul(x[7], 2446), z1), z3)
	o[1] = add(add(mul(x[3], 25172), z2), z3)
	o[2] = add(add(mul(x[5], 16819), z2), z4)
	var out [8]VecVirtual
	for i := range 4 {
		out[i], out[7-i] = add(e[i], o[i]), sub(e[i], o[i])
		VPSRAD(U8(shift), out[i], out[i])
		VPSRAD(U8(shift), out[7-i], out[7-i])
	}
	return out
}

// transpose turns eight vectors of eight dwords.
func transpose(x [8]VecVirtual) [8]VecVirtual {
	var a, b, out [8]VecVirtual
	for i := 0; i < 8; i += 2 {
		a[i] = three(VPUNPCKLDQ, x[i+1], x[i])
		a[i+1] = three(VPUNPCKHDQ, x[i+1], x[i])
	}
	for i := 0; i < 8; i += 4 {
		b[i] = three(VPUNPCKLQDQ, a[i+2], a[i])
		b[i+1] = three(VPUNPCKHQDQ, a[i+2], a[i])
		b[i+2] = three(VPUNPCKLQDQ, a[i+3], a[i+1])
		b[i+3] = three(VPUNPCKHQDQ, a[i+3], a[i+1])
	}
	for i := range 4 {
		out[i], out[i+4] = YMM(), YMM()
		VPERM2I128(U8(0x20), b[i+4], b[i], out[i])
		VPERM2I128(U8(0x31), b[i+4], b[i], out[i+4])
	}
	return out
}

// order undoes what packing dwords to bytes does to the halves.
func order() Mem { return dwords(0, 4, 1, 5, 2, 6, 3, 7) }

// bytesOf packs four vectors of dwords to one of bytes.
func bytesOf(v [4]VecVirtual) VecVirtual {
	p, q := three(VPACKSSDW, v[1], v[0]), three(VPACKSSDW, v[3], v[2])
	b := three(VPACKUSWB, q, p)
	fix := YMM()
	VMOVDQU(order(), fix)
	return three(VPERMD, b, fix)
}

func inverseDCT() {
	TEXT("inverseDCT256", NOSPLIT, "func(dst *byte, stride int, coef *int16)")
	Doc("inverseDCT256 transforms a block of 8·8 coefficients.")
	dst, stride, coef := load("dst"), load("stride"), load("coef")
	var x [8]VecVirtual
	for i := range x {
		x[i] = YMM()
		VPMOVSXWD(Mem{Base: coef, Disp: 16 * i}, x[i])
	}
	x = transpose(inverse8(x, 11, 1<<10))
	x = transpose(inverse8(x, 18, 1<<17+128<<18))
	for i := range 2 {
		b := bytesOf([4]VecVirtual(x[4*i : 4*i+4]))
		high := XMM()
		VEXTRACTI128(U8(1), b, high)
		for j, half := range []VecVirtual{b.AsX().(VecVirtual), high} {
			VMOVQ(half, Mem{Base: dst})
			ADDQ(stride, dst)
			VPEXTRQ(U8(1), half, Mem{Base: dst})
			if i+j < 2 {
				ADDQ(stride, dst)
			}
		}
	}
	VZEROUPPER()
	RET()
}

// upsample doubles n samples, a multiple of 16, of one row or between two.
func upsample(name string, two bool) {
	signature := "func(dst *byte, src *byte, n int)"
	doc := name + " doubles n samples, a multiple of 16, of a row."
	if two {
		signature = "func(dst *byte, near *byte, far *byte, n int)"
		doc = name + " doubles n samples, a multiple of 16, of a row that lies between two."
	}
	TEXT(name, NOSPLIT, signature)
	Doc(doc)
	dst := load("dst")
	var near, far Register
	if two {
		near, far = load("near"), load("far")
	} else {
		near = load("src")
	}
	n, i := load("n"), GP64()
	XORQ(i, i)
	bias := [2]Mem{words(1), words(2)}
	shift := uint64(2)
	if two {
		bias, shift = [2]Mem{words(8), words(7)}, 4
	}
	triple := func(v VecVirtual) VecVirtual {
		t := three(VPADDW, v, v)
		VPADDW(v, t, t)
		return t
	}
	at := func(disp int) VecVirtual {
		v := YMM()
		VPMOVZXBW(Mem{Base: near, Index: i, Scale: 1, Disp: disp}, v)
		if !two {
			return v
		}
		v = triple(v)
		w := YMM()
		VPMOVZXBW(Mem{Base: far, Index: i, Scale: 1, Disp: disp}, w)
		VPADDW(w, v, v)
		return v
	}
	Label("loop")
	t := triple(at(1))
	left, right := at(0), at(2)
	VPADDW(t, left, left)
	VPADDW(bias[0], left, left)
	VPSRLW(U8(shift), left, left)
	VPADDW(t, right, right)
	VPADDW(bias[1], right, right)
	VPSRLW(U8(shift), right, right)
	VPSLLW(U8(8), right, right)
	VPOR(right, left, left)
	VMOVDQU(left, Mem{Base: dst, Index: i, Scale: 2})
	ADDQ(U8(16), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func ycbcrToRGB() {
	TEXT("ycbcrToRGB256", NOSPLIT, "func(dst *byte, y *byte, cb *byte, cr *byte, n int)")
	Doc("ycbcrToRGB256 converts n pixels, a multiple of 16.")
	dst, py, pb, pr, n := load("dst"), load("y"), load("cb"), load("cr"), load("n")
	i := GP64()
	XORQ(i, i)
	Label("loop")
	y, u, v := YMM(), YMM(), YMM()
	VPMOVZXBW(Mem{Base: py, Index: i, Scale: 1}, y)
	VPMOVZXBW(Mem{Base: pb, Index: i, Scale: 1}, u)
	VPMOVZXBW(Mem{Base: pr, Index: i, Scale: 1}, v)
	VPSUBW(words(128), u, u)
	VPSUBW(words(128), v, v)
	// scaled is (x·k + 2¹⁵) >> 16: the high half of the product, rounded by the
	// highest bit of the low one.
	scaled := func(x VecVirtual, k int16) VecVirtual {
		low := three(VPMULLW, words(k), x)
		VPSRLW(U8(15), low, low)
		high := three(VPMULHW, words(k), x)
		VPADDW(low, high, high)
		return high
	}
	r := scaled(v, 91881-65536)
	VPADDW(v, r, r)
	VPADDW(y, r, r)
	b := scaled(u, 116130-131072)
	VPADDW(u, b, b)
	VPADDW(u, b, b)
	VPADDW(y, b, b)
	// Green has two products, whose sum is rounded once. 46802 has no place in 16
	// bits; it is 65536 - 18734.
	pair := all(int32(uint32(0x10000-22554) | uint32(65536-46802)<<16))
	low, high := three(VPUNPCKLWD, v, u), three(VPUNPCKHWD, v, u)
	for _, x := range []VecVirtual{low, high} {
		VPMADDWD(pair, x, x)
		VPADDD(all(1<<15), x, x)
		VPSRAD(U8(16), x, x)
	}
	g := three(VPACKSSDW, high, low)
	VPSUBW(v, g, g)
	VPADDW(y, g, g)
	rg, bb := three(VPACKUSWB, g, r), three(VPACKUSWB, b, b)
	// In each half: 8 red and 8 green, and 8 blue, to 16 and 8 bytes.
	var fromRG, fromB [2][16]int
	for k := range 24 {
		for _, to := range []*[2][16]int{&fromRG, &fromB} {
			to[k/16][k%16] = -1
		}
		switch k % 3 {
		case 0:
			fromRG[k/16][k%16] = k / 3
		case 1:
			fromRG[k/16][k%16] = 8 + k/3
		case 2:
			fromB[k/16][k%16] = k / 3
		}
	}
	for k := 8; k < 16; k++ {
		fromRG[1][k], fromB[1][k] = -1, -1
	}
	first := three(VPSHUFB, shuffle(fromRG[0], fromRG[0]), rg)
	other := three(VPSHUFB, shuffle(fromB[0], fromB[0]), bb)
	VPOR(other, first, first)
	rest := three(VPSHUFB, shuffle(fromRG[1], fromRG[1]), rg)
	other = three(VPSHUFB, shuffle(fromB[1], fromB[1]), bb)
	VPOR(other, rest, rest)
	VMOVDQU(first.AsX(), Mem{Base: dst})
	VMOVQ(rest.AsX(), Mem{Base: dst, Disp: 16})
	VEXTRACTI128(U8(1), first, Mem{Base: dst, Disp: 24})
	top := XMM()
	VEXTRACTI128(U8(1), rest, top)
	VMOVQ(top, Mem{Base: dst, Disp: 40})
	ADDQ(U8(48), dst)
	ADDQ(U8(16), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// pixels spreads two pixels of three bytes from byte k on to a dword a channel.
func pixels(k int) Mem {
	var at [2][16]int
	for half := range 2 {
		for i := range 16 {
			at[half][i] = -1
		}
		for c := range 3 {
			at[half][4*c] = k + 3*half + c
		}
	}
	return shuffle(at[0], at[1])
}

func scaleRow() {
	TEXT("scaleRow256", NOSPLIT, "func(dst *byte, src *byte, start *int32, shares *int32, taps int, n int)")
	Doc("scaleRow256 makes n pixels of three channels of taps pixels each, a multiple of 4. It writes one byte, and reads four, more than it needs.")
	dst, src, start, shares, taps, n := load("dst"), load("src"), load("start"), load("shares"), load("taps"), load("n")
	first, second, one, two := YMM(), YMM(), YMM(), YMM()
	VMOVDQU(pixels(0), first)
	VMOVDQU(pixels(6), second)
	VMOVDQU(dwords(0, 0, 0, 0, 1, 1, 1, 1), one)
	VMOVDQU(dwords(2, 2, 2, 2, 3, 3, 3, 3), two)
	round := XMM()
	VMOVDQU(all(1<<21), round)
	Label("pixel")
	p, k := GP64(), GP64()
	MOVLQSX(Mem{Base: start}, p)
	LEAQ(Mem{Base: p, Index: p, Scale: 2}, p)
	ADDQ(src, p)
	sum, sum2 := YMM(), YMM()
	VPXOR(sum, sum, sum)
	VPXOR(sum2, sum2, sum2)
	MOVQ(taps, k)
	Label("taps")
	x, s := YMM(), YMM()
	VBROADCASTI128(Mem{Base: p}, x)
	VMOVDQU(Mem{Base: shares}, s.AsX())
	a, b := three(VPSHUFB, first, x), three(VPSHUFB, second, x)
	sa, sb := three(VPERMD, s, one), three(VPERMD, s, two)
	VPMULLD(sa, a, a)
	VPMULLD(sb, b, b)
	VPADDD(a, sum, sum)
	VPADDD(b, sum2, sum2)
	ADDQ(U8(12), p)
	ADDQ(U8(16), shares)
	SUBQ(U8(4), k)
	JNZ(LabelRef("taps"))
	VPADDD(sum2, sum, sum)
	high := XMM()
	VEXTRACTI128(U8(1), sum, high)
	low := XMM()
	VPADDD(high, sum.AsX(), low)
	VPADDD(round, low, low)
	VPSRAD(U8(22), low, low)
	VPACKSSDW(low, low, low)
	VPACKUSWB(low, low, low)
	VMOVD(low, Mem{Base: dst})
	ADDQ(U8(3), dst)
	ADDQ(U8(4), start)
	DECQ(n)
	JNZ(LabelRef("pixel"))
	VZEROUPPER()
	RET()
}

func scaleColumns() {
	TEXT("scaleColumns256", NOSPLIT, "func(dst *byte, src *byte, stride int, shares *int32, taps int, n int)")
	Doc("scaleColumns256 makes n bytes, a multiple of 32, of taps rows.")
	dst, src, stride, shares, taps, n := load("dst"), load("src"), load("stride"), load("shares"), load("taps"), load("n")
	Label("group")
	var sum [4]VecVirtual
	for i := range sum {
		sum[i] = YMM()
		VMOVDQU(all(1<<21), sum[i])
	}
	p, k := GP64(), GP64()
	MOVQ(src, p)
	XORQ(k, k)
	Label("tap")
	share := YMM()
	VPBROADCASTD(Mem{Base: shares, Index: k, Scale: 4}, share)
	for i := range sum {
		x := YMM()
		VPMOVZXBD(Mem{Base: p, Disp: 8 * i}, x)
		VPMULLD(share, x, x)
		VPADDD(x, sum[i], sum[i])
	}
	ADDQ(stride, p)
	INCQ(k)
	CMPQ(k, taps)
	JLT(LabelRef("tap"))
	for _, s := range sum {
		VPSRAD(U8(22), s, s)
	}
	VMOVDQU(bytesOf(sum), Mem{Base: dst})
	ADDQ(U8(32), dst)
	ADDQ(U8(32), src)
	SUBQ(U8(32), n)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

func bytesToPlanes() {
	TEXT("bytesToPlanes256", NOSPLIT, "func(dst *float32, plane int, src *byte, n int, scale *float32, shift *float32)")
	Doc("bytesToPlanes256 makes n pixels, a multiple of 8, of planes that are plane bytes apart. It reads four bytes more than it needs.")
	dst, plane, src, n, scale, shift := load("dst"), load("plane"), load("src"), load("n"), load("scale"), load("shift")
	var a, b, at [3]VecVirtual
	to := [3]Register{dst, GP64(), GP64()}
	for c := range 3 {
		a[c], b[c], at[c] = YMM(), YMM(), YMM()
		VBROADCASTSS(Mem{Base: scale, Disp: 4 * c}, a[c])
		VBROADCASTSS(Mem{Base: shift, Disp: 4 * c}, b[c])
		var s [16]int
		for i := range s {
			s[i] = -1
		}
		for i := range 4 {
			s[4*i] = 3*i + c
		}
		VMOVDQU(shuffle(s, s), at[c])
		if c > 0 {
			MOVQ(to[c-1], to[c])
			ADDQ(plane, to[c])
		}
	}
	i := GP64()
	XORQ(i, i)
	Label("loop")
	x := YMM()
	VMOVDQU(Mem{Base: src}, x.AsX())
	VINSERTI128(U8(1), Mem{Base: src, Disp: 12}, x, x)
	for c := range 3 {
		v := three(VPSHUFB, at[c], x)
		VCVTDQ2PS(v, v)
		VMULPS(a[c], v, v)
		VADDPS(b[c], v, v)
		VMOVUPS(v, Mem{Base: to[c], Index: i, Scale: 4})
	}
	ADDQ(U8(24), src)
	ADDQ(U8(8), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
