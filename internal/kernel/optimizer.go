// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// AdamWStep holds the scalars of one step of [AdamW]. They are float64 because
// PyTorch computes 1-β and lr/bias in double and rounds the result: 1-β of a
// rounded β₂ = 0.999 would be off by 1e-5.
type AdamWStep struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	// Bias1 and Bias2 are 1-β₁ᵗ and 1-β₂ᵗ, t counting steps from 1.
	Bias1, Bias2 float64
	// GradScale multiplies the gradient first: 1, or what clipping asks for.
	GradScale float64
}

// adamWScalars is an AdamWStep as the kernels take it.
type adamWScalars struct {
	gradScale, decay, oneMinusBeta1, beta2, oneMinusBeta2, rootBias2, eps, negStep float32
}

// AdamW does one step of Adam with decoupled weight decay on a parameter, its
// gradient and its two moments (zero before the first step), in the order of
// PyTorch's arithmetic:
//
//	g ← gradScale·g             (the gradient in memory stays as it is)
//	p ← p·(1 - lr·decay)
//	m ← m + (1-β₁)(g - m)
//	v ← β₂·v + (1-β₂)·g·g
//	p ← p - (lr/bias₁)·m / (√v/√bias₂ + eps)
func AdamW(p *work.Pool, param, grad, m, v []float32, s AdamWStep) {
	n := len(param)
	grad, m, v = grad[:n], m[:n], v[:n]
	c := adamWScalars{
		gradScale:     float32(s.GradScale),
		decay:         float32(1 - s.LR*s.WeightDecay),
		oneMinusBeta1: float32(1 - s.Beta1),
		beta2:         float32(s.Beta2),
		oneMinusBeta2: float32(1 - s.Beta2),
		rootBias2:     float32(math.Sqrt(s.Bias2)),
		eps:           float32(s.Eps),
		negStep:       float32(-s.LR / s.Bias1),
	}
	overItems(p, n, n, func(lo, hi int) {
		for ; lo < hi; lo += callElems {
			end := min(lo+callElems, hi)
			vec().adamW(param[lo:end], grad[lo:end], m[lo:end], v[lo:end], c)
		}
	})
}

// SGDStep holds the scalars of one step of [SGD]; each is rounded to float32.
type SGDStep struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	// First says that the momentum buffer holds nothing yet: it becomes the
	// gradient, without dampening.
	First bool
	// GradScale multiplies the gradient first: 1, or what clipping asks for.
	GradScale float64
}

// sgdScalars is an SGDStep as the kernels take it.
type sgdScalars struct {
	gradScale, decay, momentum, oneMinusDampening, negLR float32
}

// SGD does one step of stochastic gradient descent, bit for bit as PyTorch
// does it on a processor with fused multiply-add (⊕ marks a fused one):
//
//	g ← gradScale·g;  g ← g ⊕ decay·p
//	b ← momentum·b ⊕ (1-dampening)·g,  or g in the first step
//	g ← b,  or g ⊕ momentum·b with Nesterov
//	p ← p ⊕ (-lr)·g
//
// momentumBuf is b, nil when there is no momentum.
func SGD(p *work.Pool, param, grad, momentumBuf []float32, s SGDStep) {
	n := len(param)
	grad = grad[:n]
	c := sgdScalars{
		gradScale:         float32(s.GradScale),
		decay:             float32(s.WeightDecay),
		momentum:          float32(s.Momentum),
		oneMinusDampening: float32(1 - s.Dampening),
		negLR:             float32(-s.LR),
	}
	f := vec().sgd
	buf := param // not touched by the plain form
	if momentumBuf != nil {
		buf = momentumBuf[:n]
		switch {
		case s.First && s.Nesterov:
			f = vec().sgdFirstNesterov
		case s.First:
			f = vec().sgdFirst
		case s.Nesterov:
			f = vec().sgdNesterov
		default:
			f = vec().sgdMomentum
		}
	}
	overItems(p, n, n, func(lo, hi int) {
		for ; lo < hi; lo += callElems {
			end := min(lo+callElems, hi)
			f(param[lo:end], grad[lo:end], buf[lo:end], c)
		}
	})
}
