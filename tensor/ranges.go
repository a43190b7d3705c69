// SPDX-License-Identifier: Apache-2.0

package tensor

// Arange returns the int64s 0, 1, … n-1.
func Arange(dev Device, n int) *Tensor {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	return idsOn(dev, ids)
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
		return computed(dtype, []int{n}, fn)
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = fn(i)
	}
	return On(dev).FromFloat64(data).To(dtype)
}
