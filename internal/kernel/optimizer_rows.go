// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// The functions of this file update the rows of a table that have a gradient:
// row i of rows, width wide, is that of row ids[i] of the table. ids increase.
// The arithmetic is that of PyTorch's sparse gradients.

// overTouched calls fn for runs of rows that follow each other in the table:
// elements lo up to hi of rows are those from at on in the table.
func overTouched(p *work.Pool, ids []int64, width int, fn func(at, lo, hi int)) {
	most := int64(max(1, callElems/max(width, 1)))
	overRows(p, len(ids), width, func(lo, hi int) {
		for lo < hi {
			end := lo + 1
			for end < hi && ids[end] == ids[end-1]+1 && int64(end-lo) < most {
				end++
			}
			fn(int(ids[lo])*width, lo*width, end*width)
			lo = end
		}
	})
}

// SGDRows does one step without momentum: p ← p ⊕ (-lr)·g.
func SGDRows(p *work.Pool, param []float32, ids []int64, rows []float32, width int, s SGDStep) {
	c := sgdScalars{gradScale: float32(s.GradScale), negLR: float32(-s.LR)}
	overTouched(p, ids, width, func(at, lo, hi int) {
		vec().sgd(param[at:at+hi-lo], rows[lo:hi], nil, c)
	})
}

// SGDMomentumRows does one step with momentum, which moves all rows, touched
// or not, as if the gradient were zero elsewhere. buf must be zero before the
// first step. Weight decay is not taken.
func SGDMomentumRows(p *work.Pool, param, buf []float32, ids []int64, rows []float32, width int, s SGDStep) {
	n := len(param)
	damp := 1 - s.Dampening
	if s.First {
		damp = 1
	} else {
		MulScalar(p, buf[:n], buf[:n], float32(s.Momentum))
	}
	scale := float32(s.GradScale)
	overTouched(p, ids, width, func(at, lo, hi int) {
		vec().addScaled(buf[at:at+hi-lo], buf[at:at+hi-lo], rows[lo:hi], float32(damp)*scale)
	})
	lr := s.LR
	if s.Nesterov {
		lr *= s.Momentum
		overTouched(p, ids, width, func(at, lo, hi int) {
			vec().addScaled(param[at:at+hi-lo], param[at:at+hi-lo], rows[lo:hi], float32(-s.LR)*scale)
		})
	}
	AddScaled(p, param, param, float32(-lr), buf[:n])
}

// AdagradRows does one step of the touched rows:
//
//	s ← s + g²
//	p ← p ⊕ (-lr)·(g / (√s + eps))
func AdagradRows(p *work.Pool, param, sum []float32, ids []int64, rows []float32, width int, s AdagradStep) {
	c := s.scalars()
	overTouched(p, ids, width, func(at, lo, hi int) {
		end := at + hi - lo
		vec().sparseAdagrad(param[at:end], rows[lo:hi], sum[at:end], c)
	})
}

// AdamRows does one step of PyTorch's SparseAdam: moments and parameters of
// the touched rows alone.
//
//	m ← m + (1-β₁)·(g - m)
//	v ← v + (1-β₂)·(g² - v)
//	p ← p - lr·√bias₂/bias₁ · m / (√v + eps)
func AdamRows(p *work.Pool, param, m, v []float32, ids []int64, rows []float32, width int, s AdamStep) {
	c := sparseAdamScalars{
		gradScale:     float32(s.GradScale),
		oneMinusBeta1: float32(1 - s.Beta1),
		oneMinusBeta2: float32(1 - s.Beta2),
		eps:           float32(s.Eps),
		negStep:       float32(-s.LR * math.Sqrt(s.Bias2) / s.Bias1),
	}
	overTouched(p, ids, width, func(at, lo, hi int) {
		end := at + hi - lo
		vec().sparseAdam(param[at:end], rows[lo:hi], m[at:end], v[at:end], c)
	})
}
