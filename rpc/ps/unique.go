// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/kernel"
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
