// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"
)

// truePositions returns the positions of a contiguous bool tensor that are
// true, in row-major order. The number depends on the data, so there are none on
// a device without data.
func truePositions(op string, mask *Tensor) []int64 {
	mask.wantBytes(op)
	bits := make([]byte, mask.NumElems())
	mask.readInto(bits)
	var ids []int64
	for i, b := range bits {
		if b != 0 {
			ids = append(ids, int64(i))
		}
	}
	return ids
}

// MaskedSelect returns the elements whose mask is true as one dim, in row-major
// order. mask is bool; both are broadcast.
func (t *Tensor) MaskedSelect(mask *Tensor) *Tensor {
	present("masked select", t, mask)
	operands := []*Tensor{t, mask}
	if mask.dtype != Bool {
		fail("masked select", operands, "the mask must be bool")
	}
	shape, ok := broadcastShapes(t.shape, mask.shape)
	if !ok {
		fail("masked select", operands, "the shapes cannot be broadcast together")
	}
	ids := truePositions("masked select", mask.Detach().Expand(shape...).Contiguous())
	return t.Expand(shape...).Reshape(numElems(shape)).selectSlices(0, idsOn(t.Device(), ids))
}

// MaskedScatter returns t with the elements whose mask is true replaced by
// those of src, in row-major order. mask is bool and broadcast to t's shape;
// src has at least as many elements as the mask has true ones.
func (t *Tensor) MaskedScatter(mask, src *Tensor) *Tensor {
	present("masked scatter", t, mask, src)
	operands := []*Tensor{t, mask, src}
	if mask.dtype != Bool || src.dtype != t.dtype {
		fail("masked scatter", operands, "the mask must be bool, the source of the tensor's dtype")
	}
	if shape, ok := broadcastShapes(t.shape, mask.shape); !ok || !slices.Equal(shape, t.shape) {
		fail("masked scatter", operands, "the mask cannot be broadcast to the tensor")
	}
	ids := truePositions("masked scatter", mask.Detach().Expand(t.shape...).Contiguous())
	if len(ids) > src.NumElems() {
		fail("masked scatter", operands, "the mask has %d true elements, the source only %d", len(ids), src.NumElems())
	}
	flat := src.Reshape(src.NumElems()).Narrow(0, 0, len(ids))
	return t.Reshape(t.NumElems()).Scatter(0, idsOn(t.Device(), ids), flat).Reshape(t.shape...)
}

// NonZero returns the indices of the elements that are not 0 (or true), in
// row-major order: int64 [n, numDims].
func (t *Tensor) NonZero() *Tensor {
	ids := truePositions("nonzero", t.Detach().To(Bool).Contiguous())
	dims := len(t.shape)
	out := make([]int64, len(ids)*dims)
	for i, id := range ids {
		at := int(id)
		for d := dims - 1; d >= 0; d-- {
			out[i*dims+d], at = int64(at%t.shape[d]), at/t.shape[d]
		}
	}
	return On(t.Device()).FromInt64(out, len(ids), dims)
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

// ArangeOf returns start, start+step, … up to but without end, in any dtype but
// bool.
func ArangeOf(dev Device, dtype DType, start, end, step float64) *Tensor {
	n := 0
	switch {
	case step == 0 || step != step || (end-start)/step != (end-start)/step:
		fail("arange", nil, "from %v to %v in steps of %v has no end", start, end, step)
	case (end-start)/step > 0:
		n = ceil((end - start) / step)
	}
	return fromFunc(dev, dtype, n, func(i int) float64 { return start + float64(i)*step })
}

// Linspace returns n float32 numbers from start to end, both included, at equal
// distances.
func Linspace(dev Device, start, end float64, n int) *Tensor {
	step := 0.0
	if n > 1 {
		step = (end - start) / float64(n-1)
	}
	// From both ends, so that they are exact.
	return fromFunc(dev, Float32, n, func(i int) float64 {
		if i < n/2 || n == 1 {
			return start + float64(i)*step
		}
		return end - float64(n-1-i)*step
	})
}

// Eye returns a float32 matrix with ones on its diagonal.
func Eye(dev Device, rows, cols int) *Tensor {
	out := New(dev, Float32, rows, cols)
	if n := min(rows, cols); n > 0 {
		out.Diagonal(0, 0, 1).Fill(1)
	}
	return out
}

func ceil(x float64) int {
	n := int(x)
	if float64(n) < x {
		n++
	}
	return n
}

// fromFunc returns n elements.
func fromFunc(dev Device, dtype DType, n int, fn func(i int) float64) *Tensor {
	if dev == Meta {
		return New(Meta, dtype, n)
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = fn(i)
	}
	return On(dev).FromFloat64(data).To(dtype)
}
