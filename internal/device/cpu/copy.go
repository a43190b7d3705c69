// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// Fill sets every element.
func (c *CPU) Fill(dst device.Array, value float64) {
	defer hold(dst)
	if dst.NumElems() == 0 {
		return
	}
	if dst.DType == device.Float32 && dst.IsContiguous() {
		kernel.Fill(c.threads, dst.Float32s(), float32(value))
		return
	}
	one := []float64{value}
	if dst.IsContiguous() {
		size := dst.DType.Size()
		c.overSpans(dst.NumElems(), func(lo, hi int) {
			first := unsafe.Add(dst.Ptr, lo*size)
			convert(dst.DType, device.Float64, first, 1, unsafe.Pointer(&one[0]), 1, 1)
			bytes := unsafe.Slice((*byte)(first), (hi-lo)*size)
			for done := size; done < len(bytes); done *= 2 {
				copy(bytes[done:], bytes[:done])
			}
		})
		return
	}
	forRuns([]device.Array{dst}, func(ptrs []unsafe.Pointer, n int, strides []int) {
		convert(dst.DType, device.Float64, ptrs[0], strides[0], unsafe.Pointer(&one[0]), 0, n)
	})
}

// Copy copies between any strides, and converts between dtypes.
func (c *CPU) Copy(dst, src device.Array) {
	defer hold(dst, src)
	n := dst.NumElems()
	if n == 0 {
		return
	}
	dense := dst.IsContiguous() && src.IsContiguous()
	if dst.DType != src.DType {
		switch {
		case dense:
			c.convertDense(dst, src)
		case dst.IsContiguous():
			c.convertGathered(dst, src)
		default:
			forRuns([]device.Array{dst, src}, func(ptrs []unsafe.Pointer, n int, strides []int) {
				convert(dst.DType, src.DType, ptrs[0], strides[0], ptrs[1], strides[1], n)
			})
		}
		return
	}
	size := dst.DType.Size()
	switch {
	case dense:
		to, from := unsafe.Slice((*byte)(dst.Ptr), n*size), unsafe.Slice((*byte)(src.Ptr), n*size)
		c.overSpans(n, func(lo, hi int) { copy(to[lo*size:hi*size], from[lo*size:hi*size]) })
	case size == 8:
		copyStrided[uint64](c, dst, src)
	case size == 4:
		copyStrided[uint32](c, dst, src)
	case size == 2:
		copyStrided[uint16](c, dst, src)
	default:
		copyStrided[uint8](c, dst, src)
	}
}

// convertGathered converts a strided array into a dense one, tile by tile.
func (c *CPU) convertGathered(dst, src device.Array) {
	w := newWalk(dst, src)
	to, from := dst.DType.Size(), src.DType.Size()
	c.overSpans(dst.NumElems(), func(lo, hi int) {
		p, free := c.scratch(tileElems * from)
		defer free()
		for ; lo < hi; lo += tileElems {
			n := min(tileElems, hi-lo)
			switch from {
			case 8:
				gather(unsafe.Slice((*uint64)(p), n), src.Ptr, w.shape, w.strides[1], lo)
			case 4:
				gather(unsafe.Slice((*uint32)(p), n), src.Ptr, w.shape, w.strides[1], lo)
			case 2:
				gather(unsafe.Slice((*uint16)(p), n), src.Ptr, w.shape, w.strides[1], lo)
			default:
				gather(unsafe.Slice((*uint8)(p), n), src.Ptr, w.shape, w.strides[1], lo)
			}
			convertRun(dst.DType, src.DType, unsafe.Add(dst.Ptr, lo*to), p, n)
		}
	})
}

// copyStrided copies along the dims in the order in which they lie in dst, so
// that it is written from front to back. Where the elements of a run lie far
// apart in src but those of another dim beside each other, the two dims are a
// matrix to be transposed, in blocks that fit the first cache.
func copyStrided[T any](c *CPU, dst, src device.Array) {
	d, s := byStride(dst, src)
	w := newWalk(d, s)
	inner := len(w.shape) - 1
	if near := nearestDim(w); near >= 0 && near != inner && w.strides[0][inner] == 1 {
		transpose[T](c, w, near, dst.Ptr, src.Ptr)
		return
	}
	size := int(unsafe.Sizeof(*new(T)))
	run, ds, ss := w.shape[inner], w.strides[0][inner], w.strides[1][inner]
	piece := min(run, tileElems)
	pieces := (run + piece - 1) / piece
	rows := dst.NumElems() / run
	c.overUnits(rows*pieces, dst.NumElems(), func(lo, hi int) {
		at := newOdometer(w, inner, lo/pieces)
		for i := lo; i < hi; i++ {
			from := i % pieces * piece
			n := min(piece, run-from)
			to := unsafe.Add(dst.Ptr, (at.offset[0]+from*ds)*size)
			of := unsafe.Add(src.Ptr, (at.offset[1]+from*ss)*size)
			if ds == 1 {
				spread(unsafe.Slice((*T)(to), n), of, ss)
			} else {
				for range n {
					*(*T)(to) = *(*T)(of)
					to, of = unsafe.Add(to, ds*size), unsafe.Add(of, ss*size)
				}
			}
			if i%pieces == pieces-1 {
				at.next()
			}
		}
	})
}

// byStride reorders the dims of two arrays by falling strides of the first.
func byStride(a, b device.Array) (device.Array, device.Array) {
	order := make([]int, len(a.Shape))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(a.Strides[j], a.Strides[i]) })
	reorder := func(x device.Array) device.Array {
		shape, strides := make([]int, len(order)), make([]int, len(order))
		for i, d := range order {
			shape[i], strides[i] = x.Shape[d], x.Strides[d]
		}
		x.Shape, x.Strides = shape, strides
		return x
	}
	return reorder(a), reorder(b)
}

// nearestDim returns the dim along which array 1 of a walk is dense, if the
// runs are worth it; else -1.
func nearestDim(w walk) int {
	inner := len(w.shape) - 1
	for d, s := range w.strides[1] {
		if s == 1 && w.shape[d] >= 4 && (d == inner || w.shape[inner] >= 4 && w.strides[1][inner] > 1) {
			return d
		}
	}
	return -1
}

// overUnits shares n units of work, elems elements in all, among the threads.
func (c *CPU) overUnits(n, elems int, fn func(lo, hi int)) {
	t := min(c.threads.NumThreads(), elems/soloElems, n)
	if t <= 1 {
		if n > 0 {
			fn(0, n)
		}
		return
	}
	c.threads.Run(t, func(i int) { fn(i*n/t, (i+1)*n/t) })
}

// odometer walks over some dims of two arrays in order.
type odometer struct {
	dims          []int
	shape         []int
	strides       [2][]int
	index, offset []int
}

// newOdometer starts at one position of the dims of w other than those left out.
func newOdometer(w walk, leaveOut, position int, alsoOut ...int) *odometer {
	o := &odometer{shape: w.shape, strides: [2][]int{w.strides[0], w.strides[1]}, index: make([]int, len(w.shape)), offset: make([]int, 2)}
	for d := range w.shape {
		if d != leaveOut && !slices.Contains(alsoOut, d) {
			o.dims = append(o.dims, d)
		}
	}
	for i := len(o.dims) - 1; i >= 0; i-- {
		d := o.dims[i]
		o.index[d] = position % w.shape[d]
		position /= w.shape[d]
		o.offset[0] += o.index[d] * w.strides[0][d]
		o.offset[1] += o.index[d] * w.strides[1][d]
	}
	return o
}

func (o *odometer) next() {
	for i := len(o.dims) - 1; i >= 0; i-- {
		d := o.dims[i]
		o.index[d]++
		o.offset[0] += o.strides[0][d]
		o.offset[1] += o.strides[1][d]
		if o.index[d] < o.shape[d] {
			return
		}
		o.offset[0] -= o.index[d] * o.strides[0][d]
		o.offset[1] -= o.index[d] * o.strides[1][d]
		o.index[d] = 0
	}
}

// transposeBlock is the side of the blocks of a transposition: a block of rows
// of dst, each a line of the cache or more.
const transposeBlock = 32

// transpose copies matrices whose rows lie densely in dst (the last dim of the
// walk) and whose columns lie densely in src (dim near).
func transpose[T any](c *CPU, w walk, near int, dst, src unsafe.Pointer) {
	size := int(unsafe.Sizeof(*new(T)))
	inner := len(w.shape) - 1
	rows, cols := w.shape[near], w.shape[inner]
	dstRow, srcCol := w.strides[0][near]*size, w.strides[1][inner]*size
	strips := (rows + transposeBlock - 1) / transposeBlock
	matrices := 1
	for d, s := range w.shape {
		if d != near && d != inner {
			matrices *= s
		}
	}
	c.overUnits(matrices*strips, matrices*rows*cols, func(lo, hi int) {
		at := newOdometer(w, inner, lo/strips, near)
		for i := lo; i < hi; i++ {
			r := i % strips * transposeBlock
			n := min(transposeBlock, rows-r)
			to := unsafe.Add(dst, at.offset[0]*size+r*dstRow)
			of := unsafe.Add(src, at.offset[1]*size+r*size)
			for col := 0; col < cols; col += transposeBlock {
				transposeOne[T](unsafe.Add(to, col*size), unsafe.Add(of, col*srcCol), n, min(transposeBlock, cols-col), dstRow, srcCol)
			}
			if i%strips == strips-1 {
				at.next()
			}
		}
	})
}

func transposeOne[T any](dst, src unsafe.Pointer, rows, cols, dstRow, srcCol int) {
	size := int(unsafe.Sizeof(*new(T)))
	for c := range cols {
		d, s := unsafe.Add(dst, c*size), unsafe.Slice((*T)(unsafe.Add(src, c*srcCol)), rows)
		for _, v := range s {
			*(*T)(d) = v
			d = unsafe.Add(d, dstRow)
		}
	}
}
