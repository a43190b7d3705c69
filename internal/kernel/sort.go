// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/work"
)

// Sortable are the Go types of elements that can be sorted. A uint16 is the
// bits of a bfloat16 or float16.
type Sortable interface {
	float32 | float64 | int64 | int32 | int8 | uint8 | uint16
}

// sortKey maps elements to integers of the same order: NaN is the largest
// number and the two zeros are equal. Keys of the types up to 32 bits have 32.
func sortKey[T Sortable](float16 bool) func(x T) uint64 {
	ofFloat := func(f float64) uint64 {
		if f != f {
			return math.MaxUint64
		}
		b := math.Float64bits(f + 0) // -0 becomes 0
		if b>>63 != 0 {
			return ^b
		}
		return b | 1<<63
	}
	var key any
	switch any(*new(T)).(type) {
	case float32:
		key = float32Key
	case float64:
		key = ofFloat
	case int64:
		key = func(x int64) uint64 { return uint64(x) ^ 1<<63 }
	case int32:
		key = func(x int32) uint64 { return uint64(uint32(x) ^ 1<<31) }
	case int8:
		key = func(x int8) uint64 { return uint64(uint32(x) ^ 1<<31) }
	case uint8:
		key = func(x uint8) uint64 { return uint64(x) }
	case uint16:
		key = func(x uint16) uint64 {
			if float16 {
				return float32Key(half.FromFloat16(x))
			}
			return float32Key(half.FromBFloat16(x))
		}
	}
	return key.(func(x T) uint64)
}

// float32Key is sortKey of float32: 32 bits.
func float32Key(x float32) uint64 {
	if x != x {
		return math.MaxUint32
	}
	b := math.Float32bits(x + 0)
	return uint64(b ^ (uint32(int32(b)>>31) | 1<<31))
}

type sortItem struct {
	key uint64
	pos int32
}

// isNarrow reports whether the keys of a type have 32 bits, so that a key and a
// position make one number.
func isNarrow[T Sortable]() bool {
	switch any(*new(T)).(type) {
	case float64, int64:
		return false
	}
	return true
}

// orderer sorts rows of one length; it has their scratch.
type orderer[T Sortable] struct {
	key        func(T) uint64
	descending bool
	narrow     bool
	packed     [2][]uint64   // for narrow types: key above, position below
	wide       [2][]sortItem // for others
}

func newOrderer[T Sortable](cols int, descending, float16 bool) *orderer[T] {
	o := &orderer[T]{key: sortKey[T](float16), descending: descending, narrow: isNarrow[T]()}
	for i := range 2 {
		if o.narrow {
			o.packed[i] = make([]uint64, cols)
		} else {
			o.wide[i] = make([]sortItem, cols)
		}
	}
	return o
}

// ArgSort writes the positions that sort each of rows rows of cols elements.
// Equal elements stay in order. float16 says that a uint16 is one.
func ArgSort[T Sortable](p *work.Pool, order []int64, x []T, rows, cols int, descending, float16 bool) {
	if rows*cols == 0 {
		return
	}
	overItems(p, rows, 16*rows*cols, func(lo, hi int) {
		o := newOrderer[T](cols, descending, float16)
		for r := lo; r < hi; r++ {
			o.sort(order[r*cols:(r+1)*cols], x[r*cols:(r+1)*cols])
		}
	})
}

// sort writes the first len(order) positions of a sorted row.
func (o *orderer[T]) sort(order []int64, row []T) {
	if !o.narrow {
		for i, v := range row {
			k := o.key(v)
			if o.descending {
				k = ^k
			}
			o.wide[0][i] = sortItem{k, int32(i)}
		}
		for i, it := range sortWide(o.wide[0], o.wide[1])[:len(order)] {
			order[i] = int64(it.pos)
		}
		return
	}
	flip := uint64(0)
	if o.descending {
		flip = math.MaxUint32
	}
	items := o.promising(row, len(order), flip)
	for i, it := range sortPacked(items, o.packed[1][:len(items)])[:len(order)] {
		order[i] = int64(uint32(it))
	}
}

func asFloat32s[T Sortable](row []T) ([]float32, bool) {
	x, ok := any(row).([]float32)
	return x, ok
}

// promising returns the items of a row that may be among the k smallest, in their
// order: all of them, unless a sample of the row says where most can be left out.
func (o *orderer[T]) promising(row []T, k int, flip uint64) []uint64 {
	const numSamples = 512
	if len(row) >= 8*numSamples && k <= len(row)/16 {
		var sample [numSamples]uint64
		for i := range sample {
			sample[i] = o.key(row[i*(len(row)/numSamples)]) ^ flip
		}
		slices.Sort(sample[:])
		limit := sample[2*k*numSamples/len(row)+8]
		if items := o.upTo(row, limit, flip); len(items) >= k {
			return items
		}
	}
	return o.upTo(row, math.MaxUint32, flip)
}

// upTo returns the items whose keys do not exceed limit.
func (o *orderer[T]) upTo(row []T, limit, flip uint64) []uint64 {
	items, n := o.packed[0], 0
	if x, ok := asFloat32s(row); ok {
		for i, v := range x {
			if k := float32Key(v) ^ flip; k <= limit {
				items[n] = k<<32 | uint64(i)
				n++
			}
		}
		return items[:n]
	}
	for i, v := range row {
		if k := o.key(v) ^ flip; k <= limit {
			items[n] = k<<32 | uint64(i)
			n++
		}
	}
	return items[:n]
}

// shortRow is the length below which comparing is quicker than counting digits.
const shortRow = 256

// sortPacked sorts by the upper halves; items come in the order of the lower
// ones. It returns items or other, whichever has the result.
func sortPacked(items, other []uint64) []uint64 {
	if len(items) < shortRow {
		slices.Sort(items)
		return items
	}
	const digit = 11
	var counts [3][1 << digit]int32
	for _, it := range items {
		counts[0][it>>32&(1<<digit-1)]++
		counts[1][it>>(32+digit)&(1<<digit-1)]++
		counts[2][it>>(32+2*digit)]++
	}
	for pass := range counts {
		shift := 32 + pass*digit
		count := &counts[pass]
		if count[items[0]>>shift&(1<<digit-1)] == int32(len(items)) {
			continue // every key has the same digit
		}
		sum := int32(0)
		for d, c := range count {
			count[d] = sum
			sum += c
		}
		for _, it := range items {
			d := it >> shift & (1<<digit - 1)
			other[count[d]] = it
			count[d]++
		}
		items, other = other, items
	}
	return items
}

// sortWide is sortPacked for keys of 64 bits.
func sortWide(items, other []sortItem) []sortItem {
	if len(items) < shortRow {
		slices.SortFunc(items, func(a, b sortItem) int {
			switch {
			case a.key < b.key:
				return -1
			case a.key > b.key:
				return 1
			}
			return int(a.pos - b.pos)
		})
		return items
	}
	const digit = 8
	for shift := 0; shift < 64; shift += digit {
		var counts [1 << digit]int32
		for i := range items {
			counts[items[i].key>>shift&(1<<digit-1)]++
		}
		if counts[items[0].key>>shift&(1<<digit-1)] == int32(len(items)) {
			continue
		}
		sum := int32(0)
		for d, c := range counts {
			counts[d] = sum
			sum += c
		}
		for i := range items {
			d := items[i].key >> shift & (1<<digit - 1)
			other[counts[d]] = items[i]
			counts[d]++
		}
		items, other = other, items
	}
	return items
}

// maxHeld is the largest k for which TopK scans a row and holds the best k.
const maxHeld = 32

// TopK writes the positions of the k largest (or smallest) elements of each
// row, the best first, and the first where elements are equal.
func TopK[T Sortable](p *work.Pool, order []int64, x []T, rows, cols, k int, largest, float16 bool) {
	if rows*k == 0 {
		return
	}
	row32, isFloat32 := asFloat32s(x)
	overItems(p, rows, 4*rows*cols, func(lo, hi int) {
		if isFloat32 && k <= maxHeld {
			var held [maxHeld]uint64
			for r := lo; r < hi; r++ {
				topRow(held[:k], row32[r*cols:(r+1)*cols], largest)
				for i, h := range held[:k] {
					order[r*k+i] = int64(^uint32(h))
				}
			}
			return
		}
		o := newOrderer[T](cols, largest, float16)
		for r := lo; r < hi; r++ {
			o.sort(order[r*k:(r+1)*k], x[r*cols:(r+1)*cols])
		}
	})
}

// topRow fills held with the best of a row, best first: the key in the upper
// half, the complement of the position in the lower one, so that the larger
// number is the better one.
func topRow(held []uint64, row []float32, largest bool) {
	flip := uint64(0)
	if !largest {
		flip = math.MaxUint32
	}
	hold := func(n int, item uint64) { // n are held, and there is room for one more
		for n > 0 && held[n-1] < item {
			held[n] = held[n-1]
			n--
		}
		held[n] = item
	}
	k := len(held)
	for i, v := range row[:k] {
		hold(i, (float32Key(v)^flip)<<32|uint64(^uint32(i)))
	}
	worst := row[^uint32(held[k-1])]
	for i := k; i < len(row); i++ {
		// False for NaN, which goes the slow way.
		v := row[i]
		if largest && v <= worst || !largest && v >= worst {
			continue
		}
		if item := (float32Key(v)^flip)<<32 | uint64(^uint32(i)); item > held[k-1] {
			hold(k-1, item)
			worst = row[^uint32(held[k-1])]
		}
	}
}
