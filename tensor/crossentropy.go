// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// IgnoreIndex is the target that CrossEntropy and NLL skip.
const IgnoreIndex = -100

// CrossEntropyOptions are the options of [CrossEntropy] and [NLL].
type CrossEntropyOptions struct {
	// Weight [classes] weighs the loss of each row by its target's class; the
	// mean is then one by weight. Nil for 1.
	Weight *Tensor
	// IgnoreIndex is the target of rows that do not count; nil for the constant
	// of that name.
	IgnoreIndex *int64
	Reduction   Reduction
	// LabelSmoothing takes this share of each target and spreads it over all
	// classes (Szegedy et al. 2016). NLL has none.
	LabelSmoothing float64
}

// CrossEntropy returns the mean over the rows of -log softmax(logits)[target],
// in nats: logits [batch…, classes], int64 targets [batch…]. Classes are the last
// dim, unlike PyTorch, where they are dim 1 of [batch, classes, …]. Targets equal to
// [IgnoreIndex] do not count; if none counts the loss is NaN, as in PyTorch.
// Targets of a floating dtype are probabilities [batch…, classes]. A target that
// is no class is an error that names it and its row. The loss of logits of sixteen
// bits is computed in float32 and stays so, as other losses are.
func CrossEntropy(logits, targets *Tensor, opts ...CrossEntropyOptions) *Tensor {
	const op = "cross entropy"
	present(op, logits, targets)
	o := option(op, opts)
	operands := []*Tensor{logits, targets}
	if !logits.dtype.IsFloat() {
		fail(op, operands, "wants float32 logits, or another floating dtype")
	}
	if o.LabelSmoothing < 0 || o.LabelSmoothing > 1 {
		fail(op, operands, "label smoothing must be between 0 and 1, got %v", o.LabelSmoothing)
	}
	if targets.dtype.IsFloat() {
		return crossEntropyOfProbabilities(op, wideLoss(logits), targets, o)
	}
	t := newTargets(op, logits, targets, o)
	x := logits.Reshape(t.rows, t.classes)
	if o.LabelSmoothing == 0 && (x.dtype == Float32 || x.dtype == BFloat16) {
		return t.reduce(op, crossEntropyRows(x, t.ids), o)
	}
	logp := wideLoss(x).LogSoftmax(-1)
	loss := logp.pick(t.ids).Neg()
	if t.weight != nil {
		loss = loss.Mul(t.weight)
	}
	if eps := o.LabelSmoothing; eps > 0 {
		spread := logp
		if o.Weight != nil {
			spread = logp.Mul(o.Weight)
		}
		even := Where(t.ids.GeScalar(0), spread.Sum(-1).Neg(), scalarOf(loss, 0))
		loss = loss.MulScalar(1 - eps).Add(even.MulScalar(eps / float64(t.classes)))
	}
	return t.reduceWeighed(op, loss, o)
}

// NLL returns the mean over the rows of -x[target] for log-probabilities x
// [batch…, classes] and int64 targets [batch…]: [CrossEntropy] without its softmax.
func NLL(x, targets *Tensor, opts ...CrossEntropyOptions) *Tensor {
	const op = "nll"
	present(op, x, targets)
	o := option(op, opts)
	if !x.dtype.IsFloat() {
		fail(op, []*Tensor{x, targets}, "wants a floating dtype")
	}
	if o.LabelSmoothing != 0 {
		fail(op, []*Tensor{x, targets}, "has no label smoothing; CrossEntropy has")
	}
	t := newTargets(op, x, targets, o)
	return t.reduce(op, wideLoss(x).Reshape(t.rows, t.classes).pick(t.ids).Neg(), o)
}

func crossEntropyOfProbabilities(op string, x, targets *Tensor, o CrossEntropyOptions) *Tensor {
	if !slices.Equal(x.shape, targets.shape) || len(x.shape) == 0 {
		fail(op, []*Tensor{x, targets}, "targets that are probabilities must have the logits' shape")
	}
	if o.IgnoreIndex != nil {
		fail(op, []*Tensor{x, targets}, "targets that are probabilities have no index to ignore")
	}
	targets = wideLoss(targets)
	classes := x.shape[len(x.shape)-1]
	if eps := o.LabelSmoothing; eps > 0 {
		targets = targets.MulScalar(1 - eps).AddScalar(eps / float64(classes))
	}
	terms := x.LogSoftmax(-1).Mul(targets)
	if o.Weight != nil {
		wantClassWeight(op, x, o.Weight, classes)
		terms = terms.Mul(o.Weight)
	}
	return reduceLoss(op, terms.Sum(-1).Neg(), LossOptions{Reduction: o.Reduction})
}

func wantClassWeight(op string, x, weight *Tensor, classes int) {
	if !slices.Equal(weight.shape, []int{classes}) {
		fail(op, []*Tensor{x, weight}, "the weight must have shape [%d], one for each class", classes)
	}
}

// targets are the checked targets of a loss over classes.
type targets struct {
	ids           *Tensor // int64 [rows], IgnoreIndex where a row does not count
	shape         []int   // of the batch
	rows, classes int
	perValid      *Tensor // float64: 1 / the number of rows that count
	weight        *Tensor // [rows], of each row's class, 0 where it does not count; nil for 1
}

func newTargets(op string, x, ids *Tensor, o CrossEntropyOptions) targets {
	return newTargetsOf(op, x, ids, -1, o)
}

// newTargetsOf is newTargets where the logits have some of the classes; -1 is all.
func newTargetsOf(op string, x, ids *Tensor, classes int, o CrossEntropyOptions) targets {
	operands := []*Tensor{x, ids}
	wantDTypeOf(op, "targets", operands, ids, Int64)
	n := len(x.shape)
	if n >= 3 && n == len(ids.shape)+1 && slices.Equal(slices.Delete(x.Shape(), 1, 2), ids.shape) && !slices.Equal(x.shape[:n-1], ids.shape) {
		fail(op, operands, "classes are the last dim, unlike PyTorch, where they are dim 1: move them there by Permute")
	}
	if n < 1 || !slices.Equal(x.shape[:n-1], ids.shape) {
		fail(op, operands, "the targets must have the logits' shape without its last dim")
	}
	t := targets{shape: ids.shape, rows: numElems(ids.shape), classes: classes}
	if classes < 0 {
		t.classes = x.shape[n-1]
	}
	ignore := int64(IgnoreIndex)
	if o.IgnoreIndex != nil {
		ignore = *o.IgnoreIndex
	}
	src := ids.Detach().Contiguous()
	t.ids = result(op, Int64, []int{t.rows}, ids)
	t.perValid = result(op, Float64, nil, ids)
	classes = t.classes
	verify(op, operands, func(f device.Fault) string {
		return fmt.Sprintf("target %d of row %d is not one of the %d classes", f.Value, f.Position, classes)
	}, func(c *device.Check) {
		fused(device.ClassTargets{Classes: t.classes, Ignore: ignore, IgnoreAs: IgnoreIndex, Check: c}, t.ids, src.Reshape(t.rows), t.perValid)
	})
	if o.Weight != nil {
		wantClassWeight(op, x, o.Weight, t.classes)
		w := o.Weight.Detach().To(Float32)
		skipped := t.ids.LtScalar(0)
		if t.classes == 0 {
			w = New(w.Device(), Float32, 1) // then all are skipped
		}
		t.weight = Where(skipped, scalarOf(w, 0), w.selectSlices(0, Where(skipped, scalarOf(t.ids, 0), t.ids)))
	}
	return t
}

// reduce weighs and combines the losses of the rows.
func (t targets) reduce(op string, loss *Tensor, o CrossEntropyOptions) *Tensor {
	if t.weight != nil {
		loss = loss.Mul(t.weight)
	}
	return t.reduceWeighed(op, loss, o)
}

func (t targets) reduceWeighed(op string, loss *Tensor, o CrossEntropyOptions) *Tensor {
	switch {
	case o.Reduction == ReduceMean && t.weight != nil:
		return loss.Sum().Div(t.weight.Sum())
	case o.Reduction == ReduceMean:
		return loss.Sum().Mul(t.perValid.To(loss.dtype))
	}
	return reduceLoss(op, loss.Reshape(t.shape...), LossOptions{Reduction: o.Reduction})
}

// crossEntropyRows returns the loss of each row of logits [rows, classes], which
// are float32 or bfloat16: there are many, and no copy of them is made.
func crossEntropyRows(logits, ids *Tensor) *Tensor {
	const op = "cross entropy"
	src := logits.Contiguous()
	loss := result(op, Float32, src.shape[:1], src, ids)
	lse := result(op, Float32, src.shape[:1], src, ids)
	fused(device.CrossEntropy{}, loss, lse, src, ids)
	return loss.record(op, []*Tensor{src}, []*Tensor{src, lse, ids}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return wideLoss(src).LogSoftmax(-1).pick(ids).Neg() })
			return
		}
		dx := result(op, src.dtype, src.shape, g)
		fused(device.CrossEntropyGrad{}, dx, src, lse, ids, g.Contiguous())
		b.give(0, dx)
	})
}

// pick takes one element of each row [rows, classes]; skipped targets give 0.
func (t *Tensor) pick(ids *Tensor) *Tensor {
	skipped := ids.LtScalar(0)
	at := Where(skipped, scalarOf(ids, 0), ids).Reshape(t.shape[0], 1)
	if t.shape[1] == 0 {
		return zerosLike(t.Detach().Sum(1)) // then all are skipped
	}
	taken := t.gatherElems(1, at).Reshape(t.shape[0])
	return Where(skipped, scalarOf(taken, 0), taken)
}
