// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"time"
)

// ErrClosed is what a closed [Loader] returns.
var ErrClosed = errors.New("data: the loader is closed")

// LoaderConfig configures a [Loader].
type LoaderConfig struct {
	// Workers is the number of goroutines that make samples and batches while
	// others are used; 0 means that Next makes each batch when it is called.
	Workers int

	// Prefetch is the number of batches that workers make ahead, finished or
	// not. 0 means 2, or more where batches have fewer samples than it takes to
	// keep all workers busy.
	Prefetch int

	// Timeout is how long Next waits for a batch that workers make before it is a
	// *[StallError]; 0 means 30 minutes, and less that it waits for ever. Without
	// workers it has no effect: Get is called by Next, with the context of that.
	Timeout time.Duration

	// OnError is what becomes of a sample that cannot be made.
	OnError OnError

	// OnSkip is told, within Next, of each sample that was replaced; may be nil.
	OnSkip func(Skip)
}

const (
	maxWorkers  = 1 << 12
	maxPrefetch = 1 << 16

	defaultTimeout = 30 * time.Minute // as long as collectives wait for a rank
	closeTimeout   = 5 * time.Second
)

// LoaderState is where a loader is, for a checkpoint. The zero value is the
// start of training.
type LoaderState struct {
	Position int64  `json:"position"` // samples that all ranks have taken
	Order    string `json:"order"`    // what the position counts
}

// ResumeError says that a state belongs to another order of samples: another
// seed, other data, another length of windows.
type ResumeError struct {
	Saved string
	Now   string
}

func (e *ResumeError) Error() string {
	return fmt.Sprintf("data: cannot resume: the state was saved for the samples {%s}, these are {%s}; use the same data, seed and settings, or start anew", e.Saved, e.Now)
}

// StallError says that workers did not make a batch in time, and which samples
// they were at: a disk or a server that does not answer.
type StallError struct {
	Position int64 // of the batch
	After    time.Duration
	Keys     []Key // samples that workers are making
}

func (e *StallError) Error() string {
	at := "no worker is making a sample: collating takes that long"
	if len(e.Keys) > 0 {
		at = fmt.Sprintf("sample %d of epoch %d is in the making", e.Keys[0].Index, e.Keys[0].Epoch)
		if n := len(e.Keys) - 1; n > 0 {
			at += fmt.Sprintf(", and %d others are", n)
		}
	}
	return fmt.Sprintf("data: the batch at position %d was not made within %v: %s", e.Position, e.After, at)
}

// Releaser is a sample or a batch that wants to know when it is no longer
// used, so that its memory can be used again. A [Loader] calls Release on a
// sample when its batch has been collated, and on a batch when Next is called
// for another one, or on Close. Types without this method are left to the
// garbage collector, and their batches are the caller's for ever.
type Releaser interface{ Release() }

// Loader makes the batches of a sampler over a dataset and delivers them in
// order. Workers make them ahead of time, all of them samples of the earliest
// batch that is not finished, so that the next batch comes as soon as it can;
// a worker that is not needed sleeps. At most Prefetch batches are finished or
// in the making, which bounds the memory. What is delivered does not depend on
// the number of workers.
//
// Its goroutines end when the context given to [NewLoader] does, or on Close.
// A Loader belongs to one goroutine.
type Loader[S, B any] struct {
	ds       Dataset[S]
	sampler  Sampler
	collate  func([]S) (B, error)
	c        LoaderConfig
	grain    int  // samples that a worker takes at a time
	releaseS bool // samples are Releasers
	releaseB bool // batches are

	ctx    context.Context
	cancel context.CancelFunc
	stop   func() bool // of what calls end when ctx ends
	wg     sync.WaitGroup
	meters []meter // one a worker, or that of Next
	began  time.Time

	// The user's.
	state    LoaderState
	keys     []Key
	skipped  []Skip
	batch    B
	held     bool // batch is to be released
	tally    LoaderStats
	returned time.Time // when Next last did
	timer    *time.Timer
	failed   error

	// Shared with the workers, as are the slots but for what is said there.
	mu       sync.Mutex
	wake     sync.Cond
	ring     []slot[S, B] // batch i is in slot i modulo its length
	head     int64        // the batch that Next delivers next
	open     int64        // the batch of which samples are taken next
	made     int          // batches from head on that are finished
	position int64        // of the batch that is planned next
	planning bool
	asleep   int // workers
	closed   bool
}

// NewLoader starts to make batches: collate makes a batch B of samples S,
// of which it must keep none if they are [Releaser]s. The loader goes on from a state, where that is not zero; a state of another order
// of samples is a *[ResumeError]. Close it after use.
func NewLoader[S, B any](ctx context.Context, ds Dataset[S], sampler Sampler, collate func([]S) (B, error), c LoaderConfig, from LoaderState) (*Loader[S, B], error) {
	switch {
	case c.Workers < 0 || c.Workers > maxWorkers:
		return nil, fmt.Errorf("data: loader with %d workers, want 0 to %d", c.Workers, maxWorkers)
	case c.Prefetch < 0 || c.Prefetch > maxPrefetch:
		return nil, fmt.Errorf("data: loader with %d batches ahead, want 0 to %d", c.Prefetch, maxPrefetch)
	case c.OnError != Fail && c.OnError != SkipSample:
		return nil, fmt.Errorf("data: loader with the unknown policy %v for samples that cannot be made", c.OnError)
	case ds.Len() < 1:
		return nil, fmt.Errorf("data: loader over a dataset of %d samples: there is nothing to load; is the split empty?", ds.Len())
	}
	order := sampler.Order()
	if d, ok := ds.(interface{ Fingerprint() string }); ok {
		order += "; " + d.Fingerprint()
	}
	if from.Position < 0 || from.Position > 0 && from.Order == "" {
		return nil, fmt.Errorf("data: loader state with position %d and order %q: the state is damaged", from.Position, from.Order)
	}
	if from.Order != "" && from.Order != order {
		return nil, &ResumeError{Saved: from.Order, Now: order}
	}
	l := &Loader[S, B]{
		ds: ds, sampler: sampler, collate: collate, c: c,
		meters:   make([]meter, max(c.Workers, 1)),
		state:    LoaderState{Position: from.Position, Order: order},
		position: from.Position, began: time.Now(),
	}
	l.wake.L = &l.mu
	_, l.releaseS = any(*new(S)).(Releaser)
	_, l.releaseB = any(*new(B)).(Releaser)
	keys, _ := sampler.Batch(nil, from.Position)
	if len(keys) == 0 {
		return nil, fmt.Errorf("data: the sampler {%s} has no sample at position %d", order, from.Position)
	}
	// A few portions a worker even out that some samples take longer.
	l.grain = max(1, len(keys)/(4*max(1, c.Workers)))
	switch {
	case c.Workers == 0:
		c.Prefetch = 1
	case c.Prefetch == 0:
		c.Prefetch = max(2, (2*c.Workers+len(keys)-1)/len(keys))
	}
	l.ring = make([]slot[S, B], c.Prefetch)
	for i := range l.ring {
		l.ring[i].ready = make(chan struct{}, 1)
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.stop = context.AfterFunc(l.ctx, l.end)
	for i := range c.Workers {
		l.wg.Go(func() { l.work(&l.meters[i]) })
	}
	return l, nil
}

// end lets the workers go home.
func (l *Loader[S, B]) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake.Broadcast()
}

// Next returns the next batch. When ctx ends first, Next may be called again
// and no batch is lost. Any other error is final: Next returns it from then on,
// and the state stays before the batch that failed. A sample that cannot be
// made is a *[SampleError], unless it is skipped. A panic of the dataset, the
// sampler or collate panics here, as a *work.Panic.
func (l *Loader[S, B]) Next(ctx context.Context) (B, error) {
	var none B
	if l.failed != nil {
		return none, l.failed
	}
	began := time.Now()
	if !l.returned.IsZero() {
		l.tally.Stepped += began.Sub(l.returned)
	}
	if l.held {
		any(l.batch).(Releaser).Release()
		l.batch, l.held = none, false
	}
	batch, err := l.next(ctx)
	l.returned = time.Now()
	if l.tally.Batches == 0 {
		l.tally.First += l.returned.Sub(began)
	} else {
		l.tally.Waited += l.returned.Sub(began)
	}
	if err != nil {
		return none, err
	}
	l.tally.Batches++
	l.tally.Samples += int64(len(l.keys))
	l.tally.Skipped += int64(len(l.skipped))
	if l.c.OnSkip != nil {
		for _, s := range l.skipped {
			l.c.OnSkip(s)
		}
	}
	if l.releaseB {
		l.batch, l.held = batch, true
	}
	return batch, nil
}

// next takes the batch out of its slot, when it is there.
func (l *Loader[S, B]) next(ctx context.Context) (B, error) {
	var none B
	s := &l.ring[l.head%int64(len(l.ring))]
	wait := func(err error) error {
		return fmt.Errorf("data: waiting for the batch at position %d: %w", l.state.Position, err)
	}
	switch {
	case l.ctx.Err() != nil:
		l.failed = wait(context.Cause(l.ctx))
		return none, l.failed
	case l.c.Workers == 0:
		if err := l.makeNow(ctx, s); err != nil {
			return none, wait(err)
		}
	}
	select {
	case <-s.ready: // what is there is delivered, also when time is up
	default:
		select {
		case <-s.ready:
			l.timer.Stop()
		case <-ctx.Done():
			return none, wait(context.Cause(ctx))
		case <-l.patience():
			l.failed = l.stalled()
			return none, l.failed
		case <-l.ctx.Done():
			l.failed = wait(context.Cause(l.ctx))
			return none, l.failed
		}
	}
	switch {
	case s.panicked != nil:
		l.failed = s.panicked
		panic(s.panicked)
	case s.err != nil && l.ctx.Err() != nil:
		l.failed = wait(context.Cause(l.ctx))
		return none, l.failed
	case s.err != nil:
		l.failed = s.err
		return none, l.failed
	}
	batch := s.batch
	l.state.Position = s.next
	l.mu.Lock()
	defer l.mu.Unlock()
	s.batch = none
	s.keys, l.keys = l.keys, s.keys
	s.skipped, l.skipped = l.skipped, s.skipped
	s.planned = false
	l.head++
	l.made--
	if l.asleep > 0 {
		l.wake.Signal()
	}
	return batch, nil
}

// patience returns the channel of the timer, set anew.
func (l *Loader[S, B]) patience() <-chan time.Time {
	d := l.c.Timeout
	switch {
	case d < 0:
		d = math.MaxInt64
	case d == 0:
		d = defaultTimeout
	}
	if l.timer == nil {
		l.timer = time.NewTimer(d)
	} else {
		l.timer.Reset(d)
	}
	return l.timer.C
}

// stalled says what the workers are at.
func (l *Loader[S, B]) stalled() error {
	e := &StallError{Position: l.state.Position, After: l.c.Timeout}
	if e.After == 0 {
		e.After = defaultTimeout
	}
	for i := range l.meters {
		if key, at := l.meters[i].at(); at {
			e.Keys = append(e.Keys, key)
		}
	}
	return e
}

// All yields batches until there is an error, which comes last.
func (l *Loader[S, B]) All(ctx context.Context) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) {
		for {
			b, err := l.Next(ctx)
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// State is the place after the last batch that Next returned. Batches made
// ahead do not count.
func (l *Loader[S, B]) State() LoaderState { return l.state }

// Keys are the samples of the last batch that Next returned, row by row, as
// they were ordered: a sample that was skipped is here, and not what stands in
// its place. They are valid until Next is called again.
func (l *Loader[S, B]) Keys() []Key { return l.keys }

// Skipped are the samples of the last batch that were replaced, in the order
// of its rows. They are valid until Next is called again.
func (l *Loader[S, B]) Skipped() []Skip { return l.skipped }

// Stats tells what has been done since the loader was made.
func (l *Loader[S, B]) Stats() LoaderStats {
	s := l.tally
	s.Workers = l.c.Workers
	for i := range l.meters {
		l.meters[i].addTo(&s)
	}
	if s.Workers > 0 {
		all := time.Duration(s.Workers) * time.Since(l.began)
		s.Idle = max(all-s.Reading-s.Making-s.Collating, 0)
	}
	return s
}

// Close ends the loader's goroutines and waits for them, five seconds at most: a
// Get that does not end with its context is left to itself. Batches made ahead
// are thrown away; the state stays. It may be called more than once.
func (l *Loader[S, B]) Close() {
	if l.failed == nil {
		l.failed = ErrClosed
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.cancel()
	if l.stop() {
		l.end()
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		l.wg.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(closeTimeout):
		return
	}
	if l.held {
		any(l.batch).(Releaser).Release()
		l.batch, l.held = *new(B), false
	}
	if !l.releaseB && !l.releaseS {
		return
	}
	for i := range l.ring {
		s := &l.ring[i]
		select {
		case <-s.ready:
			if l.releaseB && s.err == nil && s.panicked == nil {
				any(s.batch).(Releaser).Release()
			}
		default:
			l.drop(s)
		}
	}
}
