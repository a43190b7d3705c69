// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

// formBadly has ranks form a group, each in its own way, which must fail on
// all of them well before the time that they have.
func formBadly(t *testing.T, ranks ...func(ctx context.Context, url func(rank, size int) Option) (*Group, error)) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	addr := freeAddr(t)
	url := func(rank, size int) Option {
		return WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, rank, size))
	}
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, form := range ranks {
		wg.Go(func() {
			var g *Group
			if g, errs[i] = form(ctx, url); errs[i] == nil {
				errs[i] = g.Close()
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err == nil || ctx.Err() != nil {
			t.Fatalf("forming did not fail in time, at %d; the errors:\n%v", i, errors.Join(errs...))
		}
	}
	return errs
}

// as forms the group as a rank of a number of ranks.
func as(rank, size int, opts ...Option) func(context.Context, func(int, int) Option) (*Group, error) {
	return func(ctx context.Context, url func(int, int) Option) (*Group, error) {
		return Init(ctx, append(opts, url(rank, size))...)
	}
}

// toStore connects to the store in which the ranks of a place meet.
func toStore(ctx context.Context, url Option) (*store.Client, error) {
	var o options
	if err := url(&o); err != nil {
		return nil, err
	}
	at, err := neturl.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	token, err := transport.TokenFromEnv()
	if err != nil {
		return nil, err
	}
	return store.Connect(ctx, at.Host, token, transport.EncryptNone)
}

// introductionKey is where a rank introduces itself in the store.
func introductionKey(rank int) string { return fmt.Sprintf("dist/world/introduction/%d", rank) }

// TestNumberOfRanksDiffers: all say so at once, whoever waits for ranks that
// will not come.
func TestNumberOfRanksDiffers(t *testing.T) {
	for name, tc := range map[string]struct{ zero, one int }{"more on rank 1": {2, 3}, "more on rank 0": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("(WORLD_SIZE) is %d on rank 0 and %d on rank 1", tc.zero, tc.one)
			for _, err := range formBadly(t, as(0, tc.zero), as(1, tc.one)) {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
					t.Errorf("got %q, want %q", err, want)
				}
			}
		})
	}
}

// TestOneRankOptsOut: the rank whose options differ says so, and so do those
// that wait for nobody but a fourth, which never comes.
func TestOneRankOptsOut(t *testing.T) {
	for _, err := range formBadly(t, as(0, 4), as(1, 4), as(2, 4, WithDeterministic())) {
		if !strings.Contains(err.Error(), "give different options to Init: WithDeterministic is for all or none") {
			t.Error(err)
		}
	}
}

// TestRankZeroFailsToForm: rank 0 is told to stop while it waits for a rank that
// does not come: the one that has come learns why before the store is closed.
func TestRankZeroFailsToForm(t *testing.T) {
	const want = "cancelled (my own reason) while waiting for rank 2"
	var errs []error
	// Both have introduced themselves; rank 0 waits for the third a moment later.
	for moment := 100 * time.Millisecond; moment < 10*time.Second; moment *= 8 {
		errs = formBadly(t, func(ctx context.Context, url func(int, int) Option) (*Group, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			var watching sync.WaitGroup
			defer watching.Wait()
			watching.Go(func() {
				c, err := toStore(ctx, url(2, 3))
				if err == nil {
					err = errors.Join(c.Wait(ctx, introductionKey(0), introductionKey(1)), c.Close())
				}
				time.Sleep(moment)
				cancel(cmp.Or(err, errors.New("my own reason")))
			})
			return Init(ctx, url(0, 3))
		}, as(1, 3))
		if strings.Contains(errs[0].Error(), want) {
			break
		}
	}
	if !strings.Contains(errs[0].Error(), want) || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("rank 0: %v, want %q", errs[0], want)
	}
	var other *RankError
	if !errors.As(errs[1], &other) || other.Rank != 0 || !strings.Contains(errs[1].Error(), "rank 0 (host ") ||
		!strings.Contains(errs[1].Error(), "failed: cancelled (my own reason) while waiting for rank 2") {
		t.Errorf("rank 1: %v, want why rank 0 failed", errs[1])
	}
	for r, err := range errs {
		if strings.Count(err.Error(), "dist: ") > 1 {
			t.Errorf("rank %d says twice where it comes from: %v", r, err)
		}
	}
}

// TestLostWhileForming: a rank introduces itself and goes without a word, while
// another one has not come yet.
func TestLostWhileForming(t *testing.T) {
	errs := formBadly(t, as(0, 4), as(1, 4), func(ctx context.Context, url func(int, int) Option) (*Group, error) {
		c, err := toStore(ctx, url(2, 4))
		if err != nil {
			return nil, err
		}
		in, err := json.Marshal(map[string]any{"host": "elsewhere", "pid": 4711, "world_size": 4, "client": c.LocalAddr()})
		if err == nil {
			err = c.Set(ctx, introductionKey(2), in)
		}
		return nil, errors.Join(err, c.Close(), errors.New("gone"))
	})
	for r, err := range errs[:2] {
		var other *RankError
		if !errors.As(err, &other) || other.Rank != 2 || other.PID != 4711 || !errors.Is(err, ErrDied) {
			t.Errorf("rank %d: %v, want the death of rank 2", r, err)
		}
	}
}

// TestWrongVariablesAreToldUnasked sets variables to what nobody can use, where
// they matter and where they do not.
func TestWrongVariablesAreToldUnasked(t *testing.T) {
	for _, v := range []string{"COHORT_INTERFACE=eth77", "COHORT_INTERFACE=127.0.0.1/33", "COHORT_TRANSPORT=pigeon", "COHORT_ENCRYPT=rot13"} {
		t.Run(v, func(t *testing.T) {
			name, value, _ := strings.Cut(v, "=")
			t.Setenv(name, value)
			want := fmt.Sprintf("environment variable %s is %q: want ", name, value)
			for _, err := range formBadly(t, as(0, 2), as(1, 2)) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			if g, err := Init(t.Context(), WithRank(0, 1)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("one rank: got %v and %v, want %q", g, err, want)
			}
		})
	}
}
