// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// inStore forms a group of n ranks that meet in a store.
func inStore(ctx context.Context, n int, open func() (store.Store, error), main func(context.Context, *Group) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			s, err := open()
			if err != nil {
				errs[r] = err
				return
			}
			g, err := Init(ctx, WithStore(s), WithRank(r, n))
			if err != nil {
				errs[r] = err
				return
			}
			if errs[r] = main(ctx, g); errs[r] != nil {
				g.fail(errs[r])
			}
			if err := g.Close(); errs[r] == nil {
				errs[r] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestMeetInStore: ranks that are given a store need no master, over any
// transport, and do not take another run's keys for theirs.
func TestMeetInStore(t *testing.T) {
	for _, kind := range []string{"shm", "tcp", "unix"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("COHORT_TRANSPORT", kind)
			mem, path := store.NewMemory(), filepath.Join(t.TempDir(), "store")
			for name, open := range map[string]func() (store.Store, error){
				"memory": func() (store.Store, error) { return mem, nil },
				"file": func() (store.Store, error) {
					f, err := store.OpenFile(path)
					if err == nil {
						t.Cleanup(func() { _ = f.Close() })
					}
					return f, err
				},
			} {
				err := inStore(t.Context(), 3, open, func(ctx context.Context, g *Group) error {
					if g.Transport() != kind || (g.Interface() != "") != (kind == "tcp") {
						return fmt.Errorf("the transport is %q, the interface %q, want %s", g.Transport(), g.Interface(), kind)
					}
					return groupsAtOnce(ctx, g)
				})
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := Init(t.Context(), WithStore(mem), WithRank(1, 3)); err == nil || !strings.Contains(err.Error(), "joined as rank 1 before; a store that outlives") {
				t.Errorf("the store of another run gave %v", err)
			}
			t.Setenv("TORCHELASTIC_RESTART_COUNT", "1")
			if err := inStore(t.Context(), 2, func() (store.Store, error) { return mem, nil }, barrierOnly); err != nil {
				t.Errorf("a restarted run: %v", err)
			}
		})
	}
}

func TestPlaceOptions(t *testing.T) {
	for want, opts := range map[string][]Option{
		"option 2 of 2 is nil":               {WithRank(0, 1), nil},
		"given no store":                     {WithStore(nil)},
		"rank 2 of 2":                        {WithRank(2, 2)},
		"rank -1 of 2":                       {WithRank(-1, 2)},
		"cannot be together":                 {WithURL("tcp://h:1?rank=0&world_size=2"), WithRank(0, 2)},
		"WORLD_SIZE is set and MASTER_ADDR ": {WithRank(0, 2)},
	} {
		if _, err := Init(t.Context(), opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Init gave %v, want %q", err, want)
		}
	}
}

// twoGroups waits for the last rank in two groups at once.
func twoGroups(ctx context.Context, g *Group) error {
	var groups []*Group
	for i := range 2 {
		sub, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("group "+strconv.Itoa(i)))
		if err != nil {
			return err
		}
		groups = append(groups, sub)
	}
	fmt.Println("ready")
	if g.Rank() == g.Size()-1 {
		select {}
	}
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, sub := range groups {
		wg.Go(func() {
			x := filled(tensor.Float32, 100_000, g.Rank())
			errs[i] = sub.AllReduce(ctx, x, Max)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestKilledInTwoGroups kills a rank that is in two groups (and the world):
// both name it within a second.
func TestKilledInTwoGroups(t *testing.T) {
	for name, env := range map[string]string{
		"shm": envvar.Transport.Assign("shm"), "tcp": envvar.Transport.Assign("tcp"), "unix": envvar.Transport.Assign("unix"),
		"mixed": rankNodes + "=aba", "mixed alone": rankNodes + "=aab",
	} {
		t.Run(name, func(t *testing.T) {
			ps := startRanks(t, 3, "two groups", env)
			for _, p := range ps {
				select {
				case <-p.line:
				case <-time.After(20 * time.Second):
					t.Fatalf("a rank is not ready: it is at:\n%s", p.stacks())
				}
			}
			start := time.Now()
			if err := ps[2].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-ps[2].waited
			for _, p := range ps[:2] {
				_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: 2, Code: -1, Signal: "killed"})
			}
			for r, p := range ps[:2] {
				if err := p.await(t, 10*time.Second); err == nil {
					t.Errorf("rank %d ended as if nothing had happened", r)
				}
				if took := time.Since(start); took > loaded.Allow(time.Second) {
					t.Errorf("rank %d took %v", r, took)
				}
				for _, group := range []string{"group 0", "group 1"} {
					want := regexp.MustCompile(fmt.Sprintf(`of group %q \(meeting_test\.go:\d+\): rank 2 \(host`, group))
					if out := p.output(); !want.MatchString(out) || strings.Count(out, "died: signal killed") != 2 {
						t.Errorf("rank %d does not name rank 2 as killed in %s:\n%s", r, group, out)
					}
				}
			}
		})
	}
}

// TestSilentMismatch: ranks that each wait for another to begin, so that
// nothing is sent, are told all the same.
func TestSilentMismatch(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{2, 3}, func(ctx context.Context, g *Group) error {
		x := filled(tensor.Int64, 10, g.Rank())
		err := g.Broadcast(ctx, x, (g.Rank()+1)%g.Size())
		if err == nil {
			err = g.Barrier(ctx)
		}
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) {
			return fmt.Errorf("rank %d: not a mismatch: %w", g.Rank(), err)
		}
		return nil
	})
}

// TestThousandRanks forms a group of 1,000 goroutine ranks, a barrier and a
// group of half of them, within a second.
func TestThousandRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes memory for 1,000 ranks")
	}
	var best time.Duration
	for range 3 { // the machine may be busy
		start := time.Now()
		var formed time.Duration
		err := Spawn(t.Context(), 1000, func(ctx context.Context, g *Group) error {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			if g.Rank() == 0 {
				formed = time.Since(start)
			}
			half, err := g.Split(ctx, g.Rank()%2, 0)
			if err != nil {
				return err
			}
			return half.Barrier(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if best == 0 || formed < best {
			best = formed
		}
	}
	t.Logf("1,000 ranks formed a group and passed a barrier in %v", best)
	if best > loaded.Allow(time.Second) {
		t.Errorf("1,000 ranks took %v to form a group and pass a barrier, want a second at most", best)
	}
}

// barrierOnly passes a barrier, in a group of half the ranks too.
func barrierOnly(ctx context.Context, g *Group) error {
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	half, err := g.Split(ctx, g.Rank()%2, 0)
	if err != nil {
		return err
	}
	return half.Barrier(ctx)
}

// TestManyProcesses forms a group of DIST_TEST_PROCESSES=256 processes (20
// otherwise) over shared memory, and of some over TCP; `cohort bench form
// --ranks 256` has the time.
func TestManyProcesses(t *testing.T) {
	n := 20
	if given, err := strconv.Atoi(os.Getenv("DIST_TEST_PROCESSES")); err == nil {
		n = given
	} else if testing.Short() {
		t.Skip("starts 40 processes")
	}
	for _, kind := range []string{"shm", "tcp"} {
		start := time.Now()
		for r, p := range startRanks(t, n, "barrier", envvar.Transport.Assign(kind)) {
			if err := p.await(t, time.Minute); err != nil {
				t.Errorf("rank %d: %v\n%s", r, err, p.output())
			}
		}
		t.Logf("%d processes over %s: %v from their start to their end", n, kind, time.Since(start))
	}
}
