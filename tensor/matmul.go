// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// MatMul returns the matrix product over the last two dims, [batch…, m, k] ·
// [batch…, k, n] = [batch…, m, n]; batch dims are broadcast.
func (t *Tensor) MatMul(u *Tensor) *Tensor {
	both := []*Tensor{t, u}
	out := matMul("matmul", t, u)
	return out.record("matmul", both, both, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.MatMul(u.T()).sumTo(t.shape))
		}
		if b.needs(1) {
			b.give(1, t.T().MatMul(g).sumTo(u.shape))
		}
	})
}

func matMul(op string, t, u *Tensor) *Tensor {
	operands := []*Tensor{t, u}
	t.wantDType(op, Float32)
	u.wantDType(op, Float32)
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
	out := result(op, Float32, slices.Concat(batch, []int{t.shape[tn], u.shape[un+1]}), operands...)
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
// [batch…, in] gives [batch…, out]. bias [out] may be nil.
func Linear(x, weight, bias *Tensor) *Tensor { return affine("linear", x, weight, bias, true) }

// Affine returns x·w + bias for a weight [in, out], the layout of GPT-2's
// projections. bias [out] may be nil.
func Affine(x, weight, bias *Tensor) *Tensor { return affine("affine", x, weight, bias, false) }

func affine(op string, x, weight, bias *Tensor, outFirst bool) *Tensor {
	operands := []*Tensor{x, weight, bias}
	wantFloat32s(op, operands)
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
	flat := x.rows(in)
	y := result(op, Float32, []int{flat.shape[0], out}, operands...)
	var biasArray device.Array
	if bias != nil {
		bias = bias.Contiguous()
		biasArray = bias.array()
	}
	y.Device().MatMul(y.array(), flat.array(), w.array(), biasArray, 0)
	y = y.record(op, []*Tensor{flat, weight, bias}, []*Tensor{flat, weight}, func(b *backprop, g *Tensor) {
		g = g.Contiguous()
		if b.needs(0) {
			if outFirst {
				b.give(0, g.MatMul(weight))
			} else {
				b.give(0, g.MatMul(weight.T()))
			}
		}
		if b.needs(1) {
			left, right := flat, g
			if outFirst {
				left, right = g, flat
			}
			if dst, beta, ok := b.direct(1); ok {
				dst.Device().MatMul(dst.array(), left.detach().T().array(), right.array(), device.Array{}, beta)
			} else {
				b.give(1, left.T().MatMul(right))
			}
		}
		if b.needs(2) {
			b.give(2, g.Sum(0))
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
