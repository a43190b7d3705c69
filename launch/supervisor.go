// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"syscall"
	"time"
)

// The supervisor decides which process gets which signal, and when. It supervises the
// workers of one node. It is a pure state machine: events go in, actions come out. It
// starts nothing, reads no clock and waits for nothing. The agent (agent.go) feeds it
// and carries out its actions.
//
//	running ── a worker fails ──► failing ── FailGrace over ──► stopping ── Grace over ──► killing
//	   │                             │                             │                          │
//	   ├── signal or cancel ─────────┴────────────────────────────►┘                          │
//	   └── every worker has ended (from any phase) ──► sweeping ── no stray left ──► done ◄────┘ KillPatience over
//
// A stray is a process that a worker started and that is left when all workers have
// ended. With survivors, the other workers are told of a failure, and the phase stays.

// phase is the state of the job.
type phase int

const (
	running  phase = iota // no worker has failed
	failing               // a worker failed; the others may end by themselves, with errors of their own
	stopping              // the others have been asked to end
	killing               // the others have been killed
	sweeping              // every worker has ended; the strays are being ended
	done
)

func (p phase) String() string {
	return [...]string{"running", "failing", "stopping", "killing", "sweeping", "done"}[p]
}

// patience is how long each phase may last.
type patience struct {
	fail    time.Duration // failing: between the first failure and the signal to the others
	grace   time.Duration // stopping: between the signal and SIGKILL
	kill    time.Duration // killing: until a process that survives SIGKILL (it hangs in the kernel) is given up
	stray   time.Duration // sweeping: between SIGTERM to the strays and SIGKILL
	poll    time.Duration // sweeping: between two looks
	reclaim time.Duration // how long a killed process may take to end while the kernel reclaims its memory
}

var defaultPatience = patience{
	fail: time.Second, grace: 30 * time.Second, kill: 5 * time.Second,
	stray: time.Second, poll: 5 * time.Millisecond, reclaim: 10 * time.Minute,
}

// event is something that has happened.
type event interface{ isEvent() }

type (
	exited struct { // a worker ended
		local int
		code  int            // -1 when sig is set
		sig   syscall.Signal // 0 for an exit
	}
	signalled   struct{ sig syscall.Signal } // the agent got a signal
	cancelled   struct{}                     // the context that the job runs under is done
	killAsked   struct{}                     // the workers are to be killed without a grace period
	startFailed struct{ local int }          // this worker and those after it could not be started
	strays      struct{ n int }              // the answer to a sweep: how many strays are left
	ticked      struct{}                     // the time of wake has come
	reclaiming  struct{}                     // the kernel still reclaims the memory of killed processes, which takes time
	resumed     struct{ d time.Duration }    // the whole job, agent included, had been stopped (SIGSTOP) for the time d
	onlyStopped struct{}                     // all live workers are stopped (SIGSTOP); nobody waits for them
)

func (exited) isEvent()      {}
func (signalled) isEvent()   {}
func (cancelled) isEvent()   {}
func (killAsked) isEvent()   {}
func (startFailed) isEvent() {}
func (strays) isEvent()      {}
func (ticked) isEvent()      {}
func (reclaiming) isEvent()  {}
func (resumed) isEvent()     {}
func (onlyStopped) isEvent() {}

// action is something for the agent to do. Actions are done in order.
type action interface{ isAction() }

type (
	tell    struct{ ended workerEnd }    // tell every live worker of a failure
	deliver struct{ sig syscall.Signal } // send sig to the process group of every live worker
	sweep   struct{ sig syscall.Signal } // send sig (0: none) to the strays; answer with strays{n}
	finish  struct{ unkillable []int }   // the job is over; SIGKILL did not end these workers
)

func (tell) isAction()    {}
func (deliver) isAction() {}
func (sweep) isAction()   {}
func (finish) isAction()  {}

// workerEnd says how one worker ended.
type workerEnd struct {
	local   int
	code    int
	sig     syscall.Signal
	at      time.Time
	stopped bool // after the agent had asked it to end
}

func (e workerEnd) bad() bool { return e.code != 0 || e.sig != 0 }

// supervisor is the state machine. newSupervisor makes one.
type supervisor struct {
	patience patience
	phase    phase
	live     []bool
	numLive  int
	deadline time.Time   // of the phase; zero: none
	failures []workerEnd // in the order seen

	interrupts  int            // signals that the agent got
	interrupted time.Time      // when it got the first
	stopSignal  syscall.Signal // the first of them
	canceled    bool
	survivors   bool           // a failure does not end the others
	left        []workerEnd    // with code 0, without being asked to
	endedWell   bool           // a worker has ended with code 0
	brokeOff    bool           // a worker failed by itself after one had ended well
	sweepSig    syscall.Signal // the strongest sent to strays so far
	nextLook    time.Time      // sweeping: when to look again
	killed      time.Time      // when the first SIGKILL was sent
	numStrays   int            // at the last look
}

func newSupervisor(numWorkers int, p patience) *supervisor {
	s := &supervisor{patience: p, live: make([]bool, numWorkers), numLive: numWorkers}
	for i := range s.live {
		s.live[i] = true
	}
	return s
}

// wake returns the time at which step must be called with ticked; the zero time means
// never.
func (s *supervisor) wake() time.Time {
	if s.phase == sweeping {
		return s.nextLook
	}
	return s.deadline
}

// step takes one event and returns the actions that follow from it. The time now never
// goes back.
func (s *supervisor) step(now time.Time, e event) []action {
	if s.phase == done {
		return nil
	}
	switch e := e.(type) {
	case exited:
		return s.onExit(now, e)
	case signalled:
		return s.onSignal(now, e.sig)
	case cancelled:
		if s.canceled {
			return nil
		}
		s.canceled = true
		if s.phase == running || s.phase == failing {
			return s.stop(now, syscall.SIGTERM)
		}
	case killAsked:
		if s.phase < killing {
			s.canceled = true
			return s.kill(now)
		}
	case startFailed:
		for i := e.local; i < len(s.live); i++ {
			if s.live[i] {
				s.live[i] = false
				s.numLive--
			}
		}
		if s.numLive == 0 {
			return s.beginSweep(syscall.SIGKILL)
		}
		return s.kill(now)
	case reclaiming:
		if s.givesUp(now) && now.Before(s.killed.Add(s.patience.reclaim)) {
			s.deadline = now.Add(s.patience.kill)
		}
	case resumed: // nobody could do anything meanwhile
		for _, t := range []*time.Time{&s.deadline, &s.nextLook} {
			if !t.IsZero() {
				*t = t.Add(e.d)
			}
		}
	case onlyStopped:
		if s.survivors && s.phase == running && s.numLive > 0 {
			return s.stop(now, syscall.SIGTERM)
		}
	case strays:
		return s.onStrays(now, e.n)
	case ticked:
		if w := s.wake(); !w.IsZero() && !now.Before(w) {
			return s.onDeadline(now)
		}
	}
	return nil
}

func (s *supervisor) onExit(now time.Time, e exited) []action {
	if e.local < 0 || e.local >= len(s.live) || !s.live[e.local] {
		return nil
	}
	s.live[e.local] = false
	s.numLive--
	end := workerEnd{local: e.local, code: e.code, sig: e.sig, at: now, stopped: s.phase >= stopping}
	var out []action
	if end.bad() {
		s.failures = append(s.failures, end)
		if s.numLive > 0 && s.phase < killing {
			out = append(out, tell{end})
		}
		switch {
		case s.survivors:
			s.brokeOff = s.brokeOff || s.endedWell && !end.stopped
		case s.phase == running:
			s.phase, s.deadline = failing, now.Add(s.patience.fail)
		}
	}
	if !end.bad() {
		s.endedWell = true
		if !end.stopped {
			s.left = append(s.left, end)
		}
	}
	if s.numLive == 0 {
		var sig syscall.Signal
		if s.phase == killing {
			sig = syscall.SIGKILL
		}
		out = append(out, s.beginSweep(sig)...)
	}
	return out
}

// sameStop is within what time a second signal like the first is the same wish:
// a terminal and a wrapper may both send what one key press was.
const sameStop = 500 * time.Millisecond

// onSignal passes a signal on. The second one, if it is SIGINT, is a person
// who does not want to wait any longer.
func (s *supervisor) onSignal(now time.Time, sig syscall.Signal) []action {
	if s.interrupts > 0 && sig == s.stopSignal && now.Sub(s.interrupted) < sameStop {
		return nil
	}
	s.interrupts++
	if s.interrupts == 1 {
		s.stopSignal, s.interrupted = sig, now
	}
	hurry := s.interrupts > 1 && sig == syscall.SIGINT
	switch s.phase {
	case running, failing, stopping:
		if hurry {
			return s.kill(now)
		}
		if s.phase == stopping && s.interrupts > 1 { // the grace period goes on from the first signal
			return []action{deliver{sig}}
		}
		return s.stop(now, sig)
	case sweeping:
		if s.sweepSig != syscall.SIGKILL {
			return s.sweepWith(now, syscall.SIGKILL)
		}
	}
	return nil
}

func (s *supervisor) onDeadline(now time.Time) []action {
	switch s.phase {
	case failing:
		return s.stop(now, syscall.SIGTERM)
	case stopping:
		return s.kill(now)
	case killing:
		s.phase, s.deadline = done, time.Time{}
		var left []int
		for i, l := range s.live {
			if l {
				left = append(left, i)
			}
		}
		return []action{finish{unkillable: left}}
	case sweeping:
		s.nextLook = time.Time{} // until the answer is there
		switch {
		case now.Before(s.deadline):
			if s.sweepSig == syscall.SIGKILL { // whatever has been started since the last look
				return []action{sweep{syscall.SIGKILL}}
			}
			return []action{sweep{0}}
		case s.sweepSig == syscall.SIGTERM:
			return s.sweepWith(now, syscall.SIGKILL)
		default:
			s.phase, s.deadline = done, time.Time{}
			return []action{finish{}}
		}
	}
	return nil
}

func (s *supervisor) onStrays(now time.Time, n int) []action {
	if s.phase != sweeping {
		return nil
	}
	s.numStrays = n
	switch {
	case n == 0:
		s.phase, s.deadline, s.nextLook = done, time.Time{}, time.Time{}
		return []action{finish{}}
	case s.sweepSig == 0:
		return s.sweepWith(now, syscall.SIGTERM)
	case s.deadline.IsZero(): // killed from the start
		s.hasKilled(now)
		s.deadline = now.Add(s.patience.kill)
	}
	s.nextLook = now.Add(s.patience.poll)
	return nil
}

// carriedOn reports whether workers have failed and those that were left have
// ended well: they have gone on without them. One that fails after another has
// ended well was itself among those left.
func (s *supervisor) carriedOn() bool { return s.survivors && s.endedWell && !s.brokeOff }

func (s *supervisor) stop(now time.Time, sig syscall.Signal) []action {
	s.phase, s.deadline = stopping, now.Add(s.patience.grace)
	return []action{deliver{sig}}
}

func (s *supervisor) kill(now time.Time) []action {
	s.hasKilled(now)
	s.phase, s.deadline = killing, now.Add(s.patience.kill)
	return []action{deliver{syscall.SIGKILL}}
}

func (s *supervisor) hasKilled(now time.Time) {
	if s.killed.IsZero() {
		s.killed = now
	}
}

// givesUp reports whether the next tick gives up processes that SIGKILL has not ended.
func (s *supervisor) givesUp(now time.Time) bool {
	return (s.phase == killing || s.phase == sweeping && s.sweepSig == syscall.SIGKILL) && !s.deadline.IsZero() && !now.Before(s.deadline)
}

func (s *supervisor) beginSweep(sig syscall.Signal) []action {
	s.phase, s.deadline, s.nextLook, s.sweepSig = sweeping, time.Time{}, time.Time{}, sig
	return []action{sweep{sig}}
}

func (s *supervisor) sweepWith(now time.Time, sig syscall.Signal) []action {
	s.sweepSig, s.nextLook = sig, time.Time{}
	s.deadline = now.Add(s.patience.stray)
	if sig == syscall.SIGKILL {
		s.hasKilled(now)
		s.deadline = now.Add(s.patience.kill)
	}
	return []action{sweep{sig}}
}
