// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
)

// ClassPart is what one process knows of a cross-entropy whose classes several processes share:
// each has the logits of some of the classes. Whoever makes them one takes, row by row, the maximum
// m of Top over the processes, the sum s of Sum·exp(Top - m), and the sum t of Target: the loss of
// the row is m - t + log(s). Nothing here is recorded, and nothing belongs to a tape.
type ClassPart struct {
	Top, Sum *Tensor // float32 [rows]: the largest of these logits, and the sum of exp(logit - Top)
	Target   *Tensor // float32 [rows]: the logit of the target, 0 where another process has it, or it does not count
	Counts   *Tensor // float32 [rows]: 1 for a row that counts, 0 for others
	PerValid *Tensor // float64 of no dims: 1 / the number of rows that count
	Targets  *Tensor // int64 [rows]: the targets, 0 where the row does not count

	logits *Tensor // [rows, classes], float32 or bfloat16
	ids    *Tensor // int64 [rows], among these classes; negative where the target is not, or does not count
}

// NewClassPart looks at logits [batch…, classes], float32 or bfloat16, of the classes from first
// on, of numClasses in all, and at int64 targets [batch…] among all of them. ignore is the target
// of rows that do not count, nil for [IgnoreIndex]. Rows are the batch in one dim.
func NewClassPart(logits, targets *Tensor, first, numClasses int, ignore *int64) *ClassPart {
	const op = "cross entropy"
	present(op, logits, targets)
	operands := []*Tensor{logits, targets}
	if logits.dtype != Float32 && logits.dtype != BFloat16 || len(logits.shape) == 0 {
		fail(op, operands, "wants logits of float32 or bfloat16, with the classes in their last dim")
	}
	classes := logits.shape[len(logits.shape)-1]
	if first < 0 || first+classes > numClasses {
		fail(op, operands, "the classes from %d to %d are not among %d", first, first+classes, numClasses)
	}
	t := newTargetsOf(op, logits, targets.detach(), numClasses, CrossEntropyOptions{IgnoreIndex: ignore})
	p := &ClassPart{PerValid: t.perValid, logits: logits.detach().Contiguous().Reshape(t.rows, classes)}
	skipped := t.ids.LtScalar(0)
	p.Counts = skipped.LogicalNot().To(Float32)
	p.Targets = Where(skipped, scalarOf(t.ids, 0), t.ids)
	absent := t.ids.LtScalar(float64(first)).LogicalOr(t.ids.GeScalar(float64(first + classes)))
	here := Where(absent, scalarOf(t.ids, -1), t.ids.SubScalar(float64(first)))
	p.ids = Where(skipped, scalarOf(t.ids, IgnoreIndex), here)
	p.Top, p.Sum = p.empty(Float32, t.rows), p.empty(Float32, t.rows)
	if classes == 0 {
		p.Top.Fill(math.Inf(-1))
		p.Sum.Fill(0)
		p.Target = p.Counts.MulScalar(0)
		return p
	}
	fused(device.MaxAndSumExp{}, p.Top, p.Sum, p.logits)
	at := Where(p.ids.LtScalar(0), scalarOf(p.ids, 0), p.ids).Reshape(t.rows, 1)
	taken := p.logits.gatherElems(1, at).Reshape(t.rows).To(Float32)
	p.Target = Where(p.ids.LtScalar(0), scalarOf(taken, 0), taken)
	return p
}

// empty returns memory beside the logits.
func (p *ClassPart) empty(dtype DType, shape ...int) *Tensor {
	return alloc(nil, p.logits.Device(), dtype, shape, false)
}

// Grad returns the gradient of the logits, [rows, classes] of their dtype, from that of the loss
// of each row, g float32 [rows], and the log-sum-exp of all classes, lse float32 [rows].
func (p *ClassPart) Grad(lse, g *Tensor) *Tensor { return p.grad(lse, g, p.ids) }

// GradOfLSE is Grad of the log-sum-exp alone, without the targets' logits: g times the softmax.
// It is 0 in rows that do not count.
func (p *ClassPart) GradOfLSE(lse, g *Tensor) *Tensor {
	return p.grad(lse, g, Where(p.ids.EqScalar(IgnoreIndex), p.ids, scalarOf(p.ids, -1)))
}

func (p *ClassPart) grad(lse, g, ids *Tensor) *Tensor {
	dx := p.empty(p.logits.dtype, p.logits.shape...)
	if p.logits.NumElems() > 0 {
		fused(device.CrossEntropyGrad{}, dx, p.logits, lse.detach().Contiguous(), ids, g.detach().Contiguous())
	}
	return dx
}
