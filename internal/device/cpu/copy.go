// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
)

// Fill sets every element.
func (c *CPU) Fill(dst device.Array, value float64) {
	if trace.On() {
		defer traced("fill", 0, dst).End()
	}
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
	if trace.On() {
		defer traced("copy", 0, dst, src).End()
	}
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
	default:
		copyStrided(c, dst, src)
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

// copyStrided copies cells, runs that lie densely in both arrays or single
// elements, along the dims in the order in which they lie in dst. Where the
// cells that are neighbours in dst lie far apart in src, but those along another
// dim beside each other, the two dims are a matrix of cells to be transposed: in
// blocks, so that both arrays are gone through by whole lines of the cache.
func copyStrided(c *CPU, dst, src device.Array) {
	w := newWalk(byStride(dst, src))
	size := dst.DType.Size()
	run := 1
	if last := len(w.shape) - 1; w.strides[0][last] == 1 && w.strides[1][last] == 1 {
		run = w.shape[last]
		w.shape, w.strides = w.shape[:last], [][]int{w.strides[0][:last], w.strides[1][:last]}
	}
	if len(w.shape) == 0 {
		w.shape, w.strides = []int{1}, [][]int{{0}, {0}}
	}
	near := nearestDim(w)
	inner := len(w.shape) - 1
	b := block{cell: run * size, dst: w.strides[0][inner] * size, src: w.strides[1][inner] * size}
	rows, cols := 1, w.shape[inner]
	if near != inner {
		rows = w.shape[near]
		b.dstRow, b.srcRow = w.strides[0][near]*size, w.strides[1][near]*size
	}
	// A block has some kilobytes in a row of either array.
	rowStep := min(rows, max(1, blockBytes/b.cell), 64)
	colStep := min(cols, max(1, 8*blockBytes/(rowStep*b.cell)))
	strips, parts := (rows+rowStep-1)/rowStep, (cols+colStep-1)/colStep
	matrices := dst.NumElems() / (run * rows * cols)
	c.overUnits(matrices*strips*parts, dst.NumElems(), func(lo, hi int) {
		at := newOdometer(w, inner, near, lo/(strips*parts))
		for i := lo; i < hi; i++ {
			row, col := i/parts%strips*rowStep, i%parts*colStep
			to := at.offset[0]*size + row*b.dstRow + col*b.dst
			of := at.offset[1]*size + row*b.srcRow + col*b.src
			b.copy(unsafe.Add(dst.Ptr, to), unsafe.Add(src.Ptr, of), min(rowStep, rows-row), min(colStep, cols-col))
			if (i+1)%(strips*parts) == 0 {
				at.next()
			}
		}
	})
}

// blockBytes is what a block of a copy reads in one run where it can.
const blockBytes = 4 << 10

// block is a matrix of cells: their size, and their distances along its columns
// and rows in either array, in bytes.
type block struct{ cell, dst, src, dstRow, srcRow int }

func (b block) copy(dst, src unsafe.Pointer, rows, cols int) {
	switch {
	case b.cell == 4 && b.dst == 4 && b.srcRow == 4 && rows >= 8:
		kernel.Transpose(dst, src, rows, cols, b.dstRow, b.src)
	case b.cell == 8:
		copyCells[uint64](b, dst, src, rows, cols)
	case b.cell == 4:
		copyCells[uint32](b, dst, src, rows, cols)
	case b.cell == 2:
		copyCells[uint16](b, dst, src, rows, cols)
	case b.cell == 1:
		copyCells[uint8](b, dst, src, rows, cols)
	case b.cell%64 == 0 && b.cell <= 512:
		for c := range cols {
			d, s := unsafe.Add(dst, c*b.dst), unsafe.Add(src, c*b.src)
			for range rows {
				for at := 0; at < b.cell; at += 64 {
					*(*[64]byte)(unsafe.Add(d, at)) = *(*[64]byte)(unsafe.Add(s, at))
				}
				d, s = unsafe.Add(d, b.dstRow), unsafe.Add(s, b.srcRow)
			}
		}
	default:
		for c := range cols {
			d, s := unsafe.Add(dst, c*b.dst), unsafe.Add(src, c*b.src)
			for range rows {
				copy(unsafe.Slice((*byte)(d), b.cell), unsafe.Slice((*byte)(s), b.cell))
				d, s = unsafe.Add(d, b.dstRow), unsafe.Add(s, b.srcRow)
			}
		}
	}
}

func copyCells[T any](b block, dst, src unsafe.Pointer, rows, cols int) {
	if rows == 1 {
		for range cols {
			*(*T)(dst) = *(*T)(src)
			dst, src = unsafe.Add(dst, b.dst), unsafe.Add(src, b.src)
		}
		return
	}
	for c := range cols {
		d, s := unsafe.Add(dst, c*b.dst), unsafe.Add(src, c*b.src)
		for range rows {
			*(*T)(d) = *(*T)(s)
			d, s = unsafe.Add(d, b.dstRow), unsafe.Add(s, b.srcRow)
		}
	}
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

// nearestDim returns the dim along which the elements of array 1 of a walk lie
// nearest to each other, of those that are more than a few.
func nearestDim(w walk) int {
	best := len(w.shape) - 1
	for d, s := range w.strides[1] {
		if s > 0 && w.shape[d] >= 4 && (s < w.strides[1][best] || w.shape[best] == 1) {
			best = d
		}
	}
	return best
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

// newOdometer starts at one position of the dims of w other than two left out.
func newOdometer(w walk, out1, out2, position int) *odometer {
	o := &odometer{shape: w.shape, strides: [2][]int{w.strides[0], w.strides[1]}, index: make([]int, len(w.shape)), offset: make([]int, 2)}
	for d := range w.shape {
		if d != out1 && d != out2 {
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
