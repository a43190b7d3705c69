// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// IgnoreIndex is the target that CrossEntropy skips.
const IgnoreIndex = -100

// CrossEntropy returns the mean over the rows of -log softmax(logits)[target],
// in nats: logits [batch…, classes], int64 targets [batch…]. Targets equal to
// [IgnoreIndex] do not count; if none counts the loss is NaN, as in PyTorch.
func CrossEntropy(logits, targets *Tensor) *Tensor {
	operands := []*Tensor{logits, targets}
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
	numValid, bad := loss.Device().CrossEntropy(loss.array(), lse.array(), src.array(), ids.array())
	if bad >= 0 {
		fail("cross entropy", operands, "target %d of row %d is not one of the %d classes", ids.Int64s()[bad], bad, classes)
	}
	mean := loss.Sum().MulScalar(1 / float64(numValid))
	return mean.record("cross entropy", []*Tensor{src}, []*Tensor{src, lse, ids}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, []*Tensor{src}, func() *Tensor { return crossEntropyDefinition(src, ids, numValid) })
			return
		}
		dx := result("cross entropy", Float32, src.shape, g)
		dx.Device().CrossEntropyGrad(dx.array(), src.array(), lse.array(), ids.array(), g.array(), 1/float32(numValid))
		b.give(0, dx)
	})
}

func crossEntropyDefinition(logits, targets *Tensor, numValid int) *Tensor {
	shifted := logits.Sub(logits.maxKeep())
	logSoftmax := shifted.Sub(shifted.Exp().SumKeep(-1).Log())
	return logSoftmax.pick(targets).Sum().MulScalar(-1 / float64(numValid))
}

// pick takes one element of each row; skipped targets give 0.
func (t *Tensor) pick(ids *Tensor) *Tensor {
	out := result("pick", Float32, t.shape[:1], t, ids)
	out.Device().Pick(out.array(), t.array(), ids.array())
	return out.record("pick", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.place(ids, t.shape[1]))
	})
}

// place is the reverse of pick: zeros with one element a row set.
func (t *Tensor) place(ids *Tensor, cols int) *Tensor {
	out := result("place", Float32, []int{t.shape[0], cols}, t, ids)
	src := t.Contiguous()
	out.Device().Place(out.array(), src.array(), ids.array())
	return out.record("place", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.Contiguous().pick(ids))
	})
}
