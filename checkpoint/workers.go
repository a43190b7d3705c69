// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"sync"
)

// workers runs functions at the same time, a limited number of them, and keeps the first error.
type workers struct {
	ctx   context.Context // ends with the first error
	end   context.CancelFunc
	slots chan struct{}
	wait  sync.WaitGroup
	once  sync.Once
	err   error
}

func newWorkers(ctx context.Context, limit int) *workers {
	w := &workers{slots: make(chan struct{}, limit)}
	w.ctx, w.end = context.WithCancel(ctx)
	return w
}

// Go waits for a slot and runs f in it. After an error it runs nothing more.
func (w *workers) Go(f func() error) {
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		w.fail(w.ctx.Err())
		return
	}
	w.wait.Go(func() {
		defer func() { <-w.slots }()
		if err := f(); err != nil {
			w.fail(err)
		}
	})
}

func (w *workers) fail(err error) {
	w.once.Do(func() { w.err = err })
	w.end()
}

// Wait waits for all functions and returns the first error.
func (w *workers) Wait() error {
	w.wait.Wait()
	w.end()
	return w.err
}

// budget gives out bytes. Who asks for more than there are in all gets all of them.
type budget struct {
	mu    sync.Mutex
	freed sync.Cond
	left  int64
	all   int64
}

func newBudget(bytes int64) *budget {
	b := &budget{left: bytes, all: bytes}
	b.freed.L = &b.mu
	return b
}

// take waits until bytes are free, and returns what gives them back.
func (b *budget) take(bytes int64) (release func()) {
	bytes = min(bytes, b.all)
	b.mu.Lock()
	for b.left < bytes {
		b.freed.Wait()
	}
	b.left -= bytes
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		b.left += bytes
		b.mu.Unlock()
		b.freed.Broadcast()
	}
}
