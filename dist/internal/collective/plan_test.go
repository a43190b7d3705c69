// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"testing"
)

// simulate runs the plans of all ranks without time: a rank does whatever it
// can, until nobody can do anything. in and out are by rank. With room, sends
// go on their way as soon as they may; without, a send waits until its receiver
// comes to it. It returns how many receives each rank completed.
func simulate(plans []Plan, in, out [][]int64, room bool) ([]int, error) {
	type way struct{ from, to int }
	n := len(plans)
	links := map[way][][]int64{} // sent and not yet received
	sent, received := make([]int, n), make([]int, n)
	data := make([][]int64, n)
	for r, p := range plans {
		if err := p.Check(r, n, 1); err != nil {
			return nil, err
		}
		if p.OffRing != plans[0].OffRing {
			return nil, fmt.Errorf("ranks 0 and %d do not agree whether the plan is off the ring", r)
		}
		data[r] = out[r]
		if p.Work > 0 {
			data[r] = make([]int64, p.Work)
		}
		addAll(data[r], in[r], p.Load)
	}
	send := func(r int) {
		s := plans[r].Sends[sent[r]]
		w := way{r, s.To}
		links[w] = append(links[w], append([]int64(nil), data[r][s.Lo:s.Hi]...))
		sent[r]++
	}
	maySend := func(r int) bool {
		return sent[r] < len(plans[r].Sends) && received[r] >= plans[r].Sends[sent[r]].After
	}
	for moved := true; moved; {
		moved = false
		for r, p := range plans {
			for room && maySend(r) {
				send(r)
				moved = true
			}
			if received[r] == len(p.Recvs) {
				continue
			}
			v := p.Recvs[received[r]]
			if from := v.From; !room && maySend(from) && plans[from].Sends[sent[from]].To == r {
				send(from)
			}
			came := links[way{v.From, r}]
			if len(came) == 0 {
				continue
			}
			links[way{v.From, r}] = came[1:]
			if len(came[0]) != v.Len() {
				return nil, fmt.Errorf("rank %d, receive %d: %d elements came, want %d", r, received[r], len(came[0]), v.Len())
			}
			for i, x := range came[0] {
				if v.Reduce {
					x += data[r][v.Lo+i]
				}
				data[r][v.Lo+i] = x
			}
			received[r]++
			moved = true
		}
	}
	left := 0
	for _, l := range links {
		left += len(l)
	}
	for r, p := range plans {
		if sent[r] != len(p.Sends) || received[r] != len(p.Recvs) || left != 0 {
			return received, fmt.Errorf("rank %d stands still after %d of %d sends and %d of %d receives; %d messages are left over",
				r, sent[r], len(p.Sends), received[r], len(p.Recvs), left)
		}
		addAll(out[r], data[r], p.Store)
	}
	return received, nil
}

func addAll(to, from []int64, cs []Copy) {
	for _, c := range cs {
		for i, x := range from[c.From.Lo:c.From.Hi] {
			if c.Reduce {
				x += to[c.To+i]
			}
			to[c.To+i] = x
		}
	}
}

func element(rank, i int) int64 { return int64(rank*1000003 + i*17) }

func fresh(n, count int) [][]int64 {
	data := make([][]int64, n)
	for r := range data {
		data[r] = make([]int64, count)
		for i := range data[r] {
			data[r][i] = element(r, i)
		}
	}
	return data
}

// forAll runs f for many group sizes, counts, and piece sizes.
func forAll(t *testing.T, f func(n, count, piece int, room bool) error) {
	t.Helper()
	for _, n := range []int{1, 2, 3, 4, 5, 8, 16, 33} {
		for _, count := range []int{0, 1, 2, 15, 16, 17, 100, 300} {
			for _, piece := range []int{1, 7, 64, 1 << 20} {
				if piece < 10 && n*count > 5000 {
					continue // much of the same
				}
				for _, room := range []bool{true, false} {
					if err := f(n, count, piece, room); err != nil {
						t.Errorf("%d ranks, %d elements, pieces of %d, room %v: %v", n, count, piece, room, err)
					}
				}
			}
		}
	}
}

func plansOf(n int, f func(rank int) Plan) []Plan {
	ps := make([]Plan, n)
	for r := range ps {
		ps[r] = f(r)
	}
	return ps
}

// runAll simulates the plans of all ranks on inputs and outputs of the given
// numbers of elements and compares the outputs with want. Without inputs of
// their own, the outputs begin with the ranks' elements.
func runAll(n, numIn, numOut int, room bool, plan func(rank int) Plan, want func(rank, i int) int64) error {
	in, out := fresh(n, numIn), fresh(n, numOut)
	if numIn == 0 {
		in = out
	}
	if _, err := simulate(plansOf(n, plan), in, out, room); err != nil {
		return err
	}
	for r := range n {
		for i, got := range out[r] {
			if got != want(r, i) {
				return fmt.Errorf("rank %d element %d is %d, want %d", r, i, got, want(r, i))
			}
		}
		for i := range numIn {
			if in[r][i] != element(r, i) {
				return fmt.Errorf("rank %d: element %d of its input has changed", r, i)
			}
		}
	}
	return nil
}

// sum returns element i of the sum over n ranks.
func sum(n, i int) int64 {
	var s int64
	for r := range n {
		s += element(r, i)
	}
	return s
}

func TestAllReduce(t *testing.T) {
	forAll(t, func(n, count, piece int, room bool) error {
		total := func(_, i int) int64 { return sum(n, i) }
		err := runAll(n, 0, count, room, func(r int) Plan { return RingAllReduce(n, r, count, 4, piece) }, total)
		if err == nil {
			err = runAll(n, 0, count, room, func(r int) Plan { return GatherAllReduce(n, r, count, piece) }, total)
		}
		return err
	})
}

func TestRingReduceScatter(t *testing.T) {
	forAll(t, func(n, count, piece int, room bool) error {
		return runAll(n, n*count, count, room, func(r int) Plan { return RingReduceScatter(n, r, count, nil, piece) },
			func(r, i int) int64 { return sum(n, r*count+i) })
	})
}

func TestRingAllGather(t *testing.T) {
	forAll(t, func(n, count, piece int, room bool) error {
		if count == 0 {
			return nil // runAll would take the outputs for inputs
		}
		return runAll(n, count, n*count, room, func(r int) Plan { return RingAllGather(n, r, count, nil, piece) },
			func(_, i int) int64 { return element(i/count, i%count) })
	})
}

// TestUnevenParts gives ranks parts of different sizes, some of them empty.
func TestUnevenParts(t *testing.T) {
	forAll(t, func(n, count, piece int, room bool) error {
		parts, owner, first := make([]int, n), []int(nil), make([]int, n)
		for r := range parts {
			parts[r] = (count*(r+1) + r) % 13
			first[r] = len(owner)
			for range parts[r] {
				owner = append(owner, r)
			}
		}
		all := len(owner)
		reduced := make([][]int64, n)
		for r := range reduced {
			reduced[r] = make([]int64, parts[r])
		}
		in := fresh(n, all)
		if _, err := simulate(plansOf(n, func(r int) Plan { return RingReduceScatter(n, r, parts[r], parts, piece) }), in, reduced, room); err != nil {
			return err
		}
		for r := range n {
			for i, got := range reduced[r] {
				if got != sum(n, first[r]+i) {
					return fmt.Errorf("reduce-scatter: rank %d element %d is %d", r, i, got)
				}
			}
		}
		out := make([][]int64, n)
		for r := range out {
			out[r] = make([]int64, all)
		}
		if _, err := simulate(plansOf(n, func(r int) Plan { return RingAllGather(n, r, parts[r], parts, piece) }), fresh(n, 13), out, room); err != nil {
			return err
		}
		for r := range n {
			for i, got := range out[r] {
				if got != element(owner[i], i-first[owner[i]]) {
					return fmt.Errorf("all-gather: rank %d element %d is %d", r, i, got)
				}
			}
		}
		return nil
	})
}

func TestRingBroadcast(t *testing.T) {
	forAll(t, func(n, count, piece int, room bool) error {
		root := count % n
		return runAll(n, 0, count, room, func(r int) Plan { return RingBroadcast(n, r, root, count, piece) },
			func(_, i int) int64 { return element(root, i) })
	})
}

// TestPlanForEverything: there is a plan for every collective, which keeps to
// the size of a piece, and none for anything else.
func TestPlanForEverything(t *testing.T) {
	for op := Op(0); int(op) <= len(opNames); op++ {
		message := op == OpSend || op == OpRecv
		for _, n := range []int{1, 2, 3, 8} {
			for _, count := range []int{0, 1, 300, 200_000} {
				for rank := range n {
					c := Call{Op: op, DType: Int64, Count: count, Root: n - 1}
					p, err := PlanFor(&c, rank, OneNode(n), Options{})
					if known := op >= OpBarrier && int(op) < len(opNames) && !message || count == 0; (err == nil) != known {
						t.Fatalf("rank %d of %d, %v: %v", rank, n, c, err)
					}
					if err != nil {
						continue
					}
					if err := p.Check(rank, n, 8); err != nil {
						t.Errorf("rank %d of %d, %v: %v", rank, n, c, err)
					}
				}
			}
		}
	}
}

// TestWhoIsMissing leaves one rank out and checks that the rank that every
// other one names is that one.
func TestWhoIsMissing(t *testing.T) {
	const n = 6
	makers := map[string]func(rank int) Plan{
		"barrier":        func(r int) Plan { return RingBarrier(n, r) },
		"reduce-scatter": func(r int) Plan { return RingReduceScatter(n, r, 10, nil, 100) },
		"all-gather":     func(r int) Plan { return RingAllGather(n, r, 10, nil, 3) },
		"all-reduce":     func(r int) Plan { return RingAllReduce(n, r, 60, 1, 100) },
	}
	for name, maker := range makers {
		for missing := range n {
			plans := plansOf(n, maker)
			plans[missing] = Plan{}
			received, err := simulate(plans, fresh(n, n*10), fresh(n, n*10), true)
			if err == nil {
				t.Fatalf("%s ended without rank %d", name, missing)
			}
			for r := range n {
				if r == missing {
					continue
				}
				if got := plans[r].Recvs[received[r]].Culprit; got != missing {
					t.Errorf("%s without rank %d: rank %d names rank %d", name, missing, r, got)
				}
			}
		}
	}
}

func TestSharesCoverAll(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 64} {
		for _, count := range []int{0, 1, 63, 64, 65, 1000, 12345} {
			at := 0
			for i := range n {
				s := Share(count, n, 16, i)
				if s.Lo != at || s.Hi < s.Lo {
					t.Fatalf("share %d of %d over %d ranks is %v, want it to begin at %d", i, count, n, s, at)
				}
				at = s.Hi
			}
			if at != count {
				t.Fatalf("shares of %d over %d ranks end at %d", count, n, at)
			}
		}
	}
}
