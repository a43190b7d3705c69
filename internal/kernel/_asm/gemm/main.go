// SPDX-License-Identifier: Apache-2.0

// Command gemm writes the assembly of matrix products and attention, and with
// -part bf16 that of bfloat16: conversions and products. Run it by go generate in
// internal/kernel.
//
// Every routine exists for AVX-512 (suffix 512) and for AVX2 with FMA (suffix
// 256), with the same arguments; the Go twins are in gemm_portable.go and
// convert_portable.go. Products of bfloat16 (suffix BF16) are for AVX512_BF16
// alone: elsewhere the tiles of float32 multiply rounded elements.
package main

import (
	"bytes"
	"flag"
	"log"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	part := flag.String("part", "gemm", "`routines` to write: gemm or bf16")
	flag.Parse()
	switch *part {
	case "gemm":
		tile512("gemmTile512", "computes a tile of rows ≤ 12 by cols ≤ 32.", false)
		tiles512()
		tile256()
		packRows512()
		packRows256()
		packTransposed512()
		packTransposed256()
		addRows(simd512, "addRows512", "adds to cols sums the rows of B, one after the other, row r times x[r].", 4)
		addRows(simd256, "addRows256", "adds to cols sums the rows of B, one after the other, row r times x[r].", 4)
		dotVector(simd512, "dotVector512", "sets 4 sums to the dot products of rows ≤ 4 rows of k elements and x.", fma, 4)
		dotVector(simd256, "dotVector256", "sets 4 sums to the dot products of rows ≤ 4 rows of k elements and x.", fma, 4)
		softmaxRows512()
		softmaxRows256()
		gradientRows512()
		gradientRows256()
		dotRows512()
		dotRows256()
		scaleRows512()
		scaleRows256()
	case "bf16":
		tile512("gemmTileBF16", "is gemmTile512 with pairs of bfloat16 as elements of A and B; C is float32 or, if half is not 0 and beta is, bfloat16.", true)
		addRows(simd512, "addRowsBF16", "is addRows512 with B of bfloat16.", 2)
		dotVector(simd512, "dotVectorBF16", "is dotVector512 with rows of bfloat16 and pairs as elements of x.", vdpbf16ps, 2)
		packPairsBF16(packFloats)
		packPairsBF16(packHalves)
		packTransposedBF16(packFloats)
		packTransposedBF16(packHalves)
		conversions()
	default:
		log.Fatalf("no part %q", *part)
	}
	Generate()
	for _, name := range []string{"out", "stubs"} {
		addLicence(flag.Lookup(name).Value.String())
	}
}

func fma(y, x, z VecPhysical) { VFMADD231PS(y, x, z) }

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

var (
	zmm = []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
		Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31}
	ymm = []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15}
)

// begin opens a routine; pointers in its arguments do not escape.
func begin(name, signature, doc string) {
	TEXT(name, 4 /* NOSPLIT */, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
}

func load(name string, r Register) Register { return Load(Param(name), r) }

// argument is where an argument lies on the stack.
func argument(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	return b.Addr
}

// loadStride loads a distance in elements as one in bytes.
func loadStride(name string, r GPPhysical) {
	load(name, r)
	SHLQ(Imm(2), r)
}

func end() {
	VZEROUPPER()
	RET()
}

// maskTable is 16 words of ones, then 16 of zeros: the mask of the first n of
// 8 or 16 floats starts 16-n words into it.
func maskTable() Mem {
	if haveMasks {
		return masks
	}
	haveMasks = true
	masks = GLOBL("gemmMasks", 8|16 /* RODATA|NOPTR */)
	for i := range 16 {
		DATA(4*i, U32(0xffffffff))
	}
	for i := range 16 {
		DATA(64+4*i, U32(0))
	}
	return masks
}

var (
	masks     Mem
	haveMasks bool
)

// firstMask sets k to ones in the first n positions, n in [0, 64); it changes
// tmp.
func firstMask(n, tmp GPPhysical, k OpmaskPhysical) {
	MOVQ(I32(-1), tmp)
	BZHIQ(n, tmp, tmp)
	KMOVW(tmp.As32(), k)
}
