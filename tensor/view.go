// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// view returns another look at t's storage, recorded as op. dims are those of t
// that it concerns, for an observer.
func (t *Tensor) view(op string, offset int, shape, strides, dims []int, back func(b *backprop, g *Tensor)) *Tensor {
	t.wantNotFreed(op)
	v := &Tensor{storage: t.storage, offset: offset, shape: shape, strides: strides, dtype: t.dtype, tape: t.tape}
	if t.storage.state == released { // it may be made, and not be read: then it is known whose it is
		v.name = t.name
	}
	if t.tape != nil && t.tape.observer != nil {
		t.tape.observe(op, v, dims, t)
	}
	return v.record(op, []*Tensor{t}, nil, back)
}

// Reshape returns the elements in row-major order under another shape. One
// size may be -1: it is computed. The result is a view of a contiguous tensor,
// else a copy.
func (t *Tensor) Reshape(shape ...int) *Tensor {
	shape = slices.Clone(shape)
	if infer := slices.Index(shape, -1); infer >= 0 {
		others := slices.Delete(slices.Clone(shape), infer, infer+1)
		if slices.Contains(others, -1) {
			fail("reshape", []*Tensor{t}, "one size may be -1, of %v there are more", shape)
		}
		wantSizes("reshape", []*Tensor{t}, others)
		known := numElems(others)
		if known == 0 || t.NumElems()%known != 0 {
			fail("reshape", []*Tensor{t}, "its %d elements cannot be divided by the %d of the other sizes of %v", t.NumElems(), known, shape)
		}
		shape[infer] = t.NumElems() / known
	}
	wantSizes("reshape", []*Tensor{t}, shape)
	if numElems(shape) != t.NumElems() {
		fail("reshape", []*Tensor{t}, "its %d elements do not fill shape %v", t.NumElems(), shape)
	}
	if slices.Equal(shape, t.shape) {
		return t
	}
	src := t.Contiguous()
	from := t.Shape()
	return src.view("reshape", src.offset, shape, denseStrides(shape), nil, func(b *backprop, g *Tensor) {
		b.give(0, g.Reshape(from...))
	})
}

// Flatten merges the dims from first to last (inclusive) into one.
func (t *Tensor) Flatten(first, last int) *Tensor {
	first, last = dimIndex("flatten", t, first), dimIndex("flatten", t, last)
	if last < first {
		fail("flatten", []*Tensor{t}, "dim %d comes after dim %d", first, last)
	}
	shape := slices.Concat(t.shape[:first], []int{numElems(t.shape[first : last+1])}, t.shape[last+1:])
	return t.Reshape(shape...)
}

// Permute returns a view with the dims in another order: dim i of the result
// is dim order[i] of t.
func (t *Tensor) Permute(order ...int) *Tensor {
	if len(order) != len(t.shape) {
		fail("permute", []*Tensor{t}, "wants an order of %d dims, got %v", len(t.shape), order)
	}
	shape, strides, inverse := make([]int, len(order)), make([]int, len(order)), make([]int, len(order))
	seen := make([]bool, len(order))
	for i, d := range order {
		d = dimIndex("permute", t, d)
		if seen[d] {
			fail("permute", []*Tensor{t}, "dim %d is twice in %v", d, order)
		}
		seen[d] = true
		shape[i], strides[i], inverse[d] = t.shape[d], t.strides[d], i
	}
	return t.view("permute", t.offset, shape, strides, inverse, func(b *backprop, g *Tensor) {
		b.give(0, g.Permute(inverse...))
	})
}

// Transpose returns a view with two dims exchanged.
func (t *Tensor) Transpose(dim0, dim1 int) *Tensor {
	dim0, dim1 = dimIndex("transpose", t, dim0), dimIndex("transpose", t, dim1)
	order := make([]int, len(t.shape))
	for i := range order {
		order[i] = i
	}
	order[dim0], order[dim1] = dim1, dim0
	return t.Permute(order...)
}

// T returns a view with the last two dims exchanged.
func (t *Tensor) T() *Tensor { return t.Transpose(-2, -1) }

// Narrow returns a view of the elements [start, start+length) of one dim.
func (t *Tensor) Narrow(dim, start, length int) *Tensor {
	dim = dimIndex("narrow", t, dim)
	if start < 0 || length < 0 || start > t.shape[dim]-length {
		fail("narrow", []*Tensor{t}, "%d elements from %d on are not inside dim %d", length, start, dim)
	}
	shape := t.Shape()
	shape[dim] = length
	full := t.Shape()
	return t.view("narrow", t.offset+start*t.strides[dim], shape, t.strides, []int{dim}, func(b *backprop, g *Tensor) {
		b.giveRegion(0, g, full, dim, start)
	})
}

// embed returns zeros of a shape with t as the elements from start on of dim.
func (t *Tensor) embed(shape []int, dim, start int) *Tensor {
	out := result("embed", t.dtype, shape, t)
	length := t.shape[dim]
	dev := out.Device()
	dev.Fill(out.array(), 0)
	dev.Copy(out.detach().Narrow(dim, start, length).array(), t.array())
	return out.record("embed", []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.Narrow(dim, start, length))
	})
}

// Select returns a view at one index of a dim, which disappears. A negative
// index counts from the end.
func (t *Tensor) Select(dim, index int) *Tensor {
	dim = dimIndex("select", t, dim)
	at := index
	if at < 0 {
		at += t.shape[dim]
	}
	if at < 0 || at >= t.shape[dim] {
		fail("select", []*Tensor{t}, "index %d is not in dim %d", index, dim)
	}
	return t.Narrow(dim, at, 1).squeeze(dim)
}

func (t *Tensor) squeeze(dim int) *Tensor {
	shape, strides := slices.Delete(t.Shape(), dim, dim+1), slices.Delete(slices.Clone(t.strides), dim, dim+1)
	return t.view("squeeze", t.offset, shape, strides, []int{dim}, func(b *backprop, g *Tensor) {
		b.give(0, g.Reshape(slices.Insert(g.Shape(), dim, 1)...))
	})
}

// Expand returns a view in which dims of size 1, and new leading dims, are
// repeated to fill shape without taking memory.
func (t *Tensor) Expand(shape ...int) *Tensor {
	wantSizes("expand", []*Tensor{t}, shape)
	out, ok := broadcastShapes(t.shape, shape)
	if !ok || !slices.Equal(out, shape) {
		fail("expand", []*Tensor{t}, "cannot be repeated to %v", shape)
	}
	if slices.Equal(shape, t.shape) {
		return t
	}
	from := t.Shape()
	return t.view("expand", t.offset, slices.Clone(shape), t.expandedStrides(shape), nil, func(b *backprop, g *Tensor) {
		b.give(0, g.sumTo(from))
	})
}

// expandedStrides returns strides that repeat t to shape.
func (t *Tensor) expandedStrides(shape []int) []int {
	strides := make([]int, len(shape))
	lead := len(shape) - len(t.shape)
	for i := range t.shape {
		if t.shape[i] == shape[lead+i] {
			strides[lead+i] = t.strides[i]
		}
	}
	return strides
}

// Contiguous returns t if its elements lie densely in row-major order, else a
// copy that does.
func (t *Tensor) Contiguous() *Tensor {
	if t.IsContiguous() {
		return t
	}
	return t.Clone()
}

// Clone returns a dense copy.
func (t *Tensor) Clone() *Tensor {
	out := result("clone", t.dtype, t.shape, t)
	out.copied("clone", t, true, (*Tensor).CopyFrom)
	out.Device().Copy(out.array(), t.array())
	return out.record("clone", []*Tensor{t}, nil, func(b *backprop, g *Tensor) { b.give(0, g) })
}
