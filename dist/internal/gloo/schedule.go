// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"math/bits"

	"github.com/cohort-ml/cohort/dist/operation"
)

// schedule is one rank's part in a collective: what it sends and receives, in the
// order in which the wire has it. Messages are paired by their order between two
// ranks, so all members must send, receive and size them alike; what Gloo sends
// beyond need is sent here too.
type schedule struct {
	copies []span // from input to output, before anything is sent
	sends  []transfer
	recvs  []transfer
}

// span is a run of bytes that lies at from in the input and at to in the output.
type span struct{ to, from, n int }

// transfer is a message: the bytes lo to hi of the output, or of the input.
type transfer struct {
	peer   int
	lo, hi int
	// after is how many receives must have been completed before a send.
	after int
	use   use
}

func (t transfer) len() int { return t.hi - t.lo }

// use is what becomes of the bytes.
type use uint8

const (
	plain  use = iota // sent from the output, received into it
	input             // sent from the input
	reduce            // received beside the output and reduced into it
	drop              // received and forgotten
)

// maxSegment is up to how many bytes of a vector that is reduced go in one message.
const maxSegment = 1 << 20

// task is what a schedule depends on. Sizes are in bytes.
type task struct {
	op         operation.Op
	rank, size int
	root       int
	elem       int
	total      int // of the vector, or of a rank's part
	// sends and recvs are what an all-to-all has for each rank and gets from it,
	// where that differs; sends what each rank has in a gather or an all-gather of
	// uneven parts, or gets in a scatter. Else nil.
	sends, recvs []int
}

// scheduleOf returns this rank's part.
func scheduleOf(t task) *schedule {
	s := &schedule{}
	switch t.op {
	case operation.Barrier:
		s.barrier(t)
	case operation.AllReduce, operation.ReduceScatter:
		s.allReduce(t)
	case operation.Reduce:
		s.reduce(t)
	case operation.Broadcast:
		s.broadcast(t)
	case operation.AllGather:
		if t.sends != nil {
			s.allGatherUneven(t)
		} else {
			s.allGather(t)
		}
	case operation.Gather:
		s.gather(t)
	case operation.Scatter:
		s.scatter(t)
	case operation.AllToAll:
		s.allToAll(t)
	}
	return s
}

func (s *schedule) send(peer, lo, hi, after int, u use) {
	s.sends = append(s.sends, transfer{peer, lo, hi, after, u})
}

func (s *schedule) recv(peer, lo, hi int, u use) {
	s.recvs = append(s.recvs, transfer{peer: peer, lo: lo, hi: hi, use: u})
}

func ceil(a, b int) int { return (a + b - 1) / b }

func roundUp(a, b int) int { return ceil(a, b) * b }

func mod(a, n int) int { return ((a % n) + n) % n }

// ring is the walk of a vector's segments around the ranks: from the next higher
// rank to the next lower one.
type ring struct {
	s             *schedule
	t             task
	seg, num, per int   // bytes of a segment; segments, of all and of a rank
	ready         []int // by segment: how many receives come before it may be sent
	above, below  int
}

func newRing(s *schedule, t task, seg, num int) *ring {
	return &ring{s: s, t: t, seg: seg, num: num, per: num / t.size, ready: make([]int, num),
		above: mod(t.rank+1, t.size), below: mod(t.rank-1, t.size)}
}

// bytes returns where a segment lies, nothing for one beyond the end.
func (r *ring) bytes(i int) (lo, hi int) {
	return i * r.seg, min((i+1)*r.seg, r.t.total)
}

// step receives one segment and sends another, first being where the walk began.
func (r *ring) step(first, i int, u use) {
	recv, send := mod(first+r.per+i, r.num), mod(first+i, r.num)
	// What is sent does not depend on what is received in the same step.
	after := r.ready[send]
	if lo, hi := r.bytes(recv); lo < hi {
		r.s.recv(r.above, lo, hi, u)
		if u != drop {
			r.ready[recv] = len(r.s.recvs)
		}
	}
	if lo, hi := r.bytes(send); lo < hi {
		r.s.send(r.below, lo, hi, after, plain)
	}
}

// allReduce is a reduce-scatter and an all-gather around the ring: a rank's
// segments begin their way at the rank below it and end it there with everybody's
// added, and then go round once more.
func (s *schedule) allReduce(t task) {
	if t.total == 0 || t.size == 1 {
		return
	}
	most := t.elem * max(1, maxSegment/t.elem)
	num := roundUp(max(ceil(t.total, most), 2*t.size), t.size)
	r := newRing(s, t, roundUp(ceil(t.total, num), t.elem), num)
	for i := range num - r.per {
		r.step((t.rank+1)*r.per, i, reduce)
	}
	for i := range num - r.per {
		r.step(t.rank*r.per, i, plain)
	}
}

// reduce is the same walk, after which each rank sends the root its part. The walk
// goes on for longer than it need, with messages that nobody uses.
func (s *schedule) reduce(t task) {
	if t.total == 0 || t.size == 1 {
		return
	}
	most := t.elem * max(1, maxSegment/t.elem)
	seg := roundUp(min(ceil(t.total, 2*t.size), most), t.elem)
	num := roundUp(max(ceil(t.total, seg), 2*t.size), t.size)
	r := newRing(s, t, seg, num)
	for i := range num - 2 {
		u := reduce
		if i >= num-r.per {
			u = drop
		}
		r.step((t.rank+1)*r.per, i, u)
	}
	part := r.per * seg
	if t.rank != t.root {
		if lo, hi := t.rank*part, min((t.rank+1)*part, t.total); lo < hi {
			s.send(t.root, lo, hi, r.last(lo, hi), plain)
		}
		return
	}
	for p := range t.size {
		if lo, hi := p*part, min((p+1)*part, t.total); p != t.root && lo < hi {
			s.recv(p, lo, hi, plain)
		}
	}
}

// last returns how many receives come before a run of segments is complete.
func (r *ring) last(lo, hi int) int {
	after := 0
	for i := lo / r.seg; i*r.seg < hi; i++ {
		after = max(after, r.ready[i])
	}
	return after
}

// broadcast is a binomial tree: ranks are numbered from the root on, and a rank gets
// the whole from the one whose number lacks its lowest bit.
func (s *schedule) broadcast(t task) {
	v := mod(t.rank-t.root, t.size)
	dim := bits.Len(uint(t.size - 1))
	mask := 1<<dim - 1
	for i := range dim {
		mask ^= 1 << i
		other := v ^ 1<<i
		if v&mask != 0 || other >= t.size {
			continue
		}
		peer := mod(other+t.root, t.size)
		if v&(1<<i) != 0 {
			s.recv(peer, 0, t.total, plain)
		} else {
			s.send(peer, 0, t.total, len(s.recvs), plain)
		}
	}
}

// allGather passes every rank's part around the ring, to the next higher rank, in
// two halves.
func (s *schedule) allGather(t task) {
	n := t.total
	s.copies = append(s.copies, span{t.rank * n, 0, n})
	if n == 0 {
		return
	}
	half := [2]int{n / 2, n - n/2}
	at := [2]int{0, half[0]}
	to, from := mod(t.rank+1, t.size), mod(t.rank-1, t.size)
	for i := range 2 * (t.size - 1) {
		h := i & 1
		lo := mod(t.rank-i/2, t.size)*n + at[h]
		s.send(to, lo, lo+half[h], max(0, i-1), plain)
		lo = mod(t.rank-i/2-1, t.size)*n + at[h]
		s.recv(from, lo, lo+half[h], plain)
	}
}

// offsets returns where parts begin, and the end.
func offsets(parts []int) []int {
	at := make([]int, len(parts)+1)
	for i, n := range parts {
		at[i+1] = at[i] + n
	}
	return at
}

// even returns as many parts of one size, unless there are parts.
func even(parts []int, size, n int) []int {
	if parts != nil {
		return parts
	}
	parts = make([]int, size)
	for i := range parts {
		parts[i] = n
	}
	return parts
}

// allGatherUneven passes parts of their own sizes around the ring.
func (s *schedule) allGatherUneven(t task) {
	at := offsets(t.sends)
	s.copies = append(s.copies, span{at[t.rank], 0, t.sends[t.rank]})
	to, from := mod(t.rank+1, t.size), mod(t.rank-1, t.size)
	for i := range t.size - 1 {
		p := mod(t.rank-i, t.size)
		s.send(to, at[p], at[p+1], i, plain)
		p = mod(t.rank-i-1, t.size)
		s.recv(from, at[p], at[p+1], plain)
	}
}

// gather sends all parts straight to the root.
func (s *schedule) gather(t task) {
	if t.rank != t.root {
		s.send(t.root, 0, t.total, 0, input)
		return
	}
	at := offsets(even(t.sends, t.size, t.total))
	for p := range t.size {
		if p == t.root {
			s.copies = append(s.copies, span{at[p], 0, at[p+1] - at[p]})
		} else {
			s.recv(p, at[p], at[p+1], plain)
		}
	}
}

// scatter sends all parts straight from the root.
func (s *schedule) scatter(t task) {
	if t.rank != t.root {
		s.recv(t.root, 0, t.total, plain)
		return
	}
	at := offsets(even(t.sends, t.size, t.total))
	for p := range t.size {
		if p == t.root {
			s.copies = append(s.copies, span{0, at[p], at[p+1] - at[p]})
		} else {
			s.send(p, at[p], at[p+1], 0, input)
		}
	}
}

// allToAll exchanges parts with the rank above and the one below, then with those
// at a distance of two, and so on.
func (s *schedule) allToAll(t task) {
	out, in := offsets(even(t.sends, t.size, t.total)), offsets(even(t.recvs, t.size, t.total))
	s.copies = append(s.copies, span{in[t.rank], out[t.rank], out[t.rank+1] - out[t.rank]})
	for i := 1; i < t.size; i++ {
		p := mod(t.rank+i, t.size)
		s.send(p, out[p], out[p+1], 0, input)
		p = mod(t.rank-i, t.size)
		s.recv(p, in[p], in[p+1], plain)
	}
}

// barrier tells the ranks at distances of 1, 2, 4, and so on that this one has come,
// and all that it has heard of.
func (s *schedule) barrier(t task) {
	for d := 1; d < t.size; d *= 2 {
		s.send(mod(t.rank+d, t.size), 0, 0, len(s.recvs), plain)
		s.recv(mod(t.rank-d, t.size), 0, 0, plain)
	}
}
