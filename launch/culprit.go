// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/dist/flightlog"
)

// Suspect is a rank that the flight recorders of the others name as the cause.
type Suspect struct {
	Rank, PID int
	// How is what the launcher knows of it: "exited with code 7", "ended with
	// code 0 before the others", "had been stopped (SIGSTOP)".
	How string

	unnamed bool // the recorders do not name it: the launcher does
}

// suspects returns the ranks that the recorders name, where they are clear. A rank
// that ended when it was asked to is none if another was struck down before: the
// others then wait for it in what they do after that. One that was stopped (SIGSTOP) comes
// before all others, unless it is known of another that it failed by itself: who
// waits for a rank that does not answer need not know that it is this one.
func (a *agent) suspects(report *flightlog.Report, failures []Failure) (out []Suspect) {
	culprits := report.Culprits()
	struck := slices.ContainsFunc(failures, Failure.struck)
	for _, span := range culprits {
		first, last := max(a.rank(0), span.First), min(a.rank(len(a.workers)-1), span.Last)
		for rank := first; rank <= last; rank++ {
			w := a.workers[a.local(rank)]
			if w.proc == nil {
				continue
			}
			s := Suspect{Rank: rank, PID: w.proc.Pid, How: "ended with code 0 before the others"}
			if i := slices.IndexFunc(failures, func(f Failure) bool { return f.Rank == rank }); i >= 0 {
				if f := &failures[i]; f.Stopped && !f.Suspended && (struck || report.Unrecorded().Has(rank)) {
					continue
				}
				s.How = failures[i].fault()
			}
			out = append(out, s)
		}
	}
	guilty := report.Known(culprits)
	if struck || slices.ContainsFunc(failures, func(f Failure) bool { return !f.Stopped && guilty.Has(f.Rank) }) {
		return out
	}
	var stopped []Suspect
	for i := range failures {
		if f := &failures[i]; f.Suspended {
			stopped = append(stopped, Suspect{Rank: f.Rank, PID: f.PID, How: f.fault(), unnamed: !culprits.Has(f.Rank)})
		}
	}
	if len(stopped) > 0 {
		return stopped
	}
	return out
}

// fates says how the ranks' processes have ended.
func (a *agent) fates(failures []Failure) map[int]string {
	out := map[int]string{}
	for i, w := range a.workers {
		if w.proc != nil {
			out[a.rank(i)] = "it ended with code 0"
		}
	}
	for i := range failures {
		f := &failures[i]
		if out[f.Rank] = "it " + f.how(); f.Suspended {
			out[f.Rank] = "its process had been stopped (SIGSTOP)"
		}
	}
	return out
}

// struck reports whether the rank ended by what never follows from another rank's
// failure: a kill from outside, or a crash in the processor's eyes.
func (f Failure) struck() bool {
	switch f.Signal {
	case syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE:
		return !f.Stopped
	}
	return false
}

// fault says what is known of a rank that the others waited for.
func (f *Failure) fault() string {
	switch {
	case f.Suspended:
		return "had been stopped (SIGSTOP)"
	case f.Stopped:
		return "kept the others waiting"
	}
	return f.how()
}

// suspectsFirst moves the failure of a rank that is named to the front, unless one
// that is named is there already.
func suspectsFirst(failures []Failure, suspects []Suspect) {
	i := slices.IndexFunc(failures, func(f Failure) bool {
		return !f.Stopped && slices.ContainsFunc(suspects, func(s Suspect) bool { return s.Rank == f.Rank })
	})
	if i < 0 {
		return
	}
	cause := failures[i]
	copy(failures[1:i+1], failures[:i])
	failures[0] = cause
}

// blamed returns the ranks that are named and did not fail by themselves: they
// stand before those whose failures follow.
func (e *Error) blamed() []Suspect {
	if len(e.Failures) > 0 && !e.Failures[0].Stopped && slices.ContainsFunc(e.Suspects, func(s Suspect) bool { return s.Rank == e.Failures[0].Rank }) {
		return nil
	}
	return e.Suspects
}

func ranksNamed(suspects []Suspect) string {
	if len(suspects) == 1 {
		return fmt.Sprintf("rank %d", suspects[0].Rank)
	}
	return "these ranks"
}

// accuse is the suspects in a sentence, one by one while they are few.
func accuse(suspects []Suspect) string {
	const most = 3
	var out []string
	for _, s := range suspects[:min(len(suspects), most)] {
		out = append(out, fmt.Sprintf("rank %d (pid %d) %s", s.Rank, s.PID, s.How))
	}
	if rest := len(suspects) - most; rest > 0 {
		out = append(out, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(out, ", ")
}
