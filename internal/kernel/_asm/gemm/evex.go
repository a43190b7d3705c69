// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The instructions of AVX512_BF16 are known neither to avo nor to Go's
// assembler: they are written as bytes. Encoding: Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 2, section 2.7.

// Prefixes of an opcode, as EVEX numbers them.
const (
	prefixF3 = 2
	prefixF2 = 3
)

// vdpbf16ps adds to every float of z the products of the two bfloat16 of x and
// of y in its place. Operands are in the assembler's order.
func vdpbf16ps(y, x, z VecPhysical) { raw(encode(prefixF3, 0x52, y, x, z)) }

// vcvtne2ps2bf16 rounds 16 floats of lo to the lower half of z, and of hi to the
// upper one.
func vcvtne2ps2bf16(lo, hi, z VecPhysical) { raw(encode(prefixF2, 0x72, lo, hi, z)) }

// encode returns an instruction of opcode map 0F38 on three registers of 512
// bits, without a mask: last is the operand of ModRM.rm, middle of vvvv, and dst
// of ModRM.reg.
func encode(prefix, opcode byte, last, middle, dst VecPhysical) [6]byte {
	l, m, d := byte(last.PhysicalIndex()), byte(middle.PhysicalIndex()), byte(dst.PhysicalIndex())
	bit := func(x, n byte) byte { return ^x >> n & 1 } // EVEX holds register bits inverted
	return [6]byte{
		0x62,
		bit(d, 3)<<7 | bit(l, 4)<<6 | bit(l, 3)<<5 | bit(d, 4)<<4 | 2,
		(^m&15)<<3 | 1<<2 | prefix,
		2<<5 | bit(m, 4)<<3, // 512 bits
		opcode,
		3<<6 | d&7<<3 | l&7,
	}
}

func raw(b [6]byte) {
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(binary.LittleEndian.Uint32(b[:]))}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []Op{U16(binary.LittleEndian.Uint16(b[4:]))}})
}
