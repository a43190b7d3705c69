// SPDX-License-Identifier: Apache-2.0

package data

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/work"
)

// slot is the place of a batch on its way. Workers plan it, which gives it its
// keys; take its samples, a few at a time, each writing the rows it has taken;
// and the one whose samples were the last collates it. From then on until it
// is planned again it is Next's.
type slot[S, B any] struct {
	ready    chan struct{} // has a token when all below is set
	planned  bool
	keys     []Key
	next     int64 // the position after the batch
	taken    int   // rows that workers have taken
	left     int   // rows that are not made
	samples  []S
	full     []bool // the rows of samples to release, if they are Releasers
	skipped  []Skip
	batch    B
	err      error
	errRow   int // of err: the first row that failed counts, whenever it failed
	panicked *work.Panic
}

// work takes samples and makes them until the loader is closed.
func (l *Loader[S, B]) work(m *meter) {
	ctx := context.WithValue(l.ctx, meterKey{}, m)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		s, from, to := l.take(m)
		if s == nil {
			return
		}
		l.mu.Unlock()
		l.fill(ctx, m, s, from, to)
		l.mu.Lock()
		s.left -= to - from
		if s.left == 0 {
			l.mu.Unlock()
			l.finish(m, s)
			l.mu.Lock()
		}
	}
}

// take gives a worker rows to make, as soon as there are any; nil ends it. The
// caller has the lock.
func (l *Loader[S, B]) take(m *meter) (s *slot[S, B], from, to int) {
	for !l.closed {
		if l.planning || l.open-l.head == int64(len(l.ring)) {
			l.asleep++
			l.wake.Wait()
			l.asleep--
			continue
		}
		s = &l.ring[l.open%int64(len(l.ring))]
		if !s.planned {
			l.planning = true
			l.mu.Unlock()
			l.plan(s) // may have to order an epoch, which takes its time
			l.mu.Lock()
			l.planning = false
			if s.panicked != nil {
				l.open++
				l.mu.Unlock()
				l.finish(m, s)
				l.mu.Lock()
				continue
			}
		}
		from = s.taken
		to = min(from+l.grain, len(s.keys))
		s.taken = to
		if to == len(s.keys) {
			l.open++
		}
		// While enough is finished, one worker does; each that sees that it is not
		// calls another one.
		if l.asleep > 0 && 2*l.made < len(l.ring) && l.open-l.head < int64(len(l.ring)) {
			l.wake.Signal()
		}
		return s, from, to
	}
	return nil, 0, 0
}

// makeNow is what a worker does, for a loader without any.
func (l *Loader[S, B]) makeNow(ctx context.Context, s *slot[S, B]) error {
	m := &l.meters[0]
	both := l.ctx
	if ctx.Done() != nil {
		var cancel context.CancelCauseFunc
		both, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	}
	l.plan(s)
	if s.panicked == nil {
		l.fill(context.WithValue(both, meterKey{}, m), m, s, 0, len(s.keys))
	}
	if s.err != nil && l.ctx.Err() == nil && ctx.Err() != nil {
		// The caller has given up: the same batch is made anew when it returns.
		l.drop(s)
		l.position = l.state.Position
		return context.Cause(ctx)
	}
	l.finish(m, s)
	return nil
}

// plan decides what is in a batch.
func (l *Loader[S, B]) plan(s *slot[S, B]) {
	defer keepPanic(&s.panicked)
	s.skipped = s.skipped[:0]
	s.keys, s.next = l.sampler.Batch(s.keys[:0], l.position)
	if len(s.keys) == 0 || s.next <= l.position {
		panic(fmt.Sprintf("data: the sampler {%s} gave %d samples at position %d and went on to %d", l.sampler.Order(), len(s.keys), l.position, s.next))
	}
	l.position = s.next
	s.samples = make([]S, len(s.keys)) // a new one, for collate may keep it
	if l.releaseS {
		s.full = slices.Grow(s.full[:0], len(s.keys))[:len(s.keys)]
		clear(s.full)
	}
	s.taken, s.left, s.planned = 0, len(s.keys), true
}

// fill makes rows of a batch.
func (l *Loader[S, B]) fill(ctx context.Context, m *meter, s *slot[S, B], from, to int) {
	var panicked *work.Panic
	began := time.Now()
	func() {
		defer keepPanic(&panicked)
		for row := from; row < to; row++ {
			m.making(s.keys[row])
			sample, skip, err := l.get(ctx, s.keys[row])
			s.samples[row] = sample
			if l.releaseS {
				s.full[row] = err == nil
			}
			if err == nil && skip.Err == nil {
				continue
			}
			l.mu.Lock()
			if err == nil {
				skip.row = row
				s.skipped = append(s.skipped, skip)
			} else if s.err == nil || row < s.errRow {
				s.err, s.errRow = err, row
			}
			l.mu.Unlock()
		}
	}()
	m.rests()
	m.made.Add(int64(time.Since(began)))
	if panicked != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.panicked = panicked
	}
}

// finish collates a batch of which all rows are made and gives it to Next.
func (l *Loader[S, B]) finish(m *meter, s *slot[S, B]) {
	slices.SortFunc(s.skipped, func(a, b Skip) int { return cmp.Compare(a.row, b.row) })
	began := time.Now()
	if s.err == nil && s.panicked == nil {
		func() {
			defer keepPanic(&s.panicked)
			if s.batch, s.err = l.collate(s.samples); s.err != nil {
				s.err = fmt.Errorf("data: make a batch of the %d samples before position %d: %w", len(s.keys), s.next, s.err)
			}
		}()
	}
	m.collated.Add(int64(time.Since(began)))
	l.releaseSamples(s)
	l.mu.Lock()
	l.made++
	l.mu.Unlock()
	s.ready <- struct{}{}
}

// drop forgets a batch that is not finished.
func (l *Loader[S, B]) drop(s *slot[S, B]) {
	l.releaseSamples(s)
	s.planned, s.err, s.panicked = false, nil, nil
}

func (l *Loader[S, B]) releaseSamples(s *slot[S, B]) {
	if l.releaseS {
		for i, full := range s.full {
			if full {
				any(s.samples[i]).(Releaser).Release()
			}
		}
		s.full = s.full[:0]
	}
	s.samples = nil
}

// keepPanic keeps a panic for the loader's user.
func keepPanic(p **work.Panic) {
	if v := recover(); v != nil {
		*p = &work.Panic{Value: v, Stack: debug.Stack()}
	}
}
