// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"

	"github.com/cohort-ml/cohort/dist/operation"
)

// ReduceError says that a reduction has no meaning for elements of a type. Nothing has
// been sent, and the group stays usable.
type ReduceError struct {
	Op    operation.ReduceOp // the reduction, such as Avg
	DType operation.DType    // the type of the elements; prints as "bool"
}

func (e *ReduceError) Error() string {
	text := fmt.Sprintf("no reduction %v for elements of type %v", e.Op, e.DType)
	if !e.Op.Valid() || !e.DType.Valid() {
		return text
	}
	switch e.Op.Kind() {
	case operation.BAnd, operation.BOr, operation.BXor:
		text += ": reductions of bits are of integers and bool"
	case operation.KindPremulSum:
		text += ": factors are of floats; multiply the tensor before a sum"
	case operation.Avg:
		text += ": an average is of numbers; convert the tensor to float32 by To"
	}
	return text
}
