// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"cmp"
	"context"

	"github.com/cohort-ml/cohort/tensor"
)

// BatchNorm normalises each channel of [batch, channels, …] over all other dims;
// see tensor.BatchNorm. A training pass normalises by the statistics of its batch
// and moves the running ones towards them, in place and outside the tape; an
// evaluation uses the running ones.
//
//	y = n.ReLU(c, x)          // c.Call(n, x).ReLU() in one pass over memory
//	y = n.AddReLU(c, x, r)    // c.Call(n, x).Add(r).ReLU() in one pass
type BatchNorm struct {
	Weight *Parameter // gamma [channels], nil for ones
	Bias   *Parameter // beta [channels], nil for zeros
	// RunningMean and RunningVar are [channels], nil to always use the batch's.
	RunningMean, RunningVar *Buffer
	NumBatchesTracked       *Buffer // int64 of no dims

	Eps float64
	// Momentum is the weight of a batch in the running statistics.
	Momentum float64
	// Cumulative makes them the average over all batches: PyTorch's momentum=None.
	Cumulative bool
	// Frozen makes training passes use the running statistics too, which stay as they are: for
	// the layers of a pretrained model that are not trained.
	Frozen bool `name:"-"`
	// Sync adds up the statistics of training passes over ranks, nil for those of
	// this rank alone; see parallel.ConvertSyncBatchNorm.
	Sync StatsReducer `name:"-"`
}

// BatchNorm1d is the BatchNorm of [batch, channels] and [batch, channels, time],
// BatchNorm2d that of [batch, channels, height, width]: there is one for all.
type (
	BatchNorm1d = BatchNorm
	BatchNorm2d = BatchNorm
)

// StatsReducer adds up sums over ranks.
type StatsReducer interface {
	// ReduceStats replaces sums by the total over all ranks, bit for bit the same
	// on each.
	ReduceStats(ctx context.Context, sums []float64) error
}

// BatchNormOptions are the options of [NewBatchNorm2d] under torch.nn's names;
// the zero value is PyTorch's default.
type BatchNormOptions struct {
	Eps            float64 // 0 is 1e-5
	Momentum       float64 // 0 is 0.1
	Cumulative     bool    // momentum=None
	NoAffine       bool    // no weight and bias
	NoRunningStats bool    // evaluations use their batch's statistics too
}

// NewBatchNorm2d returns a norm with gamma 1, beta 0, running mean 0 and running
// variance 1.
func NewBatchNorm2d(b *Build, channels int, o BatchNormOptions) *BatchNorm2d {
	n := &BatchNorm{Eps: cmp.Or(o.Eps, 1e-5), Momentum: cmp.Or(o.Momentum, 0.1), Cumulative: o.Cumulative}
	if !o.NoAffine {
		n.Weight, n.Bias = b.Full(1, channels), b.Empty(channels)
	}
	if !o.NoRunningStats {
		mean, variance := b.Empty(channels).Data(), b.Full(1, channels).Data()
		n.RunningMean, n.RunningVar = &Buffer{Data: mean}, &Buffer{Data: variance}
		n.NumBatchesTracked = &Buffer{Data: tensor.New(mean.Device(), tensor.Int64)}
	}
	return n
}

// NewBatchNorm1d is NewBatchNorm2d under the name for [batch, channels, time].
func NewBatchNorm1d(b *Build, channels int, o BatchNormOptions) *BatchNorm1d {
	return NewBatchNorm2d(b, channels, o)
}

// Forward normalises x.
func (n *BatchNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return n.normalise(c, x, nil, false)
}

// ReLU calls the module and then max(·, 0), fused.
func (n *BatchNorm) ReLU(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return n.call(c, x, nil, true) }

// AddReLU calls the module, adds r, and then takes max(·, 0), fused: the end of a
// residual block.
func (n *BatchNorm) AddReLU(c *Ctx, x, r *tensor.Tensor) *tensor.Tensor { return n.call(c, x, r, true) }

// call is Ctx.Call of the module, with what follows it fused in.
func (n *BatchNorm) call(c *Ctx, x, residual *tensor.Tensor, relu bool) *tensor.Tensor {
	return c.intercept(n, []*tensor.Tensor{x}, func(c *Ctx, x []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{n.normalise(c, x[0], residual, relu)}
	})[0]
}

func (n *BatchNorm) normalise(c *Ctx, x, residual *tensor.Tensor, relu bool) *tensor.Tensor {
	o := tensor.BatchNormOptions{
		Eps: n.Eps, Momentum: n.Momentum, Cumulative: n.Cumulative, Training: c.Training() && !n.Frozen, Residual: residual, ReLU: relu,
	}
	// A training pass that is run again has moved the statistics already.
	if n.RunningMean != nil && !(c.Training() && c.Recomputing()) {
		o.RunningMean, o.RunningVar = c.BufferData(n.RunningMean), c.BufferData(n.RunningVar)
		if n.NumBatchesTracked != nil {
			o.NumBatches = c.BufferData(n.NumBatchesTracked)
		}
	}
	if c.IsShapesOnly() {
		o.RunningMean, o.RunningVar, o.NumBatches = nil, nil, nil
	} else if n.Sync != nil {
		o.Sync = &tensor.BatchNormSync{
			Forward: func(sums []float64) {
				if err := n.Sync.ReduceStats(c, sums); err != nil {
					c.Fail(err)
				}
			},
			Backward: n.Sync.ReduceStats,
		}
	}
	return tensor.BatchNorm(x, paramOrNil(c, n.Weight), paramOrNil(c, n.Bias), o)
}

// GroupNorm normalises runs of channels of each sample; see tensor.GroupNorm.
type GroupNorm struct {
	NumGroups int
	Weight    *Parameter // gamma [channels], nil for ones
	Bias      *Parameter // beta [channels], nil for zeros
	Eps       float64
}

// NewGroupNorm returns a norm with gamma 1, beta 0 and PyTorch's epsilon 1e-5.
func NewGroupNorm(b *Build, numGroups, channels int) *GroupNorm {
	return &GroupNorm{NumGroups: numGroups, Weight: b.Full(1, channels), Bias: b.Empty(channels), Eps: 1e-5}
}

// Forward normalises x [batch, channels, …].
func (n *GroupNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.GroupNorm(x, n.NumGroups, paramOrNil(c, n.Weight), paramOrNil(c, n.Bias), n.Eps)
}

// InstanceNorm2d normalises each channel of each sample; see tensor.InstanceNorm.
// As in PyTorch it has no weight and bias unless they are set.
type InstanceNorm2d struct {
	Weight *Parameter // gamma [channels], nil for ones
	Bias   *Parameter // beta [channels], nil for zeros
	Eps    float64
}

// NewInstanceNorm2d returns a norm with PyTorch's epsilon 1e-5, and with gamma 1
// and beta 0 if affine is set.
func NewInstanceNorm2d(b *Build, channels int, affine bool) *InstanceNorm2d {
	n := &InstanceNorm2d{Eps: 1e-5}
	if affine {
		n.Weight, n.Bias = b.Full(1, channels), b.Empty(channels)
	}
	return n
}

// Forward normalises x [batch, channels, …].
func (n *InstanceNorm2d) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.InstanceNorm(x, paramOrNil(c, n.Weight), paramOrNil(c, n.Bias), n.Eps)
}

// LayerNorm normalises the last dim; see tensor.LayerNorm.
type LayerNorm struct {
	Weight *Parameter // gamma [width], nil for ones
	Bias   *Parameter // beta [width], nil for zeros
	Eps    float64
}

// NewLayerNorm returns a norm with gamma 1, beta 0 and PyTorch's epsilon 1e-5.
func NewLayerNorm(b *Build, width int) *LayerNorm {
	return &LayerNorm{Weight: b.Full(1, width), Bias: b.Empty(width), Eps: 1e-5}
}

// Forward normalises x.
func (l *LayerNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.LayerNorm(x, paramOrNil(c, l.Weight), paramOrNil(c, l.Bias), l.Eps)
}

// RMSNorm divides the last dim by its root mean square; see tensor.RMSNorm.
type RMSNorm struct {
	Weight *Parameter // [width], nil for ones
	Eps    float64
	// PlusOne has 1 + Weight in place of Weight (Gemma).
	PlusOne bool
}

// NewRMSNorm returns a norm with weight 1 and PyTorch's epsilon, the distance
// from 1 to the next float32. Llama's checkpoints have one of their own.
func NewRMSNorm(b *Build, width int) *RMSNorm {
	return &RMSNorm{Weight: b.Full(1, width), Eps: 0x1p-23}
}

// Forward normalises x.
func (l *RMSNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	weight := paramOrNil(c, l.Weight)
	if l.PlusOne && weight != nil {
		weight = weight.AddScalar(1)
	}
	return tensor.RMSNorm(x, weight, l.Eps)
}
