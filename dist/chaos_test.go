// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

var (
	numFaults = flag.Int("faults", 0, "how many faults TestChaos makes; 0 for the sample of every day")
	oneFault  = flag.Int("fault", -1, "the only one of TestChaos's faults to make, by number")
	atOnce    = flag.Int("faults.parallel", 4, "how many faults TestChaos makes at a time")
)

// fault is one injected fault, all of it drawn from a seed.
type fault struct {
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

func (f *fault) String() string {
	where := "processes"
	if f.Inside {
		where = "goroutines"
	}
	return fmt.Sprintf("fault %d: %s of rank %d of %d (%s, %s) at call %d and %v", f.Number, f.Kind, f.Victim, f.Ranks, f.Transport, where, f.Call, f.Delay)
}

// chaosKind is a kind of fault.
type chaosKind struct {
	name   string
	weight int
	// inside says whether the ranks are goroutines of one process, processes, or either.
	inside, processes bool
	transports        []string
	cause             string // what the survivors' errors give as the cause; "" if nobody should notice
	stall             bool   // noticed by silence
	perhaps           bool   // or nobody notices
}

var (
	insideTransports  = []string{"goroutines", "staged", "shm", "unix", "tcp", "tls", "mixed"}
	spawnedTransports = []string{"goroutines", "staged"}
	processTransports = []string{"shm", "unix", "tcp", "tls", "mixed"}
)

var chaosKinds = []chaosKind{
	{name: "kill", weight: 8, processes: true, transports: processTransports, cause: "died"},
	{name: "stop", weight: 6, processes: true, transports: processTransports, cause: "silent", stall: true},
	{name: "cut", weight: 4, processes: true, transports: []string{"tcp", "tls"}, cause: "silent or failed", stall: true},
	{name: "half-open", weight: 2, processes: true, transports: processTransports},
	{name: "garbage", weight: 2, processes: true, transports: processTransports},
	{name: "spoilt", weight: 3, processes: true, transports: processTransports, cause: "failed or left or died or silent", perhaps: true},
	{name: "comes late", weight: 1, processes: true, transports: processTransports},
	{name: "comes twice", weight: 1, processes: true, transports: processTransports},
	{name: "never comes", weight: 1, processes: true, transports: processTransports, cause: "late"},
	{name: "full", weight: 2, processes: true, transports: []string{"shm", "mixed"}, cause: "failed or left or late", perhaps: true},
	{name: "error", weight: 2, inside: true, transports: insideTransports, cause: "failed"},
	{name: "leave", weight: 2, inside: true, transports: insideTransports, cause: "left or failed"},
	{name: "panic", weight: 1, inside: true, transports: spawnedTransports, cause: "failed"},
	{name: "exit", weight: 1, inside: true, transports: spawnedTransports, cause: "failed"},
}

// chaosCallsAfter is how many calls are made after a fault that does no harm.
const chaosCallsAfter = 100

func (f *fault) kind() *chaosKind {
	return &chaosKinds[slices.IndexFunc(chaosKinds, func(k chaosKind) bool { return k.name == f.Kind })]
}

// harmless reports whether the job may go on as if nothing had happened.
func (f *fault) harmless() bool { return f.kind().cause == "" || f.kind().perhaps }

// drawFault draws a fault; the same number and seed give the same one.
func drawFault(seed uint64, number int) *fault {
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
	f := &fault{Number: number, Seed: rng.Uint64(), Kind: kind.name, Inside: kind.inside, Agent: rng.IntN(2) == 0}
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
		f.Delay = time.Second
	}
	f.Silence = DefaultSilence
	if kind.stall {
		f.Silence = chaosSilence
	}
	return f
}

// chaosSilence is the silence limit of ranks one of which falls silent. It is short,
// for the wait is all that these faults take, and long enough for a machine that
// has other things to do; TestStoppedProcess measures the default one.
const chaosSilence = time.Second

// options are those of Init.
func (f *fault) options() (opts []Option) {
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
	fault   *fault
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
func (f *fault) bound() time.Duration {
	if f.kind().stall || f.Kind == "spoilt" { // the garbage may look like the begin of a frame
		return f.Silence + time.Second
	}
	return time.Second
}

// groupBound returns how long survivors may take to make a group: what is
// promised, or in the sample of every day, which may run on a machine that is
// busy with other things, ten times that.
func groupBound() time.Duration {
	if *numFaults > 0 {
		return 100 * time.Millisecond
	}
	return time.Second
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
	var faults []*fault
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

// chaosJob is the processes of a fault.
type chaosJob struct {
	fault *fault
	out   *outcome
	ps    []*chaosProcess
	token string
	addr  string
}

// chaosProcess is one of them.
type chaosProcess struct {
	rank   int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	agent  *agentpipe.Writer
	mu     sync.Mutex
	line   []byte
	events []chaosEvent
	other  strings.Builder
	news   chan struct{} // closed and replaced when a line has come
	waited chan struct{}
	err    error
}

func (p *chaosProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range b {
		if p.line = append(p.line, c); c != '\n' {
			continue
		}
		var e chaosEvent
		rest, ok := strings.CutPrefix(string(p.line), "chaos ")
		if ok && json.Unmarshal([]byte(rest), &e) == nil {
			p.events = append(p.events, e)
		} else {
			p.other.Write(p.line)
		}
		p.line = p.line[:0]
		close(p.news)
		p.news = make(chan struct{})
	}
	return len(b), nil
}

func (p *chaosProcess) said(rank int, what string) (chaosEvent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.What == what && e.Rank == rank {
			return e, true
		}
	}
	return chaosEvent{}, false
}

// await waits until a rank has said something; false if its process ends first
// or the deadline has come.
func (p *chaosProcess) await(rank int, what string, deadline time.Time) (chaosEvent, bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		p.mu.Lock()
		news := p.news
		p.mu.Unlock()
		if e, ok := p.said(rank, what); ok {
			return e, true
		}
		select {
		case <-news:
		case <-p.waited:
			return p.said(rank, what)
		case <-timer.C:
			return chaosEvent{}, false
		}
	}
}

// start starts a process.
func (j *chaosJob) start(ctx context.Context, rank int) error {
	f := j.fault
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(j.addr)
	if err != nil {
		return err
	}
	p := &chaosProcess{rank: rank, cmd: exec.CommandContext(ctx, os.Args[0]), news: make(chan struct{}), waited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), rankMain+"=chaos", chaosFault+"="+string(text), envvar.Token.Assign(j.token), envvar.Silence.Assign(f.Silence.String()))
	if !f.Inside {
		kind := f.Transport
		if kind == "mixed" {
			kind = "auto"
		}
		p.cmd.Env = append(p.cmd.Env, envvar.Transport.Assign(kind), envvar.Rank.Assign(strconv.Itoa(rank)),
			envvar.WorldSize.Assign(strconv.Itoa(f.Ranks)), envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port))
		if f.Agent {
			news, agent, err := agentpipe.Pipe()
			if err != nil {
				return err
			}
			defer news.Close()
			p.agent = agent
			p.cmd.ExtraFiles = []*os.File{news} // becomes descriptor 3
			p.cmd.Env = append(p.cmd.Env, envvar.AgentFD.Assign("3"))
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.waited)
	}()
	j.ps = append(j.ps, p)
	return nil
}

// end ends what is left of the processes.
func (j *chaosJob) end() {
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		_ = p.cmd.Process.Kill()
		<-p.waited
		if p.agent != nil {
			_ = p.agent.Close()
		}
	}
}

// of returns the process of a rank.
func (j *chaosJob) of(rank int) *chaosProcess {
	if j.fault.Inside {
		return j.ps[0]
	}
	return j.ps[rank]
}

func (j *chaosJob) wrong(format string, args ...any) {
	j.out.wrong = append(j.out.wrong, fmt.Sprintf(format, args...))
}

// hung reports a rank that does not say what it must, with what all have said and
// their stacks.
func (j *chaosJob) hung(rank int, what string) {
	var text strings.Builder
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.waited:
		case <-time.After(5 * time.Second):
		}
		p.mu.Lock()
		for _, e := range p.events {
			fmt.Fprintf(&text, "%s of rank %d: %s\n", e.What, e.Rank, e.Text)
		}
		fmt.Fprintf(&text, "the process of rank %d:\n%s", p.rank, ownStacks(p.other.String()))
		p.mu.Unlock()
	}
	j.wrong("rank %d has not said %q:\n%s", rank, what, text.String())
}

// ownStacks leaves of the stacks that a process has printed those that are in
// the module, without addresses.
func ownStacks(text string) string {
	said, stacks, ok := strings.Cut(text, "SIGQUIT: quit")
	if !ok {
		return text
	}
	for _, g := range strings.Split(stacks, "\n\n") {
		if !strings.Contains(g, "cohort/dist.(") && !strings.Contains(g, "cohort/dist/internal/native.(") {
			continue
		}
		lines := strings.Split(g, "\n")
		said += strings.TrimSpace(lines[0]) + "\n"
		for i, line := range lines[1:] {
			if place := strings.TrimSpace(line); i%2 == 1 && !strings.Contains(place, "/src/") {
				place, _, _ = strings.Cut(place, " ")
				said += "    " + place[strings.LastIndexByte(place, '/')+1:] + "\n"
			}
		}
	}
	return said
}

// makeFault runs a job with a fault and looks at it.
func makeFault(ctx context.Context, f *fault) *outcome {
	for {
		j := &chaosJob{fault: f, out: &outcome{fault: f}, token: transport.NewToken().Text(), addr: freeAddr()}
		err := j.run(ctx)
		j.end()
		if err != nil {
			j.wrong("%v", err)
		}
		taken := false // the port, by somebody else, since we looked
		for _, p := range j.ps {
			taken = taken || p != nil && strings.Contains(p.other.String(), "address already in use")
		}
		if !taken {
			return j.out
		}
	}
}

// startPatience is how long ranks may take to be there.
const startPatience = 60 * time.Second

func (j *chaosJob) run(ctx context.Context) error {
	f := j.fault
	numProcesses := f.Ranks
	if f.Inside {
		numProcesses = 1
	}
	for r := range numProcesses {
		if f.Kind == "never comes" && r == f.Victim {
			j.ps = append(j.ps, nil)
			continue
		}
		if err := j.start(ctx, r); err != nil {
			return err
		}
	}
	var survivors []int
	for r := range f.Ranks {
		if r != f.Victim {
			survivors = append(survivors, r)
		}
	}
	if f.Kind == "never comes" {
		return j.miss(survivors)
	}
	// From when the victim strikes the others have their time.
	struck, ok := j.of(f.Victim).await(f.Victim, "fault", time.Now().Add(startPatience))
	if !ok {
		j.hung(f.Victim, "fault")
		return nil
	}
	switch f.Kind {
	case "kill":
		victim := j.of(f.Victim)
		<-victim.waited
		for _, p := range j.ps {
			if f.Agent && p != victim {
				_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: f.Victim, Code: -1, Signal: "killed"})
			}
		}
	case "cut":
		text, err := json.Marshal(struck.Links)
		if err != nil {
			return err
		}
		for _, r := range survivors {
			_, _ = j.of(r).stdin.Write(append(text, '\n'))
		}
	case "comes twice":
		if err := j.twice(ctx); err != nil {
			return err
		}
	}
	if !j.outlive(survivors, struck.At) {
		return nil
	}
	switch f.Kind {
	case "stop":
		j.goOn()
	case "cut":
		victim := j.of(f.Victim)
		if e, ok := victim.await(f.Victim, "failed", time.Now().Add(chaosPatience)); !ok {
			j.hung(f.Victim, "failed")
		} else if took := time.Duration(e.At - struck.At); took > f.bound() {
			j.out.slow = append(j.out.slow, fmt.Sprintf("rank %d, which was cut off, had its error after %v, %v more than the %v it may take", f.Victim, took, took-f.bound(), f.bound()))
		}
	}
	j.checkEnds()
	return nil
}

// outlive sees the survivors through the fault.
func (j *chaosJob) outlive(survivors []int, struck int64) bool {
	f := j.fault
	deadline := time.Now().Add(f.bound() + chaosPatience)
	if f.harmless() {
		unharmed := 0
		for _, r := range append(survivors, f.Victim) {
			if _, ok := j.of(r).await(r, "unharmed", deadline); ok {
				unharmed++
			} else if !f.kind().perhaps {
				j.hung(r, "unharmed")
				return false
			}
		}
		_, failed := j.of(survivors[0]).said(survivors[0], "failed")
		if unharmed == f.Ranks && !failed {
			j.out.unharmed = true
			return true
		}
		if unharmed == f.Ranks { // the world is; a group was not formed
			if !j.eachSays(survivors, "failed", deadline) {
				return false
			}
			j.checkErrors(survivors, struck)
			return true
		}
	}
	if !j.eachSays(survivors, "failed", deadline) {
		return false
	}
	j.checkErrors(survivors, struck)
	if !j.out.named || j.out.store {
		return true
	}
	if !j.eachSays(survivors, "formed", deadline) || !j.eachSays(survivors, "used", deadline) {
		return false
	}
	j.timeGroup(survivors)
	return true
}

// miss looks at what ranks say of one that never comes.
func (j *chaosJob) miss(survivors []int) error {
	if !j.eachSays(survivors, "failed", time.Now().Add(startPatience)) {
		return nil
	}
	j.out.named = true
	for _, r := range survivors {
		if e, _ := j.of(r).said(r, "failed"); e.Named != j.fault.Victim && !strings.Contains(e.Text, fmt.Sprintf("connect to rank %d,", j.fault.Victim)) {
			j.out.named = false
			j.wrong("rank %d does not miss rank %d: %s", r, j.fault.Victim, e.Text)
		}
	}
	j.checkEnds()
	return nil
}

// twice starts a second process of the victim's rank, which must be told.
func (j *chaosJob) twice(ctx context.Context) error {
	if err := j.start(ctx, j.fault.Victim); err != nil {
		return err
	}
	p := j.ps[len(j.ps)-1]
	if e, ok := p.await(j.fault.Victim, "failed", time.Now().Add(chaosPatience)); !ok || !strings.Contains(e.Text, fmt.Sprintf("joined as rank %d before", j.fault.Victim)) {
		j.wrong("a second rank %d is not told that there is one: %s%s", j.fault.Victim, e.Text, p.other.String())
	}
	return nil
}

// eachSays waits until all ranks have said something.
func (j *chaosJob) eachSays(ranks []int, what string, deadline time.Time) bool {
	for _, r := range ranks {
		if _, ok := j.of(r).await(r, what, deadline); !ok {
			j.hung(r, what)
			return false
		}
	}
	return true
}

// checkErrors looks at what the survivors got, and when.
func (j *chaosJob) checkErrors(survivors []int, struck int64) {
	f := j.fault
	j.out.named = true
	for _, r := range survivors {
		e, _ := j.of(r).said(r, "failed")
		took := time.Duration(e.At - struck)
		j.out.slowest = max(j.out.slowest, took)
		if bound := f.bound(); took > bound {
			j.out.slow = append(j.out.slow, fmt.Sprintf("rank %d had its error after %v, %v more than the %v it may take", r, took, took-bound, bound))
		}
		for _, what := range []string{"failed", "later"} {
			e, ok := j.of(r).said(r, what)
			if f.Kind == "spoilt" && strings.Contains(e.Text, "the connection to the store is lost") {
				j.out.store = true // who has lost it knows no more, nor do the others
				continue
			}
			if ok && (e.Named != f.Victim || !slices.Contains(strings.Split(f.kind().cause, " or "), e.Cause)) {
				j.out.named = false
				j.wrong("rank %d says (%s) that rank %d %s, want that rank %d %s: %s", r, what, e.Named, e.Cause, f.Victim, f.kind().cause, e.Text)
			}
		}
		if e.Site == "" && f.Kind != "full" && !j.out.store {
			j.wrong("rank %d does not say where it called: %s", r, e.Text)
		}
	}
}

// timeGroup takes the time that the survivors' group took.
func (j *chaosJob) timeGroup(survivors []int) {
	var begun, ended int64
	for _, r := range survivors {
		e, _ := j.of(r).said(r, "formed")
		begun, ended = max(begun, e.Begun), max(ended, e.At)
	}
	j.out.group = time.Duration(ended - begun)
	if bound := groupBound(); j.out.group > bound {
		j.out.slow = append(j.out.slow, fmt.Sprintf("the survivors' group took %v, %v more than the %v it may take", j.out.group, j.out.group-bound, bound))
	}
}

// goOn wakes a stopped victim, which hears that it has been given up.
func (j *chaosJob) goOn() {
	f := j.fault
	victim := j.of(f.Victim)
	_ = victim.cmd.Process.Signal(syscall.SIGCONT)
	if e, ok := victim.await(f.Victim, "failed", time.Now().Add(chaosPatience)); !ok {
		j.hung(f.Victim, "failed")
	} else if e.Named != f.Victim || e.Cause != "silent" {
		j.wrong("rank %d, which was stopped, does not hear that it was given up: %s", f.Victim, e.Text)
	}
}

// checkEnds waits for all processes and looks at what they held.
func (j *chaosJob) checkEnds() {
	f := j.fault
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		dies := f.Kind == "kill" && p.rank == f.Victim
		select {
		case <-p.waited:
		case <-time.After(chaosPatience):
			j.hung(p.rank, "left")
			continue
		}
		e, left := p.said(0, "left")
		var exit *exec.ExitError
		switch {
		case dies && errors.As(p.err, &exit):
		case p.err != nil || !left:
			j.wrong("the process of rank %d ended with %v: %s", p.rank, p.err, p.other.String())
		}
		for _, what := range e.Leaks {
			j.out.leaks = append(j.out.leaks, fmt.Sprintf("the process of rank %d has left: %s", p.rank, what))
		}
		p.mu.Lock()
		for _, e := range p.events {
			if e.What == "wrong" {
				j.wrong("rank %d: %s", e.Rank, e.Text)
			}
		}
		p.mu.Unlock()
	}
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
