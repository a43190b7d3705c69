// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
)

// agent is the thin shell around the machine: it starts processes, turns what
// happens into events and carries actions out. One goroutine runs it.
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
	relays     sync.WaitGroup
	begin      time.Time
	// recorders is where the ranks' flight recorders are.
	recorders *recorders
	logs      *attemptLogs
	memory    *oomWatch

	startErr   error
	hopeless   error // why the ranks cannot come together
	unkillable []int
	swept      int    // processes that workers had left behind
	freed      uint64 // processor time of the killed at the last look
	sweeps     bool   // strays have been killed
	frees      bool   // it has been said that they take long
	over       bool
}

func newAgent(h *Host, a Attempt) *agent {
	p := defaultPatience
	p.fail, p.grace = h.cfg.FailGrace, h.cfg.Grace
	s := newSupervisor(h.cfg.NumRanks, p)
	s.survivors = h.cfg.Survivors
	return &agent{
		Host: h, attempt: a, secret: newSecret(h.job.token), host: hostName(),
		supervisor: s,
		exits:      make(chan exited, h.cfg.NumRanks),

		recorders: newRecorders(&h.cfg),
	}
}

// rank is the rank of a worker in the job; local is the way back, -1 for a rank
// of another host.
func (a *agent) rank(local int) int { return a.attempt.FirstRank + local }

func (a *agent) local(rank int) int {
	if i := rank - a.attempt.FirstRank; i >= 0 && i < len(a.workers) {
		return i
	}
	return -1
}

// run starts the workers and stays until the machine is done.
func (a *agent) run(ctx context.Context, sig *signals) error {
	a.begin = time.Now()
	a.memory = watchOOM()
	defer a.memory.close()
	a.orphans = openOrphans(a.cfg.Exclusive, a.job.id, a.cgroup)
	defer a.orphans.close()
	if !a.cfg.LeaveSignals {
		a.control = openJobControl(a.cfg.Signals)
		defer func() {
			a.control.close(len(a.supervisor.failures) > 0 || a.supervisor.interrupts > 0 || a.supervisor.canceled)
		}()
	}
	childEnded := make(chan os.Signal, 1)
	signal.Notify(childEnded, syscall.SIGCHLD)
	defer signal.Stop(childEnded)

	stdout, stderr := newSinks(a.cfg.Stdout, a.cfg.Stderr)
	if a.attempt.NumNodes == 1 { // else ranks of other nodes may be in it still
		defer a.endStore()
	}
	failed, err := a.startAll(ctx, stdout, stderr)
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
				look = a.lookBefore(s, stderr)
			} else {
				look = a.passOn(look)
				a.do(signalled{s})
			}
		case <-look.over():
			look = a.passOn(look)
		case s := <-a.control.stop:
			a.suspend(s.(syscall.Signal), stderr)
		case <-a.control.cont:
			a.control.tty.enter()
		case <-sig.dump:
			a.view(stderr)
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
			if a.supervisor.givesUp(time.Now()) && a.isReclaiming(stderr) {
				a.do(reclaiming{})
			}
			a.do(ticked{})
		case <-childEnded:
			if a.supervisor.phase < sweeping {
				a.orphans.reap()
			}
		}
	}
	a.drain(sig)
	a.logs.end()
	return a.result(ctx)
}

// do is one step of the machine and what follows from it.
func (a *agent) do(e event) {
	if e, ok := e.(exited); ok {
		a.workers[e.local].ended = true
		a.guard.watch(a.workers[e.local].proc.Pid, false)
	}
	if e, ok := e.(signalled); ok && a.attempt.OnSignal != nil {
		a.attempt.OnSignal(e.sig)
	}
	known := len(a.supervisor.failures)
	actions := a.supervisor.step(time.Now(), e)
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
				a.freed = a.ticks()
			}
		case sweep:
			if act.sig == syscall.SIGKILL && !a.sweeps {
				a.sweeps, a.freed = true, a.ticks()
			}
			n := a.orphans.signal(act.sig)
			a.swept = max(a.swept, n)
			a.do(strays{n})
		case finish:
			a.unkillable, a.over = act.unkillable, true
		}
	}
}

// isReclaiming reports whether the kernel works on processes that have been killed: it may
// have many gigabytes to take back. One that hangs uses no processor time.
func (a *agent) isReclaiming(stderr *sink) bool {
	was := a.freed
	a.freed = a.ticks()
	if a.freed == was {
		return false
	}
	if !a.frees {
		a.frees = true
		write(stderr, []string{"what has been killed is still ending: the system takes back what it had, as much memory is"})
	}
	return true
}

// ticks sums up the processor time of the workers that live, and of strays.
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

// result is nil or *Error.
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
	for _, f := range s.failures {
		e.Failures = append(e.Failures, a.failure(f))
	}
	a.memory.explain(e.Failures)
	for i := range e.Failures {
		if f := &e.Failures[i]; f.Memory == "" && !f.Stopped {
			f.Memory = f.addressSpace()
		}
	}
	firstFirst(e.Failures)
	causeFirst(e.Failures)
	for _, i := range a.unkillable {
		e.Unkillable = append(e.Unkillable, a.workers[i].proc.Pid)
	}
	var report *flightlog.Report
	e.Recorders, e.RecorderDir, report = a.recorders.finish(slices.ContainsFunc(e.Failures, tellsOfRanks), len(a.workers) > 1 && len(e.sameAsFirst()) == len(a.workers)-1, a.begin, a.fates(e.Failures))
	e.Suspects = a.suspects(report, e.Failures)
	if differsFirst(e.Failures) {
		e.Suspects, e.differ = nil, true // with whom a rank differs is no more to blame than itself
	} else {
		suspectsFirst(e.Failures, e.Suspects)
	}
	for _, end := range s.left {
		if len(e.Failures) > 0 && end.at.Before(e.Failures[0].Time) {
			e.left = append(e.left, a.failure(end))
		}
	}
	if len(e.Failures) == 0 && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0 {
		return nil
	}
	if s.carriedOn() && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0 {
		e.carriedOn = true
		e.Report(a.cfg.Stderr)
		return nil
	}
	return e
}
