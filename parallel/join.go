// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// WithJoin lets the ranks of a DDP end at different steps, by [DDP.Join], and weigh unlike in
// the mean, by [DDP.Weigh]. Behind the gradients of a bucket then travels the weight of each
// rank: that is how a rank hears which others have ended. All ranks give the option. With
// [WithPyTorch] it does nothing: every DDP of PyTorch has join.
func WithJoin() DDPOption { return func(o *ddpOptions) { o.join = true } }

// JoinOption is an option of [DDP.Join]. All ranks give the same ones.
type JoinOption func(*joinOptions)

type joinOptions struct {
	divideByLive, errorOnEarlyEnd bool
	step                          func(ctx context.Context) error
}

// WithDivideByLive divides gradients by the number of ranks that still have
// inputs, instead of by the group's size: PyTorch's
// divide_by_initial_world_size=False. Only with [WithPyTorch] is there a choice: other
// DDPs always divide by the weights of the ranks that have inputs.
func WithDivideByLive() JoinOption { return func(o *joinOptions) { o.divideByLive = true } }

// WithErrorOnEarlyEnd ends the training of all ranks with an [EarlyEndError] when
// one of them has no inputs any more: PyTorch's throw_on_early_termination.
func WithErrorOnEarlyEnd() JoinOption { return func(o *joinOptions) { o.errorOnEarlyEnd = true } }

// WithJoinedStep has a rank that has ended call fn after each step of the others, with the
// gradients that they have: if it steps the optimizer, the optimizer's state stays the same on all
// ranks. It is refused with [WithPyTorch], over which parameters without a gradient are not told.
func WithJoinedStep(fn func(ctx context.Context) error) JoinOption {
	return func(o *joinOptions) { o.step = fn }
}

// EarlyEndError says that a rank has run out of inputs before the others.
type EarlyEndError struct {
	Rank  int // this rank
	Ended int // the lowest rank without inputs; -1 if PyTorch's ranks have not told
}

func (e *EarlyEndError) Error() string {
	who := fmt.Sprintf("rank %d", e.Ended)
	if e.Ended < 0 {
		who = fmt.Sprintf("another rank than %d", e.Rank)
	}
	return fmt.Sprintf("ddp: join: %s has no more inputs, and WithErrorOnEarlyEnd ends the training of all", who)
}

// JoinError says that some ranks train in a Join, and others outside of one.
type JoinError struct {
	Inside, Outside int // the lowest rank of each
}

func (e *JoinError) Error() string {
	return fmt.Sprintf("ddp: rank %d trains in a Join and rank %d outside of one: all ranks call Join, or none", e.Inside, e.Outside)
}

// Join runs a training loop whose number of steps may differ between ranks. It needs the option
// [WithJoin], or [WithPyTorch]. When fn has returned, the rank goes on with collectives that match
// those of the ranks that still train: it brings no gradients, and a weight of zero. So gradients
// are means over the samples of the ranks that have some. A step costs no further collective. When
// the last rank has ended, all ranks bring zeros once, and Join returns.
//
// At the end all ranks have the parameters and buffers of the lowest of those that trained
// longest. An optimizer has the state of its rank's last step; see [WithJoinedStep], which a
// [ZeroRedundancyOptimizer] needs, because its update communicates. Buffers come
// from the lowest rank that had inputs in the step before. There are no gradients then. An error of fn is returned at once, and
// the other ranks wait on: fail or close the group then.
//
// All steps inside are forward passes of this DDP, followed by the backward pass if it is
// training. Passes under NoSync belong to the step of the next pass outside of it; those after a
// rank's last step are lost. The model must have no collectives of its own.
//
// With [WithPyTorch] it is PyTorch's join. There the last state is that of the highest rank, and
// gradients are divided by the group's size unless [WithDivideByLive] is given.
func (d *DDP) Join(ctx context.Context, fn func() error, opts ...JoinOption) error {
	var o joinOptions
	for _, opt := range opts {
		opt(&o)
	}
	return d.reducer.join(ctx, fn, o)
}

// Weigh sets the weight of this rank in the mean of the steps that follow, such as the number
// of samples in its batch; it is 1 at first. Gradients are then Σ weight·gradient / Σ weight. It
// needs the option [WithJoin]. A weight counts for all passes of a step: set it before the first.
func (d *DDP) Weigh(weight float64) error {
	r, native := d.reducer.(*nativeReducer)
	switch {
	case !native || r.joins == nil:
		return errors.New("ddp: Weigh needs the option WithJoin, and a DDP without WithPyTorch")
	case !(weight > 0) || math.IsInf(weight, 1):
		return fmt.Errorf("ddp: the weight of a rank is %v: it must be a number above 0", weight)
	}
	return r.joins.weigh(weight)
}

// joins is what a native reducer knows of the weights of the ranks.
type joins struct {
	rank   int
	slots  *tensor.Tensor // [ranks]: where the weights travel, each rank's in its own; negative outside of a Join
	bucket int            // in which they travel; -1 beside hooks
	weight float64        // of this rank, 0 once it has ended
	total  float64        // of all ranks in the last step: by it gradients are divided before they are summed
	inside bool           // of a Join
	early  bool           // all ranks are to end with the first
	uneven bool           // there was a step in which some ranks had ended
	source int            // the lowest rank that had inputs in the last step
}

func newJoins(rank, ranks int) *joins {
	return &joins{rank: rank, weight: 1, total: float64(ranks)}
}

func (j *joins) weigh(weight float64) error {
	got := tensor.Full(weight, 1).To(j.slots.DType()).Item()
	if got != float64(float32(weight)) || got == 0 || math.IsInf(got, 0) { // 0 would say that the rank has ended
		return fmt.Errorf("ddp: the weight %v is no %v, in which it travels: divide the weights of all ranks by one number", weight, j.slots.DType())
	}
	j.weight = weight
	return nil
}

// share is what this rank's gradients are multiplied by before they are summed.
func (j *joins) share() float64 { return j.weight / j.total }

// fill puts this rank's weight behind the gradients.
func (j *joins) fill() {
	j.slots.Fill(0)
	w := j.weight
	if !j.inside {
		w = -w
	}
	j.slots.Narrow(0, j.rank, 1).Fill(w)
}

// read takes what the ranks have told, and returns by how much their sum is to be
// multiplied; 0 if all ranks have ended.
func (j *joins) read() (factor float64, err error) {
	weights := j.slots.Float32s()
	inside, outside, ended := -1, -1, -1
	total := 0.0
	for rank, w := range slices.Backward(weights) {
		switch {
		case w > 0:
			inside = rank
		case w < 0:
			outside = rank
		default:
			ended = rank
		}
		total += math.Abs(float64(w))
	}
	switch {
	case outside >= 0 && (inside >= 0 || ended >= 0):
		return 0, &JoinError{Inside: max(inside, ended), Outside: outside}
	case total == 0:
		return 0, nil
	}
	j.source, j.uneven = max(inside, outside), j.uneven || ended >= 0
	factor = j.total / total
	j.total = total
	return factor, nil
}

// ended returns the lowest rank that had ended in the last step.
func (j *joins) ended() int { return slices.Index(j.slots.Float32s(), 0) }

// join runs fn, and then the steps of the ranks that have not ended.
func (r *nativeReducer) join(ctx context.Context, fn func() error, o joinOptions) error {
	j := r.joins
	switch {
	case j == nil:
		return errors.New("ddp: Join needs the option WithJoin, or beside PyTorch's ranks the option WithPyTorch, on every rank")
	case j.inside:
		return errors.New("ddp: Join inside a Join")
	}
	was := j.weight
	j.inside, j.uneven, j.early = true, false, o.errorOnEarlyEnd
	defer func() { j.inside, j.early, j.weight, j.source = false, false, was, 0 }()
	if err := fn(); err != nil {
		return err
	}
	j.weight = 0
	for {
		live, err := r.shadow(ctx)
		if early := (*EarlyEndError)(nil); errors.As(err, &early) {
			return err
		}
		if err != nil {
			r.abandon()
			return fmt.Errorf("ddp: join: take part in a step of the other ranks: %w", err)
		}
		if !live {
			break
		}
		if o.step != nil {
			if err := o.step(ctx); err != nil {
				return err
			}
		}
	}
	r.dropGrads()
	if !j.uneven {
		return nil
	}
	for _, s := range nn.StateDict(r.model) {
		if err := r.split.world.broadcastFrom(ctx, s.Tensor, j.source); err != nil {
			return fmt.Errorf("ddp: join: broadcast %s from rank %d: %w", s.Name, j.source, err)
		}
	}
	return nil
}

// dropGrads drops the gradients that this rank has: its share of what follows is nothing.
func (r *nativeReducer) dropGrads() {
	for _, p := range r.params {
		if !p.Frozen {
			p.ZeroGrad()
		}
	}
}

// shadow takes part in a step of the ranks that have not ended, and reports whether there is
// one: else all ranks have.
func (r *nativeReducer) shadow(ctx context.Context) (live bool, err error) {
	r.dropGrads()
	if err := r.shareBuffers(ctx); err != nil {
		return false, err
	}
	if err := r.begin(true); err != nil {
		return false, err
	}
	for _, b := range r.buckets {
		b.unused = b.unused[:0]
		for i, p := range b.params {
			b.views[i].Fill(0)
			b.unused = append(b.unused, i)
			if !p.Frozen {
				p.SetGrad(b.views[i])
			}
		}
	}
	if at := r.joins.bucket; at >= 0 {
		for _, b := range r.buckets[:at+1] {
			b.missing = 0
		}
		r.atEnd = true
		r.launch(ctx)
		for _, b := range r.buckets[:at+1] {
			if err := b.work.wait(context.WithoutCancel(ctx)); err != nil {
				return false, err
			}
		}
		if !slices.ContainsFunc(r.joins.slots.Float32s(), func(w float32) bool { return w != 0 }) {
			r.reducing = false
			return false, nil
		}
	}
	for _, b := range r.buckets {
		b.missing = 0
	}
	if err := r.complete(ctx); err != nil {
		return false, err
	}
	return !r.allEnded, nil
}
