// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
)

// Reduce combines the dims of x in which dst has size 1; see device.Kernels.
func (c *CPU) Reduce(op device.Reduction, dst, x device.Array) {
	if trace.On() {
		defer traced("reduce", 0, dst, x).End()
	}
	defer hold(dst, x)
	if x.NumElems() == 0 {
		c.Fill(dst, identity(op, dst.DType))
		return
	}
	switch x.DType {
	case device.Float32:
		reduce(c, dst, x, func(out, in []float32, outer, size, inner int) { c.reduceFloats(op, out, in, outer, size, inner) })
	case device.Float64:
		reduceAs[float64](c, op, dst, x)
	case device.Int64:
		reduceAs[int64](c, op, dst, x)
	case device.Int32:
		reduceAs[int32](c, op, dst, x)
	case device.Int8:
		reduceAs[int8](c, op, dst, x)
	default: // Uint8, and Bool by its maximum and minimum
		reduceAs[uint8](c, op, dst, x)
	}
}

// identity is the result of combining nothing.
func identity(op device.Reduction, dtype device.DType) float64 {
	switch {
	case op == device.Prod, op == device.Min && dtype == device.Bool:
		return 1
	case op == device.Sum, dtype == device.Bool:
		return 0
	}
	return math.Inf(2*int(op-device.Max) - 1) // the maximum of nothing is below all
}

// reduce combines one run of neighbouring dims after the other, the last first.
// one combines the middle dim of in [outer, size, inner].
func reduce[T any](c *CPU, dst, x device.Array, one func(out, in []T, outer, size, inner int)) {
	sizes, reduced := dimRuns(dst.Shape, x.Shape)
	in, out := unsafe.Slice((*T)(x.Ptr), x.NumElems()), unsafe.Slice((*T)(dst.Ptr), dst.NumElems())
	left := 0
	for _, r := range reduced {
		if r {
			left++
		}
	}
	if left == 0 {
		copy(out, in)
		return
	}
	for i := len(sizes) - 1; left > 0; i-- {
		if !reduced[i] {
			continue
		}
		left--
		outer, inner := 1, 1
		for j, s := range sizes {
			switch {
			case j < i:
				outer *= s
			case j > i:
				inner *= s
			}
		}
		to := out
		if left > 0 {
			p, free := c.scratch(outer * inner * int(unsafe.Sizeof(out[0])))
			defer free()
			to = unsafe.Slice((*T)(p), outer*inner)
		}
		one(to, in, outer, sizes[i], inner)
		in, sizes[i] = to, 1
	}
}

// dimRuns merges neighbouring dims that are all reduced or all kept.
func dimRuns(dst, x []int) (sizes []int, reduced []bool) {
	for i, size := range x {
		if size == 1 {
			continue
		}
		r := dst[i] == 1
		if n := len(sizes); n > 0 && reduced[n-1] == r {
			sizes[n-1] *= size
		} else {
			sizes, reduced = append(sizes, size), append(reduced, r)
		}
	}
	return sizes, reduced
}

// reduceFloats is one step of Reduce on float32, by kernels where there are some.
func (c *CPU) reduceFloats(op device.Reduction, out, in []float32, outer, size, inner int) {
	switch {
	case op == device.Sum && outer == 1 && inner == 1:
		out[0] = kernel.Sum(c.threads, in)
	case op == device.Sum && inner == 1:
		kernel.SumCols(c.threads, out, in, outer, size)
	case op == device.Sum && outer < 2*c.threads.NumThreads():
		for o := range outer {
			kernel.SumRows(c.threads, out[o*inner:(o+1)*inner], in[o*size*inner:(o+1)*size*inner], size, inner, false)
		}
	case op == device.Sum:
		c.overUnits(outer, len(in), func(lo, hi int) {
			for o := lo; o < hi; o++ {
				kernel.SumRows(nil, out[o*inner:(o+1)*inner], in[o*size*inner:(o+1)*size*inner], size, inner, false)
			}
		})
	case op == device.Max && inner == 1:
		kernel.MaxCols(c.threads, out, in, outer, size)
	default:
		combineMiddle(c, combiner[float32](op), out, in, outer, size, inner)
	}
}

func reduceAs[T number](c *CPU, op device.Reduction, dst, x device.Array) {
	fn := combiner[T](op)
	reduce(c, dst, x, func(out, in []T, outer, size, inner int) { combineMiddle(c, fn, out, in, outer, size, inner) })
}

func combiner[T number](op device.Reduction) func(x, y T) T {
	switch op {
	case device.Sum:
		return func(x, y T) T { return x + y }
	case device.Prod:
		return func(x, y T) T { return x * y }
	case device.Max:
		return func(x, y T) T { return max(x, y) }
	case device.Min:
		return func(x, y T) T { return min(x, y) }
	}
	panic(fmt.Sprintf("cpu: no reduction %d", op))
}

// combineMiddle combines the middle dim, each result by one thread and in order.
func combineMiddle[T any](c *CPU, fn func(x, y T) T, out, in []T, outer, size, inner int) {
	// Narrow strips of the inner dim give the threads something to share.
	const strip = 256
	strips := (inner + strip - 1) / strip
	c.overUnits(outer*strips, len(in), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			o, from := i/strips, i%strips*strip
			to := min(from+strip, inner)
			block := in[o*size*inner : (o+1)*size*inner]
			if inner == 1 {
				best := block[0]
				for _, v := range block[1:] {
					best = fn(best, v)
				}
				out[o] = best
				continue
			}
			acc := out[o*inner+from : o*inner+to]
			copy(acc, block[from:to])
			for r := 1; r < size; r++ {
				for j, v := range block[r*inner+from : r*inner+to] {
					acc[j] = fn(acc[j], v)
				}
			}
		}
	})
}

// ArgReduce finds the greatest or smallest elements; see device.Kernels.
func (c *CPU) ArgReduce(op device.Reduction, dst, x device.Array, dim int) {
	if trace.On() {
		defer traced("arg reduce", 0, dst, x).End()
	}
	defer hold(dst, x)
	sign := 1
	if op == device.Min {
		sign = -1
	}
	switch x.DType {
	case device.Float32:
		argReduce(c, dst, device.Elems[float32](x), x.Shape, dim, sign, func(v float32) float32 { return v })
	case device.BFloat16:
		argReduce(c, dst, device.Elems[uint16](x), x.Shape, dim, sign, half.FromBFloat16)
	case device.Float16:
		argReduce(c, dst, device.Elems[uint16](x), x.Shape, dim, sign, half.FromFloat16)
	case device.Float64:
		argReduce(c, dst, device.Elems[float64](x), x.Shape, dim, sign, func(v float64) float64 { return v })
	case device.Int64:
		argReduce(c, dst, device.Elems[int64](x), x.Shape, dim, sign, func(v int64) int64 { return v })
	case device.Int32:
		argReduce(c, dst, device.Elems[int32](x), x.Shape, dim, sign, func(v int32) int64 { return int64(v) })
	case device.Int8:
		argReduce(c, dst, device.Elems[int8](x), x.Shape, dim, sign, func(v int8) int64 { return int64(v) })
	default:
		argReduce(c, dst, device.Elems[uint8](x), x.Shape, dim, sign, func(v uint8) int64 { return int64(v) })
	}
}

func argReduce[T any, V number](c *CPU, dst device.Array, in []T, shape []int, dim, sign int, value func(T) V) {
	outer, size, inner := 1, shape[dim], 1
	for d, s := range shape {
		switch {
		case d < dim:
			outer *= s
		case d > dim:
			inner *= s
		}
	}
	out := dst.Int64s()
	c.overUnits(outer*inner, len(in), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at := i/inner*size*inner + i%inner
			best, where := value(in[at]), 0
			for r := 1; r < size && best == best; r++ {
				v := value(in[at+r*inner])
				if v != v || sign > 0 && v > best || sign < 0 && v < best {
					best, where = v, r
				}
			}
			out[i] = int64(where)
		}
	})
}

// SumSquares writes the sums of squares of contiguous arrays; see device.Kernels.
func (c *CPU) SumSquares(dst device.Array, xs ...device.Array) {
	if trace.On() {
		defer traced("sum of squares", 0, append([]device.Array{dst}, xs...)...).End()
	}
	defer hold(dst)
	defer hold(xs...)
	out := device.Elems[float64](dst)
	for i, x := range xs {
		out[i] = kernel.SumSquares(c.threads, x.Float32s())
	}
}
