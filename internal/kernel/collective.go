// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

// The reductions of collectives run on the goroutine that communicates, not on
// the pool. They take bytes, as they come from other ranks and go to them:
// whole elements, aligned to their size.

// Elem is the type of the elements that are merged.
type Elem uint8

// The element types.
const (
	ElemFloat32 Elem = iota
	ElemFloat64
	ElemBFloat16
	ElemFloat16
	ElemInt64
	ElemInt32
	ElemInt8
	ElemUint8
	numElems
)

var elemSizes = [numElems]int{4, 8, 2, 2, 8, 4, 1, 1}

// Merging is how elements of several sources become one.
type Merging uint8

// The ways of merging. The last three work on bits, of elements of any type.
const (
	MergeSum Merging = iota
	MergeProduct
	MergeMin
	MergeMax
	MergeAnd
	MergeOr
	MergeXor
	numMergings
)

// mergeCallBytes bounds what one call of assembly reads and writes: 0.2 ms from
// memory.
const mergeCallBytes = 1 << 20

// mergeLineBytes is where writing past the caches begins.
const mergeLineBytes = 64

// Merge merges the elements of all sources in their order, element by element,
// and writes the results to all destinations, in one pass: it reads each source
// once and writes each destination once. Sums are divided by divisor, which is 1
// for all but sums.
//
// Elements of 16 bits are merged in float32 and rounded once. Integers wrap
// around on overflow; their quotients are cut off towards zero. Minimum and
// maximum are NaN if one of the elements is, and take -0 for less than +0, so
// that the first two sources may change places without a change in the result
// (but for the bits of a NaN).
//
// All slices are as long as the first destination. A destination may be one of
// the sources; other overlaps are not allowed. There is at least one source.
//
// With past, a single destination that is no source is written past the caches:
// for results of which nothing will be left there when somebody reads them.
func Merge(e Elem, m Merging, dsts, srcs [][]byte, divisor int, past bool) {
	n := len(dsts[0])
	for _, d := range dsts {
		_ = d[:n]
	}
	for _, s := range srcs {
		_ = s[:n]
	}
	if n == 0 {
		return
	}
	lo := 0
	past = past && len(dsts) == 1 && !isOneOf(dsts[0], srcs)
	if past {
		// A line that is written whole need not be read first. The start is done
		// apart, up to where a line begins.
		lo = min(n, int(-uintptr(unsafe.Pointer(unsafe.SliceData(dsts[0])))%mergeLineBytes))
		mergeGo(e, m, dsts, srcs, 0, lo, divisor)
	}
	step := max(mergeCallBytes/(len(dsts)+len(srcs))&^(mergeBlockBytes-1), mergeBlockBytes)
	for ; lo < n; lo += step {
		hi := min(lo+step, n)
		if at := mergeVectors(e, m, dsts, srcs, lo, hi, divisor, past); at < hi {
			mergeGo(e, m, dsts, srcs, at, hi, divisor)
		}
	}
}

// Premultiply computes dst = factor·src of floats, rounded once; others are an
// error of the caller. dst may be src.
func Premultiply(e Elem, dst, src []byte, factor float32) {
	src = src[:len(dst)]
	switch e {
	case ElemFloat32:
		mul, d, s := vec().mulScalar, elemsOf[float32](dst), elemsOf[float32](src)
		inRuns(0, len(d), callElems, func(lo, hi int) { mul(d[lo:hi], s[lo:hi], factor) })
	case ElemFloat64:
		d := elemsOf[float64](dst)
		for i, x := range elemsOf[float64](src)[:len(d)] {
			d[i] = x * float64(factor)
		}
	case ElemBFloat16, ElemFloat16:
		premultiplyHalves(e, elemsOf[uint16](dst), elemsOf[uint16](src), factor)
	default:
		panic("kernel: Premultiply of integers")
	}
}

func premultiplyHalves(e Elem, dst, src []uint16, factor float32) {
	var room [512]float32
	for len(dst) > 0 {
		n := min(len(dst), len(room))
		x := room[:n]
		if e == ElemBFloat16 {
			fromBF16(x, src[:n])
		} else {
			fromF16(x, src[:n])
		}
		for i := range x {
			x[i] *= factor
		}
		if e == ElemBFloat16 {
			toBF16(dst[:n], x)
		} else {
			toF16(dst[:n], x)
		}
		dst, src = dst[n:], src[n:]
	}
}

// elemsOf returns the elements that bytes hold.
func elemsOf[T any](b []byte) []T {
	var e T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}
