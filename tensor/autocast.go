// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
)

// lowDType returns the dtype that a product of operands is computed in and has:
// under autocast bfloat16, whichever of float32 and bfloat16 the operands are;
// else theirs, which is one.
func lowDType(op string, operands []*Tensor) DType {
	for i, t := range operands {
		if t.dtype != Float32 && t.dtype != BFloat16 {
			fail(op, operands, "wants float32 or bfloat16, %s is %v; convert by To", ordinal(i), t.dtype)
		}
	}
	if tp := tapeOf(op, operands); tp != nil && tp.autocast != 0 {
		return tp.autocast
	}
	for _, t := range operands[1:] {
		if t.dtype != operands[0].dtype {
			fail(op, operands, "the dtypes differ: convert an operand by To, or compute under autocast (nn.WithAutocast, Tape.SetAutocast)")
		}
	}
	return operands[0].dtype
}

// mixed returns t with a dtype that such a kernel takes: float16 as float32. nil
// stays nil.
func (t *Tensor) mixed() *Tensor {
	if t != nil && t.dtype == Float16 {
		return t.To(Float32)
	}
	return t
}

// sumRows returns the sum of the rows of a matrix: the gradient of what was
// added to each. That of bfloat16 is float32: the sum may be long, and what it
// goes to is a parameter.
func (b *backprop) sumRows(g *Tensor) *Tensor {
	if g.dtype != BFloat16 || b.create {
		return g.To(Float32).Sum(0)
	}
	out := result("sum", Float32, g.shape[1:], g)
	fused(device.SumRows{}, out, g.Contiguous())
	return out
}

// inFloat32 computes fn of operands in float32 and rounds the result to the
// first one's dtype, bfloat16 or float16: for operations whose kernels take
// float32 alone.
func inFloat32(fn func(operands []*Tensor) *Tensor, operands ...*Tensor) *Tensor {
	dtype := operands[0].dtype
	wide := make([]*Tensor, len(operands))
	for i, t := range operands {
		if t != nil {
			wide[i] = t.To(Float32)
		}
	}
	return fn(wide).To(dtype)
}
