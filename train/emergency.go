// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// When a run fails, the ranks that are left save the state after the last whole step. They cannot
// rely on each other any more, so each of them writes what it holds by itself. If the parts of
// these ranks are all tensors, the next start makes a checkpoint of them and goes on from it.

// saveDeadline is half the time that a launcher gives to ranks that are to end.
const saveDeadline = 15 * time.Second

// emergency is what a rank needs to save alone.
type emergency struct {
	attempt string // of the job, the same on all ranks

	// Parameters and the optimizer change in the update of a step alone. What the passes before
	// it change is kept here: the state before the step that is under way.
	feed    data.LoaderState
	buffers []*tensor.Tensor
	copies  []*tensor.Tensor // of the buffers

	within bool        // a step is under way
	moving bool        // its update is
	saving atomic.Bool // all ranks save together
	failed bool        // to save, or it must not
}

// prepareEmergency makes ready what a rank needs to save alone. All ranks call it.
func (r *trainer[B]) prepareEmergency(ctx context.Context) (err error) {
	e := &r.emergency
	if e.attempt, err = dist.BroadcastObject(ctx, r.axes.World, fmt.Sprintf("%016x", rand.Uint64()), 0); err != nil {
		return r.errorf("number the attempt: %w", err)
	}
	for _, b := range nn.Buffers(r.task.Model) {
		if b.Data.Device() != tensor.Meta {
			e.buffers = append(e.buffers, b.Data)
			e.copies = append(e.copies, tensor.New(b.Data.Device(), b.Data.DType(), b.Data.Shape()...))
		}
	}
	return nil
}

// begin begins a step, before which the feed was here.
func (e *emergency) begin(feed data.LoaderState) {
	e.feed, e.within = feed, true
	for i, b := range e.buffers {
		e.copies[i].CopyFrom(b)
	}
}

// putBack gives parts of buffers the values from before the step that is under way.
func (e *emergency) putBack(parts []checkpoint.Part) {
	for i, p := range parts {
		if at := slices.Index(e.buffers, p.Local); at >= 0 {
			parts[i].Local = e.copies[at]
		}
	}
}

// errTooLong ends the work of a run that does not end after it was asked to.
var errTooLong = errors.New("the step did not end in time after the run was asked to stop")

// patient returns the context of a run's work. It does not end with ctx: all ranks finish the step
// that any of them is in. But where that takes longer than the deadline for a save, as when a rank
// hangs, the work ends, and each rank saves alone in the time that is left.
func (r *trainer[B]) patient(ctx context.Context) (work context.Context, done func()) {
	work = context.WithoutCancel(ctx)
	if r.o.SaveDeadline < 0 || r.axes.World.Size() == 1 {
		return work, func() {}
	}
	work, cancel := context.WithCancelCause(work)
	over := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		wait := r.o.SaveDeadline
		if left, ok := timeLeft(ctx); ok {
			wait = min(wait, left/2)
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-over:
		case <-timer.C:
			if !r.emergency.saving.Load() {
				cancel(errTooLong)
			}
		}
	})
	return work, func() { // what ends beside training goes on
		forget()
		close(over)
	}
}

// timeLeft returns the time until the launcher kills the ranks, if a notice has said it.
func timeLeft(ctx context.Context) (left time.Duration, ok bool) {
	var stop *launch.StopError
	if !errors.As(context.Cause(ctx), &stop) || stop.Deadline.IsZero() {
		return 0, false
	}
	return time.Until(stop.Deadline), true
}

// rescue saves what this rank holds when the run ends by an error, and adds to the error what was
// saved.
func (r *trainer[B]) rescue(ctx context.Context, cause error) error {
	if !r.isWorthSaving(cause) {
		return cause
	}
	if r.awaitSave(ctx); r.step <= r.saves.newest() {
		return cause
	}
	// The others must not wait for this rank while it writes.
	r.axes.World.Fail(cause)
	deadline := r.o.SaveDeadline
	if left, ok := timeLeft(ctx); ok {
		deadline = min(deadline, left-time.Second)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), deadline, fmt.Errorf("it was not written within %v, the deadline for it", deadline.Round(time.Second)))
	defer cancel()
	rank := r.axes.World.Rank()
	if err := r.saveAlone(ctx); err != nil {
		return fmt.Errorf("%w; rank %d could not save the state after step %d: %w", cause, rank, r.step, err)
	}
	return fmt.Errorf("%w; rank %d saved its part of the state after step %d in %v", cause, rank, r.step, r.o.SaveTo)
}

// awaitSave gives a save that is under way some time: the ranks end it together, if they are well.
func (r *trainer[B]) awaitSave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.SaveDeadline/3)
	defer cancel()
	if err := r.saves.last.Wait(ctx); err != nil {
		r.report.Notice(err.Error())
	}
	r.tellSaved()
}

// isWorthSaving reports whether this rank has the state after a whole step that no checkpoint has.
func (r *trainer[B]) isWorthSaving(cause error) bool {
	e := &r.emergency
	switch {
	case r.o.SaveDeadline < 0, e.attempt == "", e.failed, e.moving, r.step <= r.saves.newest():
		return false
	case slices.ContainsFunc(r.devices, tensor.Device.Late): // see sound
		return false
	case errors.Is(cause, ErrStopped): // all was saved
		return false
	case errors.As(cause, new(*NonFiniteError)): // the checkpoint before is better
		return false
	case errors.As(cause, new(*checkpoint.SaveError)): // there is no place for it, unless it is that ranks are lost
		return errors.As(cause, new(*dist.RankError)) || errors.As(cause, new(*dist.TimeoutError)) || errors.Is(cause, errTooLong)
	}
	return true
}

// saveAlone writes this rank's part of the state after the last whole step.
func (r *trainer[B]) saveAlone(ctx context.Context) error {
	if err := r.order.sync(); err != nil {
		return err
	}
	e := &r.emergency
	loader := r.feed.State()
	if e.within {
		loader = e.feed
	}
	if isEvaluated := r.evaluated != nil && r.evaluated.step == r.step; !isEvaluated && r.task.Evaluate != nil {
		r.standing.Due = r.standing.Due || due(r.step, r.o.EvalEvery) || r.step == r.o.Steps
	}
	state, err := r.held(loader)
	if err != nil {
		return err
	}
	// What a hook keeps is left out. Each rank has its own, so the parts of the ranks that are left would
	// make no whole section, and no checkpoint. Within a step the hook may also have moved already.
	state.Sections[checkpoint.Optimizer] = r.optimizerParts()
	if e.within {
		for _, parts := range state.Sections {
			e.putBack(parts)
		}
	}
	return checkpoint.SavePart(ctx, r.axes.World.Rank(), r.axes.World.Size(), r.o.SaveTo, r.step, state, checkpoint.WithAttempt(e.attempt))
}
