// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// Windows are the runs of a dim that the elements of a pooled dim are made of.
type Windows struct {
	In   int // size of the dim
	Step int // between the elements of a window
	At   []Window
}

// Window is one of them: elements Lo, Lo+Step, … below Hi.
type Window struct {
	Lo, Hi int
	Size   int // what a mean counts for it, padding included or not
}

// SlidingWindows are those of a kernel that slides over a padded dim. With
// countPadding, a mean counts the padding as zeros, but not what lies beyond it.
func SlidingWindows(in, out, size, stride, padding, dilation int, countPadding bool) Windows {
	w := Windows{In: in, Step: dilation, At: make([]Window, out)}
	for o := range w.At {
		lo := o*stride - padding
		hi := min(lo+(size-1)*dilation+1, in+padding)
		padded := hi - lo
		for lo < 0 {
			lo += dilation
		}
		hi = max(lo, min(hi, in))
		w.At[o] = Window{lo, hi, hi - lo}
		if countPadding {
			w.At[o].Size = padded
		}
	}
	return w
}

// AdaptiveWindows cut a dim into out windows of about one size, which overlap
// where it does not divide: from ⌊o·in/out⌋ to ⌈(o+1)·in/out⌉.
func AdaptiveWindows(in, out int) Windows {
	w := Windows{In: in, Step: 1, At: make([]Window, out)}
	for o := range w.At {
		lo, hi := o*in/out, ((o+1)*in+out-1)/out
		w.At[o] = Window{lo, hi, hi - lo}
	}
	return w
}

// overPlanes shares planes of so many elements among the threads as they come
// free.
func overPlanes(p *work.Pool, planes, elems int, fn func(i int)) {
	Images{Num: 1, Channels: planes, Plane: elems}.overChannels(p, fn)
}

// overMixedPlanes calls fn for planes of results of out and operands of in
// elements; those of bfloat16 are widened, and rounded when they are done.
func overMixedPlanes(p *work.Pool, planes int, dst Mixed, out int, x Mixed, in int, fn func(i int, dst, x []float32)) {
	overPlanes(p, planes, in+out, func(i int) {
		if dst.BF16 == nil && x.BF16 == nil {
			fn(i, dst.F32[i*out:(i+1)*out], x.F32[i*in:(i+1)*in])
			return
		}
		s := scratchList.get(out + in)
		defer scratchList.put(s)
		to, from := s.floats[:out], s.floats[out:][:in]
		if x.BF16 != nil {
			convert(nil, fromBF16, from, x.BF16[i*in:(i+1)*in])
		} else {
			from = x.F32[i*in : (i+1)*in]
		}
		if dst.BF16 == nil {
			to = dst.F32[i*out : (i+1)*out]
		}
		fn(i, to, from)
		if dst.BF16 != nil {
			convert(nil, toBF16, dst.BF16[i*out:(i+1)*out], to)
		}
	})
}

// MaxPool2d takes the largest element of each window of planes of x [planes,
// h.In, w.In]. index gets its position in its plane, for the backward pass. The
// first of equal elements counts, and NaN is larger than all. A window that lies
// in the padding alone gives -Inf and position -1.
func MaxPool2d(p *work.Pool, dst Mixed, index []int32, x Mixed, planes int, h, w Windows) {
	in, out := h.In*w.In, len(h.At)*len(w.At)
	overMixedPlanes(p, planes, dst, out, x, in, func(i int, dst, x []float32) {
		maxPoolPlane(dst, index[i*out:(i+1)*out], x, h, w)
	})
}

// maxPoolPlane goes down the columns first, many at a time, and then across: a
// window's neighbour uses its columns again.
func maxPoolPlane(dst []float32, index []int32, x []float32, h, w Windows) {
	scratch := scratchList.get(2 * w.In)
	defer scratchList.put(scratch)
	best := scratch.floats[:w.In]
	// Where each column has its largest element: the position of that row.
	rows := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(scratch.floats[w.In:]))), w.In)
	largest := channelVec().largest
	for _, row := range h.At {
		out, at := dst[:len(w.At)], index[:len(w.At)]
		dst, index = dst[len(w.At):], index[len(w.At):]
		if row.Lo >= row.Hi {
			for o := range out {
				out[o], at[o] = float32(math.Inf(-1)), -1
			}
			continue
		}
		copy(best, x[row.Lo*w.In:])
		for j := range rows {
			rows[j] = int32(row.Lo * w.In)
		}
		for i := row.Lo + h.Step; i < row.Hi; i += h.Step {
			largest(best, rows, x[i*w.In:(i+1)*w.In], int32(i*w.In))
		}
		for o, col := range w.At {
			top, r, place := float32(math.Inf(-1)), int32(math.MaxInt32), -1
			for j := col.Lo; j < col.Hi; j += w.Step {
				if v := best[j]; v > top || v != v || v == top && rows[j] < r {
					top, r, place = v, rows[j], j
				}
			}
			out[o], at[o] = top, -1
			if place >= 0 {
				at[o] = r + int32(place)
			}
		}
	}
}

// MaxPool2dBackward adds each element of g [planes, out] to dx [planes, in],
// which it clears first, at its position in the plane.
func MaxPool2dBackward(p *work.Pool, dx, g Mixed, index []int32, planes, in, out int) {
	overMixedPlanes(p, planes, dx, in, g, out, func(i int, d, gi []float32) {
		clear(d)
		at := index[i*out : (i+1)*out]
		for j, v := range gi {
			if k := at[j]; k >= 0 {
				d[k] += v
			}
		}
	})
}

// PickAt computes dst[i, j] = x[i, index[i, j]] for each of planes planes, 0 where
// the index is negative: what the gradient of [MaxPool2dBackward] is.
func PickAt(p *work.Pool, dst, x Mixed, index []int32, planes, in, out int) {
	overMixedPlanes(p, planes, dst, out, x, in, func(i int, d, xi []float32) {
		for j, k := range index[i*out : (i+1)*out] {
			d[j] = 0
			if k >= 0 {
				d[j] = xi[k]
			}
		}
	})
}

// AvgPool2d takes the mean of each window of planes of x [planes, h.In, w.In]:
// the sum over divisor, or if that is 0 over the window's size.
func AvgPool2d(p *work.Pool, dst, x Mixed, planes int, h, w Windows, divisor int) {
	in, out := h.In*w.In, len(h.At)*len(w.At)
	sum := vec().sum
	overMixedPlanes(p, planes, dst, out, x, in, func(_ int, d, xi []float32) {
		o := 0
		for _, row := range h.At {
			for _, col := range w.At {
				total := 0.0
				if col.Hi-col.Lo == w.In { // whole rows
					inRuns(row.Lo*w.In, row.Hi*w.In, callElems, func(lo, hi int) { total += sum(xi[lo:hi]) })
				} else {
					s := float32(0)
					for i := row.Lo; i < row.Hi; i++ {
						for _, v := range xi[i*w.In+col.Lo : i*w.In+col.Hi] {
							s += v
						}
					}
					total = float64(s)
				}
				d[o] = float32(total / meanOver(row, col, divisor))
				o++
			}
		}
	})
}

func meanOver(row, col Window, divisor int) float64 {
	if divisor != 0 {
		return float64(divisor)
	}
	return float64(row.Size * col.Size)
}

// AvgPool2dBackward spreads each element of g [planes, out] evenly over its
// window of dx [planes, in], which it clears first.
func AvgPool2dBackward(p *work.Pool, dx, g Mixed, planes int, h, w Windows, divisor int) {
	in, out := h.In*w.In, len(h.At)*len(w.At)
	overMixedPlanes(p, planes, dx, in, g, out, func(_ int, d, gi []float32) {
		clear(d)
		o := 0
		for _, row := range h.At {
			for _, col := range w.At {
				share := float32(float64(gi[o]) / meanOver(row, col, divisor))
				for i := row.Lo; i < row.Hi; i++ {
					run := d[i*w.In+col.Lo : i*w.In+col.Hi]
					for j := range run {
						run[j] += share
					}
				}
				o++
			}
		}
	})
}
