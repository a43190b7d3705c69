// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Cat joins tensors along a dim. They have one shape but for that dim, and are
// converted to the dtype that holds them all, as PyTorch promotes.
func Cat(dim int, ts ...*Tensor) *Tensor {
	present("cat", ts...)
	if len(ts) == 0 {
		fail("cat", nil, "wants at least one tensor")
	}
	dim = dimIndex("cat", ts[0], dim)
	ts = promoted(ts)
	shape := ts[0].Shape()
	shape[dim] = 0
	for _, t := range ts {
		own := t.Shape()
		if len(own) != len(shape) {
			fail("cat", ts, "the tensors must have one number of dims")
		}
		shape[dim] += own[dim]
		own[dim] = shape[dim]
		if !slices.Equal(own, shape) {
			fail("cat", ts, "the tensors must have one shape, but for dim %d", dim)
		}
	}
	if len(ts) == 1 {
		return ts[0].Clone() // a value of its own, as of several
	}
	out := result("cat", ts[0].dtype, shape, ts...)
	at := 0
	starts := make([]int, len(ts))
	for i, t := range ts {
		starts[i] = at
		if t.NumElems() > 0 {
			fused(device.Concat{Dim: dim, Start: at}, out, t.Detach().Contiguous())
		}
		at += t.shape[dim]
	}
	if !out.dtype.IsFloat() {
		return out
	}
	return out.record("cat", ts, nil, func(b *backprop, g *Tensor) {
		for i, t := range ts {
			if b.needs(i) {
				b.give(i, g.Narrow(dim, starts[i], t.shape[dim]))
			}
		}
	})
}

// promoted returns tensors in the dtype that holds them all.
func promoted(ts []*Tensor) []*Tensor {
	dtype := ts[0].dtype
	for _, t := range ts {
		dtype = PromoteTypes(dtype, t.dtype)
	}
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		out[i] = t.To(dtype)
	}
	return out
}

// Stack joins tensors of one shape along a new dim.
func Stack(dim int, ts ...*Tensor) *Tensor {
	present("stack", ts...)
	if len(ts) == 0 {
		fail("stack", nil, "wants at least one tensor")
	}
	rows := make([]*Tensor, len(ts))
	for i, t := range ts {
		if !slices.Equal(t.shape, ts[0].shape) {
			fail("stack", ts, "the tensors must have one shape")
		}
		rows[i] = t.Unsqueeze(dim)
	}
	return Cat(dim, rows...)
}

// Split returns views of runs of the given sizes along a dim, which they fill.
func (t *Tensor) Split(dim int, sizes ...int) []*Tensor {
	dim = dimIndex("split", t, dim)
	sum := 0
	for _, n := range sizes {
		sum += n
		if n < 0 {
			fail("split", []*Tensor{t}, "a size of %v is negative", sizes)
		}
	}
	if sum != t.shape[dim] {
		fail("split", []*Tensor{t}, "the sizes %v do not fill dim %d", sizes, dim)
	}
	parts := make([]*Tensor, len(sizes))
	at := 0
	for i, n := range sizes {
		parts[i] = t.Narrow(dim, at, n)
		at += n
	}
	return parts
}

// SplitEvery returns views of runs of size elements along a dim; the last one
// may be shorter. It is PyTorch's split by one size.
func (t *Tensor) SplitEvery(size, dim int) []*Tensor {
	dim = dimIndex("split", t, dim)
	if size < 1 {
		fail("split", []*Tensor{t}, "a size of %d cuts nothing", size)
	}
	var sizes []int
	for at := 0; at < t.shape[dim]; at += size {
		sizes = append(sizes, min(size, t.shape[dim]-at))
	}
	if sizes == nil {
		sizes = []int{0}
	}
	return t.Split(dim, sizes...)
}

// Chunk returns views of n runs along a dim, of one size but for the last; there
// are fewer where the dim has not enough elements, but n of nothing.
func (t *Tensor) Chunk(n, dim int) []*Tensor {
	dim = dimIndex("chunk", t, dim)
	if n < 1 {
		fail("chunk", []*Tensor{t}, "wants at least one chunk")
	}
	if t.shape[dim] == 0 {
		return t.Split(dim, make([]int, n)...)
	}
	return t.SplitEvery(1+(t.shape[dim]-1)/n, dim)
}

// Unbind returns the views at each index of a dim, which disappears.
func (t *Tensor) Unbind(dim int) []*Tensor {
	dim = dimIndex("unbind", t, dim)
	parts := make([]*Tensor, t.shape[dim])
	for i := range parts {
		parts[i] = t.Select(dim, i)
	}
	return parts
}
