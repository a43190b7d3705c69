// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// Future is the answer of a call, which may not have come yet. Any number of goroutines
// may wait for it. [Method.Async], [Then], [NewFuture] and [Resolved] make futures.
type Future[R any] struct {
	// Of a call: method decodes its answer, for the first goroutine that wants it.
	method func(*Future[R]) error
	info   *methodInfo
	peer   *Peer
	call   link.Call
	stats  *methodStats
	sent   int
	refs   bool // there may be references in the value
	// explain, if there is one, makes an error one that says more.
	explain func(error) error

	mu sync.Mutex
	// held says that the goroutine that waits for the value decodes it, and makes what Then
	// makes of it: the hook brings the value to the tape of a pass, which belongs to one
	// goroutine.
	held  bool
	later func() (R, error) // of Then: makes the value of a future that is held
	state futureState
	done  chan struct{} // made when somebody waits
	next  followers     // to run, each in a goroutine, when the future is done
	value R
	err   error
}

type futureState uint8

const (
	futurePending futureState = iota
	futureArrived             // the answer is there and has not been read
	futureDone
)

// NewFuture returns a future and the function that sets its value or error. Only the first
// call of that function counts. Handlers of [ServeAsync] return such futures.
func NewFuture[R any]() (f *Future[R], resolve func(value R, err error)) {
	f = &Future[R]{}
	return f, f.resolve
}

func (f *Future[R]) resolve(value R, err error) {
	f.mu.Lock()
	if f.state != futurePending {
		f.mu.Unlock()
		return
	}
	f.value, f.err, f.state = value, err, futureDone
	f.wake()
}

// sink is a future as its connection sees it.
type sink[R any] Future[R]

// Arrive implements [link.Sink].
func (s *sink[R]) Arrive() {
	f := (*Future[R])(s)
	f.peer.agent.leave(f.info)
	f.arrive()
}

// arrive takes in that the call has its answer.
func (f *Future[R]) arrive() {
	f.mu.Lock()
	f.state = futureArrived
	if r := f.call.Reply; r == nil {
		f.settle()
	} else { // whether or not somebody waits for it
		f.stats.ended(f.call.Began, f.sent, r.Size, failureOf(r))
		f.held = r.Hook != nil
		if f.refs && !f.held {
			// References count from when they are decoded. That does not wait until somebody
			// wants the value.
			f.next.add(func() { _, _ = f.result() })
		}
	}
	f.wake()
}

// wake wakes the goroutines that wait, and unlocks.
func (f *Future[R]) wake() {
	if f.done != nil {
		close(f.done)
	}
	next := f.next.take()
	f.mu.Unlock()
	for _, w := range next {
		go w.run()
	}
}

// settle decodes an answer that has arrived, with the lock held.
func (f *Future[R]) settle() {
	if f.state != futureArrived {
		return
	}
	if f.later != nil {
		f.value, f.err = f.later()
		f.later, f.state = nil, futureDone
		return
	}
	c := &f.call
	if c.Reply != nil {
		failed := failureOf(c.Reply) != nil
		f.err = f.method(f)
		c.Reply.Release()
		if f.err != nil && !failed {
			f.stats.failures.Add(1)
		}
	} else {
		f.err = callError(c.Err, c.Method, f.peer)
		f.stats.failed()
	}
	if f.err != nil && f.explain != nil {
		f.err = f.explain(f.err)
	}
	f.state = futureDone
	// The future keeps the value, not the answer's memory. The call itself stays: the
	// goroutine that sent it, or that watches its context, may still look at it.
	c.Reply, f.method, f.stats = nil, nil, nil
}

// Done returns a channel that is closed when the answer or an error has come.
func (f *Future[R]) Done() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.state != futurePending {
			close(f.done)
		}
	}
	return f.done
}

// Wait waits for the answer. When ctx ends, the wait ends; the call goes on.
func (f *Future[R]) Wait(ctx context.Context) (R, error) {
	f.mu.Lock()
	if f.state == futurePending {
		if f.done == nil {
			f.done = make(chan struct{})
		}
		f.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			var zero R
			return zero, fmt.Errorf("rpc: wait for an answer: %w", ctxerr.Of(ctx))
		}
		f.mu.Lock()
	}
	f.settle()
	value, err := f.value, f.err
	f.mu.Unlock()
	return value, err
}

// explained makes an error of a call pass through explain.
func (f *Future[R]) explained(explain func(error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == futureDone && f.err != nil {
		f.err = explain(f.err)
	}
	f.explain = explain
}

// onDone runs fn in a goroutine of its own when the future is done, unless it is
// forgotten before.
func (f *Future[R]) onDone(fn func()) *follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == futurePending {
		return f.next.add(fn)
	}
	go fn()
	return nil
}

// forget takes back what onDone returned.
func (f *Future[R]) forget(w *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next.remove(w)
}

// result returns the answer of a future that is done.
func (f *Future[R]) result() (R, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settle()
	return f.value, f.err
}

// Resolved returns a future that is done: for handlers of [ServeAsync] that know the
// answer, or an error, at once.
func Resolved[R any](value R, err error) *Future[R] {
	f, resolve := NewFuture[R]()
	resolve(value, err)
	return f
}

// Then returns the future of fn's result. When f is done, fn is called with f's value, in
// a goroutine of its own. If f has an error, that is the new future's error too, and fn is
// not called.
//
// If f is the answer of a call in a pass of package autograd, fn is called by the first
// goroutine that waits for the new future: the tape of a pass belongs to one goroutine.
func Then[R, S any](f *Future[R], fn func(R) (S, error)) *Future[S] {
	g := &Future[S]{}
	make := func() (out S, err error) {
		value, err := f.result()
		if err == nil {
			out, err = guarded(fn, value)
		}
		return out, err
	}
	f.onDone(func() {
		if f.isHeld() {
			g.hold(make)
		} else {
			g.resolve(make())
		}
	})
	return g
}

// isHeld says whether the goroutine that waits for the value decodes it.
func (f *Future[R]) isHeld() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// hold makes the future held: the goroutine that waits for the value makes it.
func (f *Future[R]) hold(make func() (R, error)) {
	f.mu.Lock()
	f.held, f.later, f.state = true, make, futureArrived
	f.wake()
}

// guarded calls fn and makes its panic an error.
func guarded[R, S any](fn func(R) (S, error), value R) (out S, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicError(v)
		}
	}()
	return fn(value)
}

// WaitAll waits for all futures. It returns their values in order, and the error of the
// first future, in order, that has failed.
func WaitAll[R any](ctx context.Context, fs ...*Future[R]) ([]R, error) {
	values := make([]R, len(fs))
	var first error
	for i, f := range fs {
		v, err := f.Wait(ctx)
		if err != nil && first == nil {
			first = fmt.Errorf("future %d of %d: %w", i, len(fs), err)
		}
		values[i] = v
	}
	return values, first
}

// errFailure stands in the statistics for an answer that is a failure and has not been
// read yet.
var errFailure = errors.New("the answer is a failure")

func failureOf(r *wire.Received) error {
	if r.Kind == wire.FrameFailure {
		return errFailure
	}
	return nil
}

// follower is a function that runs when something has happened that happens once.
type follower struct {
	run func()
	at  int // in the list, -1 when it is in none
}

// followers are the functions of one event. The lock of the event guards them.
type followers struct{ list []*follower }

func (l *followers) add(run func()) *follower {
	w := &follower{run, len(l.list)}
	l.list = append(l.list, w)
	return w
}

// remove takes one off the list, if it is still there.
func (l *followers) remove(w *follower) {
	if w == nil || w.at < 0 {
		return
	}
	end := len(l.list) - 1
	last := l.list[end]
	l.list[w.at], last.at = last, w.at
	l.list[end] = nil
	l.list, w.at = l.list[:end], -1
}

// take returns all and empties the list.
func (l *followers) take() []*follower {
	list := l.list
	l.list = nil
	for _, w := range list {
		w.at = -1
	}
	return list
}
