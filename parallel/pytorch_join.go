// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

func (p *pytorchReducer) join(ctx context.Context, fn func() error, o joinOptions) error {
	if p.joining != nil {
		return errors.New("ddp: Join inside a Join")
	}
	if o.step != nil {
		return errors.New("ddp: join: WithJoinedStep with WithPyTorch: PyTorch's ranks do not step when they have ended; leave it out")
	}
	p.joining = &o
	defer func() { p.joining, p.divisor = nil, float64(p.group.Size()) }()
	if err := fn(); err != nil {
		return err
	}
	last := true
	for ; ; last = false {
		live, err := p.sumOf(ctx, 0, "count the ranks that still have inputs")
		if err != nil {
			return err
		}
		if live == 0 {
			break
		}
		if o.errorOnEarlyEnd {
			if _, err := p.sumOf(ctx, 1, "tell the ranks of the early end"); err != nil {
				return err
			}
			return &EarlyEndError{Rank: p.group.Rank(), Ended: p.group.Rank()}
		}
		if err := p.shadow(ctx); err != nil {
			return err
		}
	}
	candidate := -1
	if last {
		candidate = p.group.Rank()
	}
	src, err := p.commonRank(ctx, candidate)
	if err != nil {
		return err
	}
	defer p.state.release()
	return p.state.broadcast(ctx, p.group, src)
}

// notify tells ranks that have joined that this one has not.
func (p *pytorchReducer) notify(ctx context.Context) error {
	live, err := p.sumOf(ctx, 1, "count the ranks that still have inputs")
	if err != nil {
		return err
	}
	p.divisor = float64(p.group.Size())
	if p.joining.divideByLive {
		p.divisor = live
	}
	if !p.joining.errorOnEarlyEnd {
		return nil
	}
	ended, err := p.sumOf(ctx, 0, "ask for an early end")
	if err == nil && ended != 0 {
		err = &EarlyEndError{Rank: p.group.Rank(), Ended: -1}
	}
	return err
}

// shadow takes part in a step of the ranks that still have inputs.
func (p *pytorchReducer) shadow(ctx context.Context) error {
	if p.reducing {
		return errUnfinished
	}
	if p.rebuildDue() {
		if err := p.rebuild(ctx); err != nil {
			return err
		}
	}
	if p.syncNext && p.buffers != nil {
		src, err := p.commonRank(ctx, -1)
		if err != nil {
			return err
		}
		if err := p.buffers.broadcast(ctx, p.group, src); err != nil {
			return err
		}
	}
	syncing, err := p.sumOf(ctx, 0, "ask whether gradients will be averaged")
	if err != nil {
		return err
	}
	p.syncNext = syncing != 0
	if !p.syncNext {
		return nil
	}
	var works []*dist.Work
	for _, b := range p.buckets {
		b.flat.Fill(0)
		works = append(works, p.reduceBucket(ctx, b))
	}
	if p.o.FindUnused {
		p.used.Fill(0)
		works = append(works, p.group.AllReduceAsync(ctx, p.used, dist.Sum))
	}
	for _, w := range works {
		if err := w.Wait(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("ddp: join: bring zeros for the other ranks' gradients: %w", err)
		}
	}
	if !p.rebuilt && (p.o.StaticGraph || !p.o.FindUnused) && len(p.order) == 0 {
		for k := range p.params {
			p.order = append(p.order, k)
		}
	}
	return nil
}

// sumOf adds up a number over the ranks.
func (p *pytorchReducer) sumOf(ctx context.Context, v float64, what string) (float64, error) {
	t := tensor.Full(v, 1)
	if err := p.group.AllReduce(ctx, t, dist.Sum); err != nil {
		return 0, fmt.Errorf("ddp: join: %s: %w", what, err)
	}
	return t.Item(), nil
}

// commonRank returns the highest rank that any rank proposes; -1 proposes none.
func (p *pytorchReducer) commonRank(ctx context.Context, proposal int) (int, error) {
	t := tensor.FromInt64([]int64{int64(proposal)})
	if err := p.group.AllReduce(ctx, t, dist.Max); err != nil {
		return 0, fmt.Errorf("ddp: join: agree on the rank whose state counts: %w", err)
	}
	rank := t.Int64s()[0]
	if rank < 0 || rank >= int64(p.group.Size()) {
		return 0, fmt.Errorf("ddp: join: the ranks agreed on rank %d of %d", rank, p.group.Size())
	}
	return int(rank), nil
}
