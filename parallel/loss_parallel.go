// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// crossEntropy computes a loss of logits of which each rank has some of the classes. The ranks
// send each other two or three numbers for each row, and nobody has all logits of a row.
func (t *tensorParallel) crossEntropy(c *nn.Ctx, loss *nn.CrossEntropyLoss, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if !c.Tape().Recording() || len(x) != 2 || x[0] == nil || x[1] == nil || x[0].NumDims() == 0 {
		return next(c, x)
	}
	classes := t.passOf(c.Tape()).classes
	first, n := t.part(classes)
	t.wantLogits(c, x[0], classes)
	if classes == 0 || x[0].Dim(-1) != n {
		return next(c, x) // of whole logits
	}
	logits, targets := x[0], x[1]
	if targets.DType().IsFloat() {
		c.Fail(fmt.Errorf("tensor parallel: a cross-entropy of targets that are probabilities (%v%v) needs whole logits: set TPConfig.WholeLogits", targets.DType(), targets.Shape()))
	}
	if d := logits.DType(); d != tensor.Float32 && d != tensor.BFloat16 {
		logits = logits.To(tensor.Float32)
	}
	l := &sharedLoss{t: t, part: tensor.NewClassPart(logits, targets, first, classes, loss.IgnoreIndex), first: first, classes: classes, smoothing: loss.LabelSmoothing}
	if !(l.smoothing >= 0 && l.smoothing <= 1) {
		return next(c, x) // which refuses it
	}
	if loss.Weight != nil {
		l.weight = c.Buffer(loss.Weight).Untracked().To(tensor.Float32)
		if l.weight.NumDims() != 1 || l.weight.Dim(0) != classes {
			c.Fail(fmt.Errorf("tensor parallel: the weight of a cross-entropy has the shape %v: want [%d], one for each class", l.weight.Shape(), classes))
		}
	}
	rows := l.rows(c, logits)
	switch {
	case loss.Reduction == tensor.ReduceNone:
		rows = rows.Reshape(targets.Shape()...)
	case loss.Reduction == tensor.ReduceSum:
		rows = rows.Sum()
	case l.weight != nil:
		rows = rows.Sum().Div(l.targetWeights().Sum())
	default:
		rows = rows.Sum().Mul(l.part.PerValid.To(rows.DType()))
	}
	return []*tensor.Tensor{rows}
}

// wantLogits fails on all ranks for whole logits that some rank would take for its part of others,
// because they have as many classes. The first pass, which is checked, can tell them apart.
func (t *tensorParallel) wantLogits(c *nn.Ctx, logits *tensor.Tensor, classes int) {
	pass := sharding.Of(c.Tape())
	axis := slices.IndexFunc(pass.Axes(), func(a sharding.Axis) bool { return a.Name == t.axis() })
	if classes == 0 || axis < 0 || !pass.TypeOf(logits)[axis].IsReplicate() {
		return
	}
	for rank := range t.size {
		if _, n := t.partOf(rank, classes); n == logits.Dim(-1) {
			c.Fail(fmt.Errorf("tensor parallel: a cross-entropy of whole logits of %d classes, in a model of which ranks share %d logits, %d of them on rank %d: the two look alike: set TPConfig.WholeLogits", n, classes, n, rank))
		}
	}
}

// sharedLoss is a cross-entropy of one call.
type sharedLoss struct {
	t         *tensorParallel
	part      *tensor.ClassPart
	first     int            // of this rank's classes
	classes   int            // of all ranks
	smoothing float64        // the share of each target that all classes have
	weight    *tensor.Tensor // float32 [classes], nil for 1
}

// targetWeights returns the weight of each row: that of its class, and 0 if it does not count.
func (l *sharedLoss) targetWeights() *tensor.Tensor {
	if l.weight == nil {
		return l.part.Counts
	}
	return l.weight.IndexSelect(0, l.part.Targets).Mul(l.part.Counts)
}

// ownWeights returns the weights of this rank's classes, [1, classes].
func (l *sharedLoss) ownWeights(n int) *tensor.Tensor {
	if l.weight == nil {
		return tensor.On(l.part.Top.Device()).Full(1, 1, n)
	}
	return l.weight.Narrow(0, l.first, n).Reshape(1, n)
}

// sumOfWeights returns the sum over all classes.
func (l *sharedLoss) sumOfWeights() *tensor.Tensor {
	if l.weight == nil {
		return tensor.On(l.part.Top.Device()).Full(float64(l.classes))
	}
	return l.weight.Sum()
}

// reduce reduces a value of each rank over tp, in place.
func (l *sharedLoss) reduce(c *nn.Ctx, x *tensor.Tensor, op dist.ReduceOp) *tensor.Tensor {
	from := mesh.Partial(op)
	l.t.count(x.Shape(), x.DType(), from, mesh.Replicate())
	if x.Device() == tensor.Meta {
		return x
	}
	x = x.Contiguous()
	v := mesh.Tensor{Local: x, Layout: mesh.Layout{Mesh: l.t.mesh, Shape: x.Shape(), Placements: []mesh.Placement{from}}}
	out, err := mesh.AllReduce(c, tensorAxis, v)
	if err == nil {
		err = out[0].Expect(mesh.Replicate())
	}
	if err != nil {
		c.Fail(fmt.Errorf("tensor parallel: loss of %d classes: %w", l.classes, err))
	}
	return out[0].Local
}

// rows returns the loss of each row, float32 [rows], 0 where it does not count.
func (l *sharedLoss) rows(c *nn.Ctx, logits *tensor.Tensor) *tensor.Tensor {
	p, n := l.part, logits.Dim(-1)
	top := l.reduce(c, p.Top.Clone(), dist.Max)
	parts := []*tensor.Tensor{p.Sum.Mul(p.Top.Sub(top).Exp()), p.Target}
	if l.smoothing > 0 {
		spread := logits.Untracked().To(tensor.Float32).Reshape(-1, n)
		if n == 0 {
			spread = p.Counts.MulScalar(0)
		} else {
			spread = spread.Mul(l.ownWeights(n)).Sum(-1)
		}
		parts = append(parts, spread)
	}
	sums := l.reduce(c, tensor.Stack(0, parts...), dist.Sum)
	logSum := sums.Select(0, 0).Log()
	lse := c.Tape().Adopt(top.Add(logSum))
	loss := top.Sub(sums.Select(0, 1)).Add(logSum)
	if l.weight != nil {
		loss = loss.Mul(l.targetWeights())
	}
	if e := l.smoothing; e > 0 {
		even := lse.Untracked().Mul(l.sumOfWeights()).Sub(sums.Select(0, 2))
		loss = loss.MulScalar(1 - e).Add(even.MulScalar(e / float64(l.classes)))
	}
	zero := tensor.New(loss.Device(), tensor.Float32)
	loss = c.Tape().Adopt(tensor.Where(p.Counts.EqScalar(0), zero, loss))
	last := mesh.Shard(logits.NumDims() - 1)
	l.t.giveAs(c, "loss of logits that ranks share", logits, loss, last, mesh.Replicate(), mesh.Replicate(), last)
	return tensor.Record("tensor parallel", loss, []*tensor.Tensor{logits}, []*tensor.Tensor{logits, lse}, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		dx := l.grad(lse.Untracked(), g.Untracked(), n).Reshape(logits.Shape()...)
		return []*tensor.Tensor{c.Tape().Adopt(dx)}, nil
	})
}

// grad returns the gradient of this rank's logits from that of the rows.
func (l *sharedLoss) grad(lse, g *tensor.Tensor, n int) *tensor.Tensor {
	if l.smoothing == 0 {
		if l.weight != nil {
			g = g.Mul(l.targetWeights())
		}
		return l.part.Grad(lse, g)
	}
	even := g.MulScalar(l.smoothing / float64(l.classes)).Mul(l.part.Counts)
	dx := l.part.Grad(lse, g.MulScalar(1-l.smoothing).Mul(l.targetWeights()))
	dx = dx.Add(l.part.GradOfLSE(lse, even.Mul(l.sumOfWeights())))
	return dx.Sub(even.Reshape(-1, 1).Mul(l.ownWeights(n)).To(dx.DType()))
}
