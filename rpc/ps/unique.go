// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"cmp"
	"math/bits"
	"slices"
)

// unique returns the keys once each, in increasing order, and for each position of keys
// where its key is among them.
func unique(keys []int64) (once []int64, at []int64) {
	type item struct {
		key uint64 // above the lowest
		pos int32
	}
	if len(keys) == 0 {
		return nil, nil
	}
	lowest := slices.Min(keys)
	items := make([]item, len(keys))
	highest := uint64(0)
	sorted := true
	for i, k := range keys {
		d := uint64(k) - uint64(lowest)
		items[i] = item{d, int32(i)}
		highest = max(highest, d)
		sorted = sorted && (i == 0 || keys[i-1] <= k)
	}
	switch {
	case sorted:
	case len(items) < 64:
		slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.key, b.key) })
	default:
		// From the lowest digit on, each pass keeping the order of the last.
		const digit = 11
		other := make([]item, len(items))
		for shift := 0; shift < bits.Len64(highest); shift += digit {
			var counts [1 << digit]int32
			for i := range items {
				counts[items[i].key>>shift&(1<<digit-1)]++
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
	}
	once, at = make([]int64, 0, len(keys)), make([]int64, len(keys))
	for i, it := range items {
		if i == 0 || it.key != items[i-1].key {
			once = append(once, int64(it.key+uint64(lowest)))
		}
		at[it.pos] = int64(len(once) - 1)
	}
	return once, at
}
