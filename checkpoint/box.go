// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "slices"

func isEmpty(shape []int) bool { return slices.Contains(shape, 0) }

// intersect returns the elements that two boxes have in common, if any.
func intersect(aStart, aShape, bStart, bShape []int) (start, shape []int, ok bool) {
	for d := range aStart { // before any memory is taken: most boxes do not meet
		if aStart[d]+aShape[d] <= bStart[d] || bStart[d]+bShape[d] <= aStart[d] {
			return nil, nil, false
		}
	}
	numbers := make([]int, 2*len(aStart))
	start, shape = numbers[:len(aStart)], numbers[len(aStart):]
	for d := range aStart {
		start[d] = max(aStart[d], bStart[d])
		shape[d] = min(aStart[d]+aShape[d], bStart[d]+bShape[d]) - start[d]
		if shape[d] <= 0 {
			return nil, nil, false
		}
	}
	return start, shape, true
}

// numElems returns the number of elements of a shape that is known to make sense.
func numElems(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// stretches goes through the elements that a box shares with two dense arrays, in stretches
// that are dense in both. The arrays have the shapes from and to; the box begins at fromStart
// in the one and at toStart in the other. size is that of an element, and all that each is
// given is in bytes: the stretch is n long. They come in the order of from.
func stretches(shape, from, fromStart, to, toStart []int, size int, each func(from, to, n int) error) error {
	// The dims behind last are whole on both sides, so a stretch goes over them.
	last, length := len(shape), size
	for last > 0 && shape[last-1] == from[last-1] && shape[last-1] == to[last-1] {
		last--
		length *= shape[last]
	}
	if last == 0 {
		return each(0, 0, length)
	}
	last--
	strides := func(s []int) []int {
		out := make([]int, last+1)
		for d, n := last, length; d >= 0; d-- {
			out[d] = n
			n *= s[d]
		}
		return out
	}
	fromStride, toStride := strides(from), strides(to)
	a, b := 0, 0
	for d := range last + 1 {
		a += fromStart[d] * fromStride[d]
		b += toStart[d] * toStride[d]
	}
	length *= shape[last]
	at := make([]int, last)
	for {
		if err := each(a, b, length); err != nil {
			return err
		}
		d := last - 1
		for ; d >= 0; d-- {
			at[d]++
			a += fromStride[d]
			b += toStride[d]
			if at[d] < shape[d] {
				break
			}
			a -= at[d] * fromStride[d]
			b -= at[d] * toStride[d]
			at[d] = 0
		}
		if d < 0 {
			return nil
		}
	}
}
