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

// ReduceError says that elements of a type are not reduced.
type ReduceError struct {
	Op    ReduceOp
	DType DType
}

func (e *ReduceError) Error() string {
	text := fmt.Sprintf("no reduction %v for elements of type %v", e.Op, e.DType)
	if e.Op.Valid() && e.DType.Valid() {
		text += ": it can be moved but not reduced; convert the tensor to float32 by To"
	}
	return text
}

// ReducerFor returns the reduction of elements of a type, or a [ReduceError].
func ReducerFor(op ReduceOp, dtype DType) (Reducer, error) {
	if op.Valid() && dtype.Valid() {
		if r := reducers[dtype][op.Kind()]; r != nil {
			return r, nil
		}
	}
	return nil, &ReduceError{op, dtype}
}

var reducers = [numDTypes][numReduceOps]Reducer{
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
