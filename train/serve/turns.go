// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"sync"
)

// turns lets one at a time do something, in the order in which they ask.
type turns struct {
	mu      sync.Mutex
	busy    bool
	waiting []chan struct{}
}

// do runs f when it is the caller's turn.
func (t *turns) do(ctx context.Context, f func() error) error {
	t.mu.Lock()
	if !t.busy {
		t.busy = true
		t.mu.Unlock()
	} else {
		mine := make(chan struct{})
		t.waiting = append(t.waiting, mine)
		t.mu.Unlock()
		select {
		case <-mine:
		case <-ctx.Done():
			if !t.leave(mine) { // it is the caller's turn now, who does not want it
				t.next()
			}
			return context.Cause(ctx)
		}
	}
	defer t.next()
	return f()
}

// leave takes a place out of the queue. It is false if its turn has come.
func (t *turns) leave(mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range t.waiting {
		if c == mine {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// next gives the turn to the first who waits.
func (t *turns) next() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.busy = false
		return
	}
	close(t.waiting[0])
	t.waiting = t.waiting[1:]
}
