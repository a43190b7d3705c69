// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/visible"
)

// agent runs one attempt on this host. It is a thin shell around the supervisor: it
// starts processes, turns what happens into events and carries actions out. One
// goroutine runs it.
type agent struct {
	*Host
	attempt    Attempt
	secret     secret
	host       string
	supervisor *supervisor
	control    jobControl
	workers    []*worker
	exits      chan exited
	orphans    *orphans
	begin      time.Time

	stdout, stderr *sink // of this process
	relays         sync.WaitGroup
	logs           *attemptLogs
	recorders      *recorders // the ranks' flight recorders
	oom            *oomWatch

	startErr   error
	hopeless   error // why the ranks cannot come together
	unkillable []int
	numSwept   int    // how many processes the workers had left behind
	killTicks  uint64 // processor time of the killed processes at the last look
	killsSwept bool   // SIGKILL has been sent to strays
	saidSlow   bool   // a notice has said that killed processes take long to end
	over       bool
}

func newAgent(h *Host, a Attempt) *agent {
	p := defaultPatience
	p.fail, p.grace = h.cfg.FailGrace, h.cfg.Grace
	s := newSupervisor(h.cfg.NumRanks, p)
	s.survivors = h.cfg.Survivors
	stdout, stderr := newSinks(h.cfg.Stdout, h.cfg.Stderr)
	return &agent{
		Host: h, attempt: a, secret: newSecret(h.job.token), host: hostName(),
		supervisor: s, exits: make(chan exited, h.cfg.NumRanks),
		stdout: stdout, stderr: stderr,
		recorders: newRecorders(&h.cfg),
	}
}

// rank returns the rank in the job of a local rank.
func (a *agent) rank(local int) int { return a.attempt.FirstRank + local }

// local returns the local rank of a rank, -1 for a rank of another host.
func (a *agent) local(rank int) int {
	if i := rank - a.attempt.FirstRank; i >= 0 && i < len(a.workers) {
		return i
	}
	return -1
}

// say prints lines of the launcher on standard error.
func (a *agent) say(lines ...string) {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("cohort: " + visible.Text(l) + "\n")
	}
	_, _ = a.stderr.Write([]byte(b.String()))
}

// run starts the workers and returns when the supervisor is done.
func (a *agent) run(ctx context.Context, sig *signals) error {
	a.begin = time.Now()
	a.oom = watchOOM()
	defer a.oom.close()
	a.orphans = openOrphans(a.cfg.Exclusive, a.job.id, a.cgroup)
	defer a.orphans.close()
	if !a.cfg.LeaveSignals {
		a.control = openJobControl(a.cfg.Signals)
		defer func() {
			s := a.supervisor
			a.control.close(len(s.failures) > 0 || s.interrupts > 0 || s.canceled)
		}()
	}
	childEnded := make(chan os.Signal, 1)
	signal.Notify(childEnded, syscall.SIGCHLD)
	defer signal.Stop(childEnded)
	if a.attempt.NumNodes == 1 { // else ranks of other nodes may be in the store still
		defer a.endStore()
	}
	if a.cfg.Watcher != nil {
		a.cfg.Watcher.Begin(a.attempt.Number, a.attempt.WorldSize)
	}
	failed, err := a.startAll(ctx)
	if a.guard != nil {
		a.orphans.keep(a.guard.proc.Pid)
		for _, w := range a.workers {
			if w.proc != nil {
				a.guard.watch(w.proc.Pid, true)
			}
		}
	}
	if err != nil {
		a.startErr = limited(err)
		a.do(startFailed{failed})
	}
	a.loop(ctx, sig, childEnded)
	a.drain(sig)
	a.logs.end()
	return a.result(ctx)
}

// loop turns what happens into events until the supervisor is done.
func (a *agent) loop(ctx context.Context, sig *signals, childEnded <-chan os.Signal) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	canceled, kill := ctx.Done(), a.attempt.Kill
	var look *lookout
	for !a.over {
		timer.Stop()
		if w := a.supervisor.wake(); !w.IsZero() {
			timer.Reset(time.Until(w))
		}
		select {
		case e := <-a.exits:
			a.do(e)
			if a.cfg.Survivors && a.onlyStopped() {
				a.do(onlyStopped{})
			}
		case s := <-sig.ch:
			if s := s.(syscall.Signal); s == syscall.SIGINT && a.supervisor.phase == running && look == nil {
				look = a.lookBefore(s)
			} else {
				look = a.passOn(look)
				a.do(signalled{s})
			}
		case <-look.over():
			look = a.passOn(look)
		case s := <-a.control.stop:
			a.suspend(s.(syscall.Signal))
		case <-a.control.cont:
			a.control.tty.enter()
		case <-sig.dump:
			a.view()
		case w := <-a.cfg.Figures.channel():
			a.askRanks(w)
		case <-canceled:
			canceled = nil
			a.do(cancelled{})
		case a.hopeless = <-a.store.hopeless():
			if a.supervisor.phase == running || a.supervisor.phase == failing {
				a.do(cancelled{})
			}
		case <-kill:
			kill = nil
			a.do(killAsked{})
		case <-timer.C:
			if a.supervisor.givesUp(time.Now()) && a.isReclaiming() {
				a.do(reclaiming{})
			}
			a.do(ticked{})
		case <-childEnded:
			if a.supervisor.phase < sweeping {
				a.orphans.reap()
			}
		}
	}
}

// do gives an event to the supervisor and carries out the actions that follow.
func (a *agent) do(e event) {
	if e, ok := e.(exited); ok {
		a.workers[e.local].ended = true
		a.guard.watch(a.workers[e.local].proc.Pid, false)
	}
	if e, ok := e.(signalled); ok && a.attempt.OnSignal != nil {
		a.attempt.OnSignal(e.sig)
	}
	known, asked := len(a.supervisor.failures), a.supervisor.phase >= stopping
	actions := a.supervisor.step(time.Now(), e)
	if e, ok := e.(exited); ok && a.cfg.Watcher != nil {
		end := &Failure{Code: e.code, Signal: e.sig}
		a.cfg.Watcher.Ended(a.rank(e.local), e.code != 0 || e.sig != 0, asked, end.how())
	}
	for _, end := range a.supervisor.failures[known:] {
		if a.attempt.OnFailure != nil {
			a.attempt.OnFailure(a.failure(end))
		}
	}
	for _, act := range actions {
		switch act := act.(type) {
		case tell:
			a.tell(act.ended)
		case deliver:
			a.deliver(act.sig)
			if act.sig == syscall.SIGKILL {
				a.killTicks = a.ticks()
			}
		case sweep:
			if act.sig == syscall.SIGKILL && !a.killsSwept {
				a.killsSwept, a.killTicks = true, a.ticks()
			}
			n := a.orphans.signal(act.sig)
			a.numSwept = max(a.numSwept, n)
			a.do(strays{n})
		case finish:
			a.unkillable, a.over = act.unkillable, true
		}
	}
}

// isReclaiming reports whether the kernel still works on processes that have been killed: it
// may have many gigabytes to reclaim. A killed process that hangs uses no processor time.
func (a *agent) isReclaiming() bool {
	was := a.killTicks
	a.killTicks = a.ticks()
	if a.killTicks == was {
		return false
	}
	if !a.saidSlow {
		a.saidSlow = true
		a.say("killed processes are still ending: the system reclaims their memory")
	}
	return true
}

// ticks returns the sum of the processor time of the live workers and of the strays.
func (a *agent) ticks() (sum uint64) {
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			sum += ticksOf(w.proc.Pid)
		}
	}
	return sum + a.orphans.ticks()
}

// onlyStopped reports whether there are live workers and all of them are stopped.
func (a *agent) onlyStopped() bool {
	left := false
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			if !isStopped(w.proc.Pid) {
				return false
			}
			left = true
		}
	}
	return left
}

// result returns how the attempt has ended: nil, or an *Error.
func (a *agent) result(ctx context.Context) error {
	s := a.supervisor
	name := a.cfg.Program
	if a.cfg.argv0 != "" { // this program, under the name that it was started by
		name = a.cfg.argv0
	}
	e := &Error{
		Program: name, NumRanks: a.attempt.WorldSize,
		Attempt: a.attempt.Number, restartsLeft: a.cfg.MaxRestarts - a.attempt.Number, itself: a.cfg.argv0 != "",
		Signal: s.stopSignal, Notice: a.Notice(), StartErr: a.startErr, NumStrays: s.numStrays,
	}
	if s.canceled {
		e.Cause = cmp.Or(context.Cause(ctx), a.hopeless)
	}
	for _, end := range s.failures {
		e.Failures = append(e.Failures, a.failure(end))
	}
	a.explainMemory(e.Failures)
	a.nameCulprit(e)
	for _, i := range a.unkillable {
		e.Unkillable = append(e.Unkillable, a.workers[i].proc.Pid)
	}
	for _, end := range s.left {
		if len(e.Failures) > 0 && end.at.Before(e.Failures[0].Time) {
			e.left = append(e.left, a.failure(end))
		}
	}
	// Nobody has stopped the job, and nothing of it is left.
	undisturbed := e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0
	switch {
	case undisturbed && len(e.Failures) == 0:
		return nil
	case undisturbed && s.carriedOn():
		e.carriedOn = true
		e.Report(a.cfg.Stderr)
		return nil
	}
	return e
}

// explainMemory sets Memory of the failures that come of memory that ran out.
func (a *agent) explainMemory(failures []Failure) {
	a.oom.explain(failures)
	for i := range failures {
		if f := &failures[i]; f.Memory == "" && !f.Stopped {
			f.Memory = f.addressSpace()
		}
	}
}
