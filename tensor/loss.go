// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// IgnoreIndex is the target that CrossEntropy skips.
const IgnoreIndex = -100

// CrossEntropy returns the mean over the rows of -log softmax(logits)[target],
// in nats: logits [batch…, classes], int64 targets [batch…]. Targets equal to
// [IgnoreIndex] do not count; if none counts the loss is NaN, as in PyTorch.
func CrossEntropy(logits, targets *Tensor) *Tensor {
	operands := []*Tensor{logits, targets}
	logits.wantDType("cross entropy", Float32)
	targets.wantDType("cross entropy", Int64)
	n := len(logits.shape)
	if n < 1 || !slices.Equal(logits.shape[:n-1], targets.shape) {
		fail("cross entropy", operands, "the targets must have the logits' shape without its last dim")
	}
	classes := logits.shape[n-1]
	src, ids := logits.rows(classes), targets.Contiguous()
	rows := src.shape[:1]
	loss := result("cross entropy", Float32, rows, operands...)
	lse := result("cross entropy", Float32, rows, operands...)
	numValid := rows[0]
	fused("cross entropy", nil, []*Tensor{loss, lse, src, ids}, func(p *work.Pool, a []device.Array) {
		targets := a[3].Int64s()
		for row, id := range targets {
			switch {
			case id == IgnoreIndex:
				numValid--
			case id < 0 || id >= int64(classes):
				fail("cross entropy", operands, "target %d of row %d is not one of the %d classes", id, row, classes)
			}
		}
		kernel.CrossEntropy(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), targets, rows[0], classes)
	})
	mean := loss.Sum().MulScalar(1 / float64(numValid))
	return mean.record("cross entropy", []*Tensor{src}, []*Tensor{src, lse, ids}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return crossEntropyDefinition(src, ids, numValid) })
			return
		}
		dx := result("cross entropy", Float32, src.shape, g)
		scale := 1 / float32(numValid)
		fused("cross entropy grad", []float64{float64(scale)}, []*Tensor{dx, src, lse, ids, g}, func(p *work.Pool, a []device.Array) {
			rowScale := []float32{a[4].Float32s()[0] * scale}
			kernel.CrossEntropyBackward(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Int64s(), rowScale, rows[0], classes)
		})
		b.give(0, dx)
	})
}

// MSE returns the mean of the squared differences of two tensors of one shape:
// nothing is broadcast, for that is where regressions go wrong unseen.
func MSE(x, target *Tensor) *Tensor {
	if !slices.Equal(x.shape, target.shape) {
		fail("mse", []*Tensor{x, target}, "the shapes must be equal")
	}
	d := x.Sub(target)
	return d.Mul(d).Mean()
}

func crossEntropyDefinition(logits, targets *Tensor, numValid int) *Tensor {
	shifted := logits.Sub(logits.maxKeep())
	logSoftmax := shifted.Sub(shifted.Exp().SumKeep(-1).Log())
	return logSoftmax.pick(targets).Sum().MulScalar(-1 / float64(numValid))
}

// pick takes one element of each row; skipped targets give 0.
func (t *Tensor) pick(ids *Tensor) *Tensor {
	out := result("pick", Float32, t.shape[:1], t, ids)
	fused("pick", nil, []*Tensor{out, t, ids}, func(_ *work.Pool, a []device.Array) {
		dst, x, cols := a[0].Float32s(), a[1].Float32s(), a[1].Shape[1]
		for row, id := range a[2].Int64s() {
			dst[row] = 0
			if id >= 0 {
				dst[row] = x[row*cols+int(id)]
			}
		}
	})
	return out.record("pick", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.place(ids, t.shape[1]))
	})
}

// place is the reverse of pick: zeros with one element a row set.
func (t *Tensor) place(ids *Tensor, cols int) *Tensor {
	out := result("place", Float32, []int{t.shape[0], cols}, t, ids)
	src := t.Contiguous()
	out.Device().Fill(out.array(), 0)
	fused("place", nil, []*Tensor{out, src, ids}, func(_ *work.Pool, a []device.Array) {
		dst, x := a[0].Float32s(), a[1].Float32s()
		for row, id := range a[2].Int64s() {
			if id >= 0 {
				dst[row*cols+int(id)] = x[row]
			}
		}
	})
	return out.record("place", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.Contiguous().pick(ids))
	})
}
