// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// silenceTable makes TestStoppedProcess run every transport with worlds of 2 to
// 8 ranks and the default limit, and print how long each rank took: some three
// minutes.
var silenceTable = flag.Bool("silence.table", false, "measure how long silence goes unnoticed")

// silenceBusy makes TestBusyProcesses go on for longer.
var silenceBusy = flag.Duration("silence.busy", 700*time.Millisecond, "for how long ranks are busy that must not be taken for silent")

// busyFor is the variable that says how long busyRank is busy.
const busyFor = "DIST_TEST_BUSY"

// silenceKinds are the links of ranks that are processes of this host: a
// transport, and for some of several nodes which each rank is on.
var silenceKinds = []struct{ name, transport, nodes string }{
	{"shm", "shm", ""}, {"unix", "unix", ""}, {"tcp", "tcp", ""}, {"tls", "tls", ""}, {"mixed", "auto", "aabbaabb"},
}

// stoppedRank runs collectives until one fails, says so with the time, and
// stays until it is told to end, so that nobody's leaving is taken for the cause.
func stoppedRank(ctx context.Context, g *Group) error {
	x := filled(tensor.Float32, 50_000, g.Rank())
	for i := 0; ; i++ {
		if i == 10 {
			fmt.Println("ready")
		}
		if err := g.AllReduce(ctx, x, Max); err != nil {
			again := g.Barrier(ctx)
			fmt.Printf("failed at %d: %v\nlater: %v\n", time.Now().UnixNano(), err, again)
			var re *RankError
			if !errors.As(err, &re) || !errors.Is(again, re.Cause) && !errors.Is(again, ErrSilent) {
				return fmt.Errorf("two reasons: %w, %w", err, again)
			}
			time.Sleep(time.Hour)
		}
	}
}

// saidLine waits for a line of output that begins so, and returns what follows.
func (p *rankProcess) saidLine(t testing.TB, prefix string, limit time.Duration) string {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		for line := range strings.Lines(p.output()) {
			if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(rest, "\n") {
				return strings.TrimSpace(rest)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("a rank has not said %q within %v; its output:\n%s", prefix, limit, p.stacks())
		}
	}
}

// TestKilledProcess kills one process of several: the others name it within a
// second. It is for -silence.table; TestKilledRank is quicker.
func TestKilledProcess(t *testing.T) {
	if !*silenceTable {
		t.Skip("for -silence.table")
	}
	for _, kind := range silenceKinds {
		for _, n := range []int{2, 3, 4, 8} {
			for _, victim := range []int{0, n - 1} {
				t.Run(fmt.Sprintf("%s/%d/rank%d", kind.name, n, victim), func(t *testing.T) {
					loseRank(t, kind.transport, kind.nodes, n, victim, syscall.SIGKILL, DefaultSilence, 0, " died: ")
				})
			}
		}
	}
}

// TestStoppedProcess stops one process of several: the others name it within
// the silence limit and a second, and so does the one itself when it goes on.
func TestStoppedProcess(t *testing.T) {
	type run struct {
		kind, n, victim int
		limit           time.Duration
	}
	var runs []run
	for k := range silenceKinds {
		if !*silenceTable {
			runs = append(runs, run{k, 3, k % 2 * 2, 2 * time.Second})
			continue
		}
		for _, n := range []int{2, 3, 4, 8} {
			runs = append(runs, run{k, n, 0, DefaultSilence}, run{k, n, n - 1, DefaultSilence})
		}
	}
	for _, r := range runs {
		kind := silenceKinds[r.kind]
		t.Run(fmt.Sprintf("%s/%d/rank%d", kind.name, r.n, r.victim), func(t *testing.T) {
			if !*silenceTable { // which measures
				t.Parallel()
			}
			ps := loseRank(t, kind.transport, kind.nodes, r.n, r.victim, syscall.SIGSTOP, r.limit, r.limit,
				" is silent: nothing was heard of it for "+r.limit.String()+"; its process is stopped")
			if err := ps[r.victim].cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			said := ps[r.victim].saidLine(t, "failed at ", 10*time.Second)
			if want := fmt.Sprintf("rank %d (host", r.victim); !strings.Contains(said, want) || !strings.Contains(said, ", this one, was given up by the others") {
				t.Errorf("rank %d does not hear that the others have given it up: %s", r.victim, said)
			}
		})
	}
}

// loseRank starts ranks, sends one of them a signal, and checks that the others
// say so within most and a second.
func loseRank(t *testing.T, link, nodes string, n, victim int, signal syscall.Signal, limit, most time.Duration, want string) []*rankProcess {
	t.Helper()
	env := []string{envvar.Transport.Assign(link), envvar.Silence.Assign(limit.String())}
	if nodes != "" {
		env = append(env, rankNodes+"="+nodes)
	}
	ps := startRanks(t, n, "stopped", env...)
	for _, p := range ps {
		p.saidLine(t, "ready", 30*time.Second)
	}
	begun := time.Now()
	if err := ps[victim].cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for r, p := range ps {
		if r == victim {
			continue
		}
		said := p.saidLine(t, "failed at ", limit+time.Minute)
		var at int64
		if _, err := fmt.Sscanf(said, "%d:", &at); err != nil {
			t.Fatalf("rank %d said %q", r, said)
		}
		took = append(took, time.Duration(at-begun.UnixNano()))
		if who := fmt.Sprintf(": rank %d (host", victim); !strings.Contains(said, who) || !strings.Contains(said, want) {
			t.Errorf("rank %d does not say that rank %d%s: %s", r, victim, want, said)
		}
	}
	if most += loaded.Allow(time.Second); slices.Max(took) > most {
		t.Errorf("a rank heard of it after %v, want %v at most", slices.Max(took), most)
	}
	t.Logf("noticed after %v to %v", slices.Min(took).Round(time.Millisecond), slices.Max(took).Round(time.Millisecond))
	return ps
}

// busyRank has many goroutines compute and make garbage, beside collectives.
func busyRank(ctx context.Context, g *Group) error {
	long, err := time.ParseDuration(os.Getenv(busyFor))
	if err != nil {
		return err
	}
	var busy sync.WaitGroup
	defer busy.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for i := range 4 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for list := [][]byte(nil); ; {
				select {
				case <-stop:
					return
				default:
				}
				if list = append(list, make([]byte, 100*i+100)); len(list) > 10_000 {
					list = nil
				}
			}
		})
	}
	x := filled(tensor.Float32, 50_000, g.Rank())
	// All end with the same call: a vote, since their clocks differ.
	for start, votes := time.Now(), number(0); votes.Item() == 0; {
		if err := g.AllReduce(ctx, x, Max); err != nil {
			return err
		}
		votes = number(0)
		if time.Since(start) > long {
			votes = number(1)
		}
		if err := g.AllReduce(ctx, votes, Max); err != nil {
			return err
		}
	}
	return nil
}

// TestBusyProcesses has processes fight for the cores with many goroutines each
// and a short limit: busy is not silent. Where other programs keep the cores from
// them for as long, it is tried again.
func TestBusyProcesses(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			const limit = 500 * time.Millisecond
			starved := watchStarvation(t)
			var wrong error
			for range 4 {
				wrong = nil
				ps := startRanks(t, 4, "busy", envvar.Transport.Assign(kind), envvar.Silence.Assign(limit.String()), busyFor+"="+silenceBusy.String())
				for r, p := range ps {
					if err := p.await(t, *silenceBusy+time.Minute); err != nil {
						wrong = errors.Join(wrong, fmt.Errorf("rank %d: %w\n%s", r, err, p.output()))
					}
				}
				if wrong == nil {
					return
				}
				t.Log(wrong)
			}
			if starved() > limit/10 {
				t.Skipf("others keep this machine so busy that an idle process waits %v for its turn", starved())
			}
			t.Error(wrong)
		})
	}
}

// watchStarvation returns how long this process, which does nothing, has had to
// wait for a processor at most: the ranks' own work is for them to get along
// with, that of other programs is not.
func watchStarvation(t *testing.T) (longest func() time.Duration) {
	const nap = 10 * time.Millisecond
	var most atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(nap):
			}
			now := time.Now()
			most.Store(max(most.Load(), int64(now.Sub(last)-nap)))
			last = now
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	return func() time.Duration { return time.Duration(most.Load()) }
}

// TestLateReader has a rank read late what fills the way to it, and another wait
// for it: for many times the limit nothing passes, and nobody is silent. Where
// other programs keep a rank from its beats for a limit, a longer one is tried.
func TestLateReader(t *testing.T) {
	for _, tr := range transports {
		if tr.name != "tcp" && !*silenceTable {
			continue // to be quick
		}
		t.Run(tr.name, func(t *testing.T) {
			var err error
			for _, limit := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
				late := 6 * limit
				err = tr.run(t.Context(), 2, func(ctx context.Context, g *Group) error {
					x := filled(tensor.Float32, 4_000_000, 0)
					if g.Rank() == 0 {
						if err := g.Send(ctx, x, 1); err != nil {
							return err
						}
						return g.Barrier(ctx)
					}
					time.Sleep(late)
					if err := g.Recv(ctx, x, 0); err != nil {
						return err
					}
					time.Sleep(late)
					return g.Barrier(ctx)
				}, WithSilence(limit))
				if err == nil {
					return
				}
			}
			t.Error(err)
		})
	}
}

// TestSilenceOptions: limits that make no sense are refused, and ranks that do
// not agree on one are told so.
func TestSilenceOptions(t *testing.T) {
	for _, d := range []time.Duration{-1, time.Millisecond, 48 * time.Hour} {
		if _, err := Init(t.Context(), WithSilence(d)); err == nil || !strings.Contains(err.Error(), "silence limit") {
			t.Errorf("a limit of %v gives %v", d, err)
		}
	}
	t.Setenv(string(envvar.Silence), "fast")
	if _, err := Init(t.Context()); err == nil || !strings.Contains(err.Error(), "COHORT_SILENCE") {
		t.Errorf("a limit that is no duration gives %v", err)
	}
	os.Unsetenv(string(envvar.Silence))
	addr := freeAddr(t)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r := range errs {
		wg.Go(func() {
			g, err := Init(t.Context(), WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=2", addr, r)), WithSilence(time.Duration(r+1)*time.Second))
			if errs[r] = err; err == nil {
				_ = g.Close()
			}
		})
	}
	wg.Wait()
	if errs[0] == nil || errs[1] == nil || !strings.Contains(errors.Join(errs...).Error(), "WithSilence") {
		t.Errorf("ranks with different limits: %v", errs)
	}
	// 0 is nobody's limit, and is inherited or replaced in groups of some.
	err := initRanks("tcp")(t.Context(), 2, func(ctx context.Context, g *Group) error {
		sub, err := g.NewGroup(ctx, []int{1, 0}, WithSilence(time.Second))
		if err != nil {
			return err
		}
		if g.silence != 0 || sub.silence != time.Second {
			return fmt.Errorf("the limits are %v and %v", g.silence, sub.silence)
		}
		return sub.Barrier(ctx)
	}, WithSilence(0))
	if err != nil {
		t.Error(err)
	}
}

// idleRank does nothing in a group for a while, and says what that costs.
func idleRank(ctx context.Context, g *Group) error {
	long, err := time.ParseDuration(os.Getenv(busyFor))
	if err != nil {
		return err
	}
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	time.Sleep(long / 2) // what the runtime does after a start
	before := processorTime()
	time.Sleep(long)
	fmt.Printf("spent %d ns\n", processorTime()-before)
	return g.Barrier(ctx)
}

// TestIdleIsCheap looks at what processes spend on their beats.
func TestIdleIsCheap(t *testing.T) {
	long, sizes := time.Second/2, []int{8}
	if *silenceTable {
		long, sizes = 20*time.Second, []int{2, 8}
	}
	for _, n := range sizes {
		var spent []time.Duration
		for _, p := range startRanks(t, n, "idle", busyFor+"="+long.String()) {
			var ns int64
			if _, err := fmt.Sscan(strings.TrimSuffix(p.saidLine(t, "spent ", long+time.Minute), " ns"), &ns); err != nil {
				t.Fatal(err)
			}
			spent = append(spent, time.Duration(ns))
		}
		t.Logf("%d ranks: rank 0 spends %.3f %% of a core, others %.3f %% at most", n,
			100*spent[0].Seconds()/long.Seconds(), 100*slices.Max(spent[1:]).Seconds()/long.Seconds())
		if most := slices.Max(spent); most > long/20 {
			t.Errorf("a rank of %d at rest spent %v in %v", n, most, long)
		}
	}
}
