// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/launch"
)

// After tellAfter, a line on the terminal says for what the node waits; after each
// tellAgain, once more.
const (
	tellAfter = 5 * time.Second
	tellAgain = time.Minute
)

// participant is this host as a node of the job. It is the shell around a [Machine]: it
// carries actions out and turns their results into events. One goroutine runs it.
type participant struct {
	host    *launch.Host
	out     io.Writer
	m       *Machine
	store   *storeClient
	ctx     context.Context
	events  chan Event
	running sync.WaitGroup

	// These belong to the attempt that runs, if one does.
	stop    context.CancelCauseFunc
	kill    chan struct{}
	killed  bool
	stopped bool

	attempted bool
	failure   *launch.Error // of the last attempt, if its ranks failed by themselves
	said      string        // why the last round ended, once a line has said so
	cannot    string        // why a node cannot come, once a line has said so
	check     launch.EnvironmentCheck
	print     func() *fingerprint.Fingerprint // of this node
	forgot    bool                            // what such nodes had said has been deleted, because the job runs
	signal    error                           // the signal, or the end of a context, that asks this node to leave
	result    Result
	over      bool
	restarts  int // failures before the last attempt
}

// run feeds the machine until it has finished.
func (p *participant) run(ctx context.Context) error {
	p.running.Go(func() {
		p.store.follow(p.ctx, p.happened)
	})
	idle, busy := p.host.Idle(ctx)
	resting := true
	defer func() {
		if resting {
			busy()
		}
	}()
	p.step(Ticked{})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	story := time.NewTimer(tellAfter)
	defer story.Stop()
	asks := time.NewTicker(tellAfter)
	defer asks.Stop()
	for !p.over {
		if w := p.m.Wake(); !w.IsZero() {
			timer.Reset(max(0, time.Until(w)))
		}
		waits := ctx
		if resting {
			waits = idle
		}
		left := waits.Done()
		if p.signal != nil {
			left = nil
		}
		select {
		case e := <-p.events:
			p.step(e)
		case <-timer.C:
			p.step(Ticked{})
		case <-left:
			p.signal = context.Cause(waits)
			p.step(Leave{Text: p.signal.Error()})
		case <-asks.C:
			p.askWhoCannot()
		case <-story.C:
			p.tellWaiting()
			story.Reset(tellAgain)
		}
		// While ranks run, signals go to them.
		if runs := p.stop != nil; runs == resting {
			if resting = !runs; resting {
				idle, busy = p.host.Idle(ctx)
			} else {
				busy()
			}
		}
	}
	return p.outcome()
}

// happened hands an event to the loop.
func (p *participant) happened(e Event) {
	select {
	case p.events <- e:
	case <-p.ctx.Done():
	}
}

func (p *participant) step(e Event) {
	switch e := e.(type) {
	case onLoop:
		e.do()
		return
	case Ended:
		p.stop = nil
	}
	for _, act := range p.m.Step(time.Now(), e) {
		switch act := act.(type) {
		case Start:
			p.start(act.Place)
		case Stop:
			p.halt(act)
		case Finish:
			p.result, p.over = act.Result, true
		default:
			p.running.Go(func() { p.happened(p.store.do(p.ctx, act)) })
		}
	}
}

// start runs an attempt beside the loop.
func (p *participant) start(at Place) {
	if at.MasterPort == 0 {
		at.MasterPort = 29500 // node 0 has found no free port; if this one is in use, rank 0 says so
	}
	last := at.FirstRank + p.host.Config().NumRanks - 1
	if p.failure != nil {
		p.failure.Report(p.out)
	}
	if at.Before != "" && at.Before != p.said {
		fmt.Fprintf(p.out, "cohort: the round before has ended: %s\n", plain(at.Before))
	}
	p.said = ""
	if at.Restarts > p.restarts {
		fmt.Fprintf(p.out, "cohort: restart %d of %d\n", at.Restarts, p.host.Config().MaxRestarts)
	}
	if !p.attempted && at.NodeRank > 0 && p.host.Config().AgentStore != launch.StoreByProgram && p.host.ServesStore() != at.AgentStore {
		who := "rank 0 serves it"
		if at.AgentStore {
			who = "its launcher serves it"
		}
		fmt.Fprintf(p.out, "cohort: --store has no effect on this machine: the machine with rank 0 says that %s\n", who)
	}
	fmt.Fprintf(p.out, "cohort: round %d: this is node %d of %d, with ranks %d to %d of %d\n", at.Round, at.NodeRank, at.NumNodes, at.FirstRank, last, at.NumRanks)
	ctx, stop := context.WithCancelCause(p.ctx)
	kill := make(chan struct{})
	p.stop, p.kill, p.killed, p.stopped = stop, kill, false, false
	p.attempted, p.failure, p.restarts = true, nil, at.Restarts
	attempt := launch.Attempt{
		Number: at.Restarts, NodeRank: at.NodeRank, NumNodes: at.NumNodes, FirstRank: at.FirstRank, WorldSize: at.NumRanks,
		FirstRoleRank: at.FirstRoleRank, RoleWorldSize: at.NumRoleRanks, MasterAddr: at.MasterAddr, MasterPort: at.MasterPort,
		NodeAddrs: at.Addrs, AgentStore: at.AgentStore,
		Kill: kill,
		OnSignal: func(s syscall.Signal) {
			text := "it got " + unix.SignalName(s)
			if notice := p.host.Notice(); notice != "" {
				text = "it is about to go: " + notice
			}
			p.running.Go(func() { p.happened(Leave{Text: text}) })
		},
		OnFailure: func(f launch.Failure) {
			if !f.Stopped {
				p.running.Go(func() { p.happened(Failing{Round: at.Round, Text: f.Line(), Final: f.Final}) })
			}
		},
	}
	compared := &comparison{store: p.store, prefix: keyEnvironments + strconv.Itoa(at.Round) + "/", mine: at.NodeRank, check: p.check, print: p.print, out: p.out}
	if s := p.m.State(); s != nil {
		compared.nodes = slices.Clone(s.Members)
	}
	p.running.Go(func() {
		defer stop(nil)
		e := Ended{Round: at.Round, Status: Done}
		err := p.compare(ctx, compared)
		differ := err != nil && ctx.Err() == nil && differs(err)
		if err == nil {
			err = p.host.Run(ctx, attempt)
		}
		if err != nil {
			e.Status, e.Text = Failed, err.Error()
			failed := (*launch.Error)(nil)
			e.Final = differ || errors.As(err, &failed) && failed.Final()
		}
		p.happened(onLoop{func() { p.finished(err) }})
		p.happened(e)
	})
}

// compare compares the environments of the nodes before the ranks of a round start. A signal
// ends it, and the node then leaves.
func (p *participant) compare(ctx context.Context, c *comparison) error {
	waits, busy := p.host.Idle(ctx)
	defer busy()
	err := c.compare(waits)
	if err != nil && !differs(err) {
		p.happened(Leave{Text: err.Error()})
	}
	return err
}

// differs says whether an error of compare is about environments, and not a signal: ranks
// that start again would find the same.
func differs(err error) bool {
	asked := (*launch.Error)(nil)
	return !errors.As(err, &asked)
}

// onLoop is something to do on the loop's goroutine. It is no event of the machine.
type onLoop struct{ do func() }

func (onLoop) isEvent() {}

// finished remembers how an attempt ended.
func (p *participant) finished(err error) {
	var failed *launch.Error
	if !errors.As(err, &failed) {
		return
	}
	switch {
	case failed.Signal != 0:
		p.signal = failed
	case slices.ContainsFunc(failed.Failures, func(f launch.Failure) bool { return !f.Stopped }):
		p.failure = failed
	}
}

// halt ends the attempt that runs, if one does.
func (p *participant) halt(s Stop) {
	if p.stop == nil {
		return
	}
	if !p.stopped {
		p.stopped, p.said = true, s.Text
		fmt.Fprintf(p.out, "cohort: the ranks of this node are stopped: %s\n", plain(s.Text))
		p.stop(errors.New(s.Text))
	}
	if s.Kill && !p.killed {
		p.killed = true
		close(p.kill)
	}
}

// tellWaiting says for what this node waits.
func (p *participant) tellWaiting() {
	s := p.m.State()
	since, err := p.store.failure()
	switch {
	case err != nil:
		fmt.Fprintf(p.out, "cohort: the store in which the nodes meet has been out of reach for %v: %s\n", time.Since(since).Round(time.Second), plain(err.Error()))
	case s != nil && s.Phase == Gathering && len(s.Members) < s.Min:
		fmt.Fprintf(p.out, "cohort: job %q waits for nodes: %d of at least %d are there: %s\n", plain(s.Job), len(s.Members), s.Min, plain(names(s.Members)))
	case s != nil && s.Phase == Running && p.m.order < 0:
		fmt.Fprintf(p.out, "cohort: job %q runs on %d nodes, as many as it takes; this one waits for a place\n", plain(s.Job), len(s.Members))
	}
}

// outcome returns how the job has ended for this host.
func (p *participant) outcome() error {
	cfg := p.host.Config()
	r := p.result
	switch {
	case r.Good:
		return nil
	case r.Left && p.signal != nil:
		return stopped(cfg, p.signal)
	}
	text := plain(r.Text)
	if since, err := p.store.failure(); err != nil && p.m.state == nil {
		text = fmt.Sprintf("the store in which the nodes meet has been out of reach for %v: %v", time.Since(since).Round(time.Second), err)
	}
	if p.failure != nil {
		return p.failure
	}
	if !p.attempted {
		return &launch.ConfigError{Field: "Nodes", Err: errors.New(text)}
	}
	return &launch.Error{Program: cfg.Program, NumRanks: cfg.NumRanks, Cause: errors.New(text)}
}

// stopped is the error of a job that was stopped from outside: by a signal, or by the end
// of the caller's context.
func stopped(cfg launch.Config, cause error) error {
	var asked *launch.Error
	if errors.As(cause, &asked) {
		return asked
	}
	return &launch.Error{Program: cfg.Program, NumRanks: cfg.NumRanks, Cause: cause}
}

// plain makes one line without control characters of a text that another node wrote.
func plain(text string) string {
	return visible.Text(strings.NewReplacer("\n", " ", "\t", " ").Replace(text))
}

// lineWriter passes lines to a goroutine that writes them. The reader of the output
// may stop reading (a terminal, a full pipe). The participant's loop must not stop with
// it, because the loop kills the ranks when the node is cut off from the store. A line
// for which there is no room is lost.
type lineWriter struct {
	lines   chan []byte
	written chan struct{}
}

const (
	maxLines      = 64          // how many lines may wait
	flushPatience = time.Second // how long end waits for the last lines
)

func newLineWriter(w io.Writer) *lineWriter {
	lw := &lineWriter{make(chan []byte, maxLines), make(chan struct{})}
	go func() {
		defer close(lw.written)
		for line := range lw.lines {
			_, _ = w.Write(line)
		}
	}()
	return lw
}

// Write never waits and never fails.
func (lw *lineWriter) Write(b []byte) (int, error) {
	select {
	case lw.lines <- bytes.Clone(b):
	default:
	}
	return len(b), nil
}

// end waits until all lines have been written, at most for flushPatience.
func (lw *lineWriter) end() {
	close(lw.lines)
	late := time.NewTimer(flushPatience)
	defer late.Stop()
	select {
	case <-lw.written:
	case <-late.C:
	}
}
