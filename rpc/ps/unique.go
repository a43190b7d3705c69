// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math/bits"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// unique returns the keys once each, in increasing order, and for each position of keys
// where its key is among them.
func unique(keys []int64) (once []int64, at []int64) {
	if len(keys) == 0 {
		return nil, nil
	}
	lowest := slices.Min(keys)
	items := make([]kernel.Keyed, len(keys)) // by what is above the lowest
	highest := uint64(0)
	sorted := true
	for i, k := range keys {
		d := uint64(k) - uint64(lowest)
		items[i] = kernel.Keyed{Key: d, Pos: int32(i)}
		highest = max(highest, d)
		sorted = sorted && (i == 0 || keys[i-1] <= k)
	}
	if !sorted {
		items = kernel.SortKeyed(items, highest)
	}
	once, at = make([]int64, 0, len(keys)), make([]int64, len(keys))
	for i, it := range items {
		if i == 0 || it.Key != items[i-1].Key {
			once = append(once, int64(it.Key+uint64(lowest)))
		}
		at[it.Pos] = int64(len(once) - 1)
	}
	return once, at
}

// fewAgain is a share of keys: if only one of so many is there again, nothing is gained by
// sending it once, for then the rows must be put in place.
const fewAgain = 32

// distinct returns the keys once each, in the order in which they come first, and for each
// position of keys where its key is among them. If few come again, it returns the keys as
// they are, and nil.
func distinct(keys []int64) (once []int64, at []int32) {
	if len(keys) >= sampleFrom && !comesAgain(keys) {
		return keys, nil
	}
	size := 1 << bits.Len(uint(2*len(keys)))
	table := tables.Get().(*[]int32)
	defer tables.Put(table)
	if len(*table) < size {
		*table = make([]int32, size)
	}
	first := (*table)[:size] // of a hash: the number of a key, plus one
	clear(first)
	once, at = make([]int64, 0, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		slot := int(rows.Hash(k)>>20) & (size - 1)
		for {
			n := first[slot]
			if n == 0 {
				once = append(once, k)
				first[slot] = int32(len(once))
				at[i] = int32(len(once) - 1)
				break
			}
			if once[n-1] == k {
				at[i] = n - 1
				break
			}
			slot = (slot + 1) & (size - 1)
		}
	}
	if len(keys)-len(once) <= len(keys)/fewAgain {
		return keys, nil
	}
	return once, at
}

// Of sampleFrom keys or more, numSampled tell whether some come again.
const (
	sampleFrom = 2048
	numSampled = 512
)

// comesAgain reports whether one of some keys comes again among them. If every tenth of 4,096
// keys comes again, because all are equally frequent, it finds one with a probability of 99 %.
func comesAgain(keys []int64) bool {
	var places [2 * numSampled]uint16 // of a hash: the number of a sampled key, plus one
	var seen [numSampled]int64
	draw := uint64(len(keys))
	for i := range numSampled {
		// One of each run of keys, not always the same one: keys can have an order.
		draw = draw*6364136223846793005 + 1442695040888963407
		lo, hi := i*len(keys)/numSampled, (i+1)*len(keys)/numSampled
		k := keys[lo+int(draw>>33)%(hi-lo)]
		slot := int(rows.Hash(k)>>20) % len(places)
		for ; places[slot] != 0; slot = (slot + 1) % len(places) {
			if seen[places[slot]-1] == k {
				return true
			}
		}
		places[slot], seen[i] = uint16(i+1), k
	}
	return false
}

// tables are the memory of distinct.
var tables = sync.Pool{New: func() any { return new([]int32) }}
