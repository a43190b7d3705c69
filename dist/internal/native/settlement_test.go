// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// newStars returns the star of each of n ranks, which says site(rank) of its
// calls and is doing(rank).
func newStars(n int, site func(rank int) string) []*star {
	members := make([]fault.Member, n)
	for r := range members {
		members[r].Rank = r
	}
	stars := make([]*star, n)
	for r := range stars {
		cfg := &Config{Group: "world", Rank: r, Members: members,
			Site: func(operation.Call) string { return site(r) },
			Doing: func(asker int) fault.Doing {
				return fault.Doing{State: fault.DoingEnded, Group: "world", Site: site(r), Sent: uint64(asker)}
			}}
		s := newStar(cfg, func(int, uint32, string) {}, func(int) {})
		s.past = func(uint64) (operation.Call, bool) { return operation.Call{}, false }
		stars[r] = s
	}
	for r := 1; r < n; r++ {
		hub, spoke := transport.Pipe(Proto)
		if stars[0].join(r, hub, nil) != nil || stars[r].join(0, spoke, nil) != nil {
			panic("a rank cannot join")
		}
	}
	return stars
}

func closeStars(stars []*star) {
	for _, s := range stars {
		s.close()
	}
}

// find has ranks find that another one has called something else, all at once,
// and returns every rank's error.
func find(stars []*star, finders map[int]int) []*fault.MismatchError {
	errs := make([]*fault.MismatchError, len(stars))
	var wg sync.WaitGroup
	for r, s := range stars {
		there, finds := finders[r]
		e := &fault.MismatchError{Group: "world", Seq: 4, Here: fault.RankCall{Rank: r, Call: operation.Call{Op: operation.Barrier, Seq: 4}},
			There: fault.RankCall{Rank: there, Call: operation.Call{Op: operation.AllReduce, Seq: 4}}}
		wg.Go(func() {
			if finds {
				s.spread(r, kindMismatch, newMismatch(e).encode())
			}
			errs[r] = s.settled(e)
		})
	}
	wg.Wait()
	return errs
}

// TestSettlement has several ranks find mismatches at once: all come to have
// one pair, with both sites.
func TestSettlement(t *testing.T) {
	for name, finders := range map[string]map[int]int{
		"one spoke about another": {1: 3}, "a spoke about the hub": {2: 0}, "the hub": {0: 2},
		"both": {1: 2, 2: 1}, "all about one": {0: 3, 1: 3, 2: 3}, "all about their neighbours": {0: 1, 1: 2, 2: 3, 3: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stars := newStars(4, func(rank int) string { return fmt.Sprintf("a.go:%d", rank) })
				defer closeStars(stars)
				start := time.Now()
				pair := map[int]bool{}
				for r, e := range find(stars, finders) {
					if r == 0 {
						pair = map[int]bool{e.Here.Rank: true, e.There.Rank: true}
					}
					for _, rc := range []fault.RankCall{e.Here, e.There} {
						if !pair[rc.Rank] || rc.Site != fmt.Sprintf("a.go:%d", rc.Rank) {
							t.Errorf("rank %d has %v, rank 0 the pair %v", r, e, pair)
						}
					}
					if pair[r] && e.Here.Rank != r {
						t.Errorf("rank %d is not the first in its own error: %v", r, e)
					}
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestSettlementWithoutAnswer: who does not answer is waited for, but not long.
func TestSettlementWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		stars := newStars(3, func(rank int) string {
			if rank == 2 {
				<-stop
			}
			return fmt.Sprintf("a.go:%d", rank)
		})
		defer closeStars(stars)
		defer close(stop) // before
		start := time.Now()
		errs := make([]*fault.MismatchError, 2)
		e := fault.MismatchError{Group: "world", Here: fault.RankCall{Rank: 1}, There: fault.RankCall{Rank: 2}}
		stars[1].spread(1, kindMismatch, newMismatch(&e).encode())
		var wg sync.WaitGroup
		for r := range errs {
			wg.Go(func() { errs[r] = stars[r].settled(&e) })
		}
		wg.Wait()
		if took := time.Since(start); took < hubPatience || took > sitePatience {
			t.Errorf("it took %v, want %v to %v", took, hubPatience, sitePatience)
		}
		for r, e := range errs {
			if e.Here.Rank != 1 || e.Here.Site != "a.go:1" || e.There.Site != "" {
				t.Errorf("rank %d: %v", r, e)
			}
		}
	})
}

// TestSettlementWithoutHub: nobody is waited for when the hub has left.
func TestSettlementWithoutHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stars := newStars(3, func(rank int) string { return fmt.Sprintf("a.go:%d", rank) })
		defer closeStars(stars)
		stars[0].close()
		synctest.Wait()
		start := time.Now()
		e := find(stars[1:2], map[int]int{0: 2})[0]
		if took := time.Since(start); took != 0 || e.There.Rank != 2 {
			t.Errorf("after %v: %v", took, e)
		}
	})
}

// TestAsk asks ranks what they are doing, through the hub, and one that has
// left.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stars := newStars(4, func(rank int) string { return fmt.Sprintf("a.go:%d", rank) })
		defer closeStars(stars)
		stars[3].close()
		start := time.Now()
		for asker := range 3 {
			for about := range 4 {
				if about == asker {
					continue
				}
				d := stars[asker].ask(about, nil)
				if d.Site != fmt.Sprintf("a.go:%d", about) || about < 3 && d.Sent != uint64(asker) {
					t.Errorf("rank %d, asked by rank %d, says %+v", about, asker, d)
				}
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
		stars[0].close()
		synctest.Wait()
		if d := stars[1].ask(2, nil); d.State != fault.DoingUnknown {
			t.Errorf("without the hub, rank 2 says %+v", d)
		}
		if took := time.Since(start); took != askPatience {
			t.Errorf("it was waited for %v", took)
		}
		cfg := stars[1].cfg
		late := &fault.TimeoutError{Group: "world", Op: "barrier", Missing: cfg.Members[2:], Cause: context.DeadlineExceeded}
		cfg.askMissing(late, func(rank int, _ <-chan struct{}) fault.Doing {
			return fault.Doing{State: fault.DoingNothing, ID: uint64(rank)}
		})
		if len(late.Instead) != 2 || late.Instead[1].ID != 3 {
			t.Errorf("instead of coming they do %+v", late.Instead)
		}
	})
}
