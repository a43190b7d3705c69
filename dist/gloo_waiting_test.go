// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// TestGlooWaitsAloud: in a PyTorch job, too, who waits long for others says for whom.
func TestGlooWaitsAloud(t *testing.T) {
	for _, p := range []pytorch{pytorch1_13, pytorch2} {
		synctest.Test(t, func(t *testing.T) {
			var out lines
			mem := store.NewMemory()
			j := &glooJob{glooPlace: glooPlace{rank: 0, worldSize: 4, file: "/tmp/f"}, keys: mem, options: options{pytorch: p}}
			for _, r := range []int{0, 2} {
				if err := mem.Set(t.Context(), p.firstKey(r), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			after := func(what func(context.Context) string, want string) {
				t.Helper()
				stop := waitAloud(t.Context(), &out, j.rank, what)
				defer stop()
				time.Sleep(6 * time.Second)
				synctest.Wait()
				if got := out.take(); got != want {
					t.Errorf("it says %q, want %q", got, want)
				}
			}
			after(j.notPublished, "cohort: rank 0 has been waiting for ranks 1, 3 of 4 (/tmp/f) to join for 5s\n")
			for _, r := range []int{1, 3} {
				if err := mem.Set(t.Context(), p.firstKey(r), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			after(j.notPublished, "")
			after(j.notJoined(mem), "cohort: rank 0 has been waiting for another rank of 4 (/tmp/f) to join for 5s\n")
			j.file, j.addr, j.client = "", "a:1", new(store.PyTorchClient)
			if _, err := mem.Add(t.Context(), joinedKey, 3); err != nil {
				t.Fatal(err)
			}
			after(j.notJoined(mem), "cohort: rank 0 has been waiting for 1 more rank of 4 (a:1) to join for 5s\n")
			// PyTorch serves the store, and its rank 0 waits for all to join.
			served := &glooJob{glooPlace: glooPlace{rank: 1, worldSize: 3, addr: "a:1"}, keys: store.NewMemory(), options: options{pytorch: p}, alone: true}
			if err := served.keys.Set(t.Context(), p.firstKey(1), []byte("x")); err != nil {
				t.Fatal(err)
			}
			after(served.notPublished, map[pytorch]string{
				pytorch1_13: "cohort: rank 0 has been waiting for rank 2 of 3 (a:1, PyTorch 1.13's store: a rank that runs 2.x would not get in) to join for 5s\n",
				pytorch2:    "cohort: rank 0 has been waiting for rank 2 of 3 (a:1, PyTorch 2's store: a rank that runs 1.13 would not get in) to join for 5s\n",
			}[p])
			if err := served.waits(t.Context(), served.notPublished, func() error {
				time.Sleep(6 * time.Second)
				return store.ErrClosed
			}); !errors.Is(err, store.ErrClosed) || !strings.Contains(err.Error(), "; it had been waiting for rank 2 of 3 (a:1, ") {
				t.Errorf("it ends with %v", err)
			}
			after(j.notServed, "cohort: rank 0 has been waiting for rank 0 of 4 (a:1) to join for 5s\n")
			j.glooPlace.agent = true
			after(j.notServed, "cohort: rank 0 has been waiting for the launcher's store at a:1 for 5s\n")
		})
	}
}

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
	for name, tc := range map[string]struct {
		before, after func(ctx context.Context, s store.Store) error
		want          string
	}{
		"Go": {want: "another process came as rank 1, too (\"pid "},
		"Go before": {want: "another process came as rank 1, too (\"pid 7\"", before: func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, goKey(1), []byte("pid 7"))
		}, after: func(ctx context.Context, s store.Store) error {
			return cmp.Or(s.Wait(ctx, pytorch2.firstKey(1)), s.Set(ctx, pytorch2.firstKey(1), []byte("its address")))
		}},
		"PyTorch first": {want: "a process that runs PyTorch came as rank 1 before", before: func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, pytorch2.firstKey(1), []byte("its address"))
		}},
		"PyTorch": {want: "another process came as rank 1, too, which runs PyTorch", after: func(ctx context.Context, s store.Store) error {
			return cmp.Or(s.Wait(ctx, pytorch2.firstKey(1)), s.Set(ctx, pytorch2.firstKey(1), []byte("its address")))
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
			if err := <-errs; !errors.Is(err, errTwin) || !strings.Contains(err.Error(), tc.want) {
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
	if _, err := Init(t.Context(), WithBackend("gloo"), WithRank(0, 2), WithURL("tcp://"+freeAddr())); !errors.As(err, &wrong) || wrong.Var != envvar.PyTorchDebug {
		t.Errorf("Init says %v", err)
	}
}

// TestGlooSilence: what nobody could keep is not promised, for the group of all or one of some.
func TestGlooSilence(t *testing.T) {
	if _, err := Init(t.Context(), WithBackend("gloo"), WithRank(0, 1), WithURL("tcp://"+freeAddr()), WithSilence(time.Second)); !errors.Is(err, errNoBeats) {
		t.Errorf("Init says %v", err)
	}
	j := &glooJob{}
	o := options{forGroup: true}
	if err := o.apply([]Option{WithSilence(time.Second)}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.newGroup(t.Context(), &Group{}, []int{0}, o); !errors.Is(err, errNoBeats) {
		t.Errorf("NewGroup says %v", err)
	}
}

// TestGlooLate: who gives up on a store that says nothing of its clients says how many have
// come, and where, whichever call of it took too long.
func TestGlooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		if _, err := mem.Add(t.Context(), "default_pg/cohort/ranks", 1); err != nil { // another Go rank
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		j := &glooJob{glooPlace: glooPlace{rank: 0, worldSize: 4, file: "/tmp/f"}}
		_, err := j.seePyTorch(ctx, mem)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "2 of 4 ranks have come to /tmp/f: ") {
			t.Errorf("%v", err)
		}
	})
}
