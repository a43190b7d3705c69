// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"sync"
)

// Work is an operation under way. Its tensors belong to it until it has ended.
type Work struct {
	done chan struct{}
	err  error // valid when done is closed
	g    *Group
	req  request
}

// Wait returns when the operation has ended, with its error, or when ctx
// ends. The end of this ctx leaves the operation running: it is the context
// given to the operation itself that ends it.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("dist: waiting for %v: %w", w.req.call, context.Cause(ctx))
	}
}

// Done is closed when the operation has ended.
func (w *Work) Done() <-chan struct{} { return w.done }

// failedWork is work that ended before it began.
func failedWork(err error) *Work {
	w := &Work{done: make(chan struct{}), err: err}
	close(w.done)
	return w
}

// lane runs calls one after the other in the order in which they were issued:
// the collectives of a group, or the messages of a pair in one direction.
type lane struct {
	mu    sync.Mutex
	busy  bool // somebody runs a call, or will take the next one from queue
	queue []*Work
	seq   uint64
}

// enqueue adds a call; the lane is locked.
func (l *lane) enqueue(g *Group, r request) *Work {
	w := &Work{done: make(chan struct{}), g: g, req: r}
	l.queue = append(l.queue, w)
	return w
}

// release ends a call that ran on its caller's goroutine.
func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy = false
		return
	}
	go l.drain()
}

// drain runs queued calls until there are none: a group at rest has no goroutine.
func (l *lane) drain() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		w := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.mu.Unlock()
		w.err = w.g.perform(&w.req)
		close(w.done)
	}
}
