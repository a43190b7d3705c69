// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/flightlog"
)

// Which rank the launcher's report names first, when several ranks of a job have failed.
// This file puts the failures that the launcher has seen into an order, the likely cause
// first: by the time of each failure, by what the last lines of each rank say of another,
// and by what the flight recorders of all ranks say (Report.Culprits of dist/flightlog).
// report.go prints the failures in this order.
//
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
//
// The expressions below read the words of the errors of packages dist/fault and rpc. If
// those words change, the expressions change with them (TestFaultWords).
var (
	// namesDead is in the error of a rank that has lost another: its rank, and its process.
	namesDead = regexp.MustCompile(`\brank (\d+)(?: of "[^"]*")?(?: \((?:[^()]*pid (\d+)|host [^(),]*)\))? (?:failed|died|has left|is silent)\b`)
	// namesLostPeer is in the error of an agent of package rpc that has lost another.
	namesLostPeer = regexp.MustCompile(`\(rank (\d+)\)(?:: (?:connection lost|unreachable): | has gone without a Shutdown\b)`)
	// namesAbsent is in the error of a rank that has waited for others in vain.
	namesAbsent = regexp.MustCompile(`\b(?:timed out|cancelled)\b.* waiting for (rank .*)`)
	namesPID    = regexp.MustCompile(`\bpid (\d+)\)`)
	// namesMismatch is in the error of a rank whose peer is in another call, or sends
	// what nobody knows, in a group with PyTorch ranks. The PyTorch ranks say only that a
	// connection was closed.
	namesMismatch = regexp.MustCompile(`\brank \d+(?: \([^()]*\))? failed: it (?:\([^()]*\) )?sent .+, but `)
)

// nameCulprit orders the failures of e, the likely cause first. It sets the suspects,
// and what the flight recorders say.
func (a *agent) nameCulprit(e *Error) {
	sortByTime(e.Failures)
	putCauseFirst(e.Failures)
	wanted := slices.ContainsFunc(e.Failures, isWorthDumps)
	allAlike := len(a.workers) > 1 && len(e.sameAsFirst()) == len(a.workers)-1
	var report *flightlog.Report
	e.Recorders, e.RecorderDir, report = a.recorders.finish(wanted, allAlike, a.begin, a.fates(e.Failures))
	if putMismatchFirst(e.Failures) {
		e.differ = true // neither of two ranks whose calls differ is the one to blame
		return
	}
	e.Suspects = a.suspects(report, e.Failures)
	putSuspectFirst(e.Failures, e.Suspects)
}

// toFront moves the failure at i to the front and keeps the order of the others.
func toFront(failures []Failure, i int) {
	f := failures[i]
	copy(failures[1:i+1], failures[:i])
	failures[0] = f
}

// sortByTime sorts the failures of the ranks that ended by themselves, the earliest
// first. A rank may have written an error file a while before it ended. The times in
// error files are whole seconds: within a second, the order in which the agent saw the
// ends stays.
func sortByTime(failures []Failure) {
	n := slices.IndexFunc(failures, func(f Failure) bool { return f.Stopped })
	if n < 0 {
		n = len(failures)
	}
	slices.SortStableFunc(failures[:n], func(f, g Failure) int { return f.when().Compare(g.when()) })
}

// putCauseFirst moves the first failure to the front that does not follow from another.
// A rank that has lost another may end before that one: the other still gives back what
// it holds, or waits until the others have read what it has said.
func putCauseFirst(failures []Failure) {
	for i := range failures {
		f := &failures[i]
		if f.Stopped {
			return // this rank and those after it ended because the agent asked them to
		}
		if !slices.ContainsFunc(failures, func(other Failure) bool { return other.PID != f.PID && !other.Stopped && f.follows(&other) }) {
			toFront(failures, i)
			return
		}
	}
}

// follows reports whether the last lines of a rank name another one as the cause.
func (f *Failure) follows(other *Failure) bool {
	pid, rank := strconv.Itoa(other.PID), strconv.Itoa(other.Rank)
	for _, line := range f.Tail {
		for _, m := range namesDead.FindAllStringSubmatch(line, -1) {
			if m[2] == pid || m[2] == "" && m[1] == rank {
				return true
			}
		}
		for _, m := range namesLostPeer.FindAllStringSubmatch(line, -1) {
			if m[1] == rank {
				return true
			}
		}
		if m := namesAbsent.FindStringSubmatch(line); m != nil {
			for _, p := range namesPID.FindAllStringSubmatch(m[1], -1) {
				if p[1] == pid {
					return true
				}
			}
		}
	}
	return false
}

// waited reports whether the last lines of a rank say that it waited for others in vain.
func (f *Failure) waited() bool {
	return namesAbsent.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, namesAbsent.MatchString)
}

// putMismatchFirst moves a failure to the front whose error says how the calls of two
// ranks differ, and reports whether there is one. A rank that was killed or crashed
// stays in front.
func putMismatchFirst(failures []Failure) (found bool) {
	i := slices.IndexFunc(failures, func(f Failure) bool { return f.isMismatch() })
	if i < 0 || failures[0].isKillOrCrash() {
		return false
	}
	toFront(failures, i)
	return true
}

// isMismatch reports whether a rank has ended by itself with an error that says how the
// calls of two ranks differ.
func (f *Failure) isMismatch() bool {
	return !f.Stopped && (namesMismatch.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, namesMismatch.MatchString))
}

// Suspect is a rank that is probably the cause of a job's failure: the flight recorders
// of the others name it, or its process had been stopped.
type Suspect struct {
	Rank, PID int
	// How is what the launcher knows of the rank: "exited with code 7", "ended with
	// code 0 before the others", "had been stopped (SIGSTOP)".
	How string

	unnamed bool // the recorders do not name it, the launcher does
}

// suspects returns the ranks that the recorders name, where their answer is clear. Two
// rules go before the recorders:
//
//   - If a rank was killed or has crashed, a rank that ended because the agent asked it
//     to is no suspect: the others waited for it only after the first had gone.
//   - A rank whose process had been stopped (SIGSTOP) comes before all others, unless it
//     is known that another rank failed by itself. A rank that waits for one that does
//     not answer cannot know which of the others it is.
func (a *agent) suspects(report *flightlog.Report, failures []Failure) (out []Suspect) {
	culprits := report.Culprits()
	killed := slices.ContainsFunc(failures, Failure.isKillOrCrash)
	for _, span := range culprits {
		first, last := max(a.rank(0), span.First), min(a.rank(len(a.workers)-1), span.Last)
		for rank := first; rank <= last; rank++ {
			w := a.workers[a.local(rank)]
			if w.proc == nil {
				continue
			}
			s := Suspect{Rank: rank, PID: w.proc.Pid, How: "ended with code 0 before the others"}
			if i := slices.IndexFunc(failures, func(f Failure) bool { return f.Rank == rank }); i >= 0 {
				if f := &failures[i]; f.Stopped && !f.Suspended && (killed || report.Unrecorded().Has(rank)) {
					continue
				}
				s.How = failures[i].fault()
			}
			out = append(out, s)
		}
	}
	known := report.Known(culprits)
	if killed || slices.ContainsFunc(failures, func(f Failure) bool { return !f.Stopped && known.Has(f.Rank) }) {
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

// fates says how the process of each rank has ended. The flight recorders' report takes
// it for ranks that have left no dump.
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

// putSuspectFirst moves the first failure of a suspect to the front.
func putSuspectFirst(failures []Failure, suspects []Suspect) {
	i := slices.IndexFunc(failures, func(f Failure) bool {
		return !f.Stopped && slices.ContainsFunc(suspects, func(s Suspect) bool { return s.Rank == f.Rank })
	})
	if i >= 0 {
		toFront(failures, i)
	}
}

// blamed returns the suspects if the first failure is none of theirs: these ranks did
// not fail by themselves, and the report names them before the failures that follow.
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

// listSuspects names the suspects in one sentence, the first few of them one by one.
func listSuspects(suspects []Suspect) string {
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
