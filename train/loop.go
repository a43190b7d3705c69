// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
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
		loss, err := r.trainStep(work)
		if err != nil {
			return fmt.Errorf("train lm: step %d: %w", r.step+1, err)
		}
		loss, stop, err := r.agree(work, loss, ctx.Err() != nil)
		if err != nil {
			return fmt.Errorf("train lm: step %d: %w", r.step+1, err)
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("train lm: the loss of step %d is %v; nothing of this step was saved: lower --lr (now %v) and run again to go on from the last checkpoint",
				r.step+1, loss, r.cfg.LR)
		}
		r.step++
		r.report.Step(Step{Step: r.step, Loss: loss, Tokens: r.tokensPerStep(), Duration: time.Since(start)})

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

// trainStep does one step of this rank: forward, backward with the averaging
// of gradients, clip, update.
func (r *lmRun) trainStep(ctx context.Context) (loss float64, err error) {
	batch, err := r.loader.Next(ctx)
	if err != nil {
		return 0, err
	}
	inputs, targets := tensorsOf(batch)

	c := nn.Training(ctx, r.cfg.autocast())
	defer c.Close()
	defer c.Recover(&err)
	r.opt.ZeroGrad()
	l := tensor.CrossEntropy(c.Call(r.ddp, inputs), targets)
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	norm, scale := optim.ClipGradNorm(r.params, r.cfg.Clip)
	if err := optim.CheckGradNorm(r.params, norm); err != nil {
		// On all ranks alike: their gradients are the same.
		return 0, fmt.Errorf("%w: nothing of this step was saved; lower --lr (now %v) and run again to go on from the last checkpoint", err, r.cfg.LR)
	}
	optim.WarmupCosine(r.cfg.numWarmup(), r.cfg.Steps, r.cfg.LRFloor).Apply(r.opt, r.step)
	r.opt.Step(scale)
	return l.Item(), nil
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
