// SPDX-License-Identifier: Apache-2.0

// Package work runs the loops of kernels on the cores of this process.
//
// A process has one [Pool]; its size is the number of threads that compute
// (by default the cores divided by the local ranks). A loop is handed out in
// pieces: the caller takes part, so that a pool of one thread is a plain loop.
// When the pool is busy with another goroutine's loop, or a piece starts a
// loop of its own, the newcomer runs its loop alone: never a deadlock, never
// more threads than asked for by one loop.
//
// Pieces must return within about a millisecond or call back into Go code:
// assembly cannot be preempted, and a collector that waits for one stops all.
package work

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinRounds is how often an idle worker looks for a new loop before it
// parks: a few hundred microseconds. Within a training step loops follow each
// other faster than that; a worker that parked between them would wake too late
// to help with the next one, park again, and leave the step to one thread.
const spinRounds = 500_000

// yieldRounds is how often a caller that has nothing left to do looks for the
// end of its loop before it lets other goroutines run.
const yieldRounds = 1000

// awaitLimit is how long it looks before it parks.
const awaitLimit = 50 * time.Microsecond

// Pool is a fixed set of workers. Create one with [New]; the zero value is a
// pool of one thread, the caller.
type Pool struct {
	running sync.Mutex // held by the loop that owns the workers
	workers []*worker
	done    chan struct{} // wakes the caller of Run when it has parked
}

type worker struct {
	job    atomic.Pointer[loop]
	parked atomic.Bool
	wake   chan struct{}
}

// loop is one call of Run, shared by the caller and the workers.
type loop struct {
	fn      func(i int)
	n       int64
	next    atomic.Int64
	pending atomic.Int32 // workers that have not finished yet
	parked  atomic.Bool  // the caller waits for done
	done    chan struct{}
	failure atomic.Pointer[Panic]
}

// Panic carries a panic out of a worker to the goroutine that called
// [Pool.Run], which panics with it. Value is the original panic's value.
type Panic struct {
	Value any
	Stack []byte // of the worker
}

func (p *Panic) Error() string {
	return fmt.Sprintf("panic in a work pool: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the original value if it was an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// New returns a pool that computes on numThreads threads, the caller of Run
// being one of them. It panics when numThreads is less than one.
func New(numThreads int) *Pool {
	if numThreads < 1 {
		panic(fmt.Sprintf("work: a pool needs at least one thread, got %d", numThreads))
	}
	p := &Pool{done: make(chan struct{}, 1)}
	for range numThreads - 1 {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		go w.serve()
	}
	return p
}

// NumThreads returns how many threads the pool computes on.
func (p *Pool) NumThreads() int { return len(p.workers) + 1 }

// Close ends the workers. No loop may be running; the pool must not be used
// afterwards.
func (p *Pool) Close() {
	p.running.Lock()
	defer p.running.Unlock()
	for _, w := range p.workers {
		w.start(&closeLoop)
	}
	p.workers = nil
}

// closeLoop tells a worker to end.
var closeLoop loop

// Run calls fn(i) once for every i in [0, n), in no particular order, and
// returns when all calls have returned. A panic in fn ends the loop and
// reaches the caller.
func (p *Pool) Run(n int, fn func(i int)) {
	if n <= 1 || len(p.workers) == 0 || !p.running.TryLock() {
		for i := range n {
			fn(i)
		}
		return
	}
	defer p.running.Unlock()
	helpers := p.workers[:min(len(p.workers), n-1)]
	l := &loop{fn: fn, n: int64(n), done: p.done}
	l.pending.Store(int32(len(helpers)))
	for _, w := range helpers {
		w.start(l)
	}
	l.work()
	// Nothing is left to hand out: do not wait for a worker that has not woken.
	for _, w := range helpers {
		if w.job.CompareAndSwap(l, nil) {
			l.pending.Add(-1)
		}
	}
	l.await()
	if f := l.failure.Load(); f != nil {
		panic(f)
	}
}

// await returns when the workers have finished. It looks for a while, for they
// are in their last pieces; a worker that takes longer has probably lost its
// core to another process, and may get this one if it is given up.
func (l *loop) await() {
	for range yieldRounds {
		if l.pending.Load() == 0 {
			return
		}
	}
	for start := time.Now(); time.Since(start) < awaitLimit; {
		runtime.Gosched()
		if l.pending.Load() == 0 {
			return
		}
	}
	l.parked.Swap(true) // not Store: see next
	if l.pending.Load() == 0 && l.parked.CompareAndSwap(true, false) {
		return
	}
	<-l.done
}

func (w *worker) start(l *loop) {
	w.job.Store(l)
	if w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

func (w *worker) serve() {
	for {
		l := w.next()
		if l == &closeLoop {
			return
		}
		l.work()
		if l.pending.Add(-1) == 0 && l.parked.CompareAndSwap(true, false) {
			l.done <- struct{}{}
		}
	}
}

// next waits for a loop: it spins first, for a training step starts one every
// few microseconds, and then parks so that an idle process uses no core.
func (w *worker) next() *loop {
	for {
		for range spinRounds {
			if w.job.Load() == nil {
				continue
			}
			if l := w.job.Swap(nil); l != nil { // not taken back meanwhile
				return l
			}
		}
		// The store must be seen by others before the load below is done. Store
		// says so too, but an emulator of arm64 (qemu 7.2) lets a load overtake it,
		// and a wake-up was lost about once in a million loops.
		w.parked.Swap(true)
		if w.job.Load() != nil && w.parked.CompareAndSwap(true, false) {
			continue // the loop came between the last look and parking
		}
		<-w.wake
	}
}

func (l *loop) work() {
	defer func() {
		if v := recover(); v != nil {
			f, ok := v.(*Panic)
			if !ok {
				f = &Panic{Value: v, Stack: debug.Stack()}
			}
			l.failure.CompareAndSwap(nil, f)
			l.next.Store(l.n) // the others stop early
		}
	}()
	for i := l.next.Add(1) - 1; i < l.n; i = l.next.Add(1) - 1 {
		l.fn(int(i))
	}
}
