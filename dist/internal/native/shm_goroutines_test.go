// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// TestOneRankExplains: of goroutine ranks rank 0 tells how a collective is served,
// once, whoever comes first to the meeting.
func TestOneRankExplains(t *testing.T) {
	for first := range 3 {
		t.Run(fmt.Sprintf("rank%d first", first), func(t *testing.T) {
			var mu sync.Mutex
			var told []string
			meetings := NewGoMeetings(GoRanksOptions{})
			ranks := make([]*Shm, 3)
			for i := range ranks {
				r := (first + i) % 3
				cfg := Config{Group: "test", Key: "test", Rank: r, Members: members(3), Timeout: time.Minute}
				if r == 0 {
					cfg.Explain = NewExplainer("test", func(line string) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, line)
					})
				}
				var err error
				if ranks[r], err = meetings.Join(cfg); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for _, s := range ranks {
				wg.Go(func() {
					data := sharedData(8)
					c := operation.Call{Op: operation.AllReduce, DType: operation.Uint8, Count: 8, Seq: 1}
					if err := s.Collective(t.Context(), c, data, data); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(told) != 1 || !strings.Contains(told[0], "all_reduce") {
				t.Errorf("told: %q, want one line about the all_reduce", told)
			}
		})
	}
}

// TestAskedBeforeItComes: what a rank is doing is asked of one that has come to the
// group; of another nothing is known, and not what the first to come is doing.
func TestAskedBeforeItComes(t *testing.T) {
	meetings := NewGoMeetings(GoRanksOptions{})
	join := func(rank int) *Shm {
		s, err := meetings.Join(Config{Group: "test", Key: "test", Rank: rank, Members: members(2), Timeout: time.Minute,
			Doing: func(int) fault.Doing { return fault.Doing{ID: uint64(rank) + 1} }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := join(0)
	if d := first.Ask(1, nil); d.ID != 0 {
		t.Errorf("of a rank that has not come it is known that it does %d", d.ID)
	}
	var asked sync.WaitGroup
	asked.Go(func() { first.Ask(1, nil) }) // for the race detector
	join(1)
	asked.Wait()
	if d := first.Ask(1, nil); d.ID != 2 {
		t.Errorf("a rank that does 2 does %d", d.ID)
	}
}

// TestErrorOfAnother: what ends one call ends others too, from another goroutine; whom
// those have missed is said in an error of their own.
func TestErrorOfAnother(t *testing.T) {
	s := NewGoRanks(Config{Group: "test", Members: members(3), Timeout: time.Minute}, GoRanksOptions{})[1]
	late := &fault.TimeoutError{Group: "test", Op: "recv", Cause: context.Canceled}
	s.failed.Store(&firstError{late}) // and the others have not been told yet
	c := operation.Call{Op: operation.Recv, Seq: 1}
	for what, err := range map[string]error{
		"waits": s.troubleWithAll(t.Context(), &c), "comes": s.usable(&c),
	} {
		var own *fault.TimeoutError
		if !errors.As(err, &own) || own == late || len(late.Missing) > 0 {
			t.Errorf("who %s gets %v; the other error is %v", what, err, late)
		}
	}
}
