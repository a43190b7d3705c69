// SPDX-License-Identifier: Apache-2.0

// Command conv writes the assembly of convolutions. Run it by go generate in
// internal/kernel. The Go twins are in conv_gather.go.
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
	gather512(1, false)
	gather512(2, false)
	gather512(1, true)
	gather512(2, true)
	gather256()
	gatherAny512()
	spread512(false)
	spread512(true)
	winogradInput512()
	winogradWeights512()
	winogradOutput512()
	winogradGrad512()
	winogradKernel512()
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

// Layout of the Go structs convTap and convRun, in bytes.
const (
	tapOffset, tapRow, tapCol, tapSize = 0, 8, 16, 24
	runBase, runMask, runSize          = 0, 8, 16
)

// Registers of a gather. Each tap starts with its mask in RCX; the channel loop
// uses RCX as its counter.
var (
	dst         = RDI
	src         = RSI
	plane       = RBX
	channelStep = RDX
	taps        = R8
	numTaps     = R9
	index       = R11
	to          = R12
	table       = R13
	count       = RCX
	pointers    = []GPPhysical{RAX, R10, R14, R15, RSI}
)

func load(name string, r GPPhysical) { Load(Param(name), r) }

// argument is where an argument lies on the stack.
func argument(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	return b.Addr
}

// loadStride loads a distance in elements of size bytes as one in bytes.
func loadStride(name string, r GPPhysical, size int) {
	load(name, r)
	SHLQ(Imm(uint64(size/2)), r)
}

func begin(name, signature, doc string, size int) {
	TEXT(name, 4 /* NOSPLIT */, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
	load("dst", dst)
	loadStride("plane", plane, size)
	loadStride("channelStep", channelStep, size)
	load("taps", taps)
	load("numTaps", numTaps)
}

// tapMask loads which lanes the tap of this round reads into RCX, and the
// address of lane 0 but for a run's base into src.
func tapMask() {
	load("rowMasks", table)
	MOVQ(Mem{Base: taps, Disp: tapRow}, index)
	MOVWLZX(Mem{Base: table, Index: index, Scale: 2}, ECX)
	load("colMasks", table)
	MOVQ(Mem{Base: taps, Disp: tapCol}, index)
	MOVWLZX(Mem{Base: table, Index: index, Scale: 2}, R11L)
	ANDL(R11L, ECX)
	load("src", src)
	ADDQ(Mem{Base: taps, Disp: tapOffset}, src)
}

// nextTap goes on with the next tap at label, or returns.
func nextTap(label string, size uint8) {
	MOVQ(argument("tapStep"), table)
	LEAQ(Mem{Base: dst, Index: table, Scale: size}, dst)
	ADDQ(Imm(tapSize), taps)
	DECQ(numTaps)
	JNZ(LabelRef(label))
	VZEROUPPER()
	RET()
}

// channels runs body for every channel; it leaves its lanes in Z0.
func channels(label string, body func()) {
	eachChannel(label, func() {
		body()
		VMOVUPS(Z0, Mem{Base: to})
	})
}

func eachChannel(label string, body func()) {
	load("count", count)
	MOVQ(dst, to)
	XORQ(index, index)
	Label(label)
	body()
	ADDQ(channelStep, to)
	ADDQ(plane, index)
	DECQ(count)
	JNZ(LabelRef(label))
}

var (
	zmm   = []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7}
	masks = []OpmaskPhysical{nil, K1, K2, K3, K4, K5, K6, K7}
)

const (
	gatherSignature       = "func(dst *float32, tapStep, channelStep int, src *float32, plane, count int, taps *int, numTaps int, runs *int, numRuns int, rowMasks, colMasks *uint16)"
	gatherHalvesSignature = "func(dst *uint16, tapStep, channelStep int, src *uint16, plane, count int, taps *int, numTaps int, runs *int, numRuns int, rowMasks, colMasks *uint16)"
)

// gather512 reads lanes that lie stride elements apart, 1 or 2, in up to three,
// four or, of halves, five runs. A run is loaded at the address that puts its
// elements into their lanes; masks keep the rest, and what lies outside of the
// image, from being touched.
func gather512(stride int, halves bool) {
	most, size, name, signature, of := 4, 4, "convGather%dx512", gatherSignature, "elements"
	if stride == 2 {
		most = 3
	}
	if halves {
		most, size, name, signature, of = 5, 2, "convGatherHalves%dx512", gatherHalvesSignature, "elements of sixteen bits"
	}
	begin(fmt.Sprintf(name, stride), signature, fmt.Sprintf("gathers 16 lanes in at most %d runs of %s %d apart.", most, of, stride), size)
	if stride == 2 && !halves {
		VMOVDQU32(evens(), Z7)
	}
	load("numRuns", table)
	for n := most; n > 1; n-- {
		CMPQ(table, Imm(uint64(n)))
		JEQ(LabelRef(fmt.Sprint("runs", n)))
	}
	for n := 1; n <= most; n++ {
		Label(fmt.Sprint("runs", n))
		tapMask()
		load("runs", table)
		for i := range n {
			MOVL(Mem{Base: table, Disp: runSize*i + runMask}, R11L)
			ANDL(ECX, R11L)
			switch {
			case stride == 1:
				KMOVW(R11L, masks[1+i])
			case halves:
				MOVL(U32(0x55555555), R12L)
				PDEPL(R12L, R11L, R11L)
				KMOVD(R11L, masks[1+i])
			default:
				MOVL(U32(0x55555555), R12L)
				PDEPL(R12L, R11L, R11L)
				KMOVW(R11L, masks[1+2*i])
				SHRL(Imm(16), R11L)
				KMOVW(R11L, masks[2+2*i])
			}
			if i < len(pointers)-1 {
				MOVQ(Mem{Base: table, Disp: runSize*i + runBase}, pointers[i])
				ADDQ(src, pointers[i])
			} else {
				ADDQ(Mem{Base: table, Disp: runSize*i + runBase}, src)
			}
		}
		eachChannel(fmt.Sprint("channel", n), func() {
			for i := range n {
				from := Mem{Base: pointers[i], Index: index, Scale: 1}
				switch {
				case halves:
					v := VecPhysical(Z0)
					if stride == 1 {
						v = Y0
					}
					if i == 0 {
						VMOVDQU16_Z(from, masks[1], v)
					} else {
						VMOVDQU16(from, masks[1+i], v)
					}
				case stride == 1:
					if i == 0 {
						VMOVUPS_Z(from, masks[1], Z0)
					} else {
						VMOVUPS(from, masks[1+i], Z0)
					}
				default:
					x, y := zmm[2*i], zmm[2*i+1]
					VMOVUPS_Z(from, masks[1+2*i], x)
					from.Disp = 64
					VMOVUPS_Z(from, masks[2+2*i], y)
					VPERMT2PS(y, Z7, x)
					if i > 0 {
						VORPS(x, Z0, Z0)
					}
				}
			}
			switch {
			case !halves:
				VMOVUPS(Z0, Mem{Base: to})
			case stride == 1:
				VMOVDQU16(Y0, Mem{Base: to})
			default:
				VPMOVDW(Z0, Mem{Base: to})
			}
		})
		nextTap(fmt.Sprint("runs", n), uint8(size))
	}
}

// gather256 is gather512 for neighbouring elements: two registers, of which
// masked loads leave 0 what is not in a run.
func gather256() {
	const most = 4
	begin("convGather1x256", gatherSignature, "gathers 16 lanes in at most 4 runs of neighbouring elements.", 4)
	bits := GLOBL("convBits", 8|16 /* RODATA|NOPTR */)
	for i := range 16 {
		DATA(4*i, U32(1<<i))
	}
	ymm := []VecPhysical{Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9}
	VMOVDQU(bits, Y14)
	VMOVDQU(bits.Offset(32), Y15)
	load("numRuns", table)
	for n := most; n > 1; n-- {
		CMPQ(table, Imm(uint64(n)))
		JEQ(LabelRef(fmt.Sprint("runs", n)))
	}
	for n := 1; n <= most; n++ {
		Label(fmt.Sprint("runs", n))
		tapMask()
		load("runs", table)
		for i := range n {
			MOVL(Mem{Base: table, Disp: runSize*i + runMask}, R11L)
			ANDL(ECX, R11L)
			VMOVD(R11L, X0)
			VPBROADCASTD(X0, Y0)
			for half, b := range []VecPhysical{Y14, Y15} {
				VPAND(b, Y0, ymm[2*i+half])
				VPCMPEQD(b, ymm[2*i+half], ymm[2*i+half])
			}
			MOVQ(Mem{Base: table, Disp: runSize*i + runBase}, pointers[i])
			ADDQ(src, pointers[i])
		}
		eachChannel(fmt.Sprint("channel", n), func() {
			for half := range 2 {
				x, y := []VecPhysical{Y0, Y1}[half], []VecPhysical{Y10, Y11}[half]
				for i := range n {
					from := Mem{Base: pointers[i], Index: index, Scale: 1, Disp: 32 * half}
					if i == 0 {
						VMASKMOVPS(from, ymm[half], x)
					} else {
						VMASKMOVPS(from, ymm[2*i+half], y)
						VORPS(y, x, x)
					}
				}
				VMOVUPS(x, Mem{Base: to, Disp: 32 * half})
			}
		})
		nextTap(fmt.Sprint("runs", n), 4)
	}
}

// evens is the numbers 0, 2, … 30.
func evens() Mem {
	m := GLOBL("convEvens", 8|16 /* RODATA|NOPTR */)
	for i := range 16 {
		DATA(4*i, U32(2*i))
	}
	return m
}

// gatherAny512 reads each lane where a table says.
func gatherAny512() {
	begin("convGatherAny512", "func(dst *float32, tapStep, channelStep int, src *float32, plane, count int, taps *int, numTaps int, lanes *int32, rowMasks, colMasks *uint16)",
		"gathers 16 lanes, each at its distance in elements from src.", 4)
	load("lanes", RAX)
	VMOVDQU32(Mem{Base: RAX}, Z6)
	Label("tap")
	tapMask()
	KMOVW(ECX, K1)
	channels("channel", func() {
		VPXORD(Z0, Z0, Z0)
		KMOVW(K1, K2)
		LEAQ(Mem{Base: src, Index: index, Scale: 1}, RAX)
		VGATHERDPS(Mem{Base: RAX, Index: Z6, Scale: 4}, K2, Z0)
	})
	nextTap("tap", 4)
}

// spread512 stores rows of up to 16 elements to every other element of dst.
func spread512(halves bool) {
	name, of, size := "convSpread2x512", "float32", 4
	if halves {
		name, of, size = "convSpreadHalves2x512", "uint16", 2
	}
	TEXT(name, 4 /* NOSPLIT */, fmt.Sprintf("func(dst *%s, dstStep int, src *%[1]s, srcStep, rows, n int)", of))
	Pragma("noescape")
	Doc(name + " copies rows of n ≤ 16 elements to places 2 apart.")
	load("dst", RDI)
	loadStride("dstStep", RDX, size)
	load("src", RSI)
	loadStride("srcStep", RBX, size)
	load("rows", RCX)
	load("n", R8)
	MOVQ(I32(-1), RAX)
	BZHIQ(R8, RAX, RAX)
	KMOVW(EAX, K1)
	MOVL(U32(0x55555555), R9L)
	PDEPL(R9L, EAX, EAX)
	if halves {
		KMOVD(EAX, K2)
		spreadRows("row", func() {
			VPMOVZXWD_Z(Mem{Base: RSI}, K1, Z0)
			VMOVDQU16(Z0, K2, Mem{Base: RDI})
		})
		return
	}
	KMOVW(EAX, K2)
	SHRL(Imm(16), EAX)
	KMOVW(EAX, K3)
	twice := GLOBL("convTwice", 8|16 /* RODATA|NOPTR */)
	for i := range 32 {
		DATA(4*i, U32(i/2))
	}
	VMOVDQU32(twice, Z6)
	VMOVDQU32(twice.Offset(64), Z7)
	CMPQ(R8, Imm(8))
	JLE(LabelRef("narrow"))
	for _, name := range []string{"wide", "narrow"} {
		spreadRows(name, func() {
			VMOVUPS_Z(Mem{Base: RSI}, K1, Z0)
			VPERMPS(Z0, Z6, Z1)
			VMOVUPS(Z1, K2, Mem{Base: RDI})
			if name == "wide" {
				VPERMPS(Z0, Z7, Z2)
				VMOVUPS(Z2, K3, Mem{Base: RDI, Disp: 64})
			}
		})
	}
}

// spreadRows runs body for every row and returns.
func spreadRows(label string, body func()) {
	Label(label)
	body()
	ADDQ(RBX, RSI)
	ADDQ(RDX, RDI)
	DECQ(RCX)
	JNZ(LabelRef(label))
	VZEROUPPER()
	RET()
}
