// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Meeting is the number of the exchange in a [Wait] for the meeting at the start.
const Meeting = -1

// Wait says for which islands this one waits, for [Config.OnWait].
type Wait struct {
	For      []int // the islands
	Exchange int   // the exchange in which they are missing, or Meeting
	Took     time.Duration
	Most     time.Duration // after which the wait ends: Config.Patience
}

// String says it in a line.
func (w Wait) String() string {
	who := "island"
	if len(w.For) > 1 {
		who = "islands"
	}
	who += " " + numbers(w.For)
	took := w.Took.Round(time.Second)
	if w.Exchange == Meeting {
		return fmt.Sprintf("waiting for %s to come, for %v so far and %v at most: start it with the same --islands-at and --islands", who, took, w.Most)
	}
	return fmt.Sprintf("exchange %d waits for %s, which lives and has not posted, for %v so far and %v at most", w.Exchange, who, took, w.Most)
}

// numbers writes them of islands: "0, 2".
func numbers(who []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(who), " ", ", "), "[]")
}

// teller says when a wait is told: after twice the silence, and each next time after twice as
// long. Waits are so told a few times in a run, however many there are.
type teller struct {
	tell func(Wait)
	next time.Duration
}

func newTeller(c Config) *teller { return &teller{c.OnWait, 2 * c.Silence} }

// look tells of a wait if it is time.
func (t *teller) look(w Wait) {
	if t.tell == nil || w.Took < t.next || len(w.For) == 0 {
		return
	}
	for t.next <= w.Took {
		t.next *= 2
	}
	t.tell(w)
}

// telling looks which islands have not come while fn waits for them.
func (i *Island) telling(ctx context.Context, fn func() error) error {
	if i.c.OnWait == nil {
		return fn()
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var cards []string
		for n := range i.c.Islands {
			cards = append(cards, i.key("card", n))
		}
		for begun := time.Now(); ctx.Err() == nil; {
			turn, done := context.WithTimeout(ctx, i.c.Silence/2)
			absent := i.absent(i.store.Wait(turn, cards...))
			done()
			if absent == nil {
				return // all are there, or the store is not: whoever needs it gets its error
			}
			i.tells.look(Wait{absent, Meeting, time.Since(begun), i.c.Patience})
		}
	}()
	defer func() {
		cancel()
		<-ended
	}()
	return fn()
}
