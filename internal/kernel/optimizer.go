// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// The functions of this file update many parameters in one loop over the
// threads: a model has hundreds of small ones, and starting the threads for
// each would take longer than its update.
//
// Scalars are float64 because PyTorch computes 1-β and lr/bias in double and
// rounds the result: 1-β of a rounded β₂ = 0.999 would be off by 1e-5. In the
// formulas below ⊕ marks an addition fused with the product beside it, and g
// is gradScale times the gradient, whose memory stays as it is.

// overBatch shares the elements of n arrays among the threads as if they were
// one array, and calls fn for runs of elements of array i.
func overBatch(p *work.Pool, n int, size func(i int) int, fn func(i, lo, hi int)) {
	total := 0
	for i := range n {
		total += size(i)
	}
	span := share(p, total)
	if span >= total {
		batchSpan(n, 0, total, size, fn)
		return
	}
	p.Run(pieces(total, span), func(k int) { batchSpan(n, k*span, min((k+1)*span, total), size, fn) })
}

// batchSpan does the elements from lo up to hi.
func batchSpan(n, lo, hi int, size func(i int) int, fn func(i, lo, hi int)) {
	for i, first := 0, 0; i < n && first < hi; i++ {
		s := size(i)
		from, to := max(lo-first, 0), min(hi-first, s)
		if from < to {
			inRuns(from, to, callElems, func(lo, hi int) { fn(i, lo, hi) })
		}
		first += s
	}
}

// SGDStep holds the scalars of one step of [SGD]; each is rounded to float32.
type SGDStep struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	// First says that the momentum buffer holds nothing yet: it becomes the
	// gradient, without dampening.
	First bool
	// GradScale multiplies the gradient first: 1, or what clipping asks for;
	// negative to climb.
	GradScale float64
}

func (s SGDStep) scalars() sgdScalars {
	return sgdScalars{
		gradScale:         float32(s.GradScale),
		decay:             float32(s.WeightDecay),
		momentum:          float32(s.Momentum),
		oneMinusDampening: float32(1 - s.Dampening),
		negLR:             float32(-s.LR),
	}
}

// SGDItem is one parameter of [SGD]. MomentumBuf is nil when there is no
// momentum.
type SGDItem struct {
	Param, Grad, MomentumBuf []float32
	SGDStep
}

// SGD does one step of stochastic gradient descent on each item, bit for bit
// as PyTorch does it on a processor with fused multiply-add:
//
//	g ← g ⊕ decay·p
//	b ← momentum·b ⊕ (1-dampening)·g,  or g in the first step
//	g ← b,  or g ⊕ momentum·b with Nesterov
//	p ← p ⊕ (-lr)·g
func SGD(p *work.Pool, items []SGDItem) {
	overBatch(p, len(items), func(i int) int { return len(items[i].Param) }, func(i, lo, hi int) {
		t := &items[i]
		if t.MomentumBuf == nil {
			vec().sgd(t.Param[lo:hi], t.Grad[lo:hi], nil, t.scalars())
			return
		}
		f := vec().sgdMomentum
		switch {
		case t.First && t.Nesterov:
			f = vec().sgdFirstNesterov
		case t.First:
			f = vec().sgdFirst
		case t.Nesterov:
			f = vec().sgdNesterov
		}
		f(t.Param[lo:hi], t.Grad[lo:hi], t.MomentumBuf[lo:hi], t.scalars())
	})
}

// AdamStep holds the scalars of one step of [Adam].
type AdamStep struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	// Bias1 and Bias2 are 1-β₁ᵗ and 1-β₂ᵗ, t counting steps from 1.
	Bias1, Bias2 float64
	// Decoupled weight decay shrinks the parameter, which makes it AdamW;
	// otherwise the decay is part of the gradient.
	Decoupled bool
	GradScale float64
}

// AdamItem is one parameter of [Adam] with its moments, zero before the first
// step. MaxExpAvgSq is nil without AMSGrad.
type AdamItem struct {
	Param, Grad, ExpAvg, ExpAvgSq, MaxExpAvgSq []float32
	AdamStep
}

// Adam does one step of Adam or AdamW on each item, in the order of PyTorch's
// arithmetic (Kingma and Ba 2015, Loshchilov and Hutter 2019; AMSGrad: Reddi,
// Kale and Kumar 2018):
//
//	p ← p·(1 - lr·decay) when decoupled,  else g ← g ⊕ decay·p
//	m ← m ⊕ (1-β₁)·(g - m)
//	v ← β₂·v ⊕ (1-β₂)·g·g
//	w ← max(w, v) with AMSGrad, which takes the place of v below
//	p ← p - (lr/bias₁)·m / (√v/√bias₂ + eps)
func Adam(p *work.Pool, items []AdamItem) {
	overBatch(p, len(items), func(i int) int { return len(items[i].Param) }, func(i, lo, hi int) {
		t := &items[i]
		c := adamScalars{
			gradScale:     float32(t.GradScale),
			decay:         float32(t.WeightDecay),
			lerp:          lerpOf(1 - t.Beta1),
			beta2:         float32(t.Beta2),
			oneMinusBeta2: float32(1 - t.Beta2),
			rootBias2:     float32(math.Sqrt(t.Bias2)),
			eps:           float32(t.Eps),
			negStep:       float32(-t.LR / t.Bias1),
		}
		if t.Decoupled {
			c.decay = float32(1 - t.LR*t.WeightDecay)
		}
		f := vec().adam
		var most []float32
		if t.MaxExpAvgSq != nil {
			most = t.MaxExpAvgSq[lo:hi]
		}
		switch {
		case t.Decoupled && most != nil:
			f = vec().adamWAMSGrad
		case t.Decoupled:
			f = vec().adamW
		case most != nil:
			f = vec().adamAMSGrad
		}
		f(t.Param[lo:hi], t.Grad[lo:hi], t.ExpAvg[lo:hi], t.ExpAvgSq[lo:hi], most, c)
	})
}

// AdagradStep holds the scalars of one step of [Adagrad]; LR is the decayed
// one.
type AdagradStep struct {
	LR, WeightDecay, Eps, GradScale float64
}

func (s AdagradStep) scalars() adagradScalars {
	return adagradScalars{gradScale: float32(s.GradScale), decay: float32(s.WeightDecay), eps: float32(s.Eps), negLR: float32(-s.LR)}
}

// AdagradItem is one parameter of [Adagrad] with its sum of squared gradients.
type AdagradItem struct {
	Param, Grad, Sum []float32
	AdagradStep
}

// Adagrad does one step (Duchi, Hazan and Singer 2011) on each item:
//
//	g ← g ⊕ decay·p
//	s ← s ⊕ g·g
//	p ← p - lr·g / (√s + eps)
func Adagrad(p *work.Pool, items []AdagradItem) {
	overBatch(p, len(items), func(i int) int { return len(items[i].Param) }, func(i, lo, hi int) {
		t := &items[i]
		vec().adagrad(t.Param[lo:hi], t.Grad[lo:hi], t.Sum[lo:hi], t.scalars())
	})
}

// RMSpropStep holds the scalars of one step of [RMSprop].
type RMSpropStep struct {
	LR, Alpha, Eps, WeightDecay, Momentum, GradScale float64
}

// RMSpropItem is one parameter of [RMSprop]. GradAvg is nil unless centered,
// MomentumBuf without momentum; all begin with zeros.
type RMSpropItem struct {
	Param, Grad, SquareAvg, GradAvg, MomentumBuf []float32
	RMSpropStep
}

// RMSprop does one step (Tieleman and Hinton 2012; centered: Graves 2013) on
// each item:
//
//	g ← g ⊕ decay·p
//	s ← α·s ⊕ (1-α)·g·g
//	a ← a ⊕ (1-α)·(g - a) and d ← s ⊖ a·a when centered, else d ← s
//	b ← momentum·b + g / (√d + eps) and p ← p ⊕ (-lr)·b with momentum
//	p ← p - lr·g / (√d + eps) without
func RMSprop(p *work.Pool, items []RMSpropItem) {
	overBatch(p, len(items), func(i int) int { return len(items[i].Param) }, func(i, lo, hi int) {
		t := &items[i]
		c := rmspropScalars{
			gradScale:     float32(t.GradScale),
			decay:         float32(t.WeightDecay),
			alpha:         float32(t.Alpha),
			oneMinusAlpha: float32(1 - t.Alpha),
			eps:           float32(t.Eps),
			negLR:         float32(-t.LR),
			momentum:      float32(t.Momentum),
			lerp:          lerpOf(1 - t.Alpha),
		}
		f := vec().rmsprop
		var mean, buf []float32
		if t.GradAvg != nil {
			mean, f = t.GradAvg[lo:hi], vec().rmspropCentered
		}
		if t.MomentumBuf != nil {
			buf, f = t.MomentumBuf[lo:hi], vec().rmspropMomentum
			if mean != nil {
				f = vec().rmspropCenteredMomentum
			}
		}
		f(t.Param[lo:hi], t.Grad[lo:hi], t.SquareAvg[lo:hi], mean, buf, c)
	})
}

// LerpItem is one array of [Lerp].
type LerpItem struct{ Dst, Src []float32 }

// Lerp moves each Dst towards its Src by weight, 0 ≤ weight ≤ 1.
func Lerp(p *work.Pool, items []LerpItem, weight float64) {
	s := lerpOf(weight)
	overBatch(p, len(items), func(i int) int { return len(items[i].Dst) }, func(i, lo, hi int) {
		vec().lerp(items[i].Dst[lo:hi], items[i].Src[lo:hi], s)
	})
}

// Swap exchanges the elements of each Dst with those of its Src.
func Swap(p *work.Pool, items []LerpItem) {
	overBatch(p, len(items), func(i int) int { return len(items[i].Dst) }, func(i, lo, hi int) {
		a, b := items[i].Dst[lo:hi], items[i].Src[lo:hi]
		for j, v := range a {
			a[j], b[j] = b[j], v
		}
	})
}

// Clamp bounds the elements of each array by -limit and limit, in place.
func Clamp(p *work.Pool, xs [][]float32, limit float64) {
	l := float32(limit)
	overBatch(p, len(xs), func(i int) int { return len(xs[i]) }, func(i, lo, hi int) { vec().clamp(xs[i][lo:hi], l) })
}
