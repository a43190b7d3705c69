// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// Busy says what [Saver.Save] does while an earlier save is still being written.
type Busy int

const (
	Wait Busy = iota // wait for its end
	Skip             // save nothing this time
)

// SaverOptions are the options of a [Saver].
type SaverOptions struct {
	// Async writes beside training. Save returns when the state has been copied, and the ranks
	// commit over a group of their own. Otherwise Save writes before it returns.
	Async bool
	// Busy says what an asynchronous Save does while the one before is still being written.
	Busy Busy
	// BytesPerSecond limits what each rank writes; 0 is no limit.
	BytesPerSecond int64
	// Keep says which older checkpoints stay.
	Keep Retention
	// Together names sections that one rank writes into one file, see [WithTogether].
	Together []string
	// Replace names steps whose checkpoints are replaced, see [WithReplace].
	Replace []int
	// Share is as in [WithShare]; 0 is its default.
	Share int64
	// Committed is called on every rank when the checkpoint of a step is there, in the
	// goroutine that has written it. It may be nil.
	Committed func(step int)
}

// A Saver saves the checkpoints of a training loop. All ranks have one and make the same calls.
//
//	saver, err := checkpoint.NewSaver(ctx, group, to, checkpoint.SaverOptions{Async: true})
//	for … {
//		_, err := saver.Save(ctx, step, state)
//	}
//	err = saver.Close(ctx)
//
// The error of a save that is written beside training is that of the next call of Save, Wait or
// Close, on every rank, or of Err. At most one save is under way. The copies lie in memory that
// is kept from save to save: as much as this rank writes. The methods are for one goroutine; Err
// is for any.
type Saver struct {
	to    storage.Storage
	o     SaverOptions
	front *dist.Group // of the caller
	back  *dist.Group // of the saves that are written beside training; nil for one rank
	stage staging
	pace  func(ctx context.Context, n int) error

	mu      sync.Mutex
	pending *pending // the save under way, or the last one
	err     error    // of a save that has ended, not returned yet
}

// pending is a save under way.
type pending struct {
	step int
	done chan struct{} // closed at its end
	stop context.CancelFunc
}

func (p *pending) hasEnded() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// NewSaver returns a Saver into a storage. All ranks of g call it; nil stands for one rank. An
// asynchronous one makes a group of the ranks of g, which [Saver.Close] closes.
func NewSaver(ctx context.Context, g *dist.Group, to storage.Storage, o SaverOptions) (*Saver, error) {
	s := &Saver{to: to, o: o, front: g, pace: paceOf(o.BytesPerSecond)}
	if g == nil || !o.Async {
		return s, nil
	}
	all := make([]int, g.Size())
	for i := range all {
		all[i] = i
	}
	var err error
	if s.back, err = g.NewGroup(ctx, all); err != nil {
		return nil, fmt.Errorf("checkpoint: a group for saves: %w", err)
	}
	return s, nil
}

// Save saves the checkpoint of a step, see [Save]. If it is asynchronous it returns when the
// state has been copied: then the tensors may change, except frozen ones, and values and files
// have been asked for. begun is false, on all ranks, if an earlier save was still being written
// and the options say [Skip]. The error may be that of the save before; then this one was not
// begun.
func (s *Saver) Save(ctx context.Context, step int, state State) (begun bool, err error) {
	v := &save{crew: crewOf(s.front), to: s.to, step: step, state: state}
	v.saveOptions = saveOptionsOf([]SaveOption{WithRetention(s.o.Keep), WithTogether(s.o.Together...), WithReplace(s.o.Replace...)})
	if s.o.Share > 0 {
		v.share = s.o.Share
	}
	if s.o.BytesPerSecond > 0 {
		v.pace = func(n int) error { return s.pace(ctx, n) }
	}
	if !s.o.Async {
		files, err := v.plan(ctx)
		if err == nil {
			err = v.run(ctx, files)
		}
		if v.committed && s.o.Committed != nil {
			s.o.Committed(step)
		}
		return err == nil, err
	}
	if s.o.Busy == Skip {
		busy, err := v.isAnyBusy(ctx, !s.last().hasEnded())
		if busy || err != nil {
			return false, err
		}
	}
	// The ranks agree on the error of the save before: some may have seen it by Err.
	if err := v.agree(ctx, s.Wait(ctx)); err != nil {
		return false, err
	}
	files, err := v.plan(ctx)
	if err != nil {
		return false, err
	}
	if err := v.agree(ctx, v.fail("copy", s.copy(ctx, v, files))); err != nil {
		return false, v.fail("copy", err)
	}
	s.begin(ctx, v, files)
	return true, nil
}

// isAnyBusy says whether any rank is still writing.
func (v *save) isAnyBusy(ctx context.Context, mine bool) (bool, error) {
	all, err := allGather(ctx, v.crew, mine)
	if err != nil {
		return false, v.fail("compare", err)
	}
	for _, busy := range all {
		if busy {
			return true, nil
		}
	}
	return false, nil
}

// copy copies all that the save will write, so that the program may change it.
func (s *Saver) copy(ctx context.Context, v *save, files []filePlan) error {
	var err error
	if v.state.Values, err = asTexts(v.state.Values); err != nil {
		return err
	}
	if v.state.RankValues, err = asTexts(v.state.RankValues); err != nil {
		return err
	}
	if write := v.state.Files; write != nil && v.rank == 0 {
		kept, err := keepFiles(ctx, v.step, write)
		if err != nil {
			return err
		}
		v.state.Files = kept
	}
	s.stage.copy(files)
	return nil
}

// asTexts encodes values now; what changes later does not matter.
func asTexts(values map[string]any) (map[string]any, error) {
	texts, err := encodeValues(values)
	if err != nil || len(texts) == 0 {
		return nil, err
	}
	out := make(map[string]any, len(texts))
	for name, text := range texts {
		out[name] = text
	}
	return out, nil
}

// begin writes and commits in a goroutine of its own.
func (s *Saver) begin(ctx context.Context, v *save, files []filePlan) {
	// The end of the caller's context does not end the save: Close does.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &pending{step: v.step, done: make(chan struct{}), stop: stop}
	s.mu.Lock()
	s.pending = p
	s.mu.Unlock()
	v.crew, v.beside = crewOf(s.back), true
	if s.o.BytesPerSecond > 0 {
		v.pace = func(n int) error { return s.pace(inner, n) }
	}
	go func() {
		defer close(p.done)
		defer stop()
		yieldThread()
		err := v.run(inner, files)
		s.mu.Lock()
		s.err = errors.Join(s.err, err)
		s.mu.Unlock()
		if v.committed && s.o.Committed != nil {
			s.o.Committed(v.step)
		}
	}()
}

func (s *Saver) last() *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// Err returns the error of a save that has ended, once, and does not wait. It is nil while a
// save is under way. A rank may see an error a moment before the others do: a loop that ends by
// it ends all ranks by their next collective. [Saver.Save] gives it to all ranks at the same
// call.
func (s *Saver) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// Pending returns the step that is being written, and whether there is one.
func (s *Saver) Pending() (step int, ok bool) {
	p := s.last()
	if p.hasEnded() {
		return 0, false
	}
	return p.step, true
}

// Wait waits for the save under way, if there is one, and returns the error that Err would. The
// end of ctx ends the wait and not the save.
func (s *Saver) Wait(ctx context.Context) error {
	if p := s.last(); p != nil {
		select {
		case <-p.done:
		case <-ctx.Done():
			select {
			case <-p.done:
			default:
				return fmt.Errorf("checkpoint: step %d is still being written to %s: %w", p.step, s.to, context.Cause(ctx))
			}
		}
	}
	return s.Err()
}

// Close waits for the save under way and closes the saver's group. When ctx ends before, the
// save is given up, and nothing is left of it.
func (s *Saver) Close(ctx context.Context) error {
	err := s.Wait(ctx)
	if p := s.last(); !p.hasEnded() {
		p.stop()
		if s.back != nil {
			s.back.Close() // for the ranks that wait for each other
		}
		<-p.done
		err = errors.Join(err, s.Err())
	}
	s.stage.free()
	if s.back != nil {
		err = errors.Join(err, s.back.Close())
	}
	return err
}

// paceOf returns what waits until n more bytes may be written.
func paceOf(bytesPerSecond int64) func(ctx context.Context, n int) error {
	var mu sync.Mutex
	var next time.Time // when what was given out has been used
	return func(ctx context.Context, n int) error {
		if bytesPerSecond <= 0 {
			return nil
		}
		mu.Lock()
		now := time.Now()
		if next.Before(now) {
			next = now
		}
		wait := next.Sub(now)
		next = next.Add(time.Duration(float64(n) / float64(bytesPerSecond) * float64(time.Second)))
		mu.Unlock()
		if wait <= 0 {
			return nil
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
