// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/data"
)

// Feed delivers batches of one rank, one after the other. A feed that is a
// *[data.Loader] also proves in which order samples were taken.
type Feed[B any] interface {
	// Next returns the next batch; an error is the end of the run.
	Next(ctx context.Context) (B, error)
	// State is the place after the last batch, for a checkpoint.
	State() data.LoaderState
	Close()
}

// startFeed starts making batches, from where the saved run was.
func (r *trainer[B]) startFeed(ctx context.Context, saved *SavedRun) (err error) {
	var from data.LoaderState
	if saved != nil {
		from = saved.loader
	}
	r.feed, err = r.task.Feed(context.WithoutCancel(ctx), from)
	if other := (*data.ResumeError)(nil); errors.As(err, &other) {
		return settled(r.errorf("the data are not those that %s was saved with: %w", saved.Checkpoint.Path, err))
	}
	if err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

// checkPass holds a pass, in which all ranks together took samples, to what the
// options and the data axis say. It knows of feeds that say what they deliver.
func (r *trainer[B]) checkPass(taken int64) error {
	if r.order == nil || taken < 1 {
		return nil
	}
	size, passes := r.axes.Data.Size(), int64(r.o.Accumulate)
	if n := int64(len(r.order.feed.Keys())); size > 1 && n == taken {
		return fmt.Errorf("Task.Feed gives this rank all %d samples of a pass, though there are %d ranks: give its sampler Rank: group.Rank() and World: group.Size()", n, size)
	}
	if r.o.Batch == 0 || taken*passes == int64(r.o.Batch) {
		r.shortPass = false
		return nil
	}
	// A sampler's last batch of an epoch may be short, and then a full one follows.
	if taken*passes < int64(r.o.Batch) && !r.shortPass {
		r.shortPass = true
		return nil
	}
	return fmt.Errorf("Options.Batch is %d samples a step, but Task.Feed takes %d of all ranks in each of %d passes: give both the same, or the epochs come out wrong",
		r.o.Batch, taken, passes)
}

const (
	waitsTooLong = 0.1 // share of its time that a rank waits for data before the user hears of it
	waitsBatches = 20  // that tell
)

// tellWaiting says once in a run that rank 0 waits for data, and why. The other
// ranks have loaders like it; one whose data is slower than that is a straggler,
// which DDP tells.
func (r *trainer[B]) tellWaiting() {
	loader, ok := r.feed.(interface{ Stats() data.LoaderStats })
	if !ok || r.toldWaiting {
		return
	}
	s := loader.Stats()
	if s.Batches < waitsBatches || s.WaitShare() < waitsTooLong {
		return
	}
	r.toldWaiting = true
	r.report.Notice("training waits for data: " + s.String())
}
