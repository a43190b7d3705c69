// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// With TORCH_DISTRIBUTED_DEBUG=DETAIL, a rank of PyTorch makes a second group of the same
// ranks as soon as it has made one, to compare in it what they are about to call, and waits
// there for all of them: before the first call, and without a word until its limit.
var errWrapped = errors.New("it runs with TORCH_DISTRIBUTED_DEBUG=DETAIL, with which PyTorch's ranks make groups of their own and wait there for all, also for Go's: set that to OFF or INFO")

const (
	// A look at the store for such a group comes wrappedPause after the group was made, and
	// each further one after half as long again as the one before: they stay few, however
	// long the group lives, and a rank that is late is found soon after.
	wrappedPause = 20 * time.Millisecond
	// wrapperTime is what all ranks have to come to such a group, and to their first call.
	wrapperTime = 10 * time.Second
)

// wrapperKeys is the part of the store in which PyTorch's ranks meet that compare the
// calls of a group.
func (j *job) wrapperKeys(name string) store.Store {
	keys := j.keys
	if j.release != Release1_13 {
		keys = j.glooKeys(name)
	}
	return store.Prefix(keys, "pg_wrapper:"+name)
}

// watchWrapper ends a group, and its forming, when a rank of PyTorch waits for this one
// where calls are compared; stop ends the watch.
//
// Ranks of PyTorch that lose one while they form a group leave others behind, which wait. So
// they are met there, and lost when all have come to their first call, by an exception. Until
// then no Go rank goes, and all know why.
func (j *job) watchWrapper(r *rules, b *gloo.Communicator, name string, cfg gloo.Config, end context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg.Store = j.wrapperKeys(name)
	var watching sync.WaitGroup
	watching.Go(func() {
		rank, ok := j.wrapped(ctx, r, cfg.Store)
		if !ok {
			return
		}
		err := fault.NewRankError(r.spec.Name, b.Member(rank), errWrapped)
		b.Doom(err)
		limit, cancel := context.WithTimeout(ctx, wrapperTime)
		defer cancel()
		if there, err := gloo.Open(limit, cfg); err == nil {
			defer there.Close()
			_ = there.MonitoredBarrier(limit, operation.Call{Op: operation.Barrier, Seq: 1}, true)
		}
		end(err)
		b.Fail(err)
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// wrapped waits for a rank that meets others to compare calls. It is false where none can
// come, or the store cannot be asked any more.
func (j *job) wrapped(ctx context.Context, r *rules, keys store.Store) (rank int, ok bool) {
	theirs, err := r.Foreign(ctx)
	if err != nil || len(theirs) == 0 {
		return 0, false
	}
	first := "0/"
	if j.release == Release1_13 {
		first += "rank_"
	}
	for pause := wrappedPause; ; pause += pause / 2 {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, false
		case <-timer.C:
		}
		for _, r := range theirs {
			if set, err := meeting.IsSet(ctx, keys, first+strconv.Itoa(r)); set || err != nil {
				return r, err == nil
			}
		}
	}
}
