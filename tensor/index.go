// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// The operations of this file take elements by their indices along one dim.
// Indices are int64 or int32 and count from 0; one that is out of range fails
// with its position and value. Sums are made in the order of the indices, so
// that they do not depend on the number of threads.

// indices returns ids as dense int64s.
func indices(op string, operands []*Tensor, ids *Tensor) *Tensor {
	if ids.dtype != Int64 && ids.dtype != Int32 {
		fail(op, operands, "the indices must be int64 or int32, got %v", ids.dtype)
	}
	return ids.Detach().To(Int64).Contiguous()
}

// checkIndices fails at the first index that is not in [0, size).
func checkIndices(op string, operands []*Tensor, ids *Tensor, dim, size int) {
	checkIDs(op, operands, ids, size, func(value int64, position []int) string {
		return fmt.Sprintf("index %d at position %v is out of range: dim %d has %d elements", value, position, dim, size)
	})
}

// checkIDs is checkIndices with words of the caller's.
func checkIDs(op string, operands []*Tensor, ids *Tensor, size int, say func(value int64, position []int) string) {
	shape := ids.shape
	verify(op, operands, func(f device.Fault) string { return say(f.Value, positionIn(shape, f.Position)) }, func(c *device.Check) {
		fused(device.CheckIndices{Limit: size, Check: c}, ids)
	})
}

// idsOn returns indices on a device.
func idsOn(dev Device, ids []int64) *Tensor {
	return On(dev).FromInt64(ids, len(ids))
}

// IndexSelect returns the slices of one dim that ids [n] names, in its order:
// [outer…, size, inner…] to [outer…, n, inner…].
func (t *Tensor) IndexSelect(dim int, ids *Tensor) *Tensor {
	present("index select", t, ids)
	operands := []*Tensor{t, ids}
	dim = dimIndex("index select", t, dim)
	if len(ids.shape) != 1 {
		fail("index select", operands, "the indices must have one dim")
	}
	ids = indices("index select", operands, ids)
	checkIndices("index select", operands, ids, dim, t.shape[dim])
	return t.selectSlices(dim, ids)
}

// selectSlices is IndexSelect with indices that have been checked.
func (t *Tensor) selectSlices(dim int, ids *Tensor) *Tensor {
	src := t.Contiguous()
	shape := t.Shape()
	shape[dim] = ids.shape[0]
	out := result("index select", t.dtype, shape, t, ids)
	fused(device.IndexSelect{Dim: dim}, out, src, ids)
	if !t.dtype.IsFloat() {
		return out
	}
	full := t.Shape()
	return out.record("index select", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.sumSlices(full, dim, ids))
	})
}

// sumSlices is the reverse of selectSlices: zeros of a shape, with the slices of t added
// where ids says.
func (t *Tensor) sumSlices(shape []int, dim int, ids *Tensor) *Tensor {
	if wide := sumDType(t); wide != t.dtype {
		return t.To(wide).sumSlices(shape, dim, ids).To(t.dtype)
	}
	src := t.Contiguous()
	out := result("index add", t.dtype, shape, t, ids)
	out.Device().Fill(out.array(), 0)
	out.addSlices(dim, ids, src)
	if !t.dtype.IsFloat() {
		return out
	}
	return out.record("index add", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.selectSlices(dim, ids))
	})
}

// sumDType is the dtype in which elements of t are added up.
func sumDType(t *Tensor) DType {
	switch t.dtype {
	case BFloat16, Float16:
		return Float32
	case Int8, Uint8:
		return Int64
	case Bool:
		fail("index add", []*Tensor{t}, "truth values cannot be added; convert by To")
	}
	return t.dtype
}

// addSlices adds slices of src to t in place.
func (t *Tensor) addSlices(dim int, ids, src *Tensor) {
	fused(device.IndexAdd{Dim: dim}, t, src, ids)
}

// IndexAdd returns t with slice i of src added to the slice ids[i] of one dim:
// ids [n], src of t's shape but for n in dim.
func (t *Tensor) IndexAdd(dim int, ids, src *Tensor) *Tensor {
	present("index add", t, ids, src)
	operands := []*Tensor{t, ids, src}
	dim = dimIndex("index add", t, dim)
	want := t.Shape()
	if len(ids.shape) != 1 {
		fail("index add", operands, "the indices must have one dim")
	}
	want[dim] = ids.shape[0]
	if !slices.Equal(src.shape, want) || src.dtype != t.dtype {
		fail("index add", operands, "the source must be %v%v", t.dtype, want)
	}
	ids = indices("index add", operands, ids)
	checkIndices("index add", operands, ids, dim, t.shape[dim])
	if wide := sumDType(t); wide != t.dtype {
		return t.To(wide).IndexAdd(dim, ids, src.To(wide)).To(t.dtype)
	}
	out := result("index add", t.dtype, t.shape, t, src, ids)
	out.Device().Copy(out.array(), t.array())
	out.addSlices(dim, ids, src.Contiguous())
	if !t.dtype.IsFloat() {
		return out
	}
	return out.record("index add", []*Tensor{t, src}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g)
		}
		if b.needs(1) {
			b.give(1, g.selectSlices(dim, ids))
		}
	})
}

// Gather picks elements along one dim: out[i][j][k] = t[i][index[i][j][k]][k]
// for dim 1 of three. index has t's number of dims, and in the others at most
// its sizes; the result has index's shape.
func (t *Tensor) Gather(dim int, index *Tensor) *Tensor {
	present("gather", t, index)
	operands := []*Tensor{t, index}
	dim = dimIndex("gather", t, dim)
	wantIndexShape("gather", operands, t, dim, index)
	ids := indices("gather", operands, index)
	checkIndices("gather", operands, ids, dim, t.shape[dim])
	return t.corner(dim, index.shape).gatherElems(dim, ids)
}

// TakeAlongDim is Gather with the dims other than dim broadcast: NumPy's
// take_along_axis.
func (t *Tensor) TakeAlongDim(index *Tensor, dim int) *Tensor {
	present("take along dim", t, index)
	operands := []*Tensor{t, index}
	dim = dimIndex("take along dim", t, dim)
	if len(index.shape) != len(t.shape) {
		fail("take along dim", operands, "both must have as many dims")
	}
	a, c := t.Shape(), index.Shape()
	a[dim], c[dim] = 1, 1
	shape, ok := broadcastShapes(a, c)
	if !ok {
		fail("take along dim", operands, "the dims other than %d cannot be broadcast together", dim)
	}
	wide, long := slices.Clone(shape), slices.Clone(shape)
	wide[dim], long[dim] = t.shape[dim], index.shape[dim]
	return t.Expand(wide...).Gather(dim, index.Expand(long...))
}

// wantIndexShape checks the index of Gather and the Scatter operations.
func wantIndexShape(op string, operands []*Tensor, t *Tensor, dim int, index *Tensor) {
	if len(index.shape) != len(t.shape) {
		fail(op, operands, "the index must have as many dims as the tensor")
	}
	for d, s := range index.shape {
		if d != dim && s > t.shape[d] {
			fail(op, operands, "the index has %d elements in dim %d, the tensor %d", s, d, t.shape[d])
		}
	}
}

// corner returns the view of t that has the sizes of shape in all dims but dim.
func (t *Tensor) corner(dim int, shape []int) *Tensor {
	for d, s := range shape {
		if d != dim && s != t.shape[d] {
			t = t.Narrow(d, 0, s)
		}
	}
	return t
}

// gatherElems is Gather with an index that has been checked, and t's sizes.
func (t *Tensor) gatherElems(dim int, ids *Tensor) *Tensor {
	src := t.Contiguous()
	out := result("gather", t.dtype, ids.shape, t, ids)
	fused(device.GatherElems{Dim: dim}, out, src, ids)
	if !t.dtype.IsFloat() {
		return out
	}
	full := t.Shape()
	return out.record("gather", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.sumElems(full, dim, ids))
	})
}

// sumElems is the reverse of gatherElems: zeros of a shape with the elements
// of t added where ids says.
func (t *Tensor) sumElems(shape []int, dim int, ids *Tensor) *Tensor {
	if wide := sumDType(t); wide != t.dtype {
		return t.To(wide).sumElems(shape, dim, ids).To(t.dtype)
	}
	src := t.Contiguous()
	out := result("scatter add", t.dtype, shape, t, ids)
	out.Device().Fill(out.array(), 0)
	out.addElems(dim, ids, src)
	if !t.dtype.IsFloat() {
		return out
	}
	return out.record("scatter add", []*Tensor{t}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.give(0, g.gatherElems(dim, ids))
	})
}

// addElems adds elements of src, which has the shape of ids, to t in place.
func (t *Tensor) addElems(dim int, ids, src *Tensor) {
	fused(device.ScatterAddElems{Dim: dim}, t, src, ids)
}

// ScatterAdd returns t with elements of src added along one dim:
// t[i][index[i][j][k]][k] += src[i][j][k] for dim 1 of three. index has at
// most src's sizes, and t's in the other dims.
func (t *Tensor) ScatterAdd(dim int, index, src *Tensor) *Tensor {
	present("scatter add", t, index, src)
	dim, ids, src := scatterOperands("scatter add", t, dim, index, src)
	if wide := sumDType(t); wide != t.dtype {
		return t.To(wide).ScatterAdd(dim, ids, src.To(wide)).To(t.dtype)
	}
	out := t.overwritten("scatter add", ids, dim, src, func(part, src *Tensor) { part.addElems(dim, ids, src) })
	return out.record("scatter add", []*Tensor{t, src}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g)
		}
		if b.needs(1) {
			b.give(1, g.Gather(dim, ids))
		}
	})
}

// Scatter returns t with elements set along one dim:
// t[i][index[i][j][k]][k] = src[i][j][k] for dim 1 of three. Where an index is
// there twice the later element stays; the gradient of src is as if each did,
// which is PyTorch's.
func (t *Tensor) Scatter(dim int, index, src *Tensor) *Tensor {
	present("scatter", t, index, src)
	dim, ids, src := scatterOperands("scatter", t, dim, index, src)
	out := t.overwritten("scatter", ids, dim, src, func(part, src *Tensor) { part.setElems(dim, ids, src) })
	return out.record("scatter", []*Tensor{t, src}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.ScatterValue(dim, ids, 0))
		}
		if b.needs(1) {
			b.give(1, g.Gather(dim, ids))
		}
	})
}

// ScatterValue is Scatter of one value.
func (t *Tensor) ScatterValue(dim int, index *Tensor, value float64) *Tensor {
	present("scatter", t, index)
	src := alloc(t.tape, t.Device(), t.dtype, nil, false)
	src.Device().Fill(src.array(), value)
	return t.Scatter(dim, index, src.Expand(index.shape...))
}

func scatterOperands(op string, t *Tensor, dim int, index, src *Tensor) (int, *Tensor, *Tensor) {
	operands := []*Tensor{t, index, src}
	dim = dimIndex(op, t, dim)
	wantIndexShape(op, operands, t, dim, index)
	if len(src.shape) != len(index.shape) || src.dtype != t.dtype {
		fail(op, operands, "the source must have the tensor's dtype and the index's number of dims")
	}
	for d, s := range index.shape {
		if s > src.shape[d] {
			fail(op, operands, "the index has %d elements in dim %d, the source %d", s, d, src.shape[d])
		}
		if s < src.shape[d] {
			src = src.Narrow(d, 0, s)
		}
	}
	ids := indices(op, operands, index)
	checkIndices(op, operands, ids, dim, t.shape[dim])
	return dim, ids, src
}

// overwritten returns a copy of t of which write has changed the part that has
// the index's sizes.
func (t *Tensor) overwritten(op string, ids *Tensor, dim int, src *Tensor, write func(part, src *Tensor)) *Tensor {
	out := result(op, t.dtype, t.shape, t, src, ids)
	dev := out.Device()
	dev.Copy(out.array(), t.array())
	src = src.Detach().Contiguous()
	view := out.Detach().corner(dim, ids.shape)
	part := view.Contiguous()
	write(part, src)
	if part != view {
		dev.Copy(view.array(), part.array())
	}
	return out
}

// setElems sets elements of t in place.
func (t *Tensor) setElems(dim int, ids, src *Tensor) {
	fused(device.ScatterElems{Dim: dim}, t, src, ids)
}

// OneHot returns for each id a row of numClasses int64s that is 0 but for a 1
// at the id: ids [batch…] to [batch…, numClasses]. An id out of range fails
// with its position.
func OneHot(ids *Tensor, numClasses int) *Tensor {
	present("one hot", ids)
	operands := []*Tensor{ids}
	if numClasses < 0 {
		fail("one hot", operands, "the number of classes, %d, is negative", numClasses)
	}
	at := indices("one hot", operands, ids)
	checkIDs("one hot", operands, at, numClasses, func(id int64, position []int) string {
		return fmt.Sprintf("id %d at position %v is not one of the %d classes (numClasses)", id, position, numClasses)
	})
	out := result("one hot", Int64, append(ids.Shape(), numClasses), ids)
	out.Device().Fill(out.array(), 0)
	one := New(ids.Device(), Int64)
	one.Fill(1)
	index := at.Reshape(append(ids.Shape(), 1)...)
	out.setElems(len(ids.shape), index, one.Expand(index.shape...).Contiguous())
	return out
}
