// SPDX-License-Identifier: Apache-2.0

package collective

import "math/bits"

// In a binomial tree over members 0 to n-1, the parent of member v is v without
// its lowest set bit, and below v are the members up to v plus that bit.
// (Thakur, Rabenseifner and Gropp 2005, §3.)

// lowestBit returns the lowest set bit of v, and for 0 a power of two that is
// no less than n.
func lowestBit(v, n int) int {
	if v == 0 {
		return 1 << bits.Len(uint(n-1))
	}
	return v & -v
}

// binomialBroadcast sends the first member's elements down a tree, to the
// largest subtree first.
func (b *builder) binomialBroadcast(t team, r Range) {
	low := lowestBit(t.me, t.n)
	if t.me > 0 {
		b.recv(t.at(t.me-low), r)
	}
	for bit := low / 2; bit > 0; bit /= 2 {
		if t.me+bit < t.n {
			b.send(t.at(t.me+bit), r)
		}
	}
}

// binomialReduce reduces up a tree to the first member: each has the sum of its
// subtree in acc, which for leaves is never written.
func (b *builder) binomialReduce(t team, own, acc Range) {
	low, sum := lowestBit(t.me, t.n), own
	for bit := 1; bit < low && t.me+bit < t.n; bit *= 2 {
		b.reduce(t.at(t.me+bit), sum, acc, t.me == 0 && 2*bit >= t.n)
		sum = acc
	}
	if t.me > 0 {
		b.send(t.at(t.me-low), sum)
	}
}

// spans gives the elements of members lo to hi-1 of a team as few runs.
type spans func(lo, hi int) []Range

// binomialScatter sends the first member's elements down a tree, to each
// subtree those of its members. It needs at(lo, hi), the place of the elements of
// members lo to hi-1 on this rank.
func (b *builder) binomialScatter(t team, at spans) {
	low := lowestBit(t.me, t.n)
	if t.me > 0 {
		for _, r := range at(t.me, min(t.me+low, t.n)) {
			b.recv(t.at(t.me-low), r)
		}
	}
	for bit := low / 2; bit > 0; bit /= 2 {
		if t.me+bit < t.n {
			for _, r := range at(t.me+bit, min(t.me+2*bit, t.n)) {
				b.send(t.at(t.me+bit), r)
			}
		}
	}
}

// binomialGather is the scatter backwards.
func (b *builder) binomialGather(t team, at spans) {
	low := lowestBit(t.me, t.n)
	for bit := 1; bit < low && t.me+bit < t.n; bit *= 2 {
		for _, r := range at(t.me+bit, min(t.me+2*bit, t.n)) {
			b.recv(t.at(t.me+bit), r)
		}
	}
	if t.me > 0 {
		for _, r := range at(t.me, min(t.me+low, t.n)) {
			b.send(t.at(t.me-low), r)
		}
	}
}

// dissemination is a barrier: in round k every member hears from the one 2^k
// before it, and with it of all that it has heard of, so that after log n
// rounds all have heard of all.
//
// Hensgen, Finkel and Manber, Two algorithms for barrier synchronization (1988).
func (b *builder) dissemination(t team) {
	for d := 1; d < t.n; d *= 2 {
		b.signal(t.at(t.me + d))
		b.await(t.at(t.me - d))
	}
}
