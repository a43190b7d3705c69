// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/tensor"
)

// applyTile does a step of the optimizer on records, at most tileRows, with gradients
// [len(records), Width]. Values and states go into scratch and back, whatever the dtype, so
// that the kernels see whole arrays. The arithmetic of a value does not depend on where it
// lies, so the bits are those of package optim.
func (t *Table) applyTile(u *updateScratch, at Mark, records []unsafe.Pointer, grad []float32) {
	if len(records) == 0 {
		return
	}
	w, n := t.schema.Width, len(records)
	params := u.params[:n*w]
	isFloat := t.schema.DType == tensor.Float32
	for i, h := range records {
		if isFloat {
			copy(params[i*w:(i+1)*w], floatsAt(h, 0, w))
		} else {
			copy(u.raw[i*t.rowBytes:], bytesAt(h, 0, t.rowBytes))
		}
	}
	if !isFloat {
		decode(params, u.raw, t.schema.DType, w)
	}
	per := t.stateLen // of a record, in one or two arrays
	arrays := 1
	if per == 2*w && per > 1 && t.schema.Optimizer.Kind != RowwiseAdagrad {
		arrays, per = 2, w
	}
	if per > 0 {
		for i, h := range records {
			state := floatsAt(h, t.stateAt, t.stateLen)
			for a := range arrays {
				copy(u.state[a*n*per+i*per:][:per], state[a*per:])
			}
		}
	}
	t.compute(at, params, grad, u.state[:arrays*n*per], u.ids[:n])
	if !isFloat {
		encode(u.raw[:n*t.rowBytes], params, t.schema.DType, w)
	}
	for i, h := range records {
		if isFloat {
			copy(floatsAt(h, 0, w), params[i*w:(i+1)*w])
		} else {
			copy(bytesAt(h, 0, t.rowBytes), u.raw[i*t.rowBytes:])
		}
		if per > 0 {
			state := floatsAt(h, t.stateAt, t.stateLen)
			for a := range arrays {
				copy(state[a*per:(a+1)*per], u.state[a*n*per+i*per:])
			}
		}
	}
}

// compute does a step of the optimizer on arrays of rows.
func (t *Table) compute(at Mark, params, grad, state []float32, ids []int64) {
	o, w := t.schema.Optimizer, t.schema.Width
	lr := o.LR
	if at.LR != 0 {
		lr = at.LR
	}
	step := float64(max(1, at.Step))
	lr /= 1 + (step-1)*o.LRDecay
	adam := kernel.AdamStep{
		LR: lr, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, GradScale: 1,
		Bias1: 1 - math.Pow(o.Beta1, step), Bias2: 1 - math.Pow(o.Beta2, step),
	}
	half := len(state) / 2
	switch o.Kind {
	case SGD:
		kernel.SGDRows(nil, params, ids, grad, w, kernel.SGDStep{LR: lr, GradScale: 1})
	case Adagrad:
		kernel.AdagradRows(nil, params, state, ids, grad, w, kernel.AdagradStep{LR: lr, Eps: o.Eps, GradScale: 1})
	case RowwiseAdagrad:
		rowwiseAdagrad(params, state, grad, w, float32(lr), float32(o.Eps))
	case LazyAdam:
		kernel.AdamRows(nil, params, state[:half], state[half:], ids, grad, w, adam)
	case Adam:
		kernel.Adam(nil, []kernel.AdamItem{{Param: params, Grad: grad, ExpAvg: state[:half], ExpAvgSq: state[half:], AdamStep: adam}})
	case FTRL:
		ftrl(params, state[:half], state[half:], grad, o, lr)
	}
}

// rowwiseAdagrad has one sum a row, as the tables of FBGEMM and TorchRec:
//
//	s ← s + mean(g²)
//	p ← p - lr/(√s + eps)·g
func rowwiseAdagrad(params, sums, grad []float32, width int, lr, eps float32) {
	for r := range sums {
		p, g := params[r*width:(r+1)*width], grad[r*width:(r+1)*width]
		g = g[:len(p)]
		squares := [4]float32{}
		i := 0
		for ; i+4 <= len(g); i += 4 {
			squares[0] += float32(g[i] * g[i])
			squares[1] += float32(g[i+1] * g[i+1])
			squares[2] += float32(g[i+2] * g[i+2])
			squares[3] += float32(g[i+3] * g[i+3])
		}
		for ; i < len(g); i++ {
			squares[0] += float32(g[i] * g[i])
		}
		sums[r] += (squares[0] + squares[1] + (squares[2] + squares[3])) / float32(width)
		factor := lr / (float32(math.Sqrt(float64(sums[r]))) + eps)
		for i := range p {
			p[i] -= float32(factor * g[i])
		}
	}
}

// ftrl is FTRL-Proximal (McMahan et al.: Ad Click Prediction, 2013), with n the sums of
// squares:
//
//	z ← z + g - (√(n+g²) - √n)/lr·p
//	n ← n + g²
//	p ← 0 if |z| ≤ L1, else -(z - sign(z)·L1) / ((Beta + √n)/lr + L2)
//
// It computes in float64 and rounds each result once.
func ftrl(params, n, z, grad []float32, o Optimizer, lr float64) {
	n, z, grad = n[:len(params)], z[:len(params)], grad[:len(params)]
	for i, p := range params {
		g := float64(grad[i])
		before := float64(n[i])
		sum := float64(float32(before + float64(g*g)))
		root := math.Sqrt(sum)
		zi := float64(float32(float64(z[i]) + g - float64((root-math.Sqrt(before))/lr*float64(p))))
		n[i], z[i] = float32(sum), float32(zi)
		if math.Abs(zi) <= o.L1 {
			params[i] = 0
			continue
		}
		params[i] = float32(-(zi - math.Copysign(o.L1, zi)) / ((o.Beta+root)/lr + o.L2))
	}
}
