// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Squeeze returns a view without the given dims, those that have size 1; all
// of size 1 if none is given.
func (t *Tensor) Squeeze(dims ...int) *Tensor {
	gone := make([]bool, len(t.shape))
	for i, s := range t.shape {
		gone[i] = len(dims) == 0 && s == 1
	}
	for _, d := range dims {
		d = dimIndex("squeeze", t, d)
		gone[d] = t.shape[d] == 1
	}
	for d := len(gone) - 1; d >= 0; d-- {
		if gone[d] {
			t = t.squeeze(d)
		}
	}
	return t
}

// Unsqueeze returns a view with a new dim of size 1, which becomes dim number
// dim; -1 is behind the last.
func (t *Tensor) Unsqueeze(dim int) *Tensor {
	n := len(t.shape)
	if dim < 0 {
		dim += n + 1
	}
	if dim < 0 || dim > n {
		fail("unsqueeze", []*Tensor{t}, "there is no place for a new dim %d among %d", dim, n)
	}
	stride := 1
	if dim < n {
		stride = t.shape[dim] * t.strides[dim]
	}
	shape, strides := slices.Insert(t.Shape(), dim, 1), slices.Insert(slices.Clone(t.strides), dim, stride)
	return t.view("unsqueeze", t.offset, shape, strides, []int{dim}, func(b *backprop, g *Tensor) { b.give(0, g.squeeze(dim)) })
}

// MoveDim returns a view with one dim moved to another place; the others stay
// in order.
func (t *Tensor) MoveDim(from, to int) *Tensor {
	from, to = dimIndex("move dim", t, from), dimIndex("move dim", t, to)
	order := make([]int, len(t.shape))
	for i := range order {
		order[i] = i
	}
	return t.Permute(slices.Insert(slices.Delete(order, from, from+1), to, from)...)
}

// Unflatten cuts a dim into several of the given sizes, one of which may be
// -1. It is the reverse of [Tensor.Flatten].
func (t *Tensor) Unflatten(dim int, sizes ...int) *Tensor {
	dim = dimIndex("unflatten", t, dim)
	sizes = slices.Clone(sizes)
	known, infer := 1, -1
	for i, s := range sizes {
		if s == -1 && infer < 0 {
			infer = i
		} else {
			known *= s
		}
	}
	if infer >= 0 && known > 0 {
		sizes[infer] = t.shape[dim] / known
		known *= sizes[infer]
	}
	if known != t.shape[dim] {
		fail("unflatten", []*Tensor{t}, "sizes %v do not fill dim %d", sizes, dim)
	}
	return t.Reshape(slices.Concat(t.shape[:dim], sizes, t.shape[dim+1:])...)
}

// Diagonal returns the view of the elements whose index in dim2 is that in dim1
// plus offset. The two dims disappear, the diagonal becomes the last.
func (t *Tensor) Diagonal(offset, dim1, dim2 int) *Tensor {
	dim1, dim2 = dimIndex("diagonal", t, dim1), dimIndex("diagonal", t, dim2)
	if dim1 == dim2 {
		fail("diagonal", []*Tensor{t}, "wants two dims, dim %d is one", dim1)
	}
	n := max(0, min(t.shape[dim1], t.shape[dim2]-offset))
	start := t.offset
	if offset >= 0 {
		start += offset * t.strides[dim2]
	} else {
		n = max(0, min(t.shape[dim1]+offset, t.shape[dim2]))
		start -= offset * t.strides[dim1]
	}
	if n == 0 {
		start = t.offset
	}
	shape, strides := []int{}, []int{}
	for d, s := range t.shape {
		if d != dim1 && d != dim2 {
			shape, strides = append(shape, s), append(strides, t.strides[d])
		}
	}
	shape, strides = append(shape, n), append(strides, t.strides[dim1]+t.strides[dim2])
	full := t.Shape()
	return t.view("diagonal", start, shape, strides, []int{dim1, dim2}, func(b *backprop, g *Tensor) {
		b.give(0, g.embedDiagonal(full, offset, dim1, dim2))
	})
}

// embedDiagonal returns zeros of a shape with t as a diagonal.
func (t *Tensor) embedDiagonal(shape []int, offset, dim1, dim2 int) *Tensor {
	out := result("embed diagonal", t.dtype, shape, t)
	dev := out.Device()
	dev.Fill(out.array(), 0)
	dev.Copy(out.Detach().Diagonal(offset, dim1, dim2).array(), t.array())
	return out.record("embed diagonal", []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.Diagonal(offset, dim1, dim2))
	})
}

// Tril returns the lower triangles of matrices [batch…, rows, cols]: what lies
// above diagonal number k is 0.
func (t *Tensor) Tril(k int) *Tensor { return t.triangle("tril", k, false) }

// Triu returns the upper triangles of matrices [batch…, rows, cols]: what lies
// below diagonal number k is 0.
func (t *Tensor) Triu(k int) *Tensor { return t.triangle("triu", k, true) }

func (t *Tensor) triangle(op string, k int, upper bool) *Tensor {
	n := len(t.shape)
	if n < 2 {
		fail(op, []*Tensor{t}, "wants matrices: at least two dims")
	}
	k = max(min(k, t.shape[n-1]), -t.shape[n-2]) // beyond, nothing changes
	src := t.Contiguous()
	out := result(op, t.dtype, t.shape, t)
	fused(device.Triangle{K: k, Upper: upper}, out, src)
	return out.record(op, []*Tensor{t}, nil, func(b *backprop, g *Tensor) { b.give(0, g.triangle(op, k, upper)) })
}

// Roll shifts the elements along each of dims by its shift; what leaves at one
// end comes in at the other.
func (t *Tensor) Roll(shifts, dims []int) *Tensor {
	if len(shifts) != len(dims) {
		fail("roll", []*Tensor{t}, "wants a shift for each dim, got %v for %v", shifts, dims)
	}
	for i, d := range dims {
		d = dimIndex("roll", t, d)
		n := t.shape[d]
		if n == 0 {
			continue
		}
		if by := (shifts[i]%n + n) % n; by > 0 {
			t = Cat(d, t.Narrow(d, n-by, by), t.Narrow(d, 0, n-by))
		}
	}
	return t
}

// Flip reverses the order of the elements along dims.
func (t *Tensor) Flip(dims ...int) *Tensor {
	for _, d := range dims {
		d = dimIndex("flip", t, d)
		n := t.shape[d]
		t = t.selectSlices(d, ArangeOf(t.Device(), Int64, float64(n-1), -1, -1))
	}
	return t
}

// Repeat joins copies of t: sizes[i] of them along dim i of the result, which
// has as many dims as sizes, or new leading ones.
func (t *Tensor) Repeat(sizes ...int) *Tensor {
	lead := len(sizes) - len(t.shape)
	if lead < 0 {
		fail("repeat", []*Tensor{t}, "%d sizes are fewer than its dims", len(sizes))
	}
	wantSizes("repeat", []*Tensor{t}, sizes)
	var once, wide, out []int
	for i, n := range sizes {
		s := 1
		if i >= lead {
			s = t.shape[i-lead]
		}
		once, wide, out = append(once, 1, s), append(wide, n, s), append(out, n*s)
	}
	return t.Reshape(once...).Expand(wide...).Reshape(out...)
}

// RepeatInterleave repeats each slice of a dim n times in place.
func (t *Tensor) RepeatInterleave(n, dim int) *Tensor {
	dim = dimIndex("repeat interleave", t, dim)
	if n < 0 {
		fail("repeat interleave", []*Tensor{t}, "%d repeats", n)
	}
	out := t.Shape()
	out[dim] *= n
	return t.Unsqueeze(dim + 1).Expand(slices.Insert(t.Shape(), dim+1, n)...).Reshape(out...)
}

// RepeatInterleaveBy repeats slice i of a dim counts[i] times; counts are
// int64, one a slice.
func (t *Tensor) RepeatInterleaveBy(counts *Tensor, dim int) *Tensor {
	present("repeat interleave", t, counts)
	dim = dimIndex("repeat interleave", t, dim)
	operands := []*Tensor{t, counts}
	if counts.dtype != Int64 || !slices.Equal(counts.shape, t.shape[dim:dim+1]) {
		fail("repeat interleave", operands, "wants an int64 count for each slice of dim %d", dim)
	}
	repeats, total := counts.Int64s(), int64(0)
	for i, n := range repeats {
		if n < 0 || n > maxElems-total {
			fail("repeat interleave", operands, "the count at position %d is %d", i, n)
		}
		total += n
	}
	ids := alloc(nil, t.Device(), Int64, []int{int(total)}, false) // fails where there are too many
	list := make([]int64, 0, total)
	for i, n := range repeats {
		for range n {
			list = append(list, int64(i))
		}
	}
	ids.storage.write(0, bytesOf(list))
	return t.selectSlices(dim, ids)
}

// Unfold returns the windows of size elements that start at every step
// elements of a dim: that dim counts the windows, a new last dim their elements.
// It copies, where PyTorch's shares memory.
func (t *Tensor) Unfold(dim, size, step int) *Tensor {
	dim = dimIndex("unfold", t, dim)
	if size < 1 || step < 1 || size > t.shape[dim] {
		fail("unfold", []*Tensor{t}, "no window of %d elements, a step of %d apart, is in dim %d", size, step, dim)
	}
	n := (t.shape[dim]-size)/step + 1
	ids := make([]int64, n*size)
	for i := range ids {
		ids[i] = int64(i/size*step + i%size)
	}
	return t.selectSlices(dim, idsOn(t.Device(), ids)).Unflatten(dim, n, size).MoveDim(dim+1, -1)
}
