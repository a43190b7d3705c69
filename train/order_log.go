// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"path/filepath"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// ordered is a [Feed] that says which samples it delivers: a *data.Loader.
type ordered interface {
	Keys() []data.Key
	Skipped() []data.Skip
}

// orderLog writes down on which samples a rank is trained, so that data.CheckOrder
// can prove that it was the promised ones in the promised order. It is nil for
// a feed that does not say.
type orderLog struct {
	feed  ordered
	log   *data.OrderLog // nil where another rank writes down the same samples
	start data.OrderAttempt
	begun bool
}

// openOrderLog opens the rank's log. All ranks number the attempt alike.
func (r *trainer[B]) openOrderLog(ctx context.Context) error {
	feed, ok := r.feed.(ordered)
	from := r.feed.State()
	// All ranks have the same feed, so either all of them go on or none.
	if !ok || from.Order == "" {
		return nil
	}
	p := &orderLog{feed: feed}
	last := tensor.FromInt64([]int64{0})
	if r.axes.writesSamples() {
		var err error
		if p.log, err = data.OpenOrderLog(filepath.Join(r.o.Out, data.OrderDir), r.axes.Data.Rank()); err != nil {
			return r.errorf("%w", err)
		}
		last = tensor.FromInt64([]int64{p.log.Last()})
	}
	if err := r.axes.World.AllReduce(ctx, last, dist.Max); err != nil {
		p.close()
		return r.errorf("number the attempt: %w", err)
	}
	p.start = data.OrderAttempt{Attempt: last.Int64s()[0] + 1, World: r.axes.Data.Size(), Step: r.step, From: from}
	r.order = p
	return nil
}

// add notes the batch that the feed has delivered, one of those in which all
// ranks together take total samples. It returns what the batch weighs in their
// mean, 1 where all ranks have as many samples, and how many of its samples stand
// in the place of others. The first batch tells how large they are.
func (p *orderLog) add(total int64) (weight float64, replaced int, err error) {
	if p == nil {
		return 1, 0, nil
	}
	keys, skipped := p.feed.Keys(), p.feed.Skipped()
	mine := int64(len(keys)) * int64(p.start.World)
	if !p.begun {
		p.start.Batch = len(keys)
		if mine != total {
			p.start.Total = int(total)
		}
		if p.log != nil {
			if err := p.log.Begin(p.start); err != nil {
				return 0, 0, err
			}
		}
		p.begun = true
	}
	if p.log != nil {
		p.log.Add(keys, skipped)
	}
	return float64(mine) / float64(total), len(skipped), nil
}

// step notes that a step's samples have been taken.
func (p *orderLog) step(step int, state data.LoaderState) error {
	if p == nil || p.log == nil {
		return nil
	}
	return p.log.Step(step, state.Position)
}

// sync makes the log durable, before a checkpoint says that its steps are done.
func (p *orderLog) sync() error {
	if p == nil || p.log == nil {
		return nil
	}
	return p.log.Sync()
}

// end notes that the run is complete.
func (p *orderLog) end() error {
	if p == nil || p.log == nil || !p.begun {
		return nil
	}
	return p.log.End()
}

func (p *orderLog) close() {
	if p != nil && p.log != nil {
		p.log.Close() // what matters was written, and synced where it had to be
	}
}
