// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// crossEntropy computes this rank's share of a loss: the sum over its tokens, divided by what the
// mean over the tokens of all ranks divides by. The sum of the shares is the loss. The targets are
// those of whole sequences, so that each rank knows how many count without asking the others.
func (p *contextPass) crossEntropy(c *nn.Ctx, m *nn.CrossEntropyLoss, x []*tensor.Tensor) *tensor.Tensor {
	nn.WantInputs("CrossEntropyLoss", x, "logits and targets", 2)
	logits, targets := x[0], x[1]
	fail := func(format string, args ...any) {
		c.Fail(fmt.Errorf("context parallelism: nn.CrossEntropyLoss: %w", fmt.Errorf(format, args...)))
	}
	switch {
	case p.inside:
		fail("it is called inside of the model, where the targets are cut: return the logits, and call it in the function that Strategy.Step calls")
	case m.Reduction != tensor.ReduceMean && m.Reduction != tensor.ReduceSum:
		fail("the losses of single tokens are on the ranks that have these: take the mean or the sum")
	case targets == nil || targets.NumDims() < 2 || targets.Dim(1) != p.z.time:
		fail("the targets have shape %v, and must be those of the whole sequences of %d tokens, [batch, time]", shapeOf(targets), p.z.time)
	case logits.NumDims() < 3 || logits.Dim(1) != p.z.len(p.rank):
		fail("the logits have shape %v, and their dim 1 is not this rank's %d of %d tokens: give what the model has returned", logits.Shape(), p.z.len(p.rank), p.z.time)
	}
	if logits.Device() == tensor.Meta {
		p.allReduced(tensor.Float64, 1) // sumLoss, once in a step
	}
	whole := c.Tape().Const(targets)
	share := *m
	share.Reduction = tensor.ReduceSum
	p.share = &share
	loss := c.CallN(&share, logits, p.z.take(whole, 1, p.rank))[0]
	p.share, p.lost = nil, true
	if m.Reduction == tensor.ReduceMean {
		loss = loss.Div(numTargets(c, m, whole).To(loss.DType()))
	}
	return loss
}

// numTargets returns what a mean over targets divides by: how many count, or their weight.
func numTargets(c *nn.Ctx, m *nn.CrossEntropyLoss, targets *tensor.Tensor) *tensor.Tensor {
	if targets.DType().IsFloat() { // probabilities [batch, time, classes]
		n := targets.NumElems() / max(1, targets.Dim(-1))
		return c.Tape().Const(tensor.On(targets.Device()).Full(float64(n)))
	}
	ignored := int64(tensor.IgnoreIndex)
	if m.IgnoreIndex != nil {
		ignored = *m.IgnoreIndex
	}
	counts := targets.NeScalar(float64(ignored))
	if m.Weight == nil {
		return counts.To(tensor.Int64).Sum().To(tensor.Float32)
	}
	ids := targets.MaskedFill(counts.LogicalNot(), 0).Reshape(-1)
	return c.Buffer(m.Weight).IndexSelect(0, ids).Mul(counts.Reshape(-1).To(tensor.Float32)).Sum()
}

// expertLoad returns how many tokens of all ranks chose each expert, from the counts of this
// rank's. The losses that the model makes of them are then shares, as the loss itself is.
func (p *contextPass) expertLoad(c *nn.Ctx, counts *tensor.Tensor) *tensor.Tensor {
	p.allReduced(counts.DType(), counts.NumElems())
	if counts.Device() == tensor.Meta {
		return counts
	}
	sum := c.Tape().Adopt(counts.Untracked().Clone())
	if err := p.group.AllReduce(c, sum, dist.Sum); err != nil {
		c.Fail(fmt.Errorf("context parallelism: count the tokens of each expert: %w", err))
	}
	return sum
}

// sumLoss returns the sum of the shares of a loss.
func (p *contextParallel) sumLoss(ctx context.Context, loss *tensor.Tensor) (*tensor.Tensor, error) {
	p.allReduced(loss.DType(), 1)
	sum := loss.Detach().Clone().Keep()
	if err := p.group.AllReduce(ctx, sum, dist.Sum); err != nil {
		return nil, fmt.Errorf("context parallelism: add up the shares of the loss: %w", err)
	}
	return sum, nil
}
