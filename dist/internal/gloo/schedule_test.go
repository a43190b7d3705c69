// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// played is one rank in a table: its memory, and how far it has come.
type played struct {
	s              *schedule
	in, out        []byte
	sent, received int
}

// play does the schedules of all ranks, whose messages between two of them go in
// order, and fails where they do not fit together. Bytes are reduced by addition.
func play(ranks []*played) error {
	type way struct{ from, to int }
	under := map[way][][]byte{}
	for _, r := range ranks {
		for _, c := range r.s.copies {
			copy(r.out[c.to:c.to+c.n], r.in[c.from:c.from+c.n])
		}
	}
	for moved := true; moved; {
		moved = false
		for me, r := range ranks {
			for r.sent < len(r.s.sends) && r.s.sends[r.sent].after <= r.received {
				t := r.s.sends[r.sent]
				data := r.out
				if t.use == input {
					data = r.in
				}
				w := way{me, t.peer}
				under[w] = append(under[w], slices.Clone(data[t.lo:t.hi]))
				r.sent++
				moved = true
			}
			if r.received == len(r.s.recvs) {
				continue
			}
			t := r.s.recvs[r.received]
			w := way{t.peer, me}
			if len(under[w]) == 0 {
				continue
			}
			data := under[w][0]
			under[w] = under[w][1:]
			if len(data) != t.len() {
				return fmt.Errorf("rank %d expects %d bytes from rank %d, which has sent %d", me, t.len(), t.peer, len(data))
			}
			switch t.use {
			case reduce:
				for i, b := range data {
					r.out[t.lo+i] += b
				}
			case plain:
				copy(r.out[t.lo:t.hi], data)
			}
			r.received++
			moved = true
		}
	}
	for me, r := range ranks {
		if r.sent < len(r.s.sends) || r.received < len(r.s.recvs) {
			return fmt.Errorf("rank %d stops after %d of %d sends and %d of %d receives", me, r.sent, len(r.s.sends), r.received, len(r.s.recvs))
		}
	}
	for w, left := range under {
		if len(left) > 0 {
			return fmt.Errorf("%d messages from rank %d to rank %d that nobody takes", len(left), w.from, w.to)
		}
	}
	return nil
}

// content is the byte that a rank has for another at a place.
func content(from, to, i int) byte { return byte(from*31 + to*7 + i*3 + i>>8 + 1) }

// TestSchedules plays every operation for 1 to 16 ranks, all roots, and sizes around
// the borders of segments, in a table: that the schedules of all ranks end, that the
// messages between two fit, and that the result is right.
func TestSchedules(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 1000, 4099, maxSegment - 1, 2*maxSegment + 3}
	for _, op := range []operation.Op{operation.Barrier, operation.AllReduce, operation.Reduce, operation.Broadcast,
		operation.AllGather, operation.Gather, operation.Scatter, operation.AllToAll} {
		for n := 1; n <= 16; n++ {
			roots := 1
			if op.Rooted() {
				roots = n
			}
			for root := range roots {
				if n > 6 && root > 2 && root < n-1 {
					continue
				}
				for _, elems := range sizes {
					if elems > 4099 && (n > 3 || root > 1 || !op.Reduces()) {
						continue
					}
					for _, elem := range []int{1, 4} {
						if elems > 1000 && elem == 4 {
							continue
						}
						playOne(t, task{op: op, size: n, root: root, elem: elem, total: elems * elem})
					}
				}
			}
		}
	}
}

// TestUnevenSchedules plays operations whose parts have sizes of their own.
func TestUnevenSchedules(t *testing.T) {
	for _, op := range []operation.Op{operation.AllGather, operation.Gather, operation.Scatter, operation.AllToAll} {
		for n := 2; n <= 9; n++ {
			for root := range n {
				playUneven(t, op, n, root)
				if !op.Rooted() {
					break
				}
			}
		}
	}
}

func playOne(t *testing.T, x task) {
	t.Helper()
	n := x.size
	ranks, want := make([]*played, n), make([][]byte, n)
	part := func(from, to int) []byte {
		b := make([]byte, x.total)
		for i := range b {
			b[i] = content(from, to, i)
		}
		return b
	}
	var sum []byte
	for r := range n {
		x.rank = r
		p := &played{s: scheduleOf(x)}
		own := part(r, 0)
		switch x.op {
		case operation.AllReduce, operation.Reduce:
			p.out = own
			if sum == nil {
				sum = make([]byte, x.total)
			}
			for i, b := range own {
				sum[i] += b
			}
			if x.op == operation.AllReduce || r == x.root {
				want[r] = sum
			}
		case operation.Broadcast:
			p.out, want[r] = own, part(x.root, 0)
		case operation.AllGather, operation.Gather:
			p.in = own
			if x.op == operation.AllGather || r == x.root {
				p.out = make([]byte, n*x.total)
				for s := range n {
					want[r] = append(want[r], part(s, 0)...)
				}
			}
		case operation.Scatter:
			p.out, want[r] = make([]byte, x.total), part(x.root, r)
			if r == x.root {
				for s := range n {
					p.in = append(p.in, part(r, s)...)
				}
			}
		case operation.AllToAll:
			p.out = make([]byte, n*x.total)
			for s := range n {
				p.in = append(p.in, part(r, s)...)
				want[r] = append(want[r], part(s, r)...)
			}
		}
		ranks[r] = p
	}
	judge(t, x, ranks, want)
}

func playUneven(t *testing.T, op operation.Op, n, root int) {
	t.Helper()
	amount := func(from, to int) int {
		switch op {
		case operation.AllToAll:
			return (from*5 + to*3) % 7
		case operation.Scatter:
			return (to*5 + 3) % 7
		}
		return (from*5 + 3) % 7
	}
	part := func(from, to int) []byte {
		b := make([]byte, amount(from, to))
		for i := range b {
			b[i] = content(from, to, i)
		}
		return b
	}
	ranks, want := make([]*played, n), make([][]byte, n)
	for r := range n {
		x := task{op: op, rank: r, size: n, root: root, elem: 1}
		p := &played{}
		var sends, recvs []int
		var in, all []byte
		for s := range n {
			sends, recvs = append(sends, amount(r, s)), append(recvs, amount(s, r))
			to := r
			if op != operation.AllToAll {
				to = 0 // it has the same for all
			}
			in, all = append(in, part(r, s)...), append(all, part(s, to)...)
		}
		switch op {
		case operation.AllToAll:
			x.sends, x.recvs = sends, recvs
			p.in, want[r], p.out = in, all, make([]byte, len(all))
		case operation.Scatter:
			p.out, want[r] = make([]byte, amount(root, r)), part(root, r)
			x.total = len(p.out)
			if r == root {
				x.sends, p.in = sends, in
			}
		default:
			p.in = part(r, 0)
			x.total = len(p.in)
			if op == operation.AllGather || r == root {
				x.sends, want[r], p.out = recvs, all, make([]byte, len(all))
			}
		}
		p.s = scheduleOf(x)
		ranks[r] = p
	}
	judge(t, task{op: op, size: n, root: root, sends: []int{}}, ranks, want)
}

func judge(t *testing.T, x task, ranks []*played, want [][]byte) {
	t.Helper()
	if err := play(ranks); err != nil {
		t.Fatalf("%+v: %v", x, err)
	}
	for r, p := range ranks {
		if want[r] != nil && !bytes.Equal(p.out, want[r]) {
			t.Fatalf("%+v: rank %d has a wrong result", x, r)
		}
	}
}
