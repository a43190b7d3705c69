// SPDX-License-Identifier: Apache-2.0

package collective

// Range is the elements [Lo, Hi).
type Range struct{ Lo, Hi int }

// Len returns the number of elements.
func (r Range) Len() int { return r.Hi - r.Lo }

// Share cuts [0, count) into n consecutive shares whose borders are multiples
// of align (the last one takes the rest) and returns share i. Shares differ by
// at most align elements, but for the last; some may be empty.
func Share(count, n, align, i int) Range {
	units := count / align
	lo, hi := units*i/n*align, units*(i+1)/n*align
	if i == n-1 {
		hi = count
	}
	return Range{lo, hi}
}

// Pieces calls f for consecutive pieces of r of at most size elements.
func (r Range) Pieces(size int, f func(Range)) {
	for lo := r.Lo; lo < r.Hi; lo += size {
		f(Range{lo, min(lo+size, r.Hi)})
	}
}
