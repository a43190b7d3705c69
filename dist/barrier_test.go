// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// isMissing reports whether an error is a time-out that misses one rank.
func isMissing(err error, rank int) bool {
	var te *TimeoutError
	return errors.As(err, &te) && len(te.Missing) == 1 && te.Missing[0].Rank == rank && te.Op == "monitored_barrier"
}

// missesOne has one rank come to a monitored barrier when the others' time is
// up: all learn of it, itself too, and all go on.
func missesOne(ctx context.Context, g *Group, late int, limit time.Duration, wait func() error, gone func()) error {
	if err := g.MonitoredBarrier(ctx); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if g.Rank() == late {
		if err := wait(); err != nil {
			return err
		}
		short = ctx
	}
	err := g.MonitoredBarrier(short)
	gone()
	if !isMissing(err, late) {
		return fmt.Errorf("rank %d: got %v, want a time-out that misses rank %d", g.Rank(), err, late)
	}
	for range 3 {
		if err := g.MonitoredBarrier(ctx); err != nil {
			return err
		}
	}
	return g.Barrier(ctx)
}

func TestMonitoredBarrierNamesTheLate(t *testing.T) {
	for _, tr := range transports {
		for late := range 3 {
			t.Run(fmt.Sprintf("%s/%d", tr.name, late), func(t *testing.T) {
				t.Parallel()              // it waits
				var others sync.WaitGroup // the late rank comes when the others have gone
				others.Add(2)
				err := tr.run(t.Context(), 3, func(ctx context.Context, g *Group) error {
					if g.Rank() == late {
						return missesOne(ctx, g, late, time.Hour, func() error { others.Wait(); return nil }, func() {})
					}
					// In which both come.
					return missesOne(ctx, g, late, waitLimit(), nil, others.Done)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestMonitoredBarrierInVirtualTime gives every rank a limit of its own, which
// are minutes: the verdict is the first one's, and the same for all.
func TestMonitoredBarrierInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Spawn(t.Context(), 5, func(ctx context.Context, g *Group) error {
			limit := time.Duration(g.Rank()+10) * time.Minute
			return missesOne(ctx, g, 3, limit, func() error { time.Sleep(25 * time.Minute); return nil }, func() {})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestMonitoredBarrierAfterItsTime has one rank come with a context that has
// ended, as it does where all have one deadline: it too learns who was late, and
// the next barrier is the same one for all.
func TestMonitoredBarrierAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
			short, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if g.Rank() == 2 {
				time.Sleep(2 * time.Minute)
			}
			if err := g.MonitoredBarrier(short); !isMissing(err, 2) {
				return fmt.Errorf("rank %d: got %v, want a time-out that misses rank 2", g.Rank(), err)
			}
			for i := range 3 {
				err := g.MonitoredBarrier(ctx)
				if seq := g.monitored.Load(); err != nil || seq != uint64(i+2) {
					return fmt.Errorf("rank %d has come to %d barriers, want %d: %v", g.Rank(), seq, i+2, err)
				}
			}
			return nil
		}, WithTimeout(time.Hour))
		if err != nil {
			t.Error(err)
		}
	})
}

// TestMonitoredBarrierEndsWithTheGroup closes a group under a barrier that
// would last for half an hour.
func TestMonitoredBarrierEndsWithTheGroup(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			return nil
		}
		ended := make(chan error)
		go func() { ended <- g.MonitoredBarrier(ctx) }()
		for g.monitored.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := g.Close(); err != nil {
			return err
		}
		if err := <-ended; !errors.Is(err, ErrClosed) {
			return fmt.Errorf("got %v, want ErrClosed", err)
		}
		if err := g.MonitoredBarrier(ctx); !errors.Is(err, ErrClosed) {
			return fmt.Errorf("got %v, want ErrClosed", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
