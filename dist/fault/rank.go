// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"strings"
)

// RankError says that an operation cannot complete because of another rank, and
// names the rank: it died, left, fell silent, or gave up.
type RankError struct {
	Rank  int    // the rank at fault, by its number in the group
	Host  string // the host that it ran on, "" if not known
	PID   int    // its process, 0 if not known or if it runs in this process
	Group string // the group's name
	Op    string // the operation that failed on this rank, "all_reduce"; "" if none was under way
	Seq   uint64 // the operation's number in the group, 0 if none was under way
	// Site is the line at which this rank called the operation,
	// "path/file.go:88 pkg.Func"; "" if not known.
	Site string
	// Signal is the name of the signal that ended the process, if the launcher has
	// told it: "killed" for SIGKILL.
	Signal string
	// Last is what a rank that has left the group did last, nil if not known.
	Last *Doing
	// Cause is [ErrDied], [ErrLeft], [ErrSilent] (in a [SilentError]), [ErrGone], a
	// [WireError], or what the rank itself said before it gave up.
	Cause error

	who Member // the rank with its number in the job, if that is another
}

// NewRankError returns the error about a member of a group. A rank has one name in
// all errors: that of [Member.String].
func NewRankError(group string, m Member, cause error) *RankError {
	return &RankError{Rank: m.Rank, Host: m.Host, PID: m.PID, Group: group, Cause: cause, who: m}
}

// JobRank returns the rank at fault by its number in the job.
func (e *RankError) JobRank() int { return e.member().JobRank() }

func (e *RankError) member() Member {
	m := e.who
	if m.group == "" {
		m = Member{Rank: e.Rank}
	}
	m.Host, m.PID = e.Host, e.PID
	return m
}

func (e *RankError) Error() string {
	var b strings.Builder
	b.WriteString("dist: ")
	writeWhere(&b, e.Op, e.Seq, e.Group, e.Site)
	var silent *SilentError
	b.WriteString(e.member().String())
	switch {
	case e.Signal != "":
		fmt.Fprintf(&b, " died: signal %s", e.Signal)
	case errors.Is(e.Cause, ErrDied):
		fmt.Fprintf(&b, " died: %v", e.Cause)
	case errors.Is(e.Cause, ErrLeft):
		b.WriteString(" has left the group")
		if e.Last != nil && e.Last.State != DoingUnknown {
			fmt.Fprintf(&b, " (%v)", e.Last)
		}
	case errors.As(e.Cause, &silent) && silent.Here:
		fmt.Fprintf(&b, ", this one, was given up by the others: %v", e.Cause)
	case errors.Is(e.Cause, ErrSilent):
		fmt.Fprintf(&b, " is silent: %v", e.Cause)
	default:
		fmt.Fprintf(&b, " failed: %v", e.Cause)
	}
	return b.String()
}

// Unwrap returns Cause.
func (e *RankError) Unwrap() error { return e.Cause }
