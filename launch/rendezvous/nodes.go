// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/launch"
)

// storyAfter is when a person at the terminal is told that the agent waits, and
// for what; storyAgain is when once more.
const (
	storyAfter = 5 * time.Second
	storyAgain = time.Minute
)

// Nodes joins a host with others: it is what launch.Config.Nodes takes.
type Nodes struct {
	Settings Settings
	Rank     int    // the node rank that this one asks for, -1 for any
	Addr     string // under which other nodes reach this one; empty: the one on the route to the store
	Meeting  Meeting

	ran bool // Run has been called
}

// agent is the shell around a machine: it carries actions out and turns what comes
// of them into events. One goroutine runs it.
type agent struct {
	host    *launch.Host
	out     io.Writer
	m       *Machine
	link    *link
	ctx     context.Context
	events  chan Event
	running sync.WaitGroup

	// Of the attempt that runs, if one does.
	stop    context.CancelCauseFunc
	kill    chan struct{}
	killed  bool
	stopped bool

	attempted bool
	failure   *launch.Error // of the last attempt, if its ranks failed by themselves
	said      string        // why the last round ended, as far as it has been said
	cannot    string        // the last word of a node that could not come, as far as it has been said
	forgot    bool          // such words, since the job runs
	signal    error         // what asked this node to leave
	result    Result
	over      bool
	restarts  int // before the last attempt
}

// Run implements [launch.Nodes]: it runs rounds on this host until the job has ended.
func (n *Nodes) Run(ctx context.Context, h *launch.Host) error {
	n.ran = true
	cfg := h.Config()
	// The store may take its time to be there: a signal ends that too.
	waits, busy := h.Idle(ctx)
	meet, err := n.Meeting.begin(waits, n, h)
	asked := context.Cause(waits)
	busy()
	switch {
	case err != nil && asked != nil:
		return stopped(cfg, asked)
	case err != nil:
		return &launch.ConfigError{Field: "Nodes", Err: err}
	}
	said := newNotes(cfg.Stderr)
	defer said.end()
	defer meet.close()
	if s := meet.server; s != nil { // who waits here for a node learns why it does not come
		s.OnRefusal(func(line string) { fmt.Fprintf(said, "cohort: the store in which the nodes meet %s\n", plain(line)) })
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	a := &agent{
		host: h, out: said, ctx: life, events: make(chan Event, 16),
		link: newLink(meet.open, n.Settings.Job, n.Settings.Timing.Call),
	}
	defer a.link.close()
	defer a.running.Wait()
	defer end()
	name, err := os.Hostname()
	if err != nil {
		name = meet.addr
	}
	me := Node{Host: name, PID: os.Getpid(), Addr: meet.addr, NumRanks: cfg.NumRanks, Role: cfg.Role, Rank: n.Rank, Hosts: meet.server != nil, Store: h.ServesStore()}
	a.m = NewMachine(n.Settings, me, newID, func() int {
		port, err := launch.FreePort(meet.addr)
		if err != nil {
			return 0
		}
		return port
	})
	return a.run(ctx)
}

func newID() string {
	b := make([]byte, idBytes/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// run plays until the machine has finished.
func (a *agent) run(ctx context.Context) error {
	a.running.Go(func() {
		a.link.follow(a.ctx, a.happened)
	})
	idle, busy := a.host.Idle(ctx)
	resting := true
	defer func() {
		if resting {
			busy()
		}
	}()
	a.step(Ticked{})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	story := time.NewTimer(storyAfter)
	defer story.Stop()
	asks := time.NewTicker(storyAfter)
	defer asks.Stop()
	for !a.over {
		if w := a.m.Wake(); !w.IsZero() {
			timer.Reset(max(0, time.Until(w)))
		}
		waits := ctx
		if resting {
			waits = idle
		}
		left := waits.Done()
		if a.signal != nil {
			left = nil
		}
		select {
		case e := <-a.events:
			a.step(e)
		case <-timer.C:
			a.step(Ticked{})
		case <-left:
			a.signal = context.Cause(waits)
			a.step(Leave{Text: a.signal.Error()})
		case <-asks.C:
			a.askWhoCannot()
		case <-story.C:
			a.story()
			story.Reset(storyAgain)
		}
		// Signals go to the ranks where there are any.
		if runs := a.stop != nil; runs == resting {
			if resting = !runs; resting {
				idle, busy = a.host.Idle(ctx)
			} else {
				busy()
			}
		}
	}
	return a.outcome()
}

// happened hands an event to the loop.
func (a *agent) happened(e Event) {
	select {
	case a.events <- e:
	case <-a.ctx.Done():
	}
}

func (a *agent) step(e Event) {
	switch e := e.(type) {
	case note:
		e.do()
		return
	case Ended:
		a.stop = nil
	}
	for _, act := range a.m.Step(time.Now(), e) {
		switch act := act.(type) {
		case Start:
			a.start(act.Place)
		case Stop:
			a.halt(act)
		case Finish:
			a.result, a.over = act.Result, true
		default:
			a.running.Go(func() { a.happened(a.link.do(a.ctx, act)) })
		}
	}
}

// start runs an attempt beside the loop.
func (a *agent) start(p Place) {
	if p.MasterPort == 0 {
		p.MasterPort = 29500 // its node found none that is free: what listens there says so
	}
	last := p.FirstRank + a.host.Config().NumRanks - 1
	if a.failure != nil {
		a.failure.Report(a.out)
	}
	if p.Before != "" && p.Before != a.said {
		fmt.Fprintf(a.out, "cohort: the round before has ended: %s\n", plain(p.Before))
	}
	a.said = ""
	if p.Restarts > a.restarts {
		fmt.Fprintf(a.out, "cohort: restart %d of %d\n", p.Restarts, a.host.Config().MaxRestarts)
	}
	if !a.attempted && p.NodeRank > 0 && a.host.Config().AgentStore != launch.StoreByProgram && a.host.ServesStore() != p.AgentStore {
		who := "rank 0 serves it"
		if p.AgentStore {
			who = "its launcher serves it"
		}
		fmt.Fprintf(a.out, "cohort: what this machine was told of who serves PyTorch's store counts for nothing: the machine with rank 0 says that %s\n", who)
	}
	fmt.Fprintf(a.out, "cohort: round %d: this is node %d of %d, with ranks %d to %d of %d\n", p.Round, p.NodeRank, p.NumNodes, p.FirstRank, last, p.NumRanks)
	ctx, stop := context.WithCancelCause(a.ctx)
	kill := make(chan struct{})
	a.stop, a.kill, a.killed, a.stopped = stop, kill, false, false
	a.attempted, a.failure, a.restarts = true, nil, p.Restarts
	attempt := launch.Attempt{
		Number: p.Restarts, NodeRank: p.NodeRank, NumNodes: p.NumNodes, FirstRank: p.FirstRank, WorldSize: p.NumRanks,
		FirstRoleRank: p.FirstRoleRank, RoleWorldSize: p.NumRoleRanks, MasterAddr: p.MasterAddr, MasterPort: p.MasterPort,
		NodeAddrs: p.Addrs, AgentStore: p.AgentStore,
		Kill: kill,
		OnSignal: func(s syscall.Signal) {
			text := "it got " + unix.SignalName(s)
			if notice := a.host.Notice(); notice != "" {
				text = "it is about to go: " + notice
			}
			a.running.Go(func() { a.happened(Leave{Text: text}) })
		},
		OnFailure: func(f launch.Failure) {
			if !f.Stopped {
				a.running.Go(func() { a.happened(Failing{Round: p.Round, Text: f.Line(), Final: f.Final}) })
			}
		},
	}
	a.running.Go(func() {
		defer stop(nil)
		err := a.host.Run(ctx, attempt)
		e := Ended{Round: p.Round, Status: Done}
		if err != nil {
			e.Status, e.Text = Failed, err.Error()
			failed := (*launch.Error)(nil)
			e.Final = errors.As(err, &failed) && failed.Final()
		}
		a.happened(note{func() { a.finished(err) }})
		a.happened(e)
	})
}

// note is no event of the machine: something to do on the loop's goroutine.
type note struct{ do func() }

func (note) isEvent() {}

// finished looks at how an attempt ended.
func (a *agent) finished(err error) {
	var failed *launch.Error
	if !errors.As(err, &failed) {
		return
	}
	switch {
	case failed.Signal != 0:
		a.signal = failed
	case slices.ContainsFunc(failed.Failures, func(f launch.Failure) bool { return !f.Stopped }):
		a.failure = failed
	}
}

// halt ends the attempt that runs.
func (a *agent) halt(s Stop) {
	if a.stop == nil {
		return
	}
	if !a.stopped {
		a.stopped, a.said = true, s.Text
		fmt.Fprintf(a.out, "cohort: the ranks of this node are stopped: %s\n", plain(s.Text))
		a.stop(errors.New(s.Text))
	}
	if s.Kill && !a.killed {
		a.killed = true
		close(a.kill)
	}
}

// story tells what this node waits for.
func (a *agent) story() {
	s := a.m.State()
	since, err := a.link.failure()
	switch {
	case err != nil:
		fmt.Fprintf(a.out, "cohort: the store in which the nodes meet has been out of reach for %v: %s\n", time.Since(since).Round(time.Second), plain(err.Error()))
	case s != nil && s.Phase == Gathering && len(s.Members) < s.Min:
		fmt.Fprintf(a.out, "cohort: job %q waits for nodes: %d of at least %d are there: %s\n", plain(s.Job), len(s.Members), s.Min, plain(names(s.Members)))
	case s != nil && s.Phase == Running && a.m.order < 0:
		fmt.Fprintf(a.out, "cohort: job %q runs on %d nodes, as many as it takes; this one waits for a place\n", plain(s.Job), len(s.Members))
	}
}

// outcome is what the job's end is to this host.
func (a *agent) outcome() error {
	cfg := a.host.Config()
	r := a.result
	switch {
	case r.Good:
		return nil
	case r.Left && a.signal != nil:
		return stopped(cfg, a.signal)
	}
	text := plain(r.Text)
	if since, err := a.link.failure(); err != nil && a.m.state == nil {
		text = fmt.Sprintf("the store in which the nodes meet has been out of reach for %v: %v", time.Since(since).Round(time.Second), err)
	}
	if a.failure != nil {
		return a.failure
	}
	if !a.attempted {
		return &launch.ConfigError{Field: "Nodes", Err: errors.New(text)}
	}
	return &launch.Error{Program: cfg.Program, NumRanks: cfg.NumRanks, Cause: errors.New(text)}
}

// stopped is the end of a job for a reason from outside: a signal, or the end of
// the caller's context.
func stopped(cfg launch.Config, cause error) error {
	var asked *launch.Error
	if errors.As(cause, &asked) {
		return asked
	}
	return &launch.Error{Program: cfg.Program, NumRanks: cfg.NumRanks, Cause: cause}
}

// plain is a text of another node's as a terminal may have it, on one line.
func plain(text string) string {
	return visible.Text(strings.NewReplacer("\n", " ", "\t", " ").Replace(text))
}

var _ launch.Nodes = (*Nodes)(nil)

// chosen returns the address under which others reach this node.
func chosen(ctx context.Context, endpoint string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, storyAfter)
	defer cancel()
	c, err := transport.ChooseInterface(ctx, endpoint)
	return c.Host, err
}
