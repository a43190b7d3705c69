// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

// Transpose writes a matrix of elements of four bytes whose rows lie densely in
// dst, dstRow bytes apart, from one whose columns lie densely in src, srcCol
// bytes apart. The caller answers for the memory, and for calls of no more than
// some ten thousand elements.
func Transpose(dst, src unsafe.Pointer, rows, cols, dstRow, srcCol int) {
	done, whole := 0, cols&^7
	for ; done+8 <= rows && whole > 0; done += 8 {
		transpose8(unsafe.Add(dst, done*dstRow), unsafe.Add(src, 4*done), dstRow, srcCol, whole/8)
	}
	transposeGo(unsafe.Add(dst, 4*whole), unsafe.Add(src, whole*srcCol), done, cols-whole, dstRow, srcCol)
	transposeGo(unsafe.Add(dst, done*dstRow), unsafe.Add(src, 4*done), rows-done, cols, dstRow, srcCol)
}

func transposeGo(dst, src unsafe.Pointer, rows, cols, dstRow, srcCol int) {
	for c := range cols {
		d, s := unsafe.Add(dst, 4*c), unsafe.Add(src, c*srcCol)
		for range rows {
			*(*uint32)(d) = *(*uint32)(s)
			d, s = unsafe.Add(d, dstRow), unsafe.Add(s, 4)
		}
	}
}
