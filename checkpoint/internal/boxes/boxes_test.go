// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// drawn returns a shape of at most 4 dims.
func drawn(r *rand.Rand) []int {
	shape := make([]int, r.IntN(5))
	for d := range shape {
		shape[d] = r.IntN(6)
	}
	return shape
}

// each calls f for each index of a shape.
func each(shape []int, f func(at []int)) {
	at := make([]int, len(shape))
	var loop func(d int)
	loop = func(d int) {
		if d == len(shape) {
			f(at)
			return
		}
		for at[d] = range shape[d] {
			loop(d + 1)
		}
	}
	loop(0)
}

// A copy between two layouts is the copy of its elements one by one.
func TestCopiesAreThoseOfElements(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	for range 3000 {
		shape, size := drawn(r), []int{1, 2, 4, 8}[r.IntN(4)]
		layout := func(repeats bool) (at int64, strides []int64, length int) {
			// A permuted tensor with room between its rows.
			order, n := r.Perm(len(shape)), int64(size)
			strides = make([]int64, len(shape))
			for _, d := range order {
				strides[d] = n
				if repeats && r.IntN(8) == 0 {
					strides[d] = 0
					continue
				}
				n *= int64(max(shape[d], 1))
				if r.IntN(3) == 0 {
					n += int64(size * r.IntN(3))
				}
				if r.IntN(20) == 0 {
					n += maxGap
				}
			}
			at = int64(r.IntN(20))
			return at, strides, int(at + n)
		}
		from, fromStrides, length := layout(true)
		file := make([]byte, length)
		for i := range file {
			file[i] = byte(r.IntN(256))
		}
		to, toStrides, length := layout(false)
		got, want := make([]byte, length), make([]byte, length)
		swapped := 0
		if r.IntN(3) == 0 {
			swapped = size
		}
		each(shape, func(at []int) {
			b := slices.Clone(file[from+Offset(at, fromStrides):][:size])
			swap(b, swapped)
			copy(want[to+Offset(at, toStrides):], b)
		})
		c := Copy{Shape: shape, Size: size, From: from, FromStrides: fromStrides, To: to, ToStrides: toStrides, Swap: swapped, Gap: []int64{0, 1, 4}[r.IntN(3)]}
		if err := c.Read(bytes.NewReader(file), got); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%+v: copied otherwise than element by element", c)
		}
	}
}

func TestSplitAndPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 2))
	for range 2000 {
		shape := drawn(r)
		total := NumElems(shape)
		first := r.IntN(total + 1)
		count := r.IntN(total - first + 1)
		strides := Strides(shape, 1)
		next := int64(first)
		check := func(list []Box) {
			for _, b := range list {
				if problem := Within(b, shape); problem != "" {
					t.Fatalf("%v: %s", b, problem)
				}
				each(b.Shape, func(at []int) {
					if got := Offset(b.Start, strides) + Offset(at, strides); got != next {
						t.Fatalf("shape %v: element %d comes where %d should", shape, got, next)
					}
					next++
				})
			}
		}
		check(Split(shape, first, count))
		if next != int64(first+count) {
			t.Fatalf("Split(%v, %d, %d) ends at %d", shape, first, count, next)
		}
		most := 1 + r.IntN(20)
		next = 0
		pieces := Pieces(Whole(shape), most)
		for _, b := range pieces {
			if n := NumElems(b.Shape); n > most {
				t.Fatalf("a piece of %v has %d elements, more than %d", shape, n, most)
			}
		}
		check(pieces)
		if next != int64(total) {
			t.Fatalf("Pieces(%v, %d) end at %d", shape, most, next)
		}
	}
}

func TestCover(t *testing.T) {
	box := func(numbers ...int) Box { return Box{numbers[:len(numbers)/2], numbers[len(numbers)/2:]} }
	for _, c := range []struct {
		shape []int
		boxes []Box
		ok    bool
	}{
		{[]int{4, 4}, []Box{box(0, 0, 4, 2), box(0, 2, 4, 2)}, true},
		{[]int{4, 4}, []Box{box(0, 0, 4, 2), box(0, 2, 4, 1)}, false},
		{[]int{4, 4}, []Box{box(0, 0, 4, 3), box(0, 2, 4, 2)}, false},
		{[]int{4, 4}, []Box{box(0, 0, 4, 3), box(3, 2, 1, 2)}, false},
		{[]int{4, 4}, []Box{box(0, 0, 2, 4), box(2, 0, 2, 2), box(2, 2, 2, 2), box(4, 0, 0, 4)}, true},
		{[]int{}, []Box{box()}, true},
		{[]int{}, []Box{box(), box()}, false},
		{[]int{}, nil, false},
		{[]int{0, 3}, []Box{box(0, 0, 0, 3)}, true},
		{[]int{0, 3}, nil, true},
	} {
		if problem := Cover(c.shape, c.boxes); (problem == "") != c.ok {
			t.Errorf("%v by %v: %q, want ok %v", c.shape, c.boxes, problem, c.ok)
		}
	}
}
