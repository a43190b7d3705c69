// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

import "unsafe"

func transpose8(dst, src unsafe.Pointer, dstRow, srcCol, blocks int) {
	transposeGo(dst, src, 8, 8*blocks, dstRow, srcCol)
}
