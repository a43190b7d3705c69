// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

// poolCases are the poolings of planes.
func poolCases(Device) []opCase {
	square := func(n int) [2]int { return [2]int{n, n} }
	stem := Pool2dOptions{Kernel: square(3), Stride: square(2), Padding: square(1)}
	ceil := Pool2dOptions{Kernel: [2]int{3, 2}, Stride: square(2), Padding: [2]int{1, 0}, CeilMode: true}
	dilated := Pool2dOptions{Kernel: square(2), Stride: square(1), Padding: square(1), Dilation: square(2)}
	inside := Pool2dOptions{Kernel: square(3), Stride: square(2), Padding: square(1), CeilMode: true, ExcludePadding: true}
	fixed := Pool2dOptions{Kernel: square(2), Divisor: 3}
	row := func(name string, shape []int, o Pool2dOptions, op func(x *Tensor, o Pool2dOptions) *Tensor, naive func(x array, o Pool2dOptions) array) opCase {
		return opCase{
			name: name, shapes: [][]int{shape}, apply: func(in []*Tensor) *Tensor { return op(in[0], o) },
			naive: func(in []array) array { return naive(in[0], o) },
		}
	}
	return []opCase{
		row("max pool", []int{2, 1, 4, 4}, Pool2dOptions{Kernel: square(2)}, MaxPool2d, naiveMaxPool),
		row("max pool stem", []int{1, 2, 5, 6}, stem, MaxPool2d, naiveMaxPool),
		row("max pool ceil", []int{2, 5, 6}, ceil, MaxPool2d, naiveMaxPool),
		row("max pool dilated", []int{1, 1, 5, 4}, dilated, MaxPool2d, naiveMaxPool),
		row("avg pool", []int{2, 1, 4, 4}, Pool2dOptions{Kernel: square(2)}, AvgPool2d, naiveAvgPool),
		row("avg pool padded", []int{1, 2, 5, 6}, stem, AvgPool2d, naiveAvgPool),
		row("avg pool ceil", []int{2, 5, 6}, ceil, AvgPool2d, naiveAvgPool),
		row("avg pool without padding", []int{1, 1, 6, 5}, inside, AvgPool2d, naiveAvgPool),
		row("avg pool divisor", []int{1, 1, 4, 5}, fixed, AvgPool2d, naiveAvgPool),
		{
			name: "adaptive avg pool", shapes: [][]int{{2, 2, 5, 7}},
			apply: func(in []*Tensor) *Tensor { return AdaptiveAvgPool2d(in[0], 3, 2) },
			naive: func(in []array) array {
				return naiveAdaptive(in[0], 3, 2, func(v []float64) float64 { return naiveSum(array{[]int{len(v)}, v}, 0).data[0] / float64(len(v)) })
			},
		},
		{
			name: "global avg pool", shapes: [][]int{{2, 3, 4, 4}},
			apply: func(in []*Tensor) *Tensor { return AdaptiveAvgPool2d(in[0], 1, 1) },
			naive: func(in []array) array {
				return naiveAdaptive(in[0], 1, 1, func(v []float64) float64 { return naiveSum(array{[]int{len(v)}, v}, 0).data[0] / float64(len(v)) })
			},
		},
		{
			name: "adaptive max pool", shapes: [][]int{{2, 1, 5, 6}},
			apply: func(in []*Tensor) *Tensor { return AdaptiveMaxPool2d(in[0], 2, 4) },
			naive: func(in []array) array { return naiveAdaptive(in[0], 2, 4, naiveLargest) },
		},
	}
}

// naiveSize is the number of windows along a dim, by trying: a window may begin
// inside or in the padding on the left; its end must lie within the padding, with
// CeilMode only its beginning before the padding on the right.
func naiveSize(in, size, stride, pad, dilation int, ceil bool) int {
	for n := 0; ; n++ {
		begin := n*stride - pad
		end := begin + (size-1)*dilation
		if ceil {
			// The window before this one must have left something over.
			if begin >= in || n > 0 && begin-stride+(size-1)*dilation >= in+pad-1 {
				return n
			}
		} else if end >= in+pad {
			return n
		}
	}
}

// naiveWindows calls fn for each window with the elements inside and how many
// there are with the padding.
func naiveWindows(x array, o Pool2dOptions, fn func(v []float64, padded int) float64) array {
	n := len(x.shape)
	h, w := x.shape[n-2], x.shape[n-1]
	stride, dilation := o.Stride, o.Dilation
	for i := range 2 {
		if stride[i] == 0 {
			stride[i] = o.Kernel[i]
		}
		if dilation[i] == 0 {
			dilation[i] = 1
		}
	}
	shape := append([]int{}, x.shape[:n-2]...)
	shape = append(shape, naiveSize(h, o.Kernel[0], stride[0], o.Padding[0], dilation[0], o.CeilMode),
		naiveSize(w, o.Kernel[1], stride[1], o.Padding[1], dilation[1], o.CeilMode))
	return fromIndex(shape, func(index []int) float64 {
		var v []float64
		padded := 0
		at := append([]int{}, index...)
		for i := range o.Kernel[0] {
			for j := range o.Kernel[1] {
				r, c := index[n-2]*stride[0]-o.Padding[0]+i*dilation[0], index[n-1]*stride[1]-o.Padding[1]+j*dilation[1]
				if r >= h+o.Padding[0] || c >= w+o.Padding[1] {
					continue
				}
				padded++
				if r >= 0 && c >= 0 && r < h && c < w {
					at[n-2], at[n-1] = r, c
					v = append(v, x.at(at...))
				}
			}
		}
		return fn(v, padded)
	})
}

func naiveLargest(v []float64) float64 {
	best := math.Inf(-1)
	for _, x := range v {
		best = max(best, x)
	}
	return best
}

func naiveMaxPool(x array, o Pool2dOptions) array {
	return naiveWindows(x, o, func(v []float64, _ int) float64 { return naiveLargest(v) })
}

func naiveAvgPool(x array, o Pool2dOptions) array {
	return naiveWindows(x, o, func(v []float64, padded int) float64 {
		sum := 0.0
		for _, x := range v {
			sum += x
		}
		switch {
		case o.Divisor != 0:
			padded = o.Divisor
		case o.ExcludePadding:
			padded = len(v)
		}
		return sum / float64(padded)
	})
}

func naiveAdaptive(x array, height, width int, fn func(v []float64) float64) array {
	n := len(x.shape)
	h, w := x.shape[n-2], x.shape[n-1]
	shape := append(append([]int{}, x.shape[:n-2]...), height, width)
	part := func(i, in, out int) (lo, hi int) {
		return int(math.Floor(float64(i) * float64(in) / float64(out))), int(math.Ceil(float64(i+1) * float64(in) / float64(out)))
	}
	return fromIndex(shape, func(index []int) float64 {
		var v []float64
		at := append([]int{}, index...)
		r0, r1 := part(index[n-2], h, height)
		c0, c1 := part(index[n-1], w, width)
		for r := r0; r < r1; r++ {
			for c := c0; c < c1; c++ {
				at[n-2], at[n-1] = r, c
				v = append(v, x.at(at...))
			}
		}
		return fn(v)
	})
}
