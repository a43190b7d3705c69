// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"

	"github.com/cohort-ml/cohort/internal/work"
)

// Segments are the positions of a list of ids, those of one id together.
type Segments struct {
	IDs []int64 // increasing, each once
	// Order lists the positions by id, and in their own order where ids are
	// equal; those of IDs[i] are Order[Starts[i]:Starts[i+1]].
	Order  []int32
	Starts []int32
}

// GroupIDs sorts ids, none of them negative. Skip is an id to leave out, -1
// for none.
func GroupIDs(ids []int64, skip int64) Segments {
	items := make([]Keyed, 0, len(ids))
	highest := int64(0)
	for i, id := range ids {
		if id != skip {
			items = append(items, Keyed{uint64(id), int32(i)})
			highest = max(highest, id)
		}
	}
	items = SortKeyed(items, uint64(highest))
	s := Segments{Order: make([]int32, len(items)), IDs: make([]int64, 0, len(items)), Starts: make([]int32, 0, len(items)+1)}
	for i, it := range items {
		if i == 0 || it.Key != items[i-1].Key {
			s.IDs = append(s.IDs, int64(it.Key))
			s.Starts = append(s.Starts, int32(i))
		}
		s.Order[i] = it.Pos
	}
	s.Starts = append(s.Starts, int32(len(items)))
	return s
}

// Keyed is a key and its position in a list.
type Keyed struct {
	Key uint64
	Pos int32
}

// SortKeyed returns items sorted by key, in their own order where keys are equal.
// highest is the highest key. The memory of items is used.
func SortKeyed(items []Keyed, highest uint64) []Keyed {
	if len(items) < 64 {
		slices.SortStableFunc(items, func(a, b Keyed) int { return cmp.Compare(a.Key, b.Key) })
		return items
	}
	// From the lowest digit on, each pass keeping the order of the last: the
	// work does not depend on how the keys are spread.
	const digit = 11
	other := make([]Keyed, len(items))
	var counts [1 << digit]int32
	for shift := 0; shift < bits.Len64(highest); shift += digit {
		clear(counts[:])
		for i := range items {
			counts[items[i].Key>>shift&(1<<digit-1)]++
		}
		sum := int32(0)
		for d, c := range counts {
			counts[d] = sum
			sum += c
		}
		for i := range items {
			d := items[i].Key >> shift & (1<<digit - 1)
			other[counts[d]] = items[i]
			counts[d]++
		}
		items, other = other, items
	}
	return items
}

// over calls fn for runs of segments with about the same number of positions
// each.
func (s Segments) over(p *work.Pool, width int, fn func(lo, hi int)) {
	t := parts(p, len(s.IDs), len(s.Order)*width)
	if t <= 1 {
		fn(0, len(s.IDs))
		return
	}
	t *= 4                     // a segment may be long
	first := func(i int) int { // the first segment that starts at part i of the positions or later
		at := int32(i * len(s.Order) / t)
		return sort.Search(len(s.IDs), func(k int) bool { return s.Starts[k] >= at })
	}
	p.Run(t, func(i int) {
		if lo, hi := first(i), first(i+1); lo < hi {
			fn(lo, hi)
		}
	})
}

// RowsOf says which rows of a matrix the positions of segments stand for, and
// how they count.
type RowsOf struct {
	Data  []float32 // [rows, width]
	Index []int32   // of the row of a position, nil for the position itself
	Scale []float32 // of a position, nil for 1
	// Only, where it is not nil, lets a position have the elements of its row alone
	// that it is named in: the maximum's. It is [rows, width].
	Only []int32
}

func (f *RowsOf) row(pos int32) int {
	if f.Index == nil {
		return int(pos)
	}
	return int(f.Index[pos])
}

// SumSegments adds up the rows of each segment in its order: row i of dst gets
// the sum over segment i. With byID it is row IDs[i] of dst, and the sum is
// added to what is there.
func SumSegments(p *work.Pool, dst []float32, from RowsOf, s Segments, width int, byID bool) {
	add, addScaled := vec().add, vec().addScaled
	s.over(p, width, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at := i
			if byID {
				at = int(s.IDs[i])
			}
			row := dst[at*width : (at+1)*width]
			order := s.Order[s.Starts[i]:s.Starts[i+1]]
			switch {
			case byID:
			case from.Only == nil && from.Scale == nil:
				r := from.row(order[0])
				copy(row, from.Data[r*width:(r+1)*width])
				order = order[1:]
			default:
				clear(row)
			}
			for _, pos := range order {
				r := from.row(pos)
				x := from.Data[r*width : (r+1)*width]
				switch {
				case from.Only != nil:
					for c, owner := range from.Only[r*width : (r+1)*width] {
						if owner == pos {
							row[c] += x[c]
						}
					}
				case from.Scale != nil:
					addScaled(row, row, x, from.Scale[pos])
				default:
					add(row, row, x)
				}
			}
		}
	})
}
