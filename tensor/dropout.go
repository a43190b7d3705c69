// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
)

// Dropout sets each element of x to zero with probability p and multiplies the
// others by 1/(1-p) (Srivastava et al. 2014, in the inverted form). The numbers
// come from g's counter-based generator: they depend on its seed and on how many
// tensors it has drawn before, not on threads. With p = 0 the result is x itself,
// with p = 1 it is zeros, and g is not needed.
func Dropout(x *Tensor, p float64, g *Generator) *Tensor {
	present("dropout", x)
	const op = "dropout"
	switch {
	case !(p >= 0 && p <= 1):
		fail(op, []*Tensor{x}, "the probability must be between 0 and 1, got %v", p)
	case !x.dtype.IsFloat():
		fail(op, []*Tensor{x}, "wants a floating dtype")
	case p == 0:
		return x
	case p == 1:
		return x.MulScalar(0)
	case g == nil:
		fail(op, []*Tensor{x}, "wants a generator; a pass gets one by nn.WithGenerator")
	case isHalf(x.dtype):
		return Dropout(x.To(Float32), p, g).To(x.dtype)
	}
	n := x.NumElems()
	mask := result(op, Uint8, []int{(n + 7) / 8}, x)
	keep := uint32(min(math.Round((1-p)*(1<<32)), math.MaxUint32))
	fused(device.DropoutMask{NumElems: n, Key: g.normal.Key, Stream: g.nextStream(), Keep: keep}, mask)
	if x.dtype == Float64 {
		kept := result(op, Float32, x.shape, x)
		kept.Fill(1)
		return x.Mul(kept.maskScale(mask, 1).To(Float64)).MulScalar(1 / (1 - p))
	}
	return x.maskScale(mask, 1/(1-p))
}

// maskScale multiplies by scale where the bit is set and by 0 elsewhere. The
// mask is kept for the backward pass: a bit an element is cheaper to read than to
// draw again.
func (t *Tensor) maskScale(mask *Tensor, scale float64) *Tensor {
	src := t.Contiguous()
	out := result("dropout", Float32, t.shape, t)
	fused(device.Dropout{Scale: scale}, out, src, mask)
	return out.record("dropout", []*Tensor{t}, []*Tensor{mask}, func(b *backprop, g *Tensor) {
		b.give(0, g.maskScale(mask, scale))
	})
}

// nextStream returns the number of a stream that was not drawn from yet.
func (g *Generator) nextStream() uint64 {
	g.stream++
	return g.stream - 1
}
