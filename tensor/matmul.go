// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// MatMul returns the matrix product over the last two dims, [batch…, m, k] ·
// [batch…, k, n] = [batch…, m, n]; batch dims are broadcast. Both operands are
// float32 or both bfloat16; under autocast either may be either, and the result
// is bfloat16.
func (t *Tensor) MatMul(u *Tensor) *Tensor {
	present("matmul", t, u)
	both := []*Tensor{t, u}
	out := matMul("matmul", lowDType("matmul", both), t, u)
	return out.record("matmul", both, both, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, b.multiply(g, u.T(), t).sumTo(t.shape))
		}
		if b.needs(1) {
			product := func(b *backprop, to int) { b.giveTo(to, b.multiply(t.T(), g, u).sumTo(u.shape)) }
			if b.again { // whose sums are added as a whole
				product(b, b.tape.nodes[b.node].inputs[1])
			} else {
				b.later(1, []*Tensor{t, g}, product)
			}
		}
	})
}

// multiply returns t·u, a gradient of like. Where the operation computed in
// bfloat16 the gradient of a float32 operand, and one that is summed up yet, is
// written in float32 at once.
func (b *backprop) multiply(t, u, like *Tensor) *Tensor {
	if b.create {
		return t.MatMul(u)
	}
	dtype := like.dtype
	batch, _ := broadcastShapes(t.shape[:len(t.shape)-2], u.shape[:len(u.shape)-2])
	if !slices.Equal(like.shape[:len(like.shape)-2], batch) {
		dtype = Float32
	}
	return matMul("matmul", dtype, t, u)
}

// matMul computes a product into dtype. It is one of bfloat16 when that or an
// operand is.
func matMul(op string, dtype DType, t, u *Tensor) *Tensor {
	operands := []*Tensor{t, u}
	if len(t.shape) < 2 || len(u.shape) < 2 {
		fail(op, operands, "wants matrices: at least two dims each")
	}
	tn, un := len(t.shape)-2, len(u.shape)-2
	if t.shape[tn+1] != u.shape[un] {
		fail(op, operands, "the inner dims differ: %d columns, %d rows", t.shape[tn+1], u.shape[un])
	}
	batch, ok := broadcastShapes(t.shape[:tn], u.shape[:un])
	if !ok {
		fail(op, operands, "the batch dims cannot be broadcast together")
	}
	out := result(op, dtype, slices.Concat(batch, []int{t.shape[tn], u.shape[un+1]}), operands...)
	a, b := t.matrices(batch), u.matrices(batch)
	out.Device().MatMul(out.array(), a, b, device.Array{}, 0)
	return out
}

// matrices returns t as an operand of MatMul with its batch dims repeated to
// batch.
func (t *Tensor) matrices(batch []int) device.Array {
	a := t.array()
	n := len(t.shape) - 2
	if !slices.Equal(t.shape[:n], batch) {
		shape := slices.Concat(batch, t.shape[n:])
		a.Strides = t.expandedStrides(shape)
		a.Shape = shape
	}
	return a
}

// Linear returns x·wᵀ + bias for a weight [out, in], PyTorch's layout: x
// [batch…, in] gives [batch…, out]. bias [out] may be nil. Its dtypes are those
// of [Tensor.MatMul]; the bias may be float32 always.
func Linear(x, weight, bias *Tensor) *Tensor { return affine("linear", x, weight, bias, true) }

// Affine returns x·w + bias for a weight [in, out], the layout of GPT-2's
// projections. bias [out] may be nil.
func Affine(x, weight, bias *Tensor) *Tensor { return affine("affine", x, weight, bias, false) }

func affine(op string, x, weight, bias *Tensor, outFirst bool) *Tensor {
	present(op, x, weight)
	operands := []*Tensor{x, weight, bias}
	dtype := lowDType(op, operands[:2])
	if len(weight.shape) != 2 || len(x.shape) < 1 {
		fail(op, operands, "wants an input of at least one dim and a weight of two")
	}
	w := weight
	if outFirst {
		w = weight.detach().T()
		w.tape = weight.tape
	}
	in, out := w.shape[0], w.shape[1]
	if x.shape[len(x.shape)-1] != in {
		fail(op, operands, "the input has %d features, the weight takes %d", x.shape[len(x.shape)-1], in)
	}
	if bias != nil && !slices.Equal(bias.shape, []int{out}) {
		fail(op, operands, "the bias must have shape [%d]", out)
	}
	if bias != nil && bias.dtype != Float32 && bias.dtype != dtype {
		fail(op, operands, "wants float32 for the bias, or the dtype of the result, %v", dtype)
	}
	flat := x.rows(in)
	y := result(op, dtype, []int{flat.shape[0], out}, operands...)
	var biasArray device.Array
	if bias != nil {
		bias = bias.To(Float32).Contiguous()
		biasArray = bias.array()
	}
	y.Device().MatMul(y.array(), flat.array(), w.array(), biasArray, 0)
	y = y.record(op, []*Tensor{flat, weight, bias}, []*Tensor{flat, weight}, func(b *backprop, g *Tensor) {
		g = g.Contiguous()
		if b.needs(0) {
			if outFirst {
				b.give(0, b.multiply(g, weight, flat))
			} else {
				b.give(0, b.multiply(g, weight.T(), flat))
			}
		}
		if b.needs(1) {
			left, right := flat, g
			if outFirst {
				left, right = g, flat
			}
			b.later(1, []*Tensor{flat, g}, func(b *backprop, to int) {
				if dst, beta, ok := b.directTo(to); ok {
					dst.Device().MatMul(dst.array(), left.detach().T().array(), right.array(), device.Array{}, beta)
				} else {
					b.giveTo(to, b.multiply(left.T(), right, weight))
				}
			})
		}
		if b.needs(2) {
			b.give(2, b.sumRows(g))
		}
	})
	return y.Reshape(append(x.Shape()[:len(x.shape)-1], out)...)
}

// rows returns t as a contiguous matrix with the given number of columns.
func (t *Tensor) rows(cols int) *Tensor {
	if cols == 0 {
		return t.Reshape(numElems(t.shape[:len(t.shape)-1]), 0)
	}
	return t.Contiguous().Reshape(-1, cols)
}
