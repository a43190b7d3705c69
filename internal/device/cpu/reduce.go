// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// Reduce combines the dims of x in which dst has size 1. x is contiguous.
func (c *CPU) Reduce(op device.Reduction, dst, x device.Array) {
	defer hold(dst, x)
	out, in := dst.Float32s(), x.Float32s()
	if len(in) == 0 {
		identity := 0.0
		if op == device.Max {
			identity = math.Inf(-1)
		}
		c.Fill(dst, identity)
		return
	}
	sizes, reduced := dimRuns(dst.Shape, x.Shape)
	switch {
	case len(sizes) == 1 && !reduced[0]:
		kernel.Copy(c.threads, out, in)
	case op == device.Sum && len(sizes) == 1:
		out[0] = kernel.Sum(c.threads, in)
	case op == device.Sum && len(sizes) == 2 && reduced[0]:
		kernel.SumRows(c.threads, out, in, sizes[0], sizes[1], false)
	case op == device.Sum && len(sizes) == 2:
		kernel.SumCols(c.threads, out, in, sizes[0], sizes[1])
	case op == device.Max && len(sizes) <= 2 && reduced[len(reduced)-1]:
		kernel.MaxCols(c.threads, out, in, len(out), len(in)/len(out))
	default:
		reduceAny(op, out, in, sizes, reduced)
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
	if len(sizes) == 0 {
		return []int{1}, []bool{false}
	}
	return sizes, reduced
}

// reduceAny walks x in order and combines each element into its place.
func reduceAny(op device.Reduction, out, in []float32, sizes []int, reduced []bool) {
	strides := make([]int, len(sizes))
	n := 1
	for i := len(sizes) - 1; i >= 0; i-- {
		if !reduced[i] {
			strides[i] = n
			n *= sizes[i]
		}
	}
	start := float32(0)
	if op == device.Max {
		start = float32(math.Inf(-1))
	}
	for i := range out {
		out[i] = start
	}
	index, at := make([]int, len(sizes)), 0
	for _, v := range in {
		if op == device.Sum {
			out[at] += v
		} else {
			out[at] = max(out[at], v)
		}
		for d := len(sizes) - 1; d >= 0; d-- {
			index[d]++
			at += strides[d]
			if index[d] < sizes[d] {
				break
			}
			at -= index[d] * strides[d]
			index[d] = 0
		}
	}
}

// SumSquares returns the sum of squares of a contiguous array.
func (c *CPU) SumSquares(x device.Array) float64 {
	defer hold(x)
	return kernel.SumSquares(c.threads, x.Float32s())
}
