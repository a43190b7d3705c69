// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// The losses of torch.nn, with its settings as fields; the zero value of each is
// the mean over all elements, with PyTorch's settings unless its type says
// otherwise. What each computes is said at the function of package tensor.

// CrossEntropyLoss is tensor.CrossEntropy: logits [batch…, classes], unlike
// PyTorch, which has the classes in dim 1. Call it by [Ctx.CallN] where ranks may share
// the classes or the sequence of a sample: a strategy steps in there.
type CrossEntropyLoss struct {
	Weight         *Buffer // [classes], nil for 1
	IgnoreIndex    *int64  // nil for tensor.IgnoreIndex
	Reduction      tensor.Reduction
	LabelSmoothing float64
}

// Forward returns the loss.
func (l *CrossEntropyLoss) Forward(c *Ctx, logits, targets *tensor.Tensor) *tensor.Tensor {
	return tensor.CrossEntropy(logits, targets, tensor.CrossEntropyOptions{
		Weight: c.optional(l.Weight), IgnoreIndex: l.IgnoreIndex, Reduction: l.Reduction, LabelSmoothing: l.LabelSmoothing,
	})
}

// ForwardN takes logits and targets, and returns the loss.
func (l *CrossEntropyLoss) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("CrossEntropyLoss", x, "logits and targets", 2)
	return []*tensor.Tensor{l.Forward(c, x[0], x[1])}
}

// optional is Buffer of a buffer that may be absent.
func (c *Ctx) optional(b *Buffer) *tensor.Tensor {
	if b == nil {
		return nil
	}
	return c.Buffer(b)
}

// NLLLoss is tensor.NLL.
type NLLLoss struct {
	Weight      *Buffer // [classes], nil for 1
	IgnoreIndex *int64  // nil for tensor.IgnoreIndex
	Reduction   tensor.Reduction
}

// Forward returns the loss.
func (l *NLLLoss) Forward(c *Ctx, x, targets *tensor.Tensor) *tensor.Tensor {
	return tensor.NLL(x, targets, tensor.CrossEntropyOptions{Weight: c.optional(l.Weight), IgnoreIndex: l.IgnoreIndex, Reduction: l.Reduction})
}

// BCEWithLogitsLoss is tensor.BCEWithLogits.
type BCEWithLogitsLoss struct {
	Weight, PosWeight *Buffer // nil for 1
	Reduction         tensor.Reduction
}

// Forward returns the loss.
func (l *BCEWithLogitsLoss) Forward(c *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.BCEWithLogits(x, target, tensor.BCEWithLogitsOptions{
		Weight: c.optional(l.Weight), PosWeight: c.optional(l.PosWeight), Reduction: l.Reduction,
	})
}

// KLDivLoss is tensor.KLDiv.
type KLDivLoss struct {
	LogTarget bool
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *KLDivLoss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.KLDiv(x, target, tensor.KLDivOptions{LogTarget: l.LogTarget, Reduction: l.Reduction})
}

// MSELoss is tensor.MSE.
type MSELoss struct{ Reduction tensor.Reduction }

// Forward returns the loss.
func (l *MSELoss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.MSE(x, target, tensor.LossOptions{Reduction: l.Reduction})
}

// L1Loss is tensor.L1.
type L1Loss struct{ Reduction tensor.Reduction }

// Forward returns the loss.
func (l *L1Loss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.L1(x, target, tensor.LossOptions{Reduction: l.Reduction})
}

// BCELoss is tensor.BCE.
type BCELoss struct{ Reduction tensor.Reduction }

// Forward returns the loss.
func (l *BCELoss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.BCE(x, target, tensor.LossOptions{Reduction: l.Reduction})
}

// SmoothL1Loss is tensor.SmoothL1; Beta 0 stands for 1.
type SmoothL1Loss struct {
	Beta      float64
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *SmoothL1Loss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.SmoothL1(x, target, orOne(l.Beta), tensor.LossOptions{Reduction: l.Reduction})
}

// HuberLoss is tensor.Huber; Delta 0 stands for 1.
type HuberLoss struct {
	Delta     float64
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *HuberLoss) Forward(_ *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	return tensor.Huber(x, target, orOne(l.Delta), tensor.LossOptions{Reduction: l.Reduction})
}

func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// CosineEmbeddingLoss is tensor.CosineEmbedding.
type CosineEmbeddingLoss struct {
	Margin    float64
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *CosineEmbeddingLoss) Forward(_ *Ctx, x, y, target *tensor.Tensor) *tensor.Tensor {
	return tensor.CosineEmbedding(x, y, target, l.Margin, tensor.LossOptions{Reduction: l.Reduction})
}

// MarginRankingLoss is tensor.MarginRanking.
type MarginRankingLoss struct {
	Margin    float64
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *MarginRankingLoss) Forward(_ *Ctx, x, y, target *tensor.Tensor) *tensor.Tensor {
	return tensor.MarginRanking(x, y, target, l.Margin, tensor.LossOptions{Reduction: l.Reduction})
}

// TripletMarginLoss is tensor.TripletMargin; Margin 0 stands for 1.
type TripletMarginLoss struct {
	Margin    float64
	Reduction tensor.Reduction
}

// Forward returns the loss.
func (l *TripletMarginLoss) Forward(_ *Ctx, anchor, positive, negative *tensor.Tensor) *tensor.Tensor {
	return tensor.TripletMargin(anchor, positive, negative, orOne(l.Margin), tensor.LossOptions{Reduction: l.Reduction})
}
