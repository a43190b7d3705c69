// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// failing runs main on every transport and hands the ranks' errors to check:
// main's error is the result, not a failure of the test.
func failing(t *testing.T, n int, main func(ctx context.Context, g *Group) error, check func(errs []error) error) {
	t.Helper()
	failOn(t, false, n, main, check)
}

// failingAtOnce is [failing] on all transports at the same time, for tests that
// wait: what main and check share is theirs to guard, and not there yet when it
// returns.
func failingAtOnce(t *testing.T, n int, main func(ctx context.Context, g *Group) error, check func(errs []error) error) {
	t.Helper()
	failOn(t, true, n, main, check)
}

func failOn(t *testing.T, atOnce bool, n int, main func(ctx context.Context, g *Group) error, check func(errs []error) error) {
	t.Helper()
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			if atOnce {
				t.Parallel()
			}
			errs := make([]error, n)
			var begun, ended sync.WaitGroup
			begun.Add(n)
			ended.Add(n)
			err := tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
				// Passing this, all have returned from Init, and from the barrier: main may fail.
				errs[g.Rank()] = g.Barrier(ctx)
				begun.Done()
				begun.Wait()
				if errs[g.Rank()] == nil {
					errs[g.Rank()] = main(ctx, g)
				}
				// A rank that has its error waits until all have, so that
				// nobody's leaving is taken for the cause.
				ended.Done()
				ended.Wait()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := check(errs); err != nil {
				t.Errorf("%v; the ranks' errors:\n%v", err, errors.Join(errs...))
			}
		})
	}
}

// waitLimit returns a limit for a wait of which a test sees the end: long enough for
// ranks to come to a call, also on a machine that does much else.
func waitLimit() time.Duration {
	return min(loaded.Allow(time.Second), 2*time.Second)
}

func TestMismatch(t *testing.T) {
	type call func(ctx context.Context, g *Group) *request
	reduce := func(dt tensor.DType, n int, op ReduceOp) call {
		return func(ctx context.Context, g *Group) *request { return g.allReduce(ctx, private(dt, n), op) }
	}
	broadcast := func(root int) call {
		return func(ctx context.Context, g *Group) *request {
			return g.broadcast(ctx, private(tensor.Float32, 4), root)
		}
	}
	barrier := func(ctx context.Context, g *Group) *request { return g.barrier(ctx) }
	scatter := func(ctx context.Context, g *Group) *request {
		return g.reduceScatter(ctx, private(tensor.Float32, 4), private(tensor.Float32, 4*g.Size()), Sum)
	}
	for _, tc := range []struct {
		name        string
		most, other call
	}{
		{"count", reduce(tensor.Float32, 4, Sum), reduce(tensor.Float32, 5, Sum)},
		{"large count", reduce(tensor.Float32, 400_000, Sum), reduce(tensor.Float32, 4, Sum)},
		{"dtype", reduce(tensor.Float32, 4, Sum), reduce(tensor.Int64, 4, Sum)},
		{"reduction", reduce(tensor.Float32, 4, Sum), reduce(tensor.Float32, 4, Max)},
		{"operation", reduce(tensor.Float32, 4, Sum), barrier},
		{"root", broadcast(0), broadcast(2)},
		{"plan", scatter, reduce(tensor.Float32, 4, Sum)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				c := tc.most
				if g.Rank() == 1 {
					c = tc.other
				}
				// A broadcast over a chain may be over for a rank before
				// another sees the mismatch: the next call tells it.
				if err := g.call(c(ctx, g)); err != nil {
					return err
				}
				return g.Barrier(ctx)
			}, func(errs []error) error {
				for r, err := range errs {
					var m *MismatchError
					if !errors.As(err, &m) {
						return fmt.Errorf("rank %d: not a mismatch: %v", r, err)
					}
					if m.Here.Rank != 1 && m.There.Rank != 1 {
						return fmt.Errorf("rank %d: rank 1 is not named: %v", r, err)
					}
				}
				return nil
			})
		})
	}
}

func TestMismatchedMessage(t *testing.T) {
	failingAtOnce(t, 2, func(ctx context.Context, g *Group) error {
		x := private(tensor.Float32, 10)
		if g.Rank() == 0 {
			if err := g.Send(ctx, x, 1); err != nil {
				return err
			}
			return g.Barrier(ctx)
		}
		return g.Recv(ctx, x.Narrow(0, 0, 9), 0)
	}, func(errs []error) error {
		for r, err := range errs {
			var m *MismatchError
			if !errors.As(err, &m) || !strings.Contains(err.Error(), "send of 10 float32") || !strings.Contains(err.Error(), "recv of 9 float32") {
				return fmt.Errorf("rank %d: both calls are not named: %v", r, err)
			}
		}
		return nil
	})
}

func TestTimeoutNamesTheMissing(t *testing.T) {
	failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, waitLimit()) // in which the other one calls it too
		defer cancel()
		return g.AllReduce(ctx, private(tensor.Float32, 100_000), Sum)
	}, func(errs []error) error {
		timeouts := 0
		for _, r := range []int{0, 2} {
			var te *TimeoutError
			var re *RankError
			switch {
			case errors.As(errs[r], &te):
				timeouts++
				if len(te.Missing) != 1 || te.Missing[0].Rank != 1 {
					return fmt.Errorf("rank %d misses %v, want rank 1", r, te.Missing)
				}
				if !errors.Is(errs[r], context.DeadlineExceeded) {
					return fmt.Errorf("rank %d: the cause is not the deadline", r)
				}
			case errors.As(errs[r], &re):
				if !strings.Contains(re.Error(), "waiting for rank 1") {
					return fmt.Errorf("rank %d does not hear of rank 1", r)
				}
			default:
				return fmt.Errorf("rank %d: neither a time-out nor told of one", r)
			}
		}
		if timeouts == 0 {
			return errors.New("nobody had a time-out")
		}
		return nil
	})
}

// TestContextOfAQueuedCall: the context of a call that has not had its turn ends
// its wait too, and with it the group.
func TestContextOfAQueuedCall(t *testing.T) {
	sum := func(ctx context.Context, g *Group) *Work { return g.AllReduceAsync(ctx, tensor.Zeros(3), Sum) }
	now := func(err error) *Work { return failedWork(err) }
	for name, calls := range map[string][2]func(ctx context.Context, g *Group) *Work{
		"started": {sum, sum},
		"called":  {sum, func(ctx context.Context, g *Group) *Work { return now(g.AllReduce(ctx, tensor.Zeros(3), Sum)) }},
		"messages": {
			func(ctx context.Context, g *Group) *Work { return g.RecvAsync(ctx, tensor.Zeros(3), 1) },
			func(ctx context.Context, g *Group) *Work { return now(g.Recv(ctx, tensor.Zeros(3), 1)) },
		},
		"from any": {
			func(ctx context.Context, g *Group) *Work { return g.RecvAnyAsync(ctx, tensor.Zeros(3)) },
			func(ctx context.Context, g *Group) *Work { return now(g.Recv(ctx, tensor.Zeros(3), 1)) },
		},
	} {
		for _, tr := range transports {
			t.Run(name+"/"+tr.name, func(t *testing.T) {
				t.Parallel() // it waits
				over := make(chan struct{})
				err := tr.run(t.Context(), 2, func(ctx context.Context, g *Group) error {
					if g.Rank() == 1 {
						<-over
						return nil
					}
					defer close(over)
					first := calls[0](ctx, g)
					limit, cancel := context.WithTimeout(ctx, waitLimit()) // in which it comes behind the first
					defer cancel()
					err := calls[1](limit, g).Wait(ctx)
					var late *TimeoutError
					if !errors.As(err, &late) || len(late.Missing) != 0 || !errors.Is(err, context.DeadlineExceeded) {
						return fmt.Errorf("the call behind another gave %v, want a time-out of its own", err)
					}
					if err := first.Wait(ctx); err == nil || !strings.Contains(err.Error(), "waiting for its turn") {
						return fmt.Errorf("the call before gave %v", err)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestRankThatLeaves(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, g *Group) error{
		"collective": func(ctx context.Context, g *Group) error { return g.Barrier(ctx) },
		"message": func(ctx context.Context, g *Group) error {
			return g.Recv(ctx, private(tensor.Float32, 1), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
				if g.Rank() == 1 {
					return g.Close()
				}
				return call(ctx, g)
			}, func(errs []error) error {
				for _, r := range []int{0, 2} {
					var re *RankError
					if !errors.As(errs[r], &re) || re.Rank != 1 || !errors.Is(re, ErrLeft) {
						return fmt.Errorf("rank %d does not say that rank 1 has left: %v", r, errs[r])
					}
				}
				return errs[1]
			})
		})
	}
}

// TestMessageToAnyOutlivesItsSender receives what ranks sent before they left,
// from whichever comes first.
func TestMessageToAnyOutlivesItsSender(t *testing.T) {
	t.Parallel()
	times := 20
	if testing.Short() {
		times = 5
	}
	for range times {
		onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
			if g.Rank() != 0 {
				return g.Send(ctx, number(float64(g.Rank())), 0)
			}
			x, came := number(0), 0
			for range 2 {
				src, err := g.RecvAny(ctx, x)
				if err != nil {
					return err
				}
				came += src
			}
			if came != 3 {
				return fmt.Errorf("the messages of ranks 1 and 2 came as %d", came)
			}
			return nil
		})
	}
}

// TestMessageOutlivesItsSender receives what a rank sent before it left.
func TestMessageOutlivesItsSender(t *testing.T) {
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		x := filled(tensor.Float32, 1000, 0)
		if g.Rank() == 0 {
			return g.Send(ctx, x, 1)
		}
		y := private(tensor.Float32, 1000)
		time.Sleep(5 * time.Millisecond) // makes it likely, not certain, that rank 0 has left
		if err := g.Recv(ctx, y, 0); err != nil {
			return err
		}
		return check("recv", y, func(i int) int64 { return value(0, i) })
	})
}

func TestFailedRankIsNamed(t *testing.T) {
	boom := errors.New("boom")
	for name, fail := range map[string]func() error{
		"error": func() error { return boom },
		"panic": func() error { panic(boom) },
	} {
		t.Run(name, func(t *testing.T) {
			var others [3]error
			err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
				if g.Rank() == 2 {
					return fail()
				}
				others[g.Rank()] = g.Barrier(ctx)
				return others[g.Rank()]
			})
			if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "rank 2: ") {
				t.Errorf("Spawn returned %v, want rank 2's error", err)
			}
			for r := range 2 {
				var re *RankError
				if !errors.As(others[r], &re) || re.Rank != 2 || !strings.Contains(re.Error(), "boom") || re.Op != "barrier" || re.Seq != 1 {
					t.Errorf("rank %d: %v", r, others[r])
				}
				if again := others[r]; again == nil {
					t.Errorf("rank %d has no error", r)
				}
			}
		})
	}
}

// TestLaterCallsFailAtOnce calls again after a failure.
func TestLaterCallsFailAtOnce(t *testing.T) {
	failingAtOnce(t, 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			return g.Close()
		}
		if err := g.Barrier(ctx); err == nil {
			return errors.New("a barrier without rank 1 passed")
		}
		return errors.Join(g.AllReduce(ctx, private(tensor.Float32, 1), Sum),
			g.BarrierAsync(ctx).Wait(ctx))
	}, func(errs []error) error {
		var re *RankError
		if !errors.As(errs[0], &re) || re.Rank != 1 || re.Op != "all_reduce" {
			return errors.New("a later call does not name rank 1")
		}
		return nil
	})
}

func TestRankThatEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
			if g.Rank() == 1 {
				runtime.Goexit()
			}
			return g.Barrier(ctx)
		})
		if err == nil || !strings.HasPrefix(err.Error(), "rank 1: its goroutine was ended") {
			t.Errorf("got %v, want that rank 1 has ended its goroutine", err)
		}
	})
}

func TestClosedGroup(t *testing.T) {
	for _, n := range []int{1, 2} {
		err := Spawn(t.Context(), n, func(ctx context.Context, g *Group) error {
			if err := g.Close(); err != nil {
				return err
			}
			if err := g.Close(); err != nil {
				return fmt.Errorf("second close: %w", err)
			}
			if err := g.Barrier(ctx); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), fmt.Sprintf("on rank %d", g.Rank())) {
				return fmt.Errorf("a call on a closed group: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestCloseEndsPendingWork closes a group under a work that cannot end.
func TestCloseEndsPendingWork(t *testing.T) {
	failingAtOnce(t, 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			return nil
		}
		w := g.BarrierAsync(ctx)
		if err := g.Close(); err != nil {
			return err
		}
		if err := w.Wait(ctx); err == nil {
			return errors.New("the work ended without rank 1")
		}
		return nil
	}, func(errs []error) error { return errs[0] }) // rank 1 may still have been in the first barrier
}

// TestGroupTimeout runs into the group's own limit, in virtual time.
func TestGroupTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
			if g.Rank() == 2 {
				time.Sleep(2 * DefaultTimeout)
				return nil
			}
			return g.Barrier(ctx)
		})
		var te *TimeoutError
		if !errors.As(err, &te) || len(te.Missing) != 1 || te.Missing[0].Rank != 2 || !te.Timeout() {
			t.Errorf("got %v, want a time-out that misses rank 2", err)
		}
		if took := time.Since(start); took != 2*DefaultTimeout {
			t.Errorf("all ended after %v", took)
		}
	})
}

func TestInitErrors(t *testing.T) {
	for _, v := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COHORT_TOKEN", "COHORT_TOKEN_FILE"} {
		t.Setenv(v, "")
	}
	for _, tc := range []struct {
		name string
		env  map[string]string
		opts []Option
		want string
	}{
		{"size without rank", map[string]string{"WORLD_SIZE": "2"}, nil, "WORLD_SIZE is set and RANK is not"},
		{"rank without size", map[string]string{"RANK": "0"}, nil, "RANK is set and WORLD_SIZE is not"},
		{"no master", map[string]string{"RANK": "0", "WORLD_SIZE": "2"}, nil, "MASTER_ADDR is not"},
		{"no port", map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, nil, "MASTER_PORT is not"},
		{"rank too large", map[string]string{"RANK": "2", "WORLD_SIZE": "2"}, nil, "ranks are 0 to 1"},
		{"no number", map[string]string{"RANK": "x", "WORLD_SIZE": "2"}, nil, `RANK is "x"`},
		{"no token", map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, nil, "COHORT_TOKEN"},
		{"scheme", nil, []Option{WithURL("http://h:1")}, `scheme "http"`},
		{"no host", nil, []Option{WithURL("tcp://?rank=0&world_size=2")}, "no host and port"},
		{"query", nil, []Option{WithURL("tcp://h:1?rnk=0&world_size=2")}, `"rnk"`},
		{"rank of url", nil, []Option{WithURL("tcp://h:1?rank=5&world_size=2")}, `rank is "5"`},
		{"limit", nil, []Option{WithTimeout(-1)}, "time limit"},
		{"backend", nil, []Option{WithBackend("nccl")}, `no backend "nccl"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			g, err := Init(t.Context(), tc.opts...)
			if err == nil {
				g.Close()
				t.Fatalf("no error, want one with %q", tc.want)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestAloneNeedsNothing(t *testing.T) {
	for _, v := range []string{"RANK", "WORLD_SIZE", "COHORT_TOKEN"} {
		t.Setenv(v, "")
	}
	g, err := Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Rank() != 0 || g.Size() != 1 || g.LocalSize() != 1 || g.Transport() != "none" {
		t.Errorf("alone: %v", g)
	}
}

// TestInitNamesTheMissing starts two ranks of three.
func TestInitNamesTheMissing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit()) // in which the two come
	defer cancel()
	addr := freeAddr(t)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, r := range []int{0, 2} {
		wg.Go(func() {
			_, errs[i] = Init(ctx, WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=3", addr, r)))
		})
	}
	wg.Wait()
	for i, r := range []int{0, 2} {
		var te *TimeoutError
		if !errors.As(errs[i], &te) || len(te.Missing) != 1 || te.Missing[0].Rank != 1 || !errors.Is(errs[i], context.DeadlineExceeded) {
			t.Errorf("rank %d: got %v, want a time-out that misses rank 1", r, errs[i])
		}
	}
}

func TestSecondProcessOfARank(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	addr := freeAddr(t)
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for i, r := range []int{0, 1, 1} {
		wg.Go(func() {
			g, err := Init(ctx, WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=3", addr, r)))
			if err == nil {
				g.Close()
			}
			errs[i] = err
			cancel() // rank 2 does not come: the others would wait for it
		})
	}
	wg.Wait()
	if !slices.ContainsFunc(errs[1:], func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "has joined as rank 1 before")
	}) {
		t.Errorf("nobody says that rank 1 came twice: %v", errs)
	}
}

// TestNothingIsLeft compares what the process holds before and after groups.
func TestNothingIsLeft(t *testing.T) {
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		t.Skip("no /proc to look at")
	}
	held := func() (files, maps int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), strings.Count(string(text), "memfd:")
	}
	for _, tr := range transports {
		run := func() {
			for _, main := range []func(context.Context, *Group) error{someOfEverything, messagesRoundTheRing} {
				if err := tr.run(t.Context(), 2, main); err != nil {
					t.Fatal(err)
				}
			}
		}
		run() // what the runtime opens once
		// Shared tensors are given back when the collector has found them.
		files, maps := held()
		for range 5 {
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
			files, maps = held()
		}
		run()
		f, m := held()
		for range 100 {
			if f <= files && m <= maps {
				break
			}
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
			f, m = held()
		}
		if f > files || m > maps {
			t.Errorf("%s: %d files and %d shared mappings after, %d and %d before", tr.name, f, m, files, maps)
		}
	}
}

// TestWaitingIsCheap has a rank wait for a late one and looks at the
// processor time of the process.
func TestWaitingIsCheap(t *testing.T) {
	const late = 100 * time.Millisecond
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		least := late
		for range 5 { // of which a collection, or the time of another test's end, spoils some
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			before := processorTime()
			if g.Rank() == 1 {
				time.Sleep(late)
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			least = min(least, processorTime()-before)
			enough, err := BroadcastObject(ctx, g, least <= late/5, 0)
			if enough || err != nil {
				return err
			}
		}
		return fmt.Errorf("waiting %v took %v of processor time", late, least)
	})
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
