// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// ErrStopped says that a run ended before its last step because its context
// did. A checkpoint of the last step was saved.
var ErrStopped = errors.New("stopped")

// train steps until the last step, until nothing gets better, or until ctx ends.
// The work itself does not end with ctx, see patient.
func (r *trainer[B]) train(ctx context.Context) error {
	work, done := r.patient(ctx)
	defer done()
	if r.standing.Due {
		phaseOf(ctx).enter("evaluating step %d", r.step)
		if err := r.evaluate(work); err != nil {
			return err
		}
		if r.standing.Due {
			return r.stopped(ctx, work)
		}
	}
	if r.o.Batch > 0 {
		phaseOf(ctx).enter("doing the first step, of %d samples", r.o.Batch)
	} else {
		phaseOf(ctx).enter("doing the first step")
	}
	r.islandsBegun = time.Now()
	stream := r.axes.World.Events()
	stream.Enter(event.Other)
	work = event.With(work, stream)
	r.ledger = newLedger(r.axes.World, r.step, r.standing.Goodput, r.rates.FLOPs, r.sameReplicas(), r.report.Notice, r.noteRanks)
	r.ledger.measure = r.measureRates
	defer r.keepPeak()
	r.profiler = r.newProfiler()
	defer r.profiler.Close()
	for r.step < r.o.Steps && !r.standing.over(r.o.Patience) {
		r.profiler.Begin(r.step + 1)
		start := time.Now()
		r.emergency.begin(r.feed.State())
		mine, err := r.gradients(work)
		if err != nil {
			return r.errorf("step %d: %w", r.step+1, err)
		}
		// Before the ranks agree, so that what one of them saves all have written down.
		if err := r.order.step(r.step+1, r.feed.State()); err != nil {
			return r.errorf("step %d: %w", r.step+1, err)
		}
		mine.stop, mine.failed = ctx.Err() != nil, r.saves.failed()
		all, err := r.update(work, mine)
		if err != nil {
			return err
		}
		r.step++
		r.emergency.within = false
		phaseOf(ctx).begin()
		r.replaced += all.replaced
		r.tellStep(stream, all, time.Since(start))
		r.report.Step(Step{
			Step: r.step, Loss: all.loss, Size: all.size, Unit: r.task.Unit, Duration: time.Since(start),
			Skipped: r.skipped, Replaced: r.replaced,
			LearningRate: r.opt.Groups()[0].LR(), GradNorm: all.norm, Epoch: r.epoch(),
		})
		if err := r.endProfiled(work); err != nil {
			return err
		}
		if err := r.keepProof(work, all); err != nil {
			return err
		}
		if err := r.exchange(work); err != nil {
			return err
		}
		if r.ledger.due(r.step) {
			if err := r.compareTimes(work); err != nil {
				return err
			}
		}

		r.tellSaved()
		if all.failed {
			return r.failedSave(work)
		}

		last := r.step == r.o.Steps
		if due(r.step, r.o.EvalEvery) || last {
			if err := stream.Within(event.Evaluating, func() error { return r.evaluate(work) }); err != nil {
				return err
			}
			r.tellWaiting()
			last = last || r.standing.over(r.o.Patience)
		}
		cut := r.standing.Due
		if due(r.step, r.o.SaveEvery) || last || all.stop || cut {
			if err := r.compareTimes(work); err != nil { // what a checkpoint has is of its step
				return err
			}
			if err := stream.Within(event.Saving, func() error { return r.save(work) }); err != nil {
				return err
			}
			if !last && !all.stop && !cut && r.islands == nil { // the next step of an island depends on others
				if err := r.expectProof(work); err != nil {
					return err
				}
			}
		}
		if all.stop && !last || cut {
			return r.stopped(ctx, work)
		}
	}
	return nil
}

// due reports whether something that is done every so many steps is due.
func due(step, every int) bool { return every > 0 && step%every == 0 }

// stopped ends a run that was asked to stop and has saved.
func (r *trainer[B]) stopped(ctx, work context.Context) error {
	r.emergency.saving.Store(true)
	if err := r.endSaves(work); err != nil {
		return err
	}
	// Nobody leaves before rank 0 has saved, which a launcher would take for a failure.
	if err := r.axes.World.Barrier(work); err != nil {
		return r.errorf("stop after step %d: %w", r.step, err)
	}
	r.report.Notice(fmt.Sprintf("stopped at step %d of %d; the same command goes on from here", r.step, r.o.Steps))
	cause := context.Cause(ctx)
	if cause == nil {
		cause = errors.New("another rank was asked to")
	}
	return r.errorf("%w at step %d of %d (%w)", ErrStopped, r.step, r.o.Steps, cause)
}

// share is what one rank has done in a step, or all of them.
type share struct {
	size     int  // of the batches
	replaced int  // samples that could not be made
	stop     bool // somebody wants to
	failed   bool // a save before has

	// Of all ranks alone: those of one are still being computed.
	loss float64 // mean of all samples
	norm float64 // of all gradients together
}

// gradients does the passes of one step of this rank, forward and backward, and averages
// the gradients of all of them over the ranks. The batches are there before the first pass:
// a pipeline has several passes under way.
func (r *trainer[B]) gradients(ctx context.Context) (mine share, err error) {
	r.opt.ZeroGrad()
	r.vote.begin()
	stream := r.axes.World.Events()
	batches, weights := make([]B, r.o.Accumulate), make([]float64, r.o.Accumulate)
	stream.Enter(event.Data)
	for i := range batches {
		if batches[i], weights[i], err = r.next(ctx, &mine); err != nil {
			return mine, err
		}
	}
	stream.Enter(event.Other)
	if err := r.weigh(ctx, batches, weights); err != nil {
		return mine, err
	}
	passes := make([]parallel.Microbatch, r.o.Accumulate)
	for i := range passes {
		passes[i] = r.pass(i, batches[i], weights[i])
	}
	loss, err := r.model.Step(ctx, passes)
	stream.Enter(event.Other)
	if err != nil {
		return mine, err
	}
	r.vote.addLoss(loss)
	return mine, nil
}

// pass is the forward pass of a batch, with its weight in the mean of the step.
func (r *trainer[B]) pass(i int, batch B, weight float64) parallel.Microbatch {
	return parallel.Microbatch{
		Carrier: func(ctx context.Context) *nn.Ctx {
			c := nn.Training(ctx, nn.WithDevice(r.devices[0]), nn.WithAutocast(autocasts[r.o.DType]), nn.WithGenerator(r.recorder.draws(r.generator(i))))
			for _, around := range r.task.Around {
				c = c.With(around)
			}
			return c
		},
		Loss: func(c *nn.Ctx) *tensor.Tensor {
			stream := r.axes.World.Events()
			stream.Enter(event.Forward)
			defer stream.Enter(event.Backward) // which follows, or the end of the step
			loss := r.task.Loss(c, r.model, batch)
			if loss == nil || loss.NumElems() != 1 {
				c.Fail(lossError(loss))
			}
			if weight != 1 {
				loss = loss.MulScalar(weight)
			}
			return loss
		},
	}
}

// weigh replaces the weights of a step's batches, if the task says what counts in them: each batch
// weighs what counts in it, divided by what counts in those of all ranks and passes. The ranks that
// take the same samples count once.
func (r *trainer[B]) weigh(ctx context.Context, batches []B, weights []float64) error {
	if r.task.Weigh == nil {
		return nil
	}
	sum := 0.0
	for i, batch := range batches {
		weights[i] = r.task.Weigh(batch)
		if !(weights[i] >= 0) || math.IsInf(weights[i], 1) {
			return fmt.Errorf("Task.Weigh says that %v counts in a batch, want a finite number from 0 on", weights[i])
		}
		sum += weights[i]
	}
	if r.axes.World.Size() > 1 {
		all := tensor.FromFloat64([]float64{sum})
		if err := r.axes.World.AllReduce(ctx, all, dist.Sum); err != nil {
			return fmt.Errorf("count what the loss counts: %w", err)
		}
		sum = all.Item() / float64(r.axes.copies())
	}
	if sum == 0 {
		return errors.New("nothing in the batches of this step counts in the loss: take more samples in a step, or leave out those in which nothing counts")
	}
	for i := range weights {
		weights[i] *= float64(r.axes.Data.Size()) / sum // Step takes the mean over the ranks
	}
	return nil
}

// lossError says that Task.Loss returned what no mean is.
func lossError(loss *tensor.Tensor) error {
	if loss == nil {
		return fmt.Errorf("Task.Loss returned nil, want the mean loss of the batch")
	}
	return fmt.Errorf("Task.Loss returned a tensor of dims %v, want one number: the mean loss of the batch (Mean)", loss.Shape())
}

// next returns the next batch, and its weight in the mean of the step: the passes
// weigh the same, and in each of them the samples of all ranks do.
func (r *trainer[B]) next(ctx context.Context, mine *share) (batch B, weight float64, err error) {
	before := r.feed.State().Position
	if batch, err = r.feed.Next(ctx); err != nil {
		return batch, 0, err
	}
	r.recorder.sampled(batch, r.feed)
	if r.task.Size != nil {
		mine.size += r.task.Size(batch)
	}
	taken := r.feed.State().Position - before
	if err := r.checkPass(taken); err != nil {
		return batch, 0, err
	}
	weight, replaced, err := r.order.add(taken)
	mine.replaced += replaced
	return batch, weight / float64(r.o.Accumulate), err
}

// update ends a step: the ranks sum their shares, the gradients are clipped and the
// parameters moved. What the step has come to is read afterwards, so that the program
// does not wait for the device before. Where the loss or a gradient is not finite, the
// factor of the gradients is NaN: the optimizer has then written nothing, on any rank,
// and the run ends or goes on without the update.
func (r *trainer[B]) update(ctx context.Context, mine share) (all share, err error) {
	stream := r.axes.World.Events()
	stream.Enter(event.Optimizer)
	defer stream.Enter(event.Other)
	norm, err := r.move(ctx, mine)
	if err != nil {
		return all, r.errorf("step %d: %w", r.step+1, err)
	}
	all = r.vote.read(norm)
	done := isFinite(all.loss) && isFinite(all.norm)
	if e := r.task.Elsewhere; e != nil {
		if err := e.Moved(ctx, done); err != nil {
			return all, r.errorf("step %d: %w", r.step+1, err)
		}
	}
	if done {
		r.skippedInRow = 0
		return all, nil
	}
	r.opt.Skipped()
	bad, err := r.nonFinite(ctx, all)
	if err != nil {
		return all, r.errorf("step %d: %w", r.step+1, err)
	}
	return all, r.skip(bad)
}

// move is the part of update that the devices do. It returns the norm of the
// gradients when they have done it. A mistake that a device has found meanwhile, such
// as an index out of range in the forward pass, is an error.
func (r *trainer[B]) move(ctx context.Context, mine share) (norm *tensor.Tensor, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *tensor.Error:
			err = v
		default:
			panic(v)
		}
	}()
	if err := r.vote.sum(ctx, mine); err != nil {
		return nil, err
	}
	norm, scale, err := r.model.ClipGradNorm(ctx, r.params, r.o.Clip)
	if err != nil {
		return nil, err
	}
	if r.task.Schedule != nil {
		r.task.Schedule.Apply(r.opt, r.step)
	}
	r.vote.spoil(scale)
	r.emergency.moving = true
	if err := parallel.Update(ctx, r.opt, scale); err != nil {
		return nil, err
	}
	for _, dev := range r.devices {
		if err := tensor.Synchronize(dev); err != nil {
			return nil, err
		}
	}
	r.emergency.moving = false
	return norm, nil
}

// sound waits until no rank has ended by a mistake in the steps so far, and is an
// error if one has. A device that computes later finds a mistake only when its
// gradients have been averaged, so they may be in this rank's weights, which are not
// to be saved then. On a device that computes at once, the rank ends before.
func (r *trainer[B]) sound(ctx context.Context) error {
	if !slices.ContainsFunc(r.devices, tensor.Device.Late) {
		return nil
	}
	if err := r.axes.World.Barrier(ctx); err != nil {
		return r.errorf("after step %d: %w", r.step, err)
	}
	return nil
}
