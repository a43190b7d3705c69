// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"syscall"
	"time"
)

// The supervision of one node's workers as a pure state machine: events in,
// actions out. It starts nothing, reads no clock and waits for nothing; the
// agent (agent.go) feeds it and carries out what it says. All of "which process
// gets which signal when" is in this file.
//
//	running ── a worker fails ──► failing ── FailGrace over ──► stopping ── Grace over ──► killing
//	   │                             │                             │                          │
//	   ├── signal or cancel ─────────┴────────────────────────────►┘                          │
//	   └── every worker has ended (from any phase) ──► sweeping ── no stray left ──► done ◄────┘ KillPatience over
//
// With survivors, a failure is told and changes no phase.

// phase is where the job stands.
type phase int

const (
	running  phase = iota // all is well
	failing               // a worker failed; the others may end by themselves, with errors of their own
	stopping              // the others have been asked to end
	killing               // the others have been killed
	sweeping              // every worker has ended; processes that they started are ended
	done
)

func (p phase) String() string {
	return [...]string{"running", "failing", "stopping", "killing", "sweeping", "done"}[p]
}

// patience is how long each phase may last.
type patience struct {
	fail  time.Duration // failing: between the first failure and the signal to the others
	grace time.Duration // stopping: between the signal and SIGKILL
	kill  time.Duration // killing: until a process that survives SIGKILL (stuck in the kernel) is given up
	stray time.Duration // sweeping: between SIGTERM to the strays and SIGKILL
	poll  time.Duration // sweeping: between two looks
	free  time.Duration // how long one that has been killed may take to end while the kernel works on it
}

var defaultPatience = patience{
	fail: time.Second, grace: 30 * time.Second, kill: 5 * time.Second,
	stray: time.Second, poll: 5 * time.Millisecond, free: 10 * time.Minute,
}

// An event is something that happened.
type event interface{ isEvent() }

type (
	exited struct { // a worker ended
		local int
		code  int            // -1 when sig is set
		sig   syscall.Signal // 0 for an exit
	}
	signalled   struct{ sig syscall.Signal } // the agent got a signal
	cancelled   struct{}                     // the context that the job runs under is done
	hurried     struct{}                     // nobody wants to wait for the workers any more
	startFailed struct{ local int }          // this worker and those after it could not be started
	strays      struct{ n int }              // the answer to a sweep
	ticked      struct{}                     // the time of wake has come
	freeing     struct{}                     // the kernel takes back what the killed have, which may be much
	resumed     struct{ d time.Duration }    // the whole job, with the agent, was stopped for so long
	onlyStopped struct{}                     // the live workers are all stopped (SIGSTOP): nobody waits for them
)

func (exited) isEvent()      {}
func (signalled) isEvent()   {}
func (cancelled) isEvent()   {}
func (hurried) isEvent()     {}
func (startFailed) isEvent() {}
func (strays) isEvent()      {}
func (ticked) isEvent()      {}
func (freeing) isEvent()     {}
func (resumed) isEvent()     {}
func (onlyStopped) isEvent() {}

// An action is something for the agent to do, in order.
type action interface{ isAction() }

type (
	tell    struct{ ended ending }       // tell every live worker of a failure
	deliver struct{ sig syscall.Signal } // send sig to the process group of every live worker
	sweep   struct{ sig syscall.Signal } // send sig (0: none) to the strays; answer with strays{n}
	finish  struct{ unkillable []int }   // the job is over; these workers could not be ended
)

func (tell) isAction()    {}
func (deliver) isAction() {}
func (sweep) isAction()   {}
func (finish) isAction()  {}

// ending is how one worker ended.
type ending struct {
	local   int
	code    int
	sig     syscall.Signal
	at      time.Time
	stopped bool // after the agent had asked it to end
}

func (e ending) bad() bool { return e.code != 0 || e.sig != 0 }

// machine is the state. Make one with newMachine.
type machine struct {
	patience patience
	phase    phase
	live     []bool
	numLive  int
	deadline time.Time // of the phase; zero: none
	failures []ending  // in the order seen

	interrupts  int            // signals that the agent got
	interrupted time.Time      // when it got the first
	stopSignal  syscall.Signal // the first of them
	canceled    bool
	survivors   bool           // a failure does not end the others
	left        []ending       // with code 0, without being asked to
	endedWell   bool           // a worker has ended with code 0
	brokeOff    bool           // a worker failed by itself after one had ended well
	sweepSig    syscall.Signal // the strongest sent to strays so far
	nextLook    time.Time      // sweeping: when to look again
	killed      time.Time      // when the first SIGKILL was sent
	numStrays   int            // at the last look
}

func newMachine(numWorkers int, p patience) *machine {
	m := &machine{patience: p, live: make([]bool, numWorkers), numLive: numWorkers}
	for i := range m.live {
		m.live[i] = true
	}
	return m
}

// wake is when step wants to be called with ticked; the zero time means never.
func (m *machine) wake() time.Time {
	if m.phase == sweeping {
		return m.nextLook
	}
	return m.deadline
}

// step takes one event at a time that never goes back.
func (m *machine) step(now time.Time, e event) []action {
	if m.phase == done {
		return nil
	}
	switch e := e.(type) {
	case exited:
		return m.onExit(now, e)
	case signalled:
		return m.onSignal(now, e.sig)
	case cancelled:
		if m.canceled {
			return nil
		}
		m.canceled = true
		if m.phase == running || m.phase == failing {
			return m.stop(now, syscall.SIGTERM)
		}
	case hurried:
		if m.phase < killing {
			m.canceled = true
			return m.kill(now)
		}
	case startFailed:
		for i := e.local; i < len(m.live); i++ {
			if m.live[i] {
				m.live[i] = false
				m.numLive--
			}
		}
		if m.numLive == 0 {
			return m.beginSweep(syscall.SIGKILL)
		}
		return m.kill(now)
	case freeing:
		if m.givesUp(now) && now.Before(m.killed.Add(m.patience.free)) {
			m.deadline = now.Add(m.patience.kill)
		}
	case resumed: // nobody could do anything meanwhile
		for _, t := range []*time.Time{&m.deadline, &m.nextLook} {
			if !t.IsZero() {
				*t = t.Add(e.d)
			}
		}
	case onlyStopped:
		if m.survivors && m.phase == running && m.numLive > 0 {
			return m.stop(now, syscall.SIGTERM)
		}
	case strays:
		return m.onStrays(now, e.n)
	case ticked:
		if w := m.wake(); !w.IsZero() && !now.Before(w) {
			return m.onDeadline(now)
		}
	}
	return nil
}

func (m *machine) onExit(now time.Time, e exited) []action {
	if e.local < 0 || e.local >= len(m.live) || !m.live[e.local] {
		return nil
	}
	m.live[e.local] = false
	m.numLive--
	end := ending{local: e.local, code: e.code, sig: e.sig, at: now, stopped: m.phase >= stopping}
	var out []action
	if end.bad() {
		m.failures = append(m.failures, end)
		if m.numLive > 0 && m.phase < killing {
			out = append(out, tell{end})
		}
		switch {
		case m.survivors:
			m.brokeOff = m.brokeOff || m.endedWell && !end.stopped
		case m.phase == running:
			m.phase, m.deadline = failing, now.Add(m.patience.fail)
		}
	}
	if !end.bad() {
		m.endedWell = true
		if !end.stopped {
			m.left = append(m.left, end)
		}
	}
	if m.numLive == 0 {
		var sig syscall.Signal
		if m.phase == killing {
			sig = syscall.SIGKILL
		}
		out = append(out, m.beginSweep(sig)...)
	}
	return out
}

// sameStop is within what time a second signal like the first is the same wish:
// a terminal and a wrapper may both send what one key press was.
const sameStop = 500 * time.Millisecond

// onSignal passes a signal on. The second one, if it is SIGINT, is a person
// who does not want to wait any longer.
func (m *machine) onSignal(now time.Time, sig syscall.Signal) []action {
	if m.interrupts > 0 && sig == m.stopSignal && now.Sub(m.interrupted) < sameStop {
		return nil
	}
	m.interrupts++
	if m.interrupts == 1 {
		m.stopSignal, m.interrupted = sig, now
	}
	hurry := m.interrupts > 1 && sig == syscall.SIGINT
	switch m.phase {
	case running, failing, stopping:
		if hurry {
			return m.kill(now)
		}
		if m.phase == stopping && m.interrupts > 1 { // the grace period goes on from the first signal
			return []action{deliver{sig}}
		}
		return m.stop(now, sig)
	case sweeping:
		if m.sweepSig != syscall.SIGKILL {
			return m.sweepWith(now, syscall.SIGKILL)
		}
	}
	return nil
}

func (m *machine) onDeadline(now time.Time) []action {
	switch m.phase {
	case failing:
		return m.stop(now, syscall.SIGTERM)
	case stopping:
		return m.kill(now)
	case killing:
		m.phase, m.deadline = done, time.Time{}
		var left []int
		for i, l := range m.live {
			if l {
				left = append(left, i)
			}
		}
		return []action{finish{unkillable: left}}
	case sweeping:
		m.nextLook = time.Time{} // until the answer is there
		switch {
		case now.Before(m.deadline):
			if m.sweepSig == syscall.SIGKILL { // whatever has been started since the last look
				return []action{sweep{syscall.SIGKILL}}
			}
			return []action{sweep{0}}
		case m.sweepSig == syscall.SIGTERM:
			return m.sweepWith(now, syscall.SIGKILL)
		default:
			m.phase, m.deadline = done, time.Time{}
			return []action{finish{}}
		}
	}
	return nil
}

func (m *machine) onStrays(now time.Time, n int) []action {
	if m.phase != sweeping {
		return nil
	}
	m.numStrays = n
	switch {
	case n == 0:
		m.phase, m.deadline, m.nextLook = done, time.Time{}, time.Time{}
		return []action{finish{}}
	case m.sweepSig == 0:
		return m.sweepWith(now, syscall.SIGTERM)
	case m.deadline.IsZero(): // killed from the start
		m.hasKilled(now)
		m.deadline = now.Add(m.patience.kill)
	}
	m.nextLook = now.Add(m.patience.poll)
	return nil
}

// carriedOn reports whether workers have failed and those that were left have
// ended well: they have gone on without them. One that fails after another has
// ended well was itself among those left.
func (m *machine) carriedOn() bool { return m.survivors && m.endedWell && !m.brokeOff }

func (m *machine) stop(now time.Time, sig syscall.Signal) []action {
	m.phase, m.deadline = stopping, now.Add(m.patience.grace)
	return []action{deliver{sig}}
}

func (m *machine) kill(now time.Time) []action {
	m.hasKilled(now)
	m.phase, m.deadline = killing, now.Add(m.patience.kill)
	return []action{deliver{syscall.SIGKILL}}
}

func (m *machine) hasKilled(now time.Time) {
	if m.killed.IsZero() {
		m.killed = now
	}
}

// givesUp reports whether the next tick gives up processes that SIGKILL has not ended.
func (m *machine) givesUp(now time.Time) bool {
	return (m.phase == killing || m.phase == sweeping && m.sweepSig == syscall.SIGKILL) && !m.deadline.IsZero() && !now.Before(m.deadline)
}

func (m *machine) beginSweep(sig syscall.Signal) []action {
	m.phase, m.deadline, m.nextLook, m.sweepSig = sweeping, time.Time{}, time.Time{}, sig
	return []action{sweep{sig}}
}

func (m *machine) sweepWith(now time.Time, sig syscall.Signal) []action {
	m.sweepSig, m.nextLook = sig, time.Time{}
	m.deadline = now.Add(m.patience.stray)
	if sig == syscall.SIGKILL {
		m.hasKilled(now)
		m.deadline = now.Add(m.patience.kill)
	}
	return []action{sweep{sig}}
}
