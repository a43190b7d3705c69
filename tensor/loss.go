// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Reduction says what a loss makes of the losses of the single elements.
type Reduction uint8

// The reductions; the zero value is the mean.
const (
	ReduceMean Reduction = iota
	ReduceSum
	ReduceNone // the losses as they are
	// ReduceBatchMean is the sum over the size of the first dim, which is what
	// [KLDiv] is by its definition.
	ReduceBatchMean
)

// LossOptions are what most losses take. The zero value is the mean of all.
type LossOptions struct {
	Weight    *Tensor // of each element, broadcast; nil for 1
	Reduction Reduction
}

// option returns the one set of options that was given, or the zero value.
func option[T any](op string, opts []T) (o T) {
	if len(opts) > 1 {
		fail(op, nil, "takes options once, got %d sets", len(opts))
	}
	if len(opts) == 1 {
		o = opts[0]
	}
	return o
}

// reduceLoss weighs and combines the losses of the elements.
func reduceLoss(op string, loss *Tensor, o LossOptions) *Tensor {
	if o.Weight != nil {
		shape, ok := broadcastShapes(loss.shape, o.Weight.shape)
		if !ok || !slices.Equal(shape, loss.shape) {
			fail(op, []*Tensor{loss, o.Weight}, "the weight cannot be broadcast to the losses")
		}
		loss = loss.Mul(o.Weight)
	}
	switch o.Reduction {
	case ReduceMean:
		return loss.Mean()
	case ReduceSum:
		return loss.Sum()
	case ReduceNone:
		return loss
	case ReduceBatchMean:
		if len(loss.shape) == 0 {
			fail(op, []*Tensor{loss}, "there is no batch dim to take the mean over")
		}
		return loss.Sum().DivScalar(float64(loss.shape[0]))
	}
	fail(op, []*Tensor{loss}, "no reduction %d", o.Reduction)
	return nil
}

// wantPair fails unless the shapes are equal and the dtypes floating: nothing is
// broadcast, for that is where regressions go wrong unseen.
func wantPair(op string, x, target *Tensor) {
	present(op, x, target)
	if !slices.Equal(x.shape, target.shape) {
		fail(op, []*Tensor{x, target}, "the shapes must be equal")
	}
	if !x.dtype.IsFloat() {
		fail(op, []*Tensor{x, target}, "wants a floating dtype")
	}
}

// wideLoss returns the operand of a loss in float32 if its elements have sixteen
// bits: losses are computed wide, as under PyTorch's autocast.
func wideLoss(t *Tensor) *Tensor {
	if isHalf(t.dtype) {
		return t.To(Float32)
	}
	return t
}

// MSE returns the mean of the squared differences of two tensors of one shape:
// nothing is broadcast.
func MSE(x, target *Tensor, opts ...LossOptions) *Tensor {
	wantPair("mse", x, target)
	return reduceLoss("mse", wideLoss(x).Sub(wideLoss(target)).Square(), option("mse", opts))
}

// L1 returns the mean of the absolute differences of two tensors of one shape.
func L1(x, target *Tensor, opts ...LossOptions) *Tensor {
	wantPair("l1", x, target)
	return reduceLoss("l1", wideLoss(x).Sub(wideLoss(target)).Abs(), option("l1", opts))
}

// SmoothL1 returns the mean of d²/(2·beta) where d = |x - target| is below beta
// and of d - beta/2 elsewhere (Girshick 2015; PyTorch's beta is 1).
func SmoothL1(x, target *Tensor, beta float64, opts ...LossOptions) *Tensor {
	wantPair("smooth l1", x, target)
	if !(beta >= 0) {
		fail("smooth l1", []*Tensor{x, target}, "beta must not be negative, got %v", beta)
	}
	if beta == 0 {
		return L1(x, target, opts...)
	}
	return reduceLoss("smooth l1", huber(x, target, beta).DivScalar(beta), option("smooth l1", opts))
}

// Huber returns the mean of d²/2 where d = |x - target| is below delta and of
// delta·(d - delta/2) elsewhere (Huber 1964; PyTorch's delta is 1).
func Huber(x, target *Tensor, delta float64, opts ...LossOptions) *Tensor {
	wantPair("huber", x, target)
	if !(delta > 0) {
		fail("huber", []*Tensor{x, target}, "delta must be positive, got %v", delta)
	}
	return reduceLoss("huber", huber(x, target, delta), option("huber", opts))
}

func huber(x, target *Tensor, delta float64) *Tensor {
	d := wideLoss(x).Sub(wideLoss(target)).Abs()
	near := d.LtScalar(delta)
	square := Where(near, d, scalarOf(d, 0)).Square() // without the far ones: an infinite one has no slope there
	return Where(near, square.MulScalar(0.5), d.SubScalar(delta/2).MulScalar(delta))
}

// BCE returns the mean binary cross-entropy -(t·log x + (1-t)·log(1-x)) of
// probabilities x and targets t in [0, 1]. The logarithms are limited to -100,
// so that a loss is finite.
func BCE(x, target *Tensor, opts ...LossOptions) *Tensor {
	const op = "bce"
	wantPair(op, x, target)
	o := option(op, opts)
	x, target = wideLoss(x), wideLoss(target)
	both := []*Tensor{x, target}
	verify(op, both, func(f device.Fault) string {
		return fmt.Sprintf("element %d is %v, no probability; for logits there is BCEWithLogits", f.Position, float32(faultNumber(f)))
	}, func(c *device.Check) {
		fused(device.Probabilities{Check: c}, x.detach().To(Float32).Contiguous())
	})
	log := func(x *Tensor) *Tensor { return x.Log().Clamp(-100, math.Inf(1)) }
	p, t := x.Detach(), target.Detach()
	loss := t.Mul(log(p)).Add(t.RSubScalar(1).Mul(log(p.RSubScalar(1)))).Neg()
	loss = loss.record(op, both, both, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.Mul(x.Sub(target)).Div(x.Mul(x.RSubScalar(1)).Clamp(1e-12, math.Inf(1))))
		}
		if b.needs(1) {
			b.give(1, g.Mul(log(x.RSubScalar(1)).Sub(log(x))))
		}
	})
	return reduceLoss(op, loss, o)
}

// BCEWithLogitsOptions are the options of [BCEWithLogits].
type BCEWithLogitsOptions struct {
	Weight    *Tensor // of each element, broadcast; nil for 1
	PosWeight *Tensor // of the positive targets' part, broadcast; nil for 1
	Reduction Reduction
}

// BCEWithLogits is [BCE] of sigmoid(x), computed from the logits x so that
// neither end loses digits.
func BCEWithLogits(x, target *Tensor, opts ...BCEWithLogitsOptions) *Tensor {
	const op = "bce with logits"
	wantPair(op, x, target)
	o := option(op, opts)
	x, target = wideLoss(x), wideLoss(target)
	// (1-t)·x + (1 + (w-1)·t)·softplus(-x)
	surprise := x.LogSigmoid().Neg()
	if o.PosWeight != nil {
		shape, ok := broadcastShapes(x.shape, o.PosWeight.shape)
		if !ok || !slices.Equal(shape, x.shape) {
			fail(op, []*Tensor{x, o.PosWeight}, "the weight of the positives cannot be broadcast to the logits")
		}
		surprise = surprise.Mul(target.Mul(o.PosWeight.SubScalar(1)).AddScalar(1))
	}
	loss := target.RSubScalar(1).Mul(x).Add(surprise)
	return reduceLoss(op, loss, LossOptions{o.Weight, o.Reduction})
}

// KLDivOptions are the options of [KLDiv].
type KLDivOptions struct {
	LogTarget bool // the target is a logarithm too
	Reduction Reduction
}

// KLDiv returns the mean of target·(log target - x), the Kullback-Leibler
// divergence's terms for log-probabilities x; 0 where the target is 0. The
// divergence itself has [ReduceBatchMean].
func KLDiv(x, target *Tensor, opts ...KLDivOptions) *Tensor {
	const op = "kl div"
	wantPair(op, x, target)
	o := option(op, opts)
	x, target = wideLoss(x), wideLoss(target)
	var loss *Tensor
	if o.LogTarget {
		loss = target.Exp().Mul(target.Sub(x))
	} else {
		positive := target.GtScalar(0)
		log := Where(positive, target, scalarOf(target, 1)).Log()
		loss = target.Mul(log.Sub(x))
	}
	return reduceLoss(op, loss, LossOptions{Reduction: o.Reduction})
}

// CosineSimilarity returns x·y / max(|x|·|y|, eps) along a dim, which disappears;
// x and y are broadcast. Each norm is kept above eps (PyTorch's is 1e-8).
func CosineSimilarity(x, y *Tensor, dim int, eps float64) *Tensor {
	present("cosine similarity", x, y)
	x, y = wideLoss(x), wideLoss(y)
	shape, ok := broadcastShapes(x.shape, y.shape)
	if !ok {
		fail("cosine similarity", []*Tensor{x, y}, "the shapes cannot be broadcast together")
	}
	x, y = x.Expand(shape...), y.Expand(shape...)
	limit := math.Inf(1)
	norms := x.Norm(2, dim).Clamp(eps, limit).Mul(y.Norm(2, dim).Clamp(eps, limit))
	return x.Mul(y).Sum(dim).Div(norms)
}

// CosineEmbedding returns the mean of 1 - cos(x, y) where target [batch] is 1 and
// of max(0, cos(x, y) - margin) where it is -1, for vectors x, y [batch, width].
func CosineEmbedding(x, y, target *Tensor, margin float64, opts ...LossOptions) *Tensor {
	present("cosine embedding", x, y, target)
	const op = "cosine embedding"
	if !slices.Equal(x.shape, y.shape) || len(x.shape) != len(target.shape)+1 || !slices.Equal(x.shape[:len(target.shape)], target.shape) {
		fail(op, []*Tensor{x, y, target}, "wants two tensors [batch, width] and targets [batch]")
	}
	similarity := CosineSimilarity(x, y, -1, 1e-6)
	apart := similarity.SubScalar(margin).Clamp(0, math.Inf(1))
	return reduceLoss(op, Where(target.EqScalar(1), similarity.RSubScalar(1), apart), option(op, opts))
}

// MarginRanking returns the mean of max(0, margin - target·(x - y)): target 1
// says that x is to rank above y, -1 the reverse. All have one shape.
func MarginRanking(x, y, target *Tensor, margin float64, opts ...LossOptions) *Tensor {
	const op = "margin ranking"
	wantPair(op, x, y)
	wantPair(op, x, target)
	loss := wideLoss(x).Sub(wideLoss(y)).Mul(target).RSubScalar(margin).Clamp(0, math.Inf(1))
	return reduceLoss(op, loss, option(op, opts))
}

// TripletMargin returns the mean of max(0, |a - p| - |a - n| + margin) for
// anchors, positives and negatives [batch, width], with distances by the 2-norm
// (Schroff, Kalenichenko and Philbin 2015).
func TripletMargin(anchor, positive, negative *Tensor, margin float64, opts ...LossOptions) *Tensor {
	const op = "triplet margin"
	wantPair(op, anchor, positive)
	wantPair(op, anchor, negative)
	distance := func(x *Tensor) *Tensor {
		// PyTorch adds 1e-6 to each difference.
		return wideLoss(anchor).Sub(wideLoss(x)).AddScalar(1e-6).Norm(2, -1)
	}
	loss := distance(positive).Sub(distance(negative)).AddScalar(margin).Clamp(0, math.Inf(1))
	return reduceLoss(op, loss, option(op, opts))
}
