// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/operation"
)

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
	if g.backend == nil {
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
			case time.Since(left) > newsPatience: // it may have left after all had come
				l.cancel(err)
			}
		}
	}()
	return ctx, l
}

// monitorTrouble returns what is wrong with the group as the error of a
// monitored barrier.
func (g *Group) monitorTrouble(seq uint64) error {
	err := g.backend.Trouble(operation.Call{Op: operation.Barrier, Seq: seq})
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
		patience := time.NewTimer(2 * newsPatience)
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
