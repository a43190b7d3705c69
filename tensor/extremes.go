// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/cohort-ml/cohort/internal/device"

// AMax returns the maximum over the given dims, all of them if none is given;
// NaN where there is one. Elements that tie share the gradient evenly.
func (t *Tensor) AMax(dims ...int) *Tensor { return t.extremeOf("amax", device.Max, dims, false) }

// AMaxKeep is AMax with the dims left in place with size 1.
func (t *Tensor) AMaxKeep(dims ...int) *Tensor { return t.extremeOf("amax", device.Max, dims, true) }

// AMin returns the minimum over the given dims; see [Tensor.AMax].
func (t *Tensor) AMin(dims ...int) *Tensor { return t.extremeOf("amin", device.Min, dims, false) }

// AMinKeep is AMin with the dims left in place with size 1.
func (t *Tensor) AMinKeep(dims ...int) *Tensor { return t.extremeOf("amin", device.Min, dims, true) }

func (t *Tensor) extremeOf(name string, op device.Reduction, dims []int, keepDims bool) *Tensor {
	keep, without := t.keepDims(name, dims)
	if t.NumElems() == 0 && numElems(keep) > 0 {
		fail(name, []*Tensor{t}, "there is no element to choose")
	}
	out := t.Detach().reduceTo(name, op, keep)
	if out.storage == t.storage {
		out = out.Clone() // it is recorded as a result of its own
	}
	out = out.record(name, []*Tensor{t}, []*Tensor{t, out}, func(b *backprop, g *Tensor) {
		chosen := t.Eq(out).To(g.dtype)
		count := chosen.SumKeep(reducedDims(t.shape, keep)...)
		b.give(0, chosen.Mul(g.Div(count)))
	})
	if keepDims {
		return out
	}
	return out.Reshape(without...)
}

// reducedDims returns the dims in which keep has size 1 and shape another.
func reducedDims(shape, keep []int) []int {
	dims := []int{}
	for i := range shape {
		if keep[i] == 1 {
			dims = append(dims, i)
		}
	}
	return dims
}

// Max returns the maximum along a dim, which disappears, and its index (int64),
// the first of several. The gradient goes to the element at that index. See
// [Tensor.AMax] for the maximum over several dims or all.
func (t *Tensor) Max(dim int) (values, indices *Tensor) { return t.extremeAt("max", device.Max, dim) }

// Min returns the minimum along a dim and its index; see [Tensor.Max].
func (t *Tensor) Min(dim int) (values, indices *Tensor) { return t.extremeAt("min", device.Min, dim) }

func (t *Tensor) extremeAt(name string, op device.Reduction, dim int) (values, indices *Tensor) {
	dim = dimIndex(name, t, dim)
	at := t.argExtreme(name, op, dim)
	return t.gatherElems(dim, at).squeeze(dim), at.squeeze(dim)
}

// ArgMax returns the index (int64) of the maximum along a dim, which disappears:
// the first of several, the first NaN if there is one.
func (t *Tensor) ArgMax(dim int) *Tensor {
	dim = dimIndex("argmax", t, dim)
	return t.argExtreme("argmax", device.Max, dim).squeeze(dim)
}

// ArgMin returns the index of the minimum along a dim; see [Tensor.ArgMax].
func (t *Tensor) ArgMin(dim int) *Tensor {
	dim = dimIndex("argmin", t, dim)
	return t.argExtreme("argmin", device.Min, dim).squeeze(dim)
}

// argExtreme returns indices with size 1 in dim.
func (t *Tensor) argExtreme(name string, op device.Reduction, dim int) *Tensor {
	if t.shape[dim] == 0 {
		fail(name, []*Tensor{t}, "dim %d has no element to choose", dim)
	}
	keep := t.Shape()
	keep[dim] = 1
	out := result(name, Int64, keep, t)
	src := t.Detach()
	dense := src.Contiguous()
	out.Device().ArgReduce(op, out.array(), dense.array(), dim)
	t.discard(dense)
	return out
}

// All returns whether all elements over the given dims, all dims if none is
// given, are other than 0.
func (t *Tensor) All(dims ...int) *Tensor { return t.truth("all", device.Min, dims) }

// Any returns whether one element over the given dims, all dims if none is
// given, is other than 0.
func (t *Tensor) Any(dims ...int) *Tensor { return t.truth("any", device.Max, dims) }

func (t *Tensor) truth(name string, op device.Reduction, dims []int) *Tensor {
	keep, without := t.keepDims(name, dims)
	return t.Detach().To(Bool).reduceTo(name, op, keep).Reshape(without...)
}
