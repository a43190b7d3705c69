// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// Operands that are not dense are worked on in tiles: a run of elements of the
// dense result, small enough that what is gathered and converted for it stays in
// the first cache, where the kernel finds it.

const (
	tileElems = 2048
	// soloElems is the size below which a loop is not worth a second thread.
	soloElems = 8 << 10
)

// overSpans calls fn for spans of n elements, one a thread; each begins on a
// multiple of 64 elements.
func (c *CPU) overSpans(n int, fn func(lo, hi int)) {
	t := min(c.threads.NumThreads(), n/soloElems)
	if t <= 1 {
		if n > 0 {
			fn(0, n)
		}
		return
	}
	span := ((n+t-1)/t + 63) &^ 63
	c.threads.Run((n+span-1)/span, func(i int) { fn(i*span, min((i+1)*span, n)) })
}

// scratch lends numBytes of working memory until free is called.
func (c *CPU) scratch(numBytes int) (p unsafe.Pointer, free func()) {
	m := c.Alloc(numBytes, false)
	return m.Ptr, func() { c.Free(m) }
}

// walk is the way over arrays of one shape, with neighbouring dims merged where
// all of them allow it and those of size 1 left out: at least one dim is left.
type walk struct {
	shape   []int
	strides [][]int // of each array
}

func newWalk(arrays ...device.Array) walk {
	w := walk{strides: make([][]int, len(arrays))}
	for d, size := range arrays[0].Shape {
		if size == 1 {
			continue
		}
		n := len(w.shape)
		merge := n > 0
		for i, a := range arrays {
			merge = merge && w.strides[i][n-1] == a.Strides[d]*size
		}
		if merge {
			w.shape[n-1] *= size
		} else {
			w.shape = append(w.shape, size)
		}
		for i, a := range arrays {
			if merge {
				w.strides[i][n-1] = a.Strides[d]
			} else {
				w.strides[i] = append(w.strides[i], a.Strides[d])
			}
		}
	}
	if len(w.shape) == 0 {
		w.shape = []int{1}
		for i := range arrays {
			w.strides[i] = []int{1}
		}
	}
	return w
}

// dense reports whether array i lies densely in the order of the walk.
func (w walk) dense(i int) bool {
	want := 1
	for d := len(w.shape) - 1; d >= 0; d-- {
		if w.strides[i][d] != want {
			return false
		}
		want *= w.shape[d]
	}
	return true
}

// gather copies the elements from number lo on of a strided array into buf.
func gather[T any](buf []T, p unsafe.Pointer, shape, strides []int, lo int) {
	last := len(shape) - 1
	inner, step := shape[last], strides[last]
	var few [8]int
	index := few[:]
	if last > len(few) {
		index = make([]int, last)
	}
	col, rest, offset := lo%inner, lo/inner, 0
	for d := last - 1; d >= 0; d-- {
		index[d] = rest % shape[d]
		offset += index[d] * strides[d]
		rest /= shape[d]
	}
	for {
		n := min(inner-col, len(buf))
		spread(buf[:n], unsafe.Add(p, (offset+col*step)*int(unsafe.Sizeof(buf[0]))), step)
		buf, col = buf[n:], 0
		if len(buf) == 0 {
			return
		}
		for d := last - 1; d >= 0; d-- {
			index[d]++
			offset += strides[d]
			if index[d] < shape[d] {
				break
			}
			offset -= index[d] * strides[d]
			index[d] = 0
		}
	}
}

// spread copies elements that lie step apart.
func spread[T any](dst []T, p unsafe.Pointer, step int) {
	switch step {
	case 1:
		copy(dst, unsafe.Slice((*T)(p), len(dst)))
	case 0:
		fill(dst, *(*T)(p))
	default:
		size := step * int(unsafe.Sizeof(dst[0]))
		at := 0
		for i := range dst {
			dst[i] = *(*T)(unsafe.Add(p, at))
			at += size
		}
	}
}

// fill sets all elements: doubling copies run at the speed of memmove.
func fill[T any](dst []T, v T) {
	const seed = 32
	for i := range dst[:min(seed, len(dst))] {
		dst[i] = v
	}
	for done := seed; done < len(dst); done *= 2 {
		copy(dst[done:], dst[:done])
	}
}
