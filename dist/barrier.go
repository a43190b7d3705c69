// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/internal/liveness"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error { return g.call(g.barrier(ctx)) }

// BarrierAsync starts a [Group.Barrier]: its work ends when all ranks have called it.
func (g *Group) BarrierAsync(ctx context.Context) *Work { return g.callAsync(g.barrier(ctx)) }

func (g *Group) barrier(ctx context.Context) *request {
	return g.newRequest(ctx, operation.Barrier)
}

// verdictPatience is how long a rank whose time is up asks the store who is
// missing.
const verdictPatience = 10 * time.Second

// MonitoredBarrier returns when all ranks have called it, or when the first of
// them runs out of time, by its context or the group's limit. In the second case every rank
// gets the same [TimeoutError] with all ranks that had not come, and so does a rank that comes
// later. The group can still be used. A rank that dies, falls
// silent or leaves ends the barrier as it ends other calls. The barrier goes through the
// store and takes milliseconds. Use it to find out which rank hangs.
//
// It is PyTorch's monitored_barrier with wait_all_ranks=True, but the answer
// does not depend on rank 0.
//
// In a group with PyTorch members it is PyTorch's own: only rank 0 learns who is missing, the
// other ranks learn that no answer came, and the group has then failed.
func (g *Group) MonitoredBarrier(ctx context.Context) error {
	if g.rules != nil {
		r := g.barrier(ctx)
		r.instead = g.rules.MonitoredBarrier(ctx)
		return g.call(r)
	}
	// A rank whose time is up already has come all the same: were it not counted,
	// it would be one barrier behind the others from then on.
	r := g.newRequest(context.WithoutCancel(ctx), operation.Barrier)
	_, _, err := g.admit(r)
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
	var other *RankError
	switch {
	case errors.As(err, &other):
		return err
	case err != nil:
		err = fmt.Errorf("dist: monitored_barrier %d of group %q on rank %d: %w", seq, g.name, g.rank, err)
		if errors.Is(err, store.ErrLost) {
			g.failAll(err) // this rank cannot come, which the others do not know
		}
		return err
	case len(missing) > 0:
		late := &TimeoutError{Group: g.name, Op: "monitored_barrier", Seq: seq, Site: flight.Here(), Cause: context.DeadlineExceeded}
		for _, m := range missing {
			late.Missing = append(late.Missing, g.members[m])
		}
		return late
	}
	return nil
}

// monitor returns the ranks that have not come to a monitored barrier. What
// is decided is the first verdict that gets into the store: that all have come,
// by the last one, or who is missing, by the first that runs out of time.
func (g *Group) monitor(ctx context.Context, seq uint64) (missing []int, err error) {
	keys := store.Prefix(g.keys, fmt.Sprintf("monitored/%s/%d/", g.key, seq))
	ctx, look := g.lookOut(ctx, seq)
	defer func() { err = look.end(err) }()
	limited, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()
	// What follows the end of the time must not be ended by it.
	after, cancelAfter := context.WithTimeout(context.WithoutCancel(ctx), g.timeout+verdictPatience)
	defer cancelAfter()
	defer context.AfterFunc(look.trouble, cancelAfter)()

	me := strconv.Itoa(g.rank)
	if err := keys.Set(after, me, []byte{1}); err != nil {
		return nil, err
	}
	came, err := keys.Add(after, "count", 1)
	if err != nil {
		return nil, err
	}
	var text []byte
	if came == int64(g.size) {
		text, _, err = keys.CompareAndSet(after, "verdict", nil, []byte("[]"))
	} else {
		text, err = keys.Get(limited, "verdict")
	}
	if err != nil {
		if g.closing.Err() != nil {
			return nil, ErrClosed
		}
		if limited.Err() == nil || look.trouble.Err() != nil {
			return nil, err
		}
		if text, err = g.accuse(after, keys); err != nil {
			return nil, err
		}
	}
	look.decided.Store(true)
	if err := json.Unmarshal(text, &missing); err != nil {
		return nil, fmt.Errorf("the verdict in the store: %w", err)
	}
	for _, m := range missing {
		if m < 0 || m >= g.size {
			return nil, fmt.Errorf("the verdict in the store names rank %d", m)
		}
	}
	// Who is there is no more of interest, and after the last rank nothing is.
	if _, err := keys.Delete(after, me); err != nil {
		return nil, err
	}
	if gone, err := keys.Add(after, "count", 1); err != nil || gone < 2*int64(g.size) {
		return missing, err
	}
	for _, key := range []string{"count", "verdict"} {
		if _, err := keys.Delete(after, key); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// accuse makes the ranks that have not come the verdict, unless there is one,
// and returns what is the verdict then.
func (g *Group) accuse(ctx context.Context, keys store.Store) (verdict []byte, err error) {
	missing := []int{}
	for r := range g.size {
		there, err := meeting.IsSet(ctx, keys, strconv.Itoa(r))
		if err != nil {
			return nil, err
		}
		if !there {
			missing = append(missing, r)
		}
	}
	text, err := json.Marshal(missing)
	if err != nil {
		return nil, err
	}
	verdict, _, err = keys.CompareAndSet(ctx, "verdict", nil, text)
	return verdict, err
}

// lookPeriod is how often a wait that the backend does not end looks at the group.
const lookPeriod = 20 * time.Millisecond

// lookout ends a wait for something other than the backend, such as the store,
// when the group has failed: whom it waits for may have gone.
type lookout struct {
	trouble context.Context // ends with what is wrong as its cause
	cancel  context.CancelCauseFunc
	decided atomic.Bool // a rank that leaves does no harm any more
	ended   chan struct{}
}

// lookOut returns a context for the waits of a monitored barrier, by number.
func (g *Group) lookOut(ctx context.Context, seq uint64) (context.Context, *lookout) {
	l := &lookout{ended: make(chan struct{})}
	l.trouble, l.cancel = context.WithCancelCause(context.Background())
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(l.trouble, cancel)
	if g.comm == nil {
		close(l.ended)
		return ctx, l
	}
	go func() {
		defer close(l.ended)
		tick := time.NewTicker(lookPeriod)
		defer tick.Stop()
		var left time.Time // since when a rank has left
		for {
			select {
			case <-l.trouble.Done():
				return
			case <-tick.C:
			}
			err := g.monitorTrouble(seq)
			switch {
			case err == nil:
				left = time.Time{}
			case !errors.Is(err, ErrLeft):
				l.cancel(err)
			case l.decided.Load():
			case left.IsZero():
				left = time.Now()
			case time.Since(left) > liveness.NewsPatience: // it may have left after all had come
				l.cancel(err)
			}
		}
	}()
	return ctx, l
}

// monitorTrouble returns what is wrong with the group as the error of a
// monitored barrier.
func (g *Group) monitorTrouble(seq uint64) error {
	err := g.comm.Trouble(operation.Call{Op: operation.Barrier, Seq: seq})
	var re *RankError
	if errors.As(err, &re) {
		here := *re
		here.Op, here.Seq = "monitored_barrier", seq
		return &here
	}
	return err
}

// end ends the watch and returns the error of the wait: what is wrong with the
// group, if that is why the wait has failed. The store may have gone a moment
// before the news of its rank.
func (l *lookout) end(err error) error {
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		patience := time.NewTimer(2 * liveness.NewsPatience)
		defer patience.Stop()
		select {
		case <-l.trouble.Done():
		case <-patience.C:
		}
	}
	cause := context.Cause(l.trouble)
	l.cancel(context.Canceled)
	<-l.ended
	var re *RankError
	if err != nil && cause != nil {
		if errors.As(cause, &re) {
			here := *re
			here.Site = flight.Here()
			return &here
		}
		return cause
	}
	return err
}
