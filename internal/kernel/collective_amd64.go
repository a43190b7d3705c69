// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./vector -set collective -out ../collective_amd64.s -stubs ../collective_stubs_amd64.go -pkg kernel

// mergeMean is MergeSum with a division, for the assembly.
const mergeMean = numMergings

// mergeUnit is what the assembly merges a whole number of, in bytes: a register,
// or two with AVX2.
const mergeUnit = 64

// vectorMerges tells which mergings of a type the assembly has, a bit each.
var vectorMerges = [numElems]uint{
	ElemFloat32:  1<<MergeSum | 1<<MergeProduct | 1<<MergeMin | 1<<MergeMax | 1<<mergeMean,
	ElemFloat64:  1<<MergeSum | 1<<mergeMean,
	ElemBFloat16: 1<<MergeSum | 1<<MergeProduct | 1<<MergeMin | 1<<MergeMax | 1<<mergeMean,
	ElemFloat16:  1<<MergeSum | 1<<MergeProduct | 1<<MergeMin | 1<<MergeMax | 1<<mergeMean,
	ElemInt64:    1 << MergeSum,
	ElemInt32:    1<<MergeSum | 1<<MergeMin | 1<<MergeMax,
	ElemInt8:     1<<MergeSum | 1<<MergeMin | 1<<MergeMax,
	ElemUint8:    1<<MergeSum | 1<<MergeMin | 1<<MergeMax,
}

// mergeVectors merges the beginning of the bytes [lo, hi) and returns where it
// stopped. With past it writes past the caches; then lo is where the only
// destination is aligned to a line.
func mergeVectors(e Elem, m Merging, dsts, srcs [][]byte, lo, hi, divisor int, past bool) int {
	n := (hi - lo) &^ (mergeUnit - 1)
	if n == 0 || useISA < avx2 || e == ElemFloat16 && !hasF16C {
		return lo
	}
	hi = lo + n
	if m >= MergeAnd {
		if useISA == avx512 {
			mergeBits512(int(m), dsts, srcs, lo, hi, 1, past)
		} else {
			mergeBits256(int(m), dsts, srcs, lo, hi, 1, past)
		}
		return hi
	}
	if divisor != 1 {
		m = mergeMean
	}
	if vectorMerges[e]>>m&1 == 0 {
		return lo
	}
	if useISA == avx512 {
		merge512(e, int(m), dsts, srcs, lo, hi, float32(divisor), past)
	} else {
		merge256(e, int(m), dsts, srcs, lo, hi, float32(divisor), past)
	}
	return hi
}

// The calls are direct, so that slices of slices need not be on the heap.

func merge512(e Elem, m int, dsts, srcs [][]byte, lo, hi int, divisor float32, past bool) {
	switch e {
	case ElemFloat32:
		mergeFloat32512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemFloat64:
		mergeFloat64512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemBFloat16:
		mergeBFloat16512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemFloat16:
		mergeFloat16512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt64:
		mergeInt64512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt32:
		mergeInt32512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt8:
		mergeInt8512(m, dsts, srcs, lo, hi, divisor, past)
	case ElemUint8:
		mergeUint8512(m, dsts, srcs, lo, hi, divisor, past)
	}
}

func merge256(e Elem, m int, dsts, srcs [][]byte, lo, hi int, divisor float32, past bool) {
	switch e {
	case ElemFloat32:
		mergeFloat32256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemFloat64:
		mergeFloat64256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemBFloat16:
		mergeBFloat16256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemFloat16:
		mergeFloat16256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt64:
		mergeInt64256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt32:
		mergeInt32256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemInt8:
		mergeInt8256(m, dsts, srcs, lo, hi, divisor, past)
	case ElemUint8:
		mergeUint8256(m, dsts, srcs, lo, hi, divisor, past)
	}
}
