// SPDX-License-Identifier: Apache-2.0

package collective

import "fmt"

// Reducer combines src into dst element by element: dst = dst ∘ src. Both have
// the same number of whole elements, aligned to them. It is commutative bit
// for bit (but for the payload of NaNs), not associative.
type Reducer func(dst, src []byte)

// ReduceError says that a reduction has no meaning for elements of a type.
type ReduceError struct {
	Op    ReduceOp
	DType DType
}

func (e *ReduceError) Error() string {
	text := fmt.Sprintf("no reduction %v for elements of type %v", e.Op, e.DType)
	if !e.Op.Valid() || !e.DType.Valid() {
		return text
	}
	switch e.Op.Kind() {
	case BAnd, BOr, BXor:
		text += ": reductions of bits are of integers and bool"
	case premulSum:
		text += ": factors are of floats; multiply the tensor before a sum"
	case Avg:
		text += ": an average is of numbers; convert the tensor to float32 by To"
	}
	return text
}
