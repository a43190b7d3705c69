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

// firstFirst sorts the failures of those that ended by themselves by when they
// failed, which they may have known, and written, a while before they ended. Times in
// error files are whole seconds: within one, the order in which the ends were seen stays.
func firstFirst(failures []Failure) {
	n := slices.IndexFunc(failures, func(f Failure) bool { return f.Stopped })
	if n < 0 {
		n = len(failures)
	}
	slices.SortStableFunc(failures[:n], func(f, g Failure) int { return f.when().Compare(g.when()) })
}

// A rank that ends because it has lost another may end first: it exits while the
// other one still gives back what it holds, or waits a moment for others to read
// what it has said. What it writes names the one that it lost (packages dist and rpc),
// and tells the two apart.
var (
	blames = regexp.MustCompile(`\brank (\d+)(?: of "[^"]*")?(?: \((?:[^()]*pid (\d+)|host [^(),]*)\))? (?:failed|died|has left|is silent)\b`)
	gone   = regexp.MustCompile(`\(rank (\d+)\)(?:: (?:connection lost|unreachable): | has gone without a Shutdown\b)`)
	missed = regexp.MustCompile(`\b(?:timed out|cancelled)\b.* waiting for (rank .*)`)
	pids   = regexp.MustCompile(`\bpid (\d+)\)`)
)

// causeFirst moves to the front the first failure that does not follow, by its
// last words, from that of another rank.
func causeFirst(failures []Failure) {
	for i := range failures {
		f := &failures[i]
		if f.Stopped {
			return // from here on they ended as they were asked to
		}
		if !slices.ContainsFunc(failures, func(other Failure) bool { return other.PID != f.PID && !other.Stopped && f.follows(&other) }) {
			cause := *f
			copy(failures[1:i+1], failures[:i])
			failures[0] = cause
			return
		}
	}
}

// differs is what a rank says of one that is in another call, or sends what nobody knows,
// in a group with PyTorch ranks: these say then only that a connection was closed.
var differs = regexp.MustCompile(`\brank \d+(?: \([^()]*\))? failed: it (?:\([^()]*\) )?sent .+, but `)

// differs reports whether a rank has ended by itself with words that say how the ranks'
// calls differ.
func (f *Failure) differs() bool {
	return !f.Stopped && (differs.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, differs.MatchString))
}

// differsFirst moves such a failure to the front, unless that has none before it but
// its like.
func differsFirst(failures []Failure) (found bool) {
	i := slices.IndexFunc(failures, func(f Failure) bool { return f.differs() })
	if i < 0 || failures[0].struck() {
		return false
	}
	cause := failures[i]
	copy(failures[1:i+1], failures[:i])
	failures[0] = cause
	return true
}

// waited reports whether a rank ended, by its last words, because another did not come.
func (f *Failure) waited() bool {
	return missed.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, missed.MatchString)
}

// follows reports whether a rank's last words name another as the cause.
func (f *Failure) follows(other *Failure) bool {
	pid, rank := strconv.Itoa(other.PID), strconv.Itoa(other.Rank)
	for _, line := range f.Tail {
		for _, m := range blames.FindAllStringSubmatch(line, -1) {
			if m[2] == pid || m[2] == "" && m[1] == rank {
				return true
			}
		}
		for _, m := range gone.FindAllStringSubmatch(line, -1) {
			if m[1] == rank {
				return true
			}
		}
		if m := missed.FindStringSubmatch(line); m != nil {
			for _, p := range pids.FindAllStringSubmatch(m[1], -1) {
				if p[1] == pid {
					return true
				}
			}
		}
	}
	return false
}
