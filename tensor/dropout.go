// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Dropout sets each element of x to zero with probability p and multiplies the
// others by 1/(1-p) (Srivastava et al. 2014, in the inverted form). The numbers
// come from g's counter-based generator: they depend on its seed and on how many
// tensors it has drawn before, not on threads. With p = 0 the result is x itself,
// with p = 1 it is zeros, and g is not needed.
func Dropout(x *Tensor, p float64, g *Generator) *Tensor { return DropoutPart(x, p, g) }

// Cut says which part of a dim of a larger tensor a tensor has: runs of the Size indices
// of the dim, each from its first index up to, not including, its end.
type Cut struct {
	Dim, Size int
	Runs      [][2]int
}

// DropoutPart is [Dropout] of a tensor that is a part of a larger one: it drops what
// Dropout of the whole would drop there. There is one cut for each dim that is cut. Runs
// of the last dim are one.
func DropoutPart(x *Tensor, p float64, g *Generator, cuts ...Cut) *Tensor {
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
		return DropoutPart(x.To(Float32), p, g, cuts...).To(x.dtype)
	}
	n := x.NumElems()
	mask := result(op, Uint8, []int{(n + 7) / 8}, x)
	keep := uint32(min(math.Round((1-p)*(1<<32)), math.MaxUint32))
	key, stream := g.normal.Key, g.nextStream()
	if len(cuts) == 0 {
		fused(device.DropoutMask{NumElems: n, Key: key, Stream: stream, Keep: keep}, mask)
	} else {
		starts, length := x.rowsOfWhole(op, cuts)
		fused(device.DropoutMaskRows{Length: length, Key: key, Stream: stream, Keep: keep}, mask, starts)
		starts.Free()
	}
	if x.dtype == Float64 {
		kept := result(op, Float32, x.shape, x)
		kept.Fill(1)
		return x.Mul(kept.maskScale(mask, 1).To(Float64)).MulScalar(1 / (1 - p))
	}
	return x.maskScale(mask, 1/(1-p))
}

// rowsOfWhole returns at which elements of the whole the rows of a part begin, int64, and
// how long a row is.
func (t *Tensor) rowsOfWhole(op string, cuts []Cut) (starts *Tensor, length int) {
	if len(t.shape) == 0 {
		fail(op, []*Tensor{t}, "a tensor without dims is no part of a larger one")
	}
	whole, at := slices.Clone(t.shape), make([][]int, len(t.shape))
	for d, n := range t.shape {
		for i := range n {
			at[d] = append(at[d], i)
		}
	}
	last := len(t.shape) - 1
	for _, c := range cuts {
		d := dimIndex(op, t, c.Dim)
		var indices []int
		for _, r := range c.Runs {
			for i := r[0]; i < r[1]; i++ {
				indices = append(indices, i)
			}
		}
		if len(indices) != t.shape[d] || len(indices) > 0 && (slices.Min(indices) < 0 || slices.Max(indices) >= c.Size) || d == last && len(c.Runs) != 1 {
			fail(op, []*Tensor{t}, "runs %v are not the part of dim %d, of %d indices", c.Runs, d, c.Size)
		}
		whole[d], at[d] = c.Size, indices
	}
	rows := []int64{0}
	for d := range last {
		next := make([]int64, 0, len(rows)*len(at[d]))
		for _, r := range rows {
			for _, i := range at[d] {
				next = append(next, r*int64(whole[d])+int64(i))
			}
		}
		rows = next
	}
	length = t.shape[last]
	for i := range rows {
		rows[i] *= int64(whole[last])
		if length > 0 {
			rows[i] += int64(at[last][0])
		}
	}
	return On(t.Device()).FromInt64(rows, len(rows)), length
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
