// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
)

var (
	numFaults = flag.Int("faults", 0, "how many faults TestChaos makes; 0 for the sample of every day")
	oneFault  = flag.Int("fault", -1, "the only one of TestChaos's faults to make, by number")
	atOnce    = flag.Int("faults.parallel", 4, "how many faults TestChaos makes at a time")
)

// injected is one injected fault, all of it drawn from a seed.
type injected struct {
	Number    int
	Seed      uint64
	Kind      string
	Transport string
	Inside    bool // the ranks are goroutines of one process
	Ranks     int
	Victim    int
	Call      int           // of the victim, at which it happens
	Delay     time.Duration // from the begin of that call
	Silence   time.Duration
	Agent     bool // an agent tells the others how a process has ended
}

func (f *injected) String() string {
	where := "processes"
	if f.Inside {
		where = "goroutines"
	}
	return fmt.Sprintf("fault %d: %s of rank %d of %d (%s, %s) at call %d and %v", f.Number, f.Kind, f.Victim, f.Ranks, f.Transport, where, f.Call, f.Delay)
}

// chaosKind is a kind of fault.
type chaosKind struct {
	name       string
	weight     int
	inside     bool // the ranks are goroutines of one process
	transports []string
	cause      string // what the survivors' errors may give as the cause; "" if nobody should notice
	stall      bool   // noticed by silence
	perhaps    bool   // or nobody notices
}

var (
	insideTransports  = []string{"goroutines", "staged", "shm", "unix", "tcp", "tls", "mixed"}
	spawnedTransports = []string{"goroutines", "staged"}
	processTransports = []string{"shm", "unix", "tcp", "tls", "mixed"}
)

// chaosKinds are what happens to the victim:
//
//	kill, stop   SIGKILL and SIGSTOP; who was stopped goes on in the end
//	cut          nothing comes or goes over its connections any more, without a reset
//	half-open    strangers connect to every port of all ranks and say nothing, or half a handshake
//	garbage      strangers say anything
//	spoilt       the victim writes garbage into one of its own connections
//	comes late   to the group of all ranks; twice: a second process of its rank; never
//	full         it gets no memory to share, in the collectives and in a new group
//	error, panic, exit, leave
//	             its function returns an error, panics, ends its goroutine, or
//	             closes the group while others go on
var chaosKinds = []chaosKind{
	{name: "kill", weight: 8, transports: processTransports, cause: "died"},
	{name: "stop", weight: 6, transports: processTransports, cause: "silent", stall: true},
	{name: "cut", weight: 4, transports: []string{"tcp", "tls"}, cause: "silent or failed", stall: true},
	{name: "half-open", weight: 2, transports: processTransports},
	{name: "garbage", weight: 2, transports: processTransports},
	{name: "spoilt", weight: 3, transports: processTransports, cause: "failed or left or died or silent", perhaps: true},
	{name: "comes late", weight: 1, transports: processTransports},
	{name: "comes twice", weight: 1, transports: processTransports},
	{name: "never comes", weight: 1, transports: processTransports, cause: "late"},
	{name: "full", weight: 2, transports: []string{"shm", "mixed"}, cause: "failed or left or late or died", perhaps: true}, // the hub may end before it has said why
	{name: "error", weight: 2, inside: true, transports: insideTransports, cause: "failed or left"},                         // it leaves right after
	{name: "leave", weight: 2, inside: true, transports: insideTransports, cause: "left or failed"},
	{name: "panic", weight: 1, inside: true, transports: spawnedTransports, cause: "failed"},
	{name: "exit", weight: 1, inside: true, transports: spawnedTransports, cause: "failed"},
}

// chaosCallsAfter is how many calls are made after a fault that does no harm.
const chaosCallsAfter = 100

func (f *injected) kind() *chaosKind {
	return &chaosKinds[slices.IndexFunc(chaosKinds, func(k chaosKind) bool { return k.name == f.Kind })]
}

// harmless reports whether the job may go on as if nothing had happened.
func (f *injected) harmless() bool { return f.kind().cause == "" || f.kind().perhaps }

// drawFault draws a fault; the same number and seed give the same one.
func drawFault(seed uint64, number int) *injected {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	total := 0
	for _, k := range chaosKinds {
		total += k.weight
	}
	// One after the other of the whole, so that a small sample has all kinds.
	at := (number*7 + int(seed%uint64(total))) % total
	var kind chaosKind
	for _, kind = range chaosKinds {
		if at -= kind.weight; at < 0 {
			break
		}
	}
	f := &injected{Number: number, Seed: rng.Uint64(), Kind: kind.name, Inside: kind.inside, Agent: rng.IntN(2) == 0}
	f.Transport = kind.transports[rng.IntN(len(kind.transports))]
	f.Ranks = 2 + rng.IntN(7)
	if rng.IntN(2) == 0 { // the ends are special: half of them
		f.Victim = rng.IntN(2) * (f.Ranks - 1)
	} else {
		f.Victim = rng.IntN(f.Ranks)
	}
	f.Call = rng.IntN(60)
	f.Delay = []time.Duration{0, time.Duration(rng.IntN(200_000)), time.Duration(rng.IntN(5_000_000))}[rng.IntN(3)]
	switch f.Kind {
	case "comes late":
		f.Call, f.Delay = 0, time.Duration(rng.IntN(int(time.Second)))
	case "comes twice":
		f.Victim = 1 + rng.IntN(f.Ranks-1) // rank 0 cannot listen where there is one
	case "never comes":
		f.Delay = 2 * time.Second
	}
	f.Silence = DefaultSilence
	if kind.stall {
		f.Silence = chaosSilence
		if *numFaults == 0 {
			f.Silence = loaded.Allow(f.Silence)
		}
	}
	return f
}

// chaosSilence is the silence limit of ranks one of which falls silent. It is short,
// for the wait is all that these faults take, and long enough for a machine that
// has other things to do; TestStoppedProcess measures the default one.
const chaosSilence = time.Second

// options are those of Init.
func (f *injected) options() (opts []Option) {
	if f.Transport == "mixed" {
		rank, _ := strconv.Atoi(os.Getenv(string(envvar.Rank)))
		opts = append(opts, WithNodeID("node "+chaosNodes[rank:rank+1]))
	}
	return opts
}

// chaosNodes are the nodes of ranks that are said to be on several.
const chaosNodes = "abaabbca"

// outcome is what came of a fault.
type outcome struct {
	fault   *injected
	slowest time.Duration // of the survivors to have their error
	group   time.Duration // from the last survivor's asking to the last one's having the group
	named   bool          // by all survivors
	// unharmed says that nobody noticed, where that is how it should be, or may be.
	unharmed bool
	// store says that it was a connection to the store that was spoilt.
	store bool
	leaks []string
	wrong []string // what is not as it must be, time apart
	slow  []string // what took too long
	again bool     // it was slow at first, beside others, and repeated alone
}

// bound is how long the survivors may take to have their errors.
func (f *injected) bound() time.Duration {
	after := time.Second
	if *numFaults == 0 {
		after = loaded.Allow(after)
	}
	if f.kind().stall || f.Kind == "spoilt" { // the garbage may look like the begin of a frame
		after += f.Silence
	}
	return after
}

// groupBound returns how long survivors may take to make a group: what is
// promised, or in the sample of every day, which may run on a machine that is
// busy with other things, ten times that.
func groupBound() time.Duration {
	if *numFaults > 0 {
		return 100 * time.Millisecond
	}
	return loaded.Allow(time.Second)
}

// TestChaos injects faults into jobs of 2 to 8 ranks and looks at what every
// survivor says: who it was, in time, that pending and later calls fail, that the
// survivors form a group, and that no process, goroutine, file or mapping is
// left. Of every day it makes a sample; 1,000 of them, and a table:
//
//	go test ./dist -run TestChaos -faults 1000 -seed N -timeout 60m -v
//
// A seed and a number give the same fault again: -seed N -fault I. What takes
// too long beside other faults is repeated alone, three times at most, before it
// counts, since these are time limits of a machine that has other things to do.
func TestChaos(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks at what a process holds in /proc")
	}
	seed := *caseSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 32)
	}
	n := *numFaults
	if n == 0 {
		n = 50
		if testing.Short() {
			n = 10
		}
	}
	t.Logf("seed %d", seed)
	var faults []*injected
	for i := range n {
		if *oneFault < 0 || i == *oneFault {
			faults = append(faults, drawFault(seed, i))
		}
	}
	if *oneFault >= n {
		faults = append(faults, drawFault(seed, *oneFault))
	}
	outcomes := make([]*outcome, len(faults))
	next := make(chan int, len(faults))
	for i := range faults {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range *atOnce {
		wg.Go(func() {
			for i := range next {
				outcomes[i] = makeFault(t.Context(), faults[i])
			}
		})
	}
	wg.Wait()
	for i, o := range outcomes {
		for range maxRepeats {
			if len(o.slow) == 0 || len(o.wrong) > 0 {
				break
			}
			t.Logf("seed %d, %v: repeated alone since %s", seed, faults[i], strings.Join(o.slow, "; "))
			o = makeFault(t.Context(), faults[i])
			o.again = true
			outcomes[i] = o
		}
	}
	for _, o := range outcomes {
		for _, text := range slices.Concat(o.wrong, o.slow, o.leaks) {
			t.Errorf("seed %d, %v: %s\nrepeat it with: go test ./dist -run TestChaos -seed %d -fault %d", seed, o.fault, text, seed, o.fault.Number)
		}
	}
	t.Log(chaosTable(outcomes, *numFaults > 0))
}

// maxRepeats is how often a fault that took too long is repeated alone.
const maxRepeats = 3

// chaosTable is the outcomes by kind and transport, and by ranks too if asked.
func chaosTable(outcomes []*outcome, byRanks bool) string {
	type row struct {
		kind, transport string
		ranks           int
	}
	type sum struct {
		n, named, unharmed, leaks, wrong, again int
		slowest, group                          time.Duration
	}
	sums := map[row]*sum{}
	add := func(r row, o *outcome) {
		s := sums[r]
		if s == nil {
			s = &sum{}
			sums[r] = s
		}
		s.n++
		if o.named {
			s.named++
		}
		if o.unharmed {
			s.unharmed++
		}
		if len(o.wrong) > 0 {
			s.wrong++
		}
		if o.again {
			s.again++
		}
		s.leaks += len(o.leaks)
		s.slowest, s.group = max(s.slowest, o.slowest), max(s.group, o.group)
	}
	for _, o := range outcomes {
		f := o.fault
		tr := f.Transport
		if f.Inside {
			tr += " (inside)"
		}
		add(row{f.Kind, "all", 0}, o)
		add(row{"all", "all", 0}, o)
		add(row{f.Kind, tr, 0}, o)
		if byRanks {
			add(row{f.Kind, tr, f.Ranks}, o)
		}
	}
	rows := make([]row, 0, len(sums))
	for r := range sums {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.transport, b.transport), cmp.Compare(a.ranks, b.ranks))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-18s %-18s %5s %6s %6s %8s %10s %10s %6s %6s %6s\n", "kind", "transport", "ranks", "number", "named", "unharmed", "slowest", "group", "leaks", "wrong", "again")
	for _, r := range rows {
		ranks := "all"
		if r.ranks > 0 {
			ranks = strconv.Itoa(r.ranks)
		}
		s := sums[r]
		fmt.Fprintf(&b, "%-18s %-18s %5s %6d %6d %8d %10v %10v %6d %6d %6d\n", r.kind, r.transport, ranks, s.n, s.named, s.unharmed,
			s.slowest.Round(100*time.Microsecond), s.group.Round(100*time.Microsecond), s.leaks, s.wrong, s.again)
	}
	return b.String()
}
