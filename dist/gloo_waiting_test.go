// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// glooAlone is a rank of a PyTorch job that waits for another one.
func glooAlone() error {
	_, err := Init(context.Background(), WithBackend("gloo"))
	return err
}

// TestGlooAlone starts ranks of two that are alone, each in its job.
func TestGlooAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("a rank is silent for five seconds: short runs do without")
	}
	for rank, want := range []string{"rank 0 has been waiting for 1 more rank of 2 (", "rank 1 has been waiting for rank 0 of 2 ("} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			p := startRanks(t, 1, "gloo", envvar.Rank.Assign(string(rune('0'+rank))), envvar.WorldSize.Assign("2"))[0]
			for begun := time.Now(); !strings.Contains(p.output(), want); time.Sleep(50 * time.Millisecond) {
				if time.Since(begun) > 20*time.Second {
					t.Fatalf("it says %q, want %q", p.output(), want)
				}
			}
		})
	}
}

// TestGlooTwins: of two processes that are told the same rank, the first says so if both are
// Go's, and Go's if the other one runs PyTorch.
func TestGlooTwins(t *testing.T) {
	if testing.Short() {
		t.Skip("a rank looks after five seconds: short runs do without")
	}
	t.Parallel()
	// Where rank 1 says that it is Go's, and what it is the first to set.
	const goKey, firstKey = "cohort/rank/1", "0//cpu//0/1"
	for name, tc := range map[string]struct {
		before, after func(ctx context.Context, s store.Store) error
		want          string
	}{
		"Go": {want: "another process came as rank 1, too (\"pid "},
		"Go before": {want: "another process came as rank 1, too (\"pid 7\"", before: func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, goKey, []byte("pid 7"))
		}, after: func(ctx context.Context, s store.Store) error {
			return cmp.Or(s.Wait(ctx, firstKey), s.Set(ctx, firstKey, []byte("its address")))
		}},
		"PyTorch first": {want: "a process that runs PyTorch came as rank 1 before", before: func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, firstKey, []byte("its address"))
		}},
		"PyTorch": {want: "another process came as rank 1, too, which runs PyTorch", after: func(ctx context.Context, s store.Store) error {
			return cmp.Or(s.Wait(ctx, firstKey), s.Set(ctx, firstKey, []byte("its address")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := store.NewMemory()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			errs := make(chan error, 2)
			comes := func() {
				_, err := Init(ctx, WithBackend("gloo"), WithPyTorch("2.15"), WithStore(mem), WithRank(1, 3))
				errs <- err
			}
			if tc.before != nil {
				if err := tc.before(ctx, mem); err != nil {
					t.Fatal(err)
				}
			}
			go comes()
			if name == "Go" {
				go comes()
			} else if tc.after != nil {
				if err := tc.after(ctx, mem); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-errs; !strings.Contains(err.Error(), "each process of a job needs a RANK of its own") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("it says %v, want %q", err, tc.want)
			}
			if cancel(); name == "Go" {
				<-errs // its own word stands
			}
		})
	}
}

// TestGlooDetail: where PyTorch's ranks would wait for this one in a group that it has not, it
// says so at once.
func TestGlooDetail(t *testing.T) {
	t.Setenv(string(envvar.PyTorchDebug), "detail")
	var wrong *envvar.Error
	if _, err := Init(t.Context(), WithBackend("gloo"), WithRank(0, 2), WithURL("tcp://"+freeAddr(t))); !errors.As(err, &wrong) || wrong.Var != envvar.PyTorchDebug {
		t.Errorf("Init says %v", err)
	}
}

// TestGlooSilence: what nobody could keep is not promised, for the group of all.
func TestGlooSilence(t *testing.T) {
	if _, err := Init(t.Context(), WithBackend("gloo"), WithRank(0, 1), WithURL("tcp://"+freeAddr(t)), WithSilence(time.Second)); err == nil || !strings.Contains(err.Error(), "nothing is heard of PyTorch's ranks between their calls") {
		t.Errorf("Init says %v", err)
	}
}
