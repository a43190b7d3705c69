// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

//go:generate go -C _asm run ./vector -set elements -out ../elements_amd64.s -stubs ../elements_stubs_amd64.go -pkg kernel

// transpose8 is transposeGo of eight rows of 8·blocks columns.
func transpose8(dst, src unsafe.Pointer, dstRow, srcCol, blocks int) {
	if useISA == portable {
		transposeGo(dst, src, 8, 8*blocks, dstRow, srcCol)
		return
	}
	transpose256((*byte)(dst), (*byte)(src), dstRow, srcCol, blocks)
}
