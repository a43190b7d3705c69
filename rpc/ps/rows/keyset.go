// SPDX-License-Identifier: Apache-2.0

package rows

import "math/bits"

// keySet finds keys that stand twice in a list.
type keySet struct {
	keys   []int64
	places []int32 // position in keys plus one, 0 for an empty place
	mask   uint64
}

// reset empties the set, which will get at most n keys.
func (s *keySet) reset(n int) {
	size := 1 << bits.Len(uint(2*n))
	s.places, s.mask, s.keys = make([]int32, size), uint64(size-1), make([]int64, 0, n)
}

// add returns false if the key is in the set.
func (s *keySet) add(key int64) bool {
	at := Hash(key) >> 32 & s.mask
	for ; s.places[at] != 0; at = (at + 1) & s.mask {
		if s.keys[s.places[at]-1] == key {
			return false
		}
	}
	s.keys = append(s.keys, key)
	s.places[at] = int32(len(s.keys))
	return true
}
