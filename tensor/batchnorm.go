// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"errors"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// BatchNormOptions choose what [BatchNorm] normalises by, and what it does in the
// same pass over memory.
type BatchNormOptions struct {
	Eps float64 // added to the variance
	// Training normalises by the statistics of the batch and moves the running
	// ones towards them; otherwise the running ones are used, if there are any.
	Training bool
	// RunningMean and RunningVar are float32 [channels], nil for none. They are
	// written in place, outside the tape; the variance is the unbiased one.
	RunningMean, RunningVar *Tensor
	// Momentum is the weight of a batch in the running statistics.
	Momentum float64
	// NumBatches, an int64 of one element or nil, counts the training passes.
	NumBatches *Tensor
	// Cumulative makes the running statistics the plain average over all batches
	// that NumBatches has counted; Momentum has no say then.
	Cumulative bool
	// Residual, of x's shape or nil, is added to the result.
	Residual *Tensor
	// ReLU then replaces what is negative by 0.
	ReLU bool
	// Sync adds up the statistics of a training pass over ranks; nil for those of
	// this rank's batch alone.
	Sync *BatchNormSync
}

// BatchNormSync adds up sums over the ranks that share a batch. Both functions
// replace sums by the total, in an order that is the same on every rank.
type BatchNormSync struct {
	// Forward may end the pass as nn.Ctx.Fail does.
	Forward func(sums []float64)
	// Backward ends the backward pass by an error.
	Backward func(ctx context.Context, sums []float64) error
}

// BatchNorm normalises each channel of x [batch, channels, …] to mean 0 and
// variance 1 over the other dims, scales it by gamma and shifts it by beta, both
// [channels] or nil (Ioffe and Szegedy 2015). The result has the dtype of x, or the
// wider one of x and the residual; statistics are float32, and what is fused is
// rounded once.
//
// A training pass needs at least two elements a channel. The variance of a batch
// is the biased one, that of the running statistics the unbiased one, as in
// PyTorch. With Sync, the gradients of gamma and beta are those of this rank's
// share, for data parallelism to sum, and there is no second derivative.
func BatchNorm(x, gamma, beta *Tensor, o BatchNormOptions) *Tensor {
	present("batch norm", x)
	const op = "batch norm"
	operands := []*Tensor{x, gamma, beta, o.RunningMean, o.RunningVar, o.Residual}
	wantHalfOrFloat32s(op, operands)
	if len(x.shape) < 2 {
		fail(op, operands, "wants x [batch, channels, …]")
	}
	if (o.RunningMean == nil) != (o.RunningVar == nil) {
		fail(op, operands, "wants both running statistics or none")
	}
	if o.Cumulative && o.NumBatches == nil && o.RunningMean != nil {
		fail(op, operands, "a cumulative average needs NumBatches")
	}
	if n := o.NumBatches; n != nil && (n.dtype != Int64 || n.NumElems() != 1) {
		fail(op, append(operands, n), "NumBatches must be an int64 of one element")
	}
	if o.Residual != nil && !slices.Equal(o.Residual.shape, x.shape) {
		fail(op, operands, "the residual must have the shape of x")
	}
	channels := x.shape[1]
	for _, t := range operands[1:5] {
		if t != nil && !slices.Equal(t.shape, []int{channels}) {
			fail(op, operands, "gamma, beta and the running statistics must have shape [%d], the channels of x", channels)
		}
	}
	n := &batchNorm{BatchNormOptions: o, byBatch: o.Training || o.RunningMean == nil}
	if count := x.NumElems() / max(1, channels); n.byBatch && n.Sync == nil && count < 2 && channels > 0 {
		fail(op, operands, "has %d values per channel: training needs more than one", count)
	}
	n.gamma, n.beta = float32Contiguous(gamma), float32Contiguous(beta)
	// What lies behind the channels is one dim; without it, the batch is.
	flat := len(x.shape) == 2
	arrange := func(t *Tensor) *Tensor {
		if t == nil {
			return nil
		}
		if flat {
			return t.T().Contiguous().Reshape(1, channels, t.shape[0])
		}
		return t.Contiguous().Reshape(x.shape[0], channels, numElems(x.shape[2:]))
	}
	n.Residual = arrange(o.Residual.mixed())
	out := n.forward(arrange(x.mixed())).To(residualDType(x, o.Residual))
	if flat {
		return out.Reshape(channels, x.shape[0]).T().Contiguous()
	}
	return out.Reshape(x.shape...)
}

// residualDType returns the dtype of x with a residual added, which may be nil.
func residualDType(x, residual *Tensor) DType {
	if residual == nil {
		return x.dtype
	}
	return PromoteTypes(x.dtype, residual.dtype)
}

// float32Contiguous returns t as kernels want it, nil for nil.
func float32Contiguous(t *Tensor) *Tensor {
	if t == nil {
		return nil
	}
	return t.To(Float32).Contiguous()
}

// wantHalfOrFloat32s fails unless all operands can be converted to float32
// without loss. A nil operand is an absent one.
func wantHalfOrFloat32s(op string, operands []*Tensor) {
	for _, t := range operands {
		if t != nil && t.dtype != Float32 && t.dtype != BFloat16 && t.dtype != Float16 {
			fail(op, operands, "wants float32, bfloat16 or float16, got %v", t.dtype)
		}
	}
}

// batchNorm is one call of BatchNorm: operands are float32, or x and the residual
// bfloat16, images [num, channels, plane].
type batchNorm struct {
	BatchNormOptions
	gamma, beta *Tensor
	byBatch     bool // normalise by the batch's statistics
	mean, rstd  *Tensor
	count       float64 // of the elements of a channel, over all ranks
}

// running says how a pass moves the running statistics: not in evaluation.
func (n *batchNorm) running() device.RunningStats {
	return device.RunningStats{Update: n.Training, Momentum: n.Momentum, Cumulative: n.Cumulative}
}

func (n *batchNorm) forward(x *Tensor) *Tensor {
	inputs := []*Tensor{x, n.gamma, n.beta, n.Residual}
	out := result("batch norm", residualDType(x, n.Residual), x.shape, inputs...)
	n.mean = result("batch norm", Float32, x.shape[1:2], inputs...)
	n.rstd = result("batch norm", Float32, x.shape[1:2], inputs...)
	if n.Training {
		for _, t := range []*Tensor{n.RunningMean, n.RunningVar, n.NumBatches} {
			if t != nil {
				wantDense("batch norm", t)
				t.storage.version++ // a pass on Meta leaves the first values what they are
			}
		}
	}
	n.count = float64(x.shape[0]) * float64(x.shape[2])
	switch {
	case n.byBatch && n.Sync != nil && n.Training:
		n.syncStats(x)
		n.apply(out, x)
	case n.byBatch:
		n.Sync = nil
		operands := []*Tensor{out, n.mean, n.rstd, x, n.gamma, n.beta, n.Residual, n.RunningMean, n.RunningVar, n.NumBatches}
		fused(device.BatchNorm{Running: n.running(), Eps: n.Eps, ReLU: n.ReLU}, operands...)
	default:
		n.Sync = nil
		n.mean.CopyFrom(n.RunningMean)
		fused(device.BatchNormRunning{Eps: n.Eps}, n.rstd, n.RunningVar.Contiguous())
		n.apply(out, x)
	}
	saves := []*Tensor{x, n.mean, n.rstd}
	for _, t := range []*Tensor{n.gamma, n.beta} {
		if t != nil {
			saves = append(saves, t)
		}
	}
	if n.ReLU && n.Residual != nil {
		saves = append(saves, out)
	}
	y := out
	return out.record("batch norm", inputs, saves, func(b *backprop, g *Tensor) {
		if !b.create {
			n.backward(b, g.Contiguous(), x, y)
			return
		}
		if n.Sync != nil {
			b.err = errors.New("batch norm: statistics over ranks have no second derivative")
			return
		}
		b.composite(g, func() *Tensor { return n.definition(x) })
	})
}

func wantDense(op string, t *Tensor) {
	if !t.IsContiguous() {
		fail(op, []*Tensor{t}, "the running statistics must be contiguous")
	}
}

// apply normalises by mean and rstd.
func (n *batchNorm) apply(out, x *Tensor) {
	operands := []*Tensor{out, n.mean, n.rstd, x, n.gamma, n.beta, n.Residual}
	fused(device.BatchNormApply{ReLU: n.ReLU}, operands...)
}

// syncStats computes mean and rstd over the batches of all ranks: the sums of
// each channel, and how many elements they are of.
func (n *batchNorm) syncStats(x *Tensor) {
	channels := x.shape[1]
	sums := result("batch norm", Float64, []int{2*channels + 1}, x)
	fused(device.BatchNormMoments{}, sums, x)
	sums.WithFloat64s(func(s []float64) {
		s[2*channels] = n.count
		n.Sync.Forward(s)
		n.count = s[2*channels]
	})
	if n.count < 2 {
		fail("batch norm", []*Tensor{x}, "has %v values per channel on all ranks: training needs more than one", n.count)
	}
	operands := []*Tensor{n.mean, n.rstd, sums, n.RunningMean, n.RunningVar, n.NumBatches}
	fused(device.BatchNormStats{Running: n.running(), Eps: n.Eps, Count: n.count}, operands...)
}

func (n *batchNorm) backward(b *backprop, g, x, y *Tensor) {
	// dx, and of the residual behind a ReLU the masked gradient.
	dx := result("batch norm", x.dtype, x.shape, g)
	var dr, dgamma, dbeta *Tensor
	if n.ReLU && n.Residual != nil && b.needs(3) {
		dr = result("batch norm", n.Residual.dtype, x.shape, g)
	}
	if n.gamma != nil && b.needs(1) {
		dgamma = result("batch norm", Float32, n.gamma.shape, g)
	}
	if n.beta != nil && b.needs(2) {
		dbeta = result("batch norm", Float32, n.beta.shape, g)
	}
	operands := []*Tensor{dx, dr, dgamma, dbeta, g, x, y, n.mean, n.rstd, n.gamma, n.beta}
	if !n.ReLU || n.Residual == nil {
		operands[6] = nil
	}
	params := device.BatchNormGradParams{ReLU: n.ReLU, Residual: n.Residual != nil, ByBatch: n.byBatch}
	if n.Sync == nil {
		fused(device.BatchNormGrad{BatchNormGradParams: params}, operands...)
	} else {
		sums := result("batch norm", Float64, []int{2 * x.shape[1]}, g)
		fused(device.BatchNormGradSums{BatchNormGradParams: params}, append(operands, sums)...)
		sums.WithFloat64s(func(s []float64) { b.err = n.Sync.Backward(b.ctx, s) })
		if b.err != nil {
			return
		}
		fused(device.BatchNormGradApply{BatchNormGradParams: params, Count: n.count}, append(operands, sums)...)
	}
	if n.Residual != nil && !n.ReLU {
		dr = g.To(n.Residual.dtype)
	}
	for i, gi := range []*Tensor{dx, dgamma, dbeta, dr} {
		if gi != nil && b.needs(i) {
			b.give(i, gi)
		}
	}
}

// definition is the norm in recorded operations.
func (n *batchNorm) definition(x *Tensor) *Tensor {
	var y *Tensor
	dtype := residualDType(x, n.Residual)
	x = x.To(Float32)
	if n.byBatch {
		centred := x.Sub(x.MeanKeep(0, 2))
		y = centred.Div(centred.Mul(centred).MeanKeep(0, 2).AddScalar(n.Eps).Sqrt())
	} else {
		y = x.Sub(n.mean.Reshape(-1, 1)).Mul(n.rstd.Reshape(-1, 1))
	}
	return n.finish(y).To(dtype)
}

// finish scales, shifts, adds and bends.
func (n *batchNorm) finish(y *Tensor) *Tensor {
	if n.gamma != nil {
		y = y.Mul(n.gamma.Reshape(-1, 1))
	}
	if n.beta != nil {
		y = y.Add(n.beta.Reshape(-1, 1))
	}
	if n.Residual != nil {
		y = y.Add(n.Residual.To(Float32))
	}
	if n.ReLU {
		y = y.ReLU()
	}
	return y
}
