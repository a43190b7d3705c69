// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// ErrStopped says that a run ended before its last step because its context
// did. A checkpoint of the last step was saved.
var ErrStopped = errors.New("stopped")

// train steps until the last step, or until ctx ends. The work itself does not
// end with ctx: all ranks finish the step that any of them is in.
func (r *lmRun) train(ctx context.Context) error {
	work := context.WithoutCancel(ctx)
	for r.step < r.cfg.Steps {
		start := time.Now()
		loss, err := r.gradients(work)
		if err != nil {
			return fmt.Errorf("train lm: step %d: %w", r.step+1, err)
		}
		loss, stop, err := r.agree(work, loss, ctx.Err() != nil)
		if err != nil {
			return fmt.Errorf("train lm: step %d: %w", r.step+1, err)
		}
		if err := r.update(loss); err != nil {
			return err
		}
		r.step++
		r.report.Step(Step{Step: r.step, Loss: loss, Tokens: r.tokensPerStep(), Duration: time.Since(start), Skipped: r.skipped})

		last := r.step == r.cfg.Steps
		if r.step%r.cfg.EvalEvery == 0 || last {
			if err := r.evaluate(work); err != nil {
				return err
			}
		}
		if r.step%r.cfg.SaveEvery == 0 || last || stop {
			if err := r.save(work); err != nil {
				return err
			}
		}
		if stop && !last {
			// Nobody leaves before rank 0 has saved, which a launcher would take for a failure.
			if err := r.group.Barrier(work); err != nil {
				return fmt.Errorf("train lm: stop after step %d: %w", r.step, err)
			}
			r.report.Notice(fmt.Sprintf("stopped at step %d of %d; the same command goes on from here", r.step, r.cfg.Steps))
			cause := context.Cause(ctx)
			if cause == nil {
				cause = errors.New("another rank was asked to")
			}
			return fmt.Errorf("train lm: %w at step %d of %d (%w)", ErrStopped, r.step, r.cfg.Steps, cause)
		}
	}
	return nil
}

// gradients does the passes of one step of this rank: forward and backward, of
// which the last averages the gradients of all of them over the ranks. It
// returns the mean loss of the rank's sequences.
func (r *lmRun) gradients(ctx context.Context) (loss float64, err error) {
	r.opt.ZeroGrad()
	for i := range r.cfg.Accumulate {
		pass := func() error {
			l, err := r.pass(ctx)
			loss += l / float64(r.cfg.Accumulate)
			return err
		}
		if last := i == r.cfg.Accumulate-1; last {
			err = pass()
		} else {
			err = r.ddp.NoSync(pass)
		}
		if err != nil {
			return 0, err
		}
	}
	return loss, nil
}

// pass runs forward and backward on the next batch and returns its loss.
func (r *lmRun) pass(ctx context.Context) (loss float64, err error) {
	batch, err := r.loader.Next(ctx)
	if err != nil {
		return 0, err
	}
	inputs, targets := tensorsOf(batch)

	c := nn.Training(ctx, r.cfg.autocast())
	defer c.Close()
	defer c.Recover(&err)
	for _, i := range r.around {
		c = c.With(i)
	}
	l := tensor.CrossEntropy(c.Call(r.ddp, inputs), targets)
	share := l
	if r.cfg.Accumulate > 1 {
		share = l.MulScalar(1 / float64(r.cfg.Accumulate))
	}
	loss = l.Item()
	return loss, share.Backward(ctx)
}

// update ends a step of which loss is the mean of all ranks: it clips the
// gradients and moves the parameters, or leaves that out if something is not
// finite and the run is to go on then.
func (r *lmRun) update(loss float64) error {
	norm, scale := optim.ClipGradNorm(r.params, r.cfg.Clip)
	if err := checkFinite(r.params, r.step+1, loss, norm); err != nil {
		return r.skip(err)
	}
	r.skippedInRow = 0
	optim.WarmupCosine(r.cfg.numWarmup(), r.cfg.Steps, r.cfg.LRFloor).Apply(r.opt, r.step)
	r.opt.Step(scale)
	return nil
}

// agree returns the mean loss of all ranks, and whether any of them wants to
// stop.
func (r *lmRun) agree(ctx context.Context, loss float64, stop bool) (float64, bool, error) {
	r.vote.WithFloat32s(func(v []float32) {
		v[0], v[1] = float32(loss), 0
		if stop {
			v[1] = 1
		}
	})
	if err := r.group.AllReduce(ctx, r.vote, dist.Sum); err != nil {
		return 0, false, err
	}
	v := r.vote.Float32s()
	return float64(v[0]) / float64(r.group.Size()), v[1] > 0, nil
}

// evaluate computes the bits per byte of the validation text, of which every
// rank takes a share.
func (r *lmRun) evaluate(ctx context.Context) error {
	nats := 0.0
	for batch := range r.validation.Batches(r.group.Rank(), r.group.Size(), r.cfg.Batch) {
		loss, err := r.evalStep(ctx, batch)
		if err != nil {
			return fmt.Errorf("train lm: evaluate after step %d: %w", r.step, err)
		}
		nats += loss
	}
	sum := tensor.Full(nats, 1)
	if err := r.group.AllReduce(ctx, sum, dist.Sum); err != nil {
		return fmt.Errorf("train lm: evaluate after step %d: %w", r.step, err)
	}
	r.bitsPerByte = data.BitsPerByte(sum.Item(), r.validation.Bytes())
	r.report.Evaluation(Evaluation{Step: r.step, BitsPerByte: r.bitsPerByte})
	return nil
}
