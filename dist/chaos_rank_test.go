// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// chaosFault is the variable that tells a process which fault it takes part in.
const chaosFault = "DIST_TEST_CHAOS"

// chaosEvent is what a rank says of what has come to it: a line of JSON.
type chaosEvent struct {
	What string // see chaosRank
	Rank int    // who says so
	At   int64  // when, in ns since 1970
	// Of an error: the rank that it names (-1 for none), its cause, text and
	// the place of the call.
	Named int
	Cause string
	Text  string
	Site  string
	// Begun is when something began that has ended at At.
	Begun int64
	Leaks []string
	Links [][2]string // of a cut: the ends of the victim's connections
}

// chaosPatience is how long a rank waits for what must come at once.
const chaosPatience = 10 * time.Second

// chaosRank is the main function of the processes of TestChaos: one rank, or
// all of them. Each says "ready" when its group is there and runs collectives
// drawn from the seed, which all draw alike. The victim says "fault" and does
// what the fault is. The others say "failed" with the error they get, "later"
// with that of a call after it, "formed" when the survivors have a group, "used"
// when that has worked, and at the end the process says "left" with what it
// holds that it did not hold at first.
func chaosRank() error {
	var f injected
	if err := json.Unmarshal([]byte(os.Getenv(chaosFault)), &f); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ) // of a full memory; the call's error says it too
	go f.obey()
	before := holding()
	ignored := goleak.IgnoreCurrent()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if f.Inside {
		i := slices.IndexFunc(transports, func(tr transportRow) bool { return tr.name == f.Transport })
		err = transports[i].run(ctx, f.Ranks, func(ctx context.Context, g *Group) error {
			err := f.takePart(ctx, g)
			if err != nil && !errors.Is(err, errChaos) {
				say(chaosEvent{What: "wrong", Rank: g.Rank(), Text: err.Error()})
			}
			return err
		})
		if errors.Is(err, errChaos) || errors.Is(err, errGoexit) {
			err = nil
		}
	} else {
		err = f.beRank(ctx)
	}
	if err != nil {
		return err
	}
	say(chaosEvent{What: "left", Leaks: leaks(before, ignored)})
	return nil
}

// obey does what the parent says on standard input.
func (f *injected) obey() {
	var links [][2]string
	for in := json.NewDecoder(os.Stdin); in.Decode(&links) == nil; {
		if len(links) == 0 {
			isolate(f.Silence + time.Second)
		}
		cutFrom(links)
	}
}

// beRank is the rank of a process of its own.
func (f *injected) beRank(ctx context.Context) error {
	if f.Kind == "never comes" {
		limited, cancel := context.WithTimeout(ctx, min(loaded.Allow(f.Delay), startPatience/4)) // in which the others come
		defer cancel()
		ctx = limited
	}
	if f.Kind == "comes late" && f.rank() == f.Victim {
		time.Sleep(f.Delay)
		say(chaosEvent{What: "fault", Rank: f.Victim})
	}
	g, err := Init(ctx, f.options()...)
	if err != nil {
		if f.Kind == "never comes" || f.Kind == "comes twice" {
			sayError("failed", f.rank(), err)
			return nil
		}
		return err
	}
	err = f.takePart(ctx, g)
	return errors.Join(err, g.Close())
}

var chaosOut sync.Mutex

func say(e chaosEvent) {
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	chaosOut.Lock()
	defer chaosOut.Unlock()
	fmt.Printf("chaos %s\n", line)
}

// errChaos is what a rank returns that is to fail.
var errChaos = errors.New("chaos has come")

// sayError says what an error names.
func sayError(what string, rank int, err error) (named int) {
	e := chaosEvent{What: what, Rank: rank, Named: -1, Text: err.Error()}
	var re *RankError
	var te *TimeoutError
	var me *MismatchError
	switch {
	case errors.As(err, &me):
		e.Cause = "mismatch"
	case errors.As(err, &te):
		e.Cause, e.Site = "late", te.Site
		if len(te.Missing) == 1 {
			e.Named = te.Missing[0].Rank
		}
	case errors.As(err, &re):
		e.Named, e.Site, e.Cause = re.Rank, re.Site, "failed"
		switch {
		case errors.Is(err, ErrDied):
			e.Cause = "died"
		case errors.Is(err, ErrSilent):
			e.Cause = "silent"
		case errors.Is(err, ErrLeft):
			e.Cause = "left"
		}
	}
	say(e)
	return e.Named
}

// takePart runs collectives until one fails, or to the end if none should.
func (f *injected) takePart(ctx context.Context, g *Group) error {
	me := g.Rank()
	say(chaosEvent{What: "ready", Rank: me})
	rng := rand.New(rand.NewPCG(f.Seed, 0))
	mine := rand.New(rand.NewPCG(f.Seed, uint64(me)+1))
	var pending *Work
	// Who passes this knows that all have returned from Init, of which the fault is
	// not to make an error.
	if err := g.Barrier(ctx); err != nil {
		return f.survive(ctx, g, err, nil)
	}
	for i := 0; ; i++ {
		if f.harmless() && i == f.Call+chaosCallsAfter {
			say(chaosEvent{What: "unharmed", Rank: me})
			return nil
		}
		if f.Kind == "half-open" || f.Kind == "garbage" {
			if i == f.Call {
				end, err := strangers(mine, f.Kind == "garbage")
				if err != nil {
					return err
				}
				defer end()
			}
		}
		if f.Kind == "full" && i == f.Call+5 {
			if err := f.groupWhenFull(ctx, g); err != nil {
				return err
			}
		}
		c := f.drawOne(rng, g.Size())
		along := rng.IntN(4) == 0
		if along {
			pending = g.AllReduceAsync(ctx, filled(tensor.Float32, 1+rng.IntN(5000), me), Max)
		}
		if me == f.Victim && i == f.Call {
			if err := f.strike(ctx, g, mine); err != nil {
				return err
			}
		}
		err := c.run(ctx, g)
		if err == nil && along {
			err = pending.Wait(ctx)
		}
		if err != nil {
			return f.survive(ctx, g, err, pending)
		}
	}
}

// drawOne draws a collective that is not too large for a loop of them.
func (f *injected) drawOne(rng *rand.Rand, numRanks int) one {
	var c choice
	for i, n := range factorSizes() {
		c[i] = rng.IntN(n)
	}
	o := c.one(numRanks)
	o.count = min(o.count, 100_003/(numRanks*numRanks))
	switch f.Kind {
	case "full", "cut": // the program itself asks for no shared memory
		o.layout = "dense"
	case "spoilt": // garbage inside of a long piece would be data
		o.count = min(o.count, 1000)
	}
	return o
}

// survive is what a rank does after a fault.
func (f *injected) survive(ctx context.Context, g *Group, err error, pending *Work) error {
	me := g.Rank()
	named := sayError("failed", me, err)
	begun := time.Now()
	if pending != nil {
		limit, cancel := context.WithTimeout(ctx, chaosPatience)
		_ = pending.Wait(limit) // it may have been done before
		cancel()
	}
	again := g.Barrier(ctx)
	if again == nil {
		return errors.New("a barrier after the failure passed")
	}
	sayError("later", me, again)
	if took := time.Since(begun); took > loaded.Allow(time.Second) {
		return fmt.Errorf("pending and later calls failed after %v", took)
	}
	if me == f.Victim && f.Kind != "spoilt" || named < 0 || named == me {
		return nil // it has been given up, or cannot know by whom to go on
	}
	var alive []int
	for r := range g.Size() {
		if r != named {
			alive = append(alive, r)
		}
	}
	limit, cancel := context.WithTimeout(ctx, chaosPatience)
	defer cancel()
	start := time.Now().UnixNano()
	sub, err := g.NewGroup(limit, alive)
	if err != nil {
		return fmt.Errorf("the survivors' group: %w", err)
	}
	say(chaosEvent{What: "formed", Rank: me, Begun: start})
	x := number(1)
	if err := sub.AllReduce(limit, x, Sum); err != nil {
		return fmt.Errorf("in the survivors' group: %w", err)
	}
	if got := x.Item(); got != float64(len(alive)) {
		return fmt.Errorf("the survivors count %v, want %d", got, len(alive))
	}
	if err := sub.Close(); err != nil {
		return err
	}
	say(chaosEvent{What: "used", Rank: me})
	return nil
}

// strike makes the fault happen on the victim: now, or a moment later while the
// program goes on.
func (f *injected) strike(ctx context.Context, g *Group, rng *rand.Rand) error {
	self := func(s syscall.Signal) func() {
		return func() {
			say(chaosEvent{What: "fault", Rank: f.Victim})
			_ = syscall.Kill(os.Getpid(), s)
		}
	}
	switch f.Kind {
	case "kill":
		f.soon(self(syscall.SIGKILL))
	case "stop":
		f.soon(self(syscall.SIGSTOP))
	case "cut":
		f.soon(func() {
			links, err := cutOff()
			if err != nil {
				say(chaosEvent{What: "wrong", Rank: f.Victim, Text: err.Error()})
			}
			say(chaosEvent{What: "fault", Rank: f.Victim, Links: links})
		})
	case "spoilt":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		return spoil(rng)
	case "full":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1, Max: math.MaxUint64})
	case "half-open", "garbage", "comes twice":
		say(chaosEvent{What: "fault", Rank: f.Victim})
	case "comes late":
	case "error":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		return errChaos
	case "panic":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		panic(errChaos)
	case "exit":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		runtime.Goexit()
	case "leave":
		say(chaosEvent{What: "fault", Rank: f.Victim})
		if err := g.Close(); err != nil {
			return err
		}
		return errChaos
	default:
		return fmt.Errorf("no fault %q", f.Kind)
	}
	return nil
}

// groupWhenFull makes a group whose first rank, which makes the memory that all
// share, gets no memory to share. The group that it is made from stays as it was.
func (f *injected) groupWhenFull(ctx context.Context, g *Group) error {
	ranks := []int{f.Victim}
	for r := range g.Size() {
		if r != f.Victim {
			ranks = append(ranks, r)
		}
	}
	sub, err := g.NewGroup(ctx, ranks)
	if err == nil {
		return sub.Close()
	}
	var re *RankError
	var te *TimeoutError
	if errors.As(err, &re) { // it counts as the new group does
		here := *re
		here.Rank = ranks[re.Rank]
		err = &here
	} else if errors.As(err, &te) {
		here := *te
		here.Missing = slices.Clone(te.Missing)
		for i := range here.Missing {
			here.Missing[i].Rank = ranks[here.Missing[i].Rank]
		}
		err = &here
	} else if g.Rank() == f.Victim {
		err = fmt.Errorf("%w (%w)", &RankError{Rank: g.Rank(), Cause: err}, err)
	}
	sayError("failed", g.Rank(), err)
	return nil
}

// rank is that of this process.
func (f *injected) rank() int {
	rank, _ := strconv.Atoi(os.Getenv(string(envvar.Rank)))
	return rank
}

// soon does something after the fault's delay.
func (f *injected) soon(do func()) {
	if f.Delay == 0 {
		do()
		return
	}
	time.AfterFunc(f.Delay, do)
}

// holding returns what the process has open, by how often: files, and mappings
// of shared memory.
func holding() map[string]int {
	held := map[string]int{}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, e := range entries {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
				kind, _, _ := strings.Cut(to, "[")
				held["file "+kind]++
			}
		}
	}
	text, _ := os.ReadFile("/proc/self/maps")
	held["shared mappings"] = strings.Count(string(text), "memfd:")
	return held
}

// leaks returns what the process holds that it did not hold before, once that
// becomes no less.
func leaks(before map[string]int, ignored goleak.Option) []string {
	var more []string
	for range 100 {
		more = nil
		for what, n := range holding() {
			if n > before[what] && what != "file anon_inode:" { // the runtime's poller
				more = append(more, fmt.Sprintf("%d of %s", n-before[what], what))
			}
		}
		if more == nil {
			break
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if err := goleak.Find(ignored, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve")); err != nil {
		more = append(more, err.Error())
	}
	return more
}
