// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"slices"
)

// sortedBy returns boxes in the order of their starts along a dim.
func sortedBy(boxes []StoredBox, dim int) []StoredBox {
	if len(boxes) == 0 || len(boxes[0].Start) == 0 {
		return boxes
	}
	order := slices.Clone(boxes)
	slices.SortStableFunc(order, func(a, b StoredBox) int { return cmp.Compare(a.Start[dim], b.Start[dim]) })
	return order
}

func isEmpty(shape []int) bool { return slices.Contains(shape, 0) }

// meet reports whether two boxes have an element in common.
func meet(a, b StoredBox) bool {
	_, _, ok := intersect(a.Start, a.Shape, b.Start, b.Shape)
	return ok
}

// intersect returns the elements that two boxes have in common, if any.
func intersect(aStart, aShape, bStart, bShape []int) (start, shape []int, ok bool) {
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
