// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/work"
)

// ErrClosed is what a closed [Loader] returns.
var ErrClosed = errors.New("data: the loader is closed")

// LoaderConfig configures a [Loader].
type LoaderConfig struct {
	Workers  int // goroutines that make batches; 0 means 1
	Prefetch int // batches made ahead; 0 means 2
}

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

// SampleError says which sample could not be made.
type SampleError struct {
	Key Key
	Err error
}

func (e *SampleError) Error() string {
	return fmt.Sprintf("data: sample %d of epoch %d: %v", e.Key.Index, e.Key.Epoch, e.Err)
}

func (e *SampleError) Unwrap() error { return e.Err }

// LoaderStats tells whether training waits for data.
type LoaderStats struct {
	Batches int64         // delivered
	Waited  time.Duration // that Next was kept waiting, all batches together
}

// Loader makes the batches of a sampler over a dataset ahead of time and
// delivers them in order. At most Prefetch batches wait, besides one that each
// worker may be busy with. Its goroutines end when the context given to
// [NewLoader] does, or on Close.
//
// A Loader belongs to one goroutine.
type Loader[S, B any] struct {
	queue  chan *loading[B]
	head   *loading[B] // taken from the queue, not delivered yet
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	state  LoaderState
	stats  LoaderStats
	failed error
}

// loading is a batch on its way.
type loading[B any] struct {
	keys     []Key
	next     int64
	done     chan struct{} // closed when the rest is set
	batch    B
	err      error
	panicked *work.Panic
}

// NewLoader starts to make batches: collate makes a batch B of samples S. It
// goes on from a state, where that is not zero; a state of another order of
// samples is a *[ResumeError]. Close it after use.
func NewLoader[S, B any](ctx context.Context, ds Dataset[S], sampler Sampler, collate func([]S) (B, error), c LoaderConfig, from LoaderState) (*Loader[S, B], error) {
	if c.Workers < 0 || c.Prefetch < 0 {
		return nil, fmt.Errorf("data: loader with %d workers and %d batches ahead: neither may be negative", c.Workers, c.Prefetch)
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.Prefetch == 0 {
		c.Prefetch = 2
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
		queue: make(chan *loading[B], c.Prefetch),
		state: LoaderState{Position: from.Position, Order: order},
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	jobs := make(chan *loading[B])
	l.wg.Go(func() {
		defer close(jobs)
		for pos := from.Position; ; {
			job := &loading[B]{done: make(chan struct{})}
			job.keys, job.next = sampler.Batch(nil, pos)
			pos = job.next
			// The queue is what bounds the work ahead, so it comes first.
			select {
			case l.queue <- job:
			case <-l.ctx.Done():
				return
			}
			select {
			case jobs <- job:
			case <-l.ctx.Done():
				return
			}
		}
	})
	for range c.Workers {
		l.wg.Go(func() {
			for job := range jobs {
				load(l.ctx, job, ds, collate)
			}
		})
	}
	return l, nil
}

// load makes the batch of a job. A panic is kept for the loader's user.
func load[S, B any](ctx context.Context, job *loading[B], ds Dataset[S], collate func([]S) (B, error)) {
	defer close(job.done)
	defer func() {
		if v := recover(); v != nil {
			job.panicked = &work.Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	samples := make([]S, len(job.keys))
	for i, key := range job.keys {
		s, err := ds.Get(ctx, key)
		if err != nil {
			job.err = &SampleError{Key: key, Err: err}
			return
		}
		samples[i] = s
	}
	job.batch, job.err = collate(samples)
}

// Next returns the next batch. When ctx ends first, Next may be called again
// and no batch is lost. Any other error is final: Next returns it from then on,
// and the state stays before the batch that failed. A panic of the dataset or
// of collate panics here, as a *work.Panic.
func (l *Loader[S, B]) Next(ctx context.Context) (B, error) {
	var none B
	if l.failed != nil {
		return none, l.failed
	}
	began := time.Now()
	wait := func(err error) error {
		return fmt.Errorf("data: waiting for the batch at position %d: %w", l.state.Position, err)
	}
	if l.head == nil {
		select {
		case l.head = <-l.queue:
		case <-ctx.Done():
			return none, wait(context.Cause(ctx))
		case <-l.ctx.Done():
			l.failed = wait(context.Cause(l.ctx))
			return none, l.failed
		}
	}
	job := l.head
	select {
	case <-job.done:
	case <-ctx.Done():
		return none, wait(context.Cause(ctx))
	case <-l.ctx.Done():
		l.failed = wait(context.Cause(l.ctx))
		return none, l.failed
	}
	l.head = nil
	switch {
	case job.panicked != nil:
		l.failed = job.panicked
		panic(job.panicked)
	case job.err != nil:
		l.failed = job.err
		return none, job.err
	}
	l.state.Position = job.next
	l.stats.Batches++
	l.stats.Waited += time.Since(began)
	return job.batch, nil
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

// Stats counts what Next has delivered.
func (l *Loader[S, B]) Stats() LoaderStats { return l.stats }

// Close ends the loader's goroutines and waits for them. Batches made ahead
// are thrown away; the state stays. It may be called more than once.
func (l *Loader[S, B]) Close() {
	if l.failed == nil {
		l.failed = ErrClosed
	}
	l.cancel()
	l.wg.Wait()
}
