// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/store"
)

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error { return g.run(g.barrier(ctx)) }

// BarrierAsync starts a [Group.Barrier]: its work ends when all ranks have called it.
func (g *Group) BarrierAsync(ctx context.Context) *Work { return g.runAsync(g.barrier(ctx)) }

func (g *Group) barrier(ctx context.Context) *request {
	return g.newRequest(ctx, collective.OpBarrier)
}

// verdictPatience is how long a rank whose time is up asks the store who is
// missing.
const verdictPatience = 10 * time.Second

// MonitoredBarrier returns when all ranks have called it, or when the first of
// them runs out of time, by its context or the group's limit. Then it returns
// on every rank, on those that come late too, the same [TimeoutError] with all
// the ranks that had not come, and the group works on. It goes through the
// store and takes milliseconds: it is for finding out who hangs.
//
// (PyTorch's monitored_barrier, with wait_all_ranks=True, but that the answer
// does not hang on rank 0.)
func (g *Group) MonitoredBarrier(ctx context.Context) error {
	r := g.newRequest(ctx, collective.OpBarrier)
	_, _, err := g.start(r)
	if err != nil {
		r.release()
		return err
	}
	defer func() {
		g.ended(r, false)
		r.release()
	}()
	seq := g.monitored.Add(1)
	missing, err := g.monitor(ctx, seq)
	switch {
	case err != nil:
		return fmt.Errorf("dist: monitored_barrier %d of group %q on rank %d: %w", seq, g.name, g.rank, err)
	case len(missing) > 0:
		late := &TimeoutError{Group: g.name, Op: "monitored_barrier", Seq: seq, Cause: context.DeadlineExceeded}
		for _, m := range missing {
			late.Missing = append(late.Missing, g.members[m])
		}
		return late
	}
	return nil
}

// monitor returns the ranks that have not come to a monitored barrier. What
// is decided is the first verdict that gets into the store: that all have come,
// by rank 0, or who is missing, by whichever rank runs out of time first.
func (g *Group) monitor(ctx context.Context, seq uint64) (missing []int, err error) {
	keys := store.Prefix(g.base, "monitored/"+g.key+"/")
	came := func(rank int) string { return fmt.Sprintf("%d/%d", seq, rank) }
	verdict := func(seq uint64) string { return fmt.Sprintf("%d/verdict", seq) }
	limited, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()
	// What follows the end of the time must not be ended by it.
	after, cancelAfter := context.WithTimeout(context.WithoutCancel(ctx), g.timeout+verdictPatience)
	defer cancelAfter()

	if err := keys.Set(after, came(g.rank), []byte{1}); err != nil {
		return nil, err
	}
	defer func() { // nobody asks any more: the verdict is there
		if _, failed := keys.Delete(after, came(g.rank)); err == nil {
			err = failed
		}
	}()
	var text []byte
	if g.rank == 0 {
		all := make([]string, g.size)
		for r := range all {
			all[r] = came(r)
		}
		if err = keys.Wait(limited, all...); err == nil {
			text, _, err = keys.CompareAndSet(after, verdict(seq), nil, []byte("[]"))
		}
	} else {
		text, err = keys.Get(limited, verdict(seq))
	}
	if g.closing.Err() != nil {
		return nil, ErrClosed
	}
	if err != nil && limited.Err() == nil {
		return nil, err
	}
	if err != nil {
		if missing, err = absent(after, keys, g.size, came); err != nil {
			return nil, err
		}
		if text, err = json.Marshal(missing); err != nil {
			return nil, err
		}
		if text, _, err = keys.CompareAndSet(after, verdict(seq), nil, text); err != nil {
			return nil, err
		}
	}
	missing = nil
	if err := json.Unmarshal(text, &missing); err != nil {
		return nil, fmt.Errorf("the verdict in the store: %w", err)
	}
	for _, m := range missing {
		if m < 0 || m >= g.size {
			return nil, errors.New("the verdict in the store names rank " + strconv.Itoa(m))
		}
	}
	if g.rank == 0 && len(missing) == 0 && seq > 1 { // all have passed the barrier before
		_, err = keys.Delete(after, verdict(seq-1))
	}
	return missing, err
}

// absent returns the ranks whose keys are not in the store.
func absent(ctx context.Context, keys store.Store, numRanks int, key func(rank int) string) (missing []int, err error) {
	for r := range numRanks {
		// What nobody has as its value is not replaced: this only looks.
		current, _, err := keys.CompareAndSet(ctx, key(r), []byte{}, []byte{})
		if err != nil {
			return nil, err
		}
		if current == nil {
			missing = append(missing, r)
		}
	}
	return missing, nil
}
