// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/store"
)

// watchOthers ends the forming, on a rank 0 that serves the store, when another rank
// shows itself where ranks of another PyTorch meet: it would wait in vain, and be
// waited for. Elsewhere it is the launcher that sees it, where that serves the store.
func (j *job) watchOthers(ctx context.Context, end context.CancelCauseFunc) (stop func()) {
	other := Release1_13
	if j.release == other {
		other = release2
	}
	mixed := func(r int) {
		end(fault.NewRankError(backend.World, fault.Member{Rank: r}, fmt.Errorf("it runs %v, and others run %v, which cannot be in one group", other, j.release)))
	}
	if j.server == nil {
		return j.watchLauncher(ctx, func(old, young int) {
			if other == Release1_13 {
				mixed(old)
			} else {
				mixed(young)
			}
		})
	}
	gloo, _ := glooPrefixes(other, "0")
	there := store.Prefix(j.keys, gloo)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	for r := 1; r < j.worldSize; r++ {
		watching.Go(func() {
			if there.Wait(ctx, fmt.Sprintf("0/%d", r)) == nil {
				mixed(r)
			}
		})
	}
	return func() {
		cancel()
		watching.Wait()
	}
}

// watchLauncher looks whether the launcher says that ranks of 1.13 and of 2.x have
// come, and which is the first of each.
func (j *job) watchLauncher(ctx context.Context, mixed func(old, young int)) (stop func()) {
	if j.client == nil || !j.place.agent {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		if hosted, err := meeting.IsSet(ctx, j.client, store.PyTorchHosted); !hosted || err != nil {
			return
		}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			text, err := meeting.Peek(ctx, j.client, store.PyTorchMixed)
			if err != nil {
				return // the forming hears of it
			}
			var old, young int
			if n, _ := fmt.Sscan(string(text), &old, &young); n == 2 {
				mixed(old, young)
				return
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}
