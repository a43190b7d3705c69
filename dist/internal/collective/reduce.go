// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
)

// Reducer combines src into dst element by element: dst = dst ∘ src. Both have
// the same number of whole elements, aligned to them. It is commutative bit
// for bit (but for the payload of NaNs), not associative.
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
		Sum:     over(kernel.AddTo),
		Product: over(kernel.MulTo),
		Min:     over(kernel.MinTo),
		Max:     over(kernel.MaxTo),
	},
	Int64: {
		Sum:     over(kernel.AddInt64To),
		Product: over(kernel.MulInt64To),
		Min:     over(kernel.MinInt64To),
		Max:     over(kernel.MaxInt64To),
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
