// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"fmt"
	"unsafe"
)

// Reducer combines src into dst element by element: dst = dst ∘ src. Both have
// the same number of whole elements and are aligned to them. It is commutative
// bit for bit (but for the payload of NaNs), not associative.
type Reducer func(dst, src []byte)

// ReducerFor returns the reduction of elements of a type.
func ReducerFor(op ReduceOp, dtype DType) (Reducer, error) {
	if op.Valid() && dtype.Valid() {
		if r := reducers[dtype][op]; r != nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("no reduction %v for elements of type %v", op, dtype)
}

var reducers = [...][numReduceOps]Reducer{
	Float32: {
		Sum:     over(func(dst, src []float32) { add(dst, src) }),
		Product: over(func(dst, src []float32) { mul(dst, src) }),
		Min:     over(func(dst, src []float32) { least(dst, src) }),
		Max:     over(func(dst, src []float32) { most(dst, src) }),
	},
	Int64: {
		Sum:     over(func(dst, src []int64) { add(dst, src) }),
		Product: over(func(dst, src []int64) { mul(dst, src) }),
		Min:     over(func(dst, src []int64) { least(dst, src) }),
		Max:     over(func(dst, src []int64) { most(dst, src) }),
	},
}

// over makes a reduction of elements one of bytes.
func over[E float32 | int64](f func(dst, src []E)) Reducer {
	return func(dst, src []byte) { f(elems[E](dst), elems[E](src)) }
}

func elems[E float32 | int64](b []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}

func add[E float32 | int64](dst, src []E) {
	for i, v := range src {
		dst[i] += v
	}
}
func mul[E float32 | int64](dst, src []E) {
	for i, v := range src {
		dst[i] *= v
	}
}
func least[E float32 | int64](dst, src []E) {
	for i, v := range src {
		dst[i] = min(dst[i], v)
	}
}
func most[E float32 | int64](dst, src []E) {
	for i, v := range src {
		dst[i] = max(dst[i], v)
	}
}
