// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"cmp"
	"fmt"
	"slices"
)

// Box is a part of a tensor.
type Box struct{ Start, Shape []int }

// String returns the box as ranges, such as [0:2, 4:8].
func (b Box) String() string {
	s := "["
	for d := range b.Start {
		if d > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%d:%d", b.Start[d], b.Start[d]+b.Shape[d])
	}
	return s + "]"
}

// Whole returns the box of all of a tensor.
func Whole(shape []int) Box { return Box{make([]int, len(shape)), slices.Clone(shape)} }

// NumElems returns the number of elements of a shape.
func NumElems(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// Strides returns the strides of a dense tensor, in bytes.
func Strides(shape []int, size int) []int64 {
	strides := make([]int64, len(shape))
	n := int64(size)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = n
		n *= int64(max(shape[d], 1))
	}
	return strides
}

// Offset returns where an element lies.
func Offset(start []int, strides []int64) int64 {
	var at int64
	for d, s := range start {
		at += int64(s) * strides[d]
	}
	return at
}

// Overlap returns the box that two boxes have in common. ok is false if there is none; boxes
// without elements have nothing in common.
func Overlap(a, b Box) (common Box, ok bool) {
	common = Box{make([]int, len(a.Start)), make([]int, len(a.Start))}
	for d := range a.Start {
		from := max(a.Start[d], b.Start[d])
		n := min(a.Start[d]+a.Shape[d], b.Start[d]+b.Shape[d]) - from
		if n <= 0 {
			return Box{}, false
		}
		common.Start[d], common.Shape[d] = from, n
	}
	return common, true
}

// Within says what is wrong with a box of a tensor of the given shape, "" if nothing.
func Within(b Box, shape []int) string {
	if len(b.Start) != len(shape) || len(b.Shape) != len(shape) {
		return fmt.Sprintf("has %d and %d dims for a tensor of shape %v", len(b.Start), len(b.Shape), shape)
	}
	for d, n := range shape {
		if b.Start[d] < 0 || b.Shape[d] < 0 || b.Start[d] > n || b.Shape[d] > n-b.Start[d] {
			return fmt.Sprintf("from %v with the shape %v is not within the tensor's %v", b.Start, b.Shape, shape)
		}
	}
	return ""
}

// Cover says why boxes within a tensor do not make up each element of it exactly once, "" if
// they do. It sweeps along the dim in which the boxes start at the most places.
func Cover(shape []int, list []Box) string {
	var filled []Box
	total := 0
	for _, b := range list {
		if n := NumElems(b.Shape); n > 0 {
			filled = append(filled, b)
			total += n
		}
	}
	if problem := disjoint(shape, filled); problem != "" {
		return problem
	}
	if want := NumElems(shape); total != want {
		return fmt.Sprintf("its %d boxes have %d of the %d elements", len(filled), total, want)
	}
	return ""
}

func disjoint(shape []int, list []Box) string {
	if len(list) < 2 {
		return ""
	}
	if len(shape) == 0 {
		return fmt.Sprintf("a scalar is there %d times", len(list))
	}
	sweep, most := 0, 0
	for d := range shape {
		starts := map[int]bool{}
		for _, b := range list {
			starts[b.Start[d]] = true
		}
		if len(starts) > most {
			sweep, most = d, len(starts)
		}
	}
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b Box) int { return cmp.Compare(a.Start[sweep], b.Start[sweep]) })
	var open []Box // those that the sweep has not left
	for _, b := range sorted {
		open = slices.DeleteFunc(open, func(o Box) bool { return o.Start[sweep]+o.Shape[sweep] <= b.Start[sweep] })
		for _, o := range open {
			if common, ok := Overlap(o, b); ok {
				return fmt.Sprintf("its boxes %v and %v both have %v", o, b, common)
			}
		}
		open = append(open, b)
	}
	return ""
}

// Split returns the boxes that make up count elements from the element first on, in row-major
// order. Their elements follow one another in that order.
func Split(shape []int, first, count int) []Box {
	if count <= 0 {
		return nil
	}
	if len(shape) == 0 {
		return []Box{{[]int{}, []int{}}}
	}
	inner := NumElems(shape[1:])
	under := func(row, first, count int) []Box {
		list := Split(shape[1:], first, count)
		for i, b := range list {
			list[i] = Box{append([]int{row}, b.Start...), append([]int{1}, b.Shape...)}
		}
		return list
	}
	var out []Box
	row, skip := first/inner, first%inner
	if skip > 0 {
		n := min(count, inner-skip)
		out = append(out, under(row, skip, n)...)
		row, count = row+1, count-n
	}
	if rows := count / inner; rows > 0 {
		b := Whole(shape)
		b.Start[0], b.Shape[0] = row, rows
		out = append(out, b)
		row, count = row+rows, count-rows*inner
	}
	if count > 0 {
		out = append(out, under(row, 0, count)...)
	}
	return out
}

// Pieces cuts a box into boxes of at most maxElems elements (or of one), in row-major order.
// Each is a range of elements of the box.
func Pieces(b Box, maxElems int) []Box {
	total := NumElems(b.Shape)
	if total <= maxElems || total <= 1 {
		return []Box{b}
	}
	rows := maxElems / max(total/b.Shape[0], 1)
	var out []Box
	if rows == 0 {
		for i := range b.Shape[0] {
			inner := Pieces(Box{b.Start[1:], b.Shape[1:]}, maxElems)
			for _, p := range inner {
				out = append(out, Box{append([]int{b.Start[0] + i}, p.Start...), append([]int{1}, p.Shape...)})
			}
		}
		return out
	}
	for i := 0; i < b.Shape[0]; i += rows {
		p := Box{slices.Clone(b.Start), slices.Clone(b.Shape)}
		p.Start[0] += i
		p.Shape[0] = min(rows, b.Shape[0]-i)
		out = append(out, p)
	}
	return out
}

// ReadRange reads a range of bytes of the dense tensor by reads of boxes. The range begins and
// ends between elements.
func ReadRange(shape []int, size int, dst []byte, offset int64, read func(b Box, dst []byte) error) error {
	if offset < 0 || offset%int64(size) != 0 || len(dst)%size != 0 {
		return fmt.Errorf("%d bytes from byte %d on are no whole elements of %d bytes", len(dst), offset, size)
	}
	total := int64(NumElems(shape)) * int64(size)
	if offset > total || int64(len(dst)) > total-offset {
		return fmt.Errorf("it has %d bytes, but %d from byte %d on were asked for", total, len(dst), offset)
	}
	for _, b := range Split(shape, int(offset/int64(size)), len(dst)/size) {
		n := NumElems(b.Shape) * size
		if err := read(b, dst[:n]); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}
