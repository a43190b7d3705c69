// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"testing"
)

// simulate runs the plans of all ranks on data[rank][element] without time:
// a rank does whatever it can, until nobody can do anything. It returns how
// many receives each rank completed.
func simulate(plans []Plan, data [][]int64) ([]int, error) {
	n := len(plans)
	links := make([][][]int64, n) // sent to a rank and not yet received
	sent, received := make([]int, n), make([]int, n)
	for moved := true; moved; {
		moved = false
		for r, p := range plans {
			for sent[r] < len(p.Sends) && received[r] >= p.Sends[sent[r]].After {
				s := p.Sends[sent[r]]
				next := (r + 1) % n
				links[next] = append(links[next], append([]int64(nil), data[r][s.Lo:s.Hi]...))
				sent[r]++
				moved = true
			}
			if received[r] < len(p.Recvs) && len(links[r]) > 0 {
				v := p.Recvs[received[r]]
				got := links[r][0]
				links[r] = links[r][1:]
				if len(got) != v.Len() {
					return nil, fmt.Errorf("rank %d, receive %d: %d elements came, want %d", r, received[r], len(got), v.Len())
				}
				for i, x := range got {
					if v.Reduce {
						data[r][v.Lo+i] += x
					} else {
						data[r][v.Lo+i] = x
					}
				}
				received[r]++
				moved = true
			}
		}
	}
	for r, p := range plans {
		if sent[r] != len(p.Sends) || received[r] != len(p.Recvs) || len(links[r]) != 0 {
			return received, fmt.Errorf("rank %d stands still after %d of %d sends and %d of %d receives, %d messages left over",
				r, sent[r], len(p.Sends), received[r], len(p.Recvs), len(links[r]))
		}
	}
	return received, nil
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
func forAll(t *testing.T, f func(n, count, piece int) error) {
	t.Helper()
	for _, n := range []int{1, 2, 3, 4, 5, 8, 16, 33} {
		for _, count := range []int{0, 1, 2, 15, 16, 17, 100, 300} {
			for _, piece := range []int{1, 7, 64, 1 << 20} {
				if err := f(n, count, piece); err != nil {
					t.Errorf("%d ranks, %d elements, pieces of %d: %v", n, count, piece, err)
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

func TestRingAllReduce(t *testing.T) {
	forAll(t, func(n, count, piece int) error {
		data := fresh(n, count)
		if _, err := simulate(plansOf(n, func(r int) Plan { return RingAllReduce(n, r, count, 4, piece) }), data); err != nil {
			return err
		}
		for i := range count {
			var want int64
			for r := range n {
				want += element(r, i)
			}
			for r := range n {
				if data[r][i] != want {
					return fmt.Errorf("rank %d element %d is %d, want %d", r, i, data[r][i], want)
				}
			}
		}
		return nil
	})
}

func TestRingAllGather(t *testing.T) {
	forAll(t, func(n, count, piece int) error {
		data := make([][]int64, n)
		for r := range data {
			data[r] = make([]int64, n*count)
			for i := range count {
				data[r][r*count+i] = element(r, i)
			}
		}
		if _, err := simulate(plansOf(n, func(r int) Plan { return RingAllGather(n, r, count, piece) }), data); err != nil {
			return err
		}
		for r := range n {
			for i, got := range data[r] {
				if want := element(i/count, i%count); got != want {
					return fmt.Errorf("rank %d element %d is %d, want %d", r, i, got, want)
				}
			}
		}
		return nil
	})
}

func TestRingBroadcast(t *testing.T) {
	forAll(t, func(n, count, piece int) error {
		root := count % n
		data := fresh(n, count)
		if _, err := simulate(plansOf(n, func(r int) Plan { return RingBroadcast(n, r, root, count, piece) }), data); err != nil {
			return err
		}
		for r := range n {
			for i := range count {
				if want := element(root, i); data[r][i] != want {
					return fmt.Errorf("rank %d element %d is %d, want %d", r, i, data[r][i], want)
				}
			}
		}
		return nil
	})
}

// TestWhoIsMissing leaves one rank out and checks that the rank that every
// other one names is that one.
func TestWhoIsMissing(t *testing.T) {
	const n = 6
	makers := map[string]func(rank int) Plan{
		"barrier":    func(r int) Plan { return RingBarrier(n, r) },
		"all-gather": func(r int) Plan { return RingAllGather(n, r, 10, 3) },
		"all-reduce": func(r int) Plan { return RingAllReduce(n, r, 60, 1, 100) },
	}
	for name, maker := range makers {
		for missing := range n {
			plans := plansOf(n, maker)
			plans[missing] = Plan{}
			received, err := simulate(plans, fresh(n, n*10))
			if err == nil {
				t.Fatalf("%s ended without rank %d", name, missing)
			}
			for r := range n {
				if r == missing {
					continue
				}
				if got := plans[r].Recvs[received[r]].From; got != missing {
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
