// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"unsafe"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/half"
)

// reduction is the arithmetic of PyTorch's Gloo ranks: contributions are reduced two
// at a time as they come round, the own one first.
//
//   - Elements of 16 bits are computed in float32 and rounded each time.
//   - Min and max compare by <, so a NaN that comes second is passed over, and zeros
//     of both signs are equal: which of the two remains depends on their order.
//   - Bools are bytes that are added, multiplied and compared as such; finish makes
//     them 0 and 1 again.
//   - An average is the sum, divided here when it is complete.
type reduction struct {
	into collective.Reducer // dst = dst ∘ src, dst being the own
	// finish makes the result of what has gone round; nil where that is it.
	finish func(data []byte)
}

// reductionFor returns the reduction of elements of a type over so many ranks, or a
// [fault.ReduceError].
func reductionFor(op operation.ReduceOp, d operation.DType, numRanks int) (reduction, error) {
	of, err := collective.ReductionFor(op, d, numRanks)
	if err != nil {
		return reduction{}, err
	}
	if of.NeedsPrepare() {
		return reduction{}, &fault.ReduceError{Op: op, DType: d}
	}
	r := reduction{into: of.Into}
	if of.NeedsFinish() {
		r.finish = of.Finish
	}
	if d == operation.Bool {
		if of, err = collective.ReductionFor(op, operation.Uint8, numRanks); err != nil {
			return reduction{}, err
		}
		r = reduction{into: of.Into, finish: toBool}
	}
	if f := compared(op, d); f != nil {
		r.into = f
	}
	return r, nil
}

// toBool makes bytes 0 and 1.
func toBool(data []byte) {
	for i, b := range data {
		if b != 0 {
			data[i] = 1
		}
	}
}

// compared returns the minimum or maximum of floats, nil for other reductions: those
// of integers have nothing to say about order.
func compared(op operation.ReduceOp, d operation.DType) collective.Reducer {
	minimum := op == operation.Min
	if !minimum && op != operation.Max {
		return nil
	}
	switch d {
	case operation.Float32:
		return comparing[float32](minimum)
	case operation.Float64:
		return comparing[float64](minimum)
	case operation.Float16:
		return comparing16(minimum, half.FromFloat16)
	case operation.BFloat16:
		return comparing16(minimum, half.FromBFloat16)
	}
	return nil
}

func comparing[E float32 | float64](minimum bool) collective.Reducer {
	if minimum {
		return func(dst, src []byte) {
			d, s := elements[E](dst), elements[E](src)
			for i, x := range s[:len(d)] {
				if x < d[i] {
					d[i] = x
				}
			}
		}
	}
	return func(dst, src []byte) {
		d, s := elements[E](dst), elements[E](src)
		for i, x := range s[:len(d)] {
			if d[i] < x {
				d[i] = x
			}
		}
	}
}

func comparing16(minimum bool, float func(uint16) float32) collective.Reducer {
	return func(dst, src []byte) {
		d, s := elements[uint16](dst), elements[uint16](src)
		for i, x := range s[:len(d)] {
			a, b := float(d[i]), float(x)
			if minimum && b < a || !minimum && a < b {
				d[i] = x
			}
		}
	}
}

// elements returns bytes, aligned to them, as elements.
func elements[E any](b []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}
