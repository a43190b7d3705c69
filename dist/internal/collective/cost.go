// SPDX-License-Identifier: Apache-2.0

package collective

import "math/bits"

// LinkCost is what it costs to send over one kind of link, after LogGP (Alexandrov,
// Ionescu, Schauser and Scheiman 1995): a message of B bytes keeps its sender
// busy for Overhead + B·PerByte and is there Latency later, where it keeps its
// receiver busy for Overhead again. Times are in picoseconds, whole numbers so
// that every rank computes the same.
type LinkCost struct{ Latency, Overhead, PerByte int64 }

// Costs is what the chooser believes of a group's machines.
type Costs struct {
	Local  LinkCost // between ranks of a node: a pipe in shared memory
	Net    LinkCost // between nodes; ranks of a node share its bandwidth
	Reduce int64    // to reduce a byte
	Copy   int64    // to copy a byte
}

const (
	nanosecond  = 1000
	microsecond = 1000 * nanosecond
)

// DefaultCosts are of processes of a present server that pass pieces through
// shared memory, which copies twice, and of TCP over 10 Gbit/s, or its loopback
// with all cores busy. A slower network moves the border between algorithms
// little: where bytes count, those that move the fewest win on any.
func DefaultCosts() Costs {
	return Costs{
		Local:  LinkCost{Latency: 500 * nanosecond, Overhead: 200 * nanosecond, PerByte: 150},
		Net:    LinkCost{Latency: 15 * microsecond, Overhead: 4 * microsecond, PerByte: 800},
		Reduce: 60,
		Copy:   60,
	}
}

// send returns how long a send of size bytes keeps a rank busy, in pieces.
func (l LinkCost) send(size int64) int64 {
	return l.Overhead*max(1, (size+PieceBytes-1)/PieceBytes) + size*l.PerByte
}

// step returns how long it takes until a message has been received.
func (l LinkCost) step(size int64) int64 { return l.send(size) + l.Latency + l.Overhead }

// rounds returns how long n rounds on a ring take, in each of which a rank
// passes on size bytes: pieces of one round hide the latency of others.
func (l LinkCost) rounds(n, size int64) int64 {
	return n*max(l.send(size), l.step(min(size, PieceBytes))) + l.Latency
}

// fan returns how long it takes to send size bytes each to n peers, and to
// receive as many.
func (l LinkCost) fan(n, size int64) int64 { return n*l.send(size) + l.Latency + l.Overhead }

// shared returns the link when n ranks use it at once.
func (l LinkCost) shared(n int) LinkCost {
	l.PerByte *= int64(n)
	return l
}

// overlapped returns how long two ways take that chunks pass one after the other.
func overlapped(a, b, numChunks int64) int64 { return max(a, b) + min(a, b)/numChunks }

// log2 returns how often n is doubled from 1, rounded up.
func log2(n int) int64 { return int64(bits.Len(uint(n - 1))) }

func powerOfTwo(n int) bool { return n&(n-1) == 0 }

// arms is the links that a team's algorithm uses.
type arms struct {
	Costs
	far  LinkCost // between any two, of all at once
	near LinkCost // between neighbours in order of nodes
	n    int
	// here is how many ranks of a node a tree joins before it leaves the node.
	here, nodes int
}

// The costs of an all-reduce of size bytes.

func (a arms) exchangeAllReduce(size int64) int64 {
	n := int64(a.n)
	return a.far.fan(n-1, size) + n*size*a.Reduce
}

func (a arms) directAllReduce(size int64) int64 {
	n := int64(a.n)
	return 2*a.far.fan(n-1, size/n) + size*(a.Reduce+a.Copy/n)
}

func (a arms) doublingAllReduce(size int64) int64 {
	steps := int64(bits.Len(uint(a.n)) - 1)
	t := steps * (a.far.step(size) + size*a.Reduce)
	if !powerOfTwo(a.n) {
		t += 2*a.far.step(size) + size*a.Reduce
	}
	return t + size*a.Copy
}

func (a arms) halvingAllReduce(size int64) int64 {
	t := int64(0)
	p := int64(1) << (bits.Len(uint(a.n)) - 1)
	for part := size / 2; p > 1; p, part = p/2, part/2 {
		t += 2*a.far.step(part) + part*a.Reduce
	}
	if !powerOfTwo(a.n) {
		t += 2*a.far.step(size) + size*a.Reduce
	}
	return t
}

func (a arms) ringAllReduce(size int64) int64 {
	n := int64(a.n)
	return a.near.rounds(2*(n-1), size/n) + size*a.Reduce
}

// The costs of a broadcast, or a reduce, of size bytes.

func (a arms) binomial(size int64) int64 {
	t, n := int64(0), a.n
	for ; n > a.here; n = (n + 1) / 2 {
		t += a.near.step(size)
	}
	return t + log2(n)*a.Local.step(size)
}

func (a arms) chain(size int64) int64 {
	piece := min(size, PieceBytes)
	slow := a.near.step(piece) - a.Local.step(piece) // where it leaves a node
	return int64(a.n-2)*a.Local.step(piece) + int64(a.nodes-1)*slow + a.near.send(size) + a.near.Latency + a.near.Overhead
}

// The costs of a reduce-scatter or an all-gather of size bytes in all.

func (a arms) ring(size int64) int64 {
	n := int64(a.n)
	return a.near.rounds(n-1, size/n)
}

func (a arms) direct(size int64) int64 {
	n := int64(a.n)
	return a.far.fan(n-1, size/n)
}

func (a arms) halving(size int64) int64 {
	t := int64(0)
	for p, part := a.n, size/2; p > 1; p, part = p/2, part/2 {
		t += a.far.step(part) + part*a.Reduce
	}
	return t
}

func (a arms) bruck(size int64) int64 {
	t, n := size*a.Copy, int64(a.n)
	for d := int64(1); d < n; d *= 2 {
		t += a.far.step(min(d, n-d) * (size / n))
	}
	return t
}

func (a arms) scatterTree(size int64) int64 {
	t, n := int64(0), a.n
	for part := size / 2; n > 1; n, part = (n+1)/2, part/2 {
		if n > a.here {
			t += a.near.step(part)
		} else {
			t += a.Local.step(part)
		}
	}
	return t
}

// bruckAllToAll is of size bytes that each rank sends in all.
func (a arms) bruckAllToAll(size int64) int64 {
	return log2(a.n)*(a.far.step(size/2)+2*(size/2)*a.Copy) + 2*size*a.Copy
}
