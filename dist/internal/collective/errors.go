// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is the cause of a call on a group that this rank has closed.
var ErrClosed = errors.New("the group is closed")

// ErrLeft is the cause in a [RankError] about a rank that closed its group
// while others still needed it.
var ErrLeft = errors.New("left the group")

// ErrDied is the cause in a [RankError] about a rank whose process ended.
var ErrDied = errors.New("process ended")

// ErrSilent is the cause in a [RankError] about a rank of which nothing was
// heard for the silence limit, though nothing says that its process has ended.
// Who wraps it says for how long, and what else is known:
//
//	fmt.Errorf("%w for %v; its process is stopped", ErrSilent, limit)
var ErrSilent = errors.New("nothing was heard of it")

// RankError says that an operation cannot complete because of another rank.
type RankError struct {
	Rank  int    // the rank at fault
	Host  string // where it ran, "" if not known
	PID   int    // its process, 0 if not known or in this process
	Group string
	Op    string // the operation that failed here, "" if none was under way
	Seq   uint64 // its number in the group, 0 if none was under way
	// Site is where this rank called it, "path/file.go:88 pkg.Func", "" if not
	// known.
	Site string
	// Signal is the name of the signal that ended the process, when the
	// launcher has told: "killed" for SIGKILL.
	Signal string
	// Last is what a rank that has left the group did last, nil if not known.
	Last *Doing
	// Cause is [ErrDied], [ErrLeft], [ErrSilent], or an error with what the rank
	// itself said before it gave up.
	Cause error

	who Member // with its number in the job, if that is another
}

// NewRankError returns the error about a member of a group.
func NewRankError(group string, m Member, cause error) *RankError {
	return &RankError{Rank: m.Rank, Host: m.Host, PID: m.PID, Group: group, Cause: cause, who: m}
}

// JobRank returns the number in the job of the rank at fault.
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

func (e *RankError) Unwrap() error { return e.Cause }

// RankCall is what one rank called.
type RankCall struct {
	Rank int
	Call Call
	Site string // where, "path/file.go:88 pkg.Func", "" if not known
	// Group is the group that it called it on, if that is another than the
	// error's. Rank is the rank's number in the error's group all the same.
	Group string

	who Member // with its number in the job, if that is another
}

// JobRank returns the rank's number in the job.
func (c RankCall) JobRank() int { return c.member().JobRank() }

func (c RankCall) member() Member {
	if c.who.group == "" {
		return Member{Rank: c.Rank}
	}
	m := c.who
	m.Host, m.PID = "", 0
	return m
}

func (c RankCall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", c.member(), c.Call)
	if c.Group != "" {
		fmt.Fprintf(&b, " on group %q", c.Group)
	}
	if c.Site != "" {
		fmt.Fprintf(&b, " at %s", c.Site)
	}
	return b.String()
}

// MismatchError says that two ranks called different things in one sequence
// number, or are in calls that wait for each other's next: their programs have
// taken different paths.
type MismatchError struct {
	Group string
	Seq   uint64
	Here  RankCall
	There RankCall
	// Parcel is set where the two calls fit but for how many elements one rank
	// has for the other.
	Parcel *Parcel
}

// Parcel is what one rank has for another in a call, and what that expects.
type Parcel struct {
	From, To, Have, Want int
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	here, there := e.Here.Call.Op, e.There.Call.Op
	apart := e.Here.Group != "" || e.There.Group != "" || here.message() != there.message() || here.message() && here == there
	if apart {
		fmt.Fprintf(&b, "dist: group %q: ranks wait for each other in calls that do not meet: ", e.Group)
	} else {
		fmt.Fprintf(&b, "dist: group %q, call %d: ranks called different things: ", e.Group, e.Seq)
	}
	for i, rc := range []*RankCall{&e.Here, &e.There} {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(rc.String())
		if apart || rc.Call.Seq != e.Seq {
			fmt.Fprintf(&b, ", its call %d", rc.Call.Seq)
		}
	}
	if p := e.Parcel; p != nil {
		fmt.Fprintf(&b, "; rank %d has %s for rank %d, which expects %d", p.From, elements(p.Have), p.To, p.Want)
	} else if i := differing(&e.Here.Call, &e.There.Call); i >= 0 {
		fmt.Fprintf(&b, "; the part of rank %d has %s, %d for rank %d", i, elements(e.Here.Call.Parts[i]), e.There.Call.Parts[i], e.There.Rank)
	}
	return b.String()
}

func elements(n int) string {
	if n == 1 {
		return "1 element"
	}
	return fmt.Sprint(n, " elements")
}

// differing returns the first rank whose parts differ in two calls in which all
// ranks should know them alike, -1 if there is none or one's are not known.
func differing(here, there *Call) int {
	if here.Op == there.Op && (here.Op == OpAllGather || here.Op == OpReduceScatter) && len(here.Parts) == len(there.Parts) {
		for i := range here.Parts {
			if here.Parts[i] != there.Parts[i] {
				return i
			}
		}
	}
	return -1
}

// TimeoutError says that an operation did not complete in time and which
// ranks had not done their part.
type TimeoutError struct {
	Group   string
	Op      string
	Seq     uint64
	Site    string   // where this rank called it, as in a [RankError]
	Missing []Member // the ranks that were waited for; none if it had not begun
	// Instead is what the first of the missing ranks were doing, as far as they
	// could be asked.
	Instead []Doing
	// Cause is why the wait ended: the context's cause, or that the group's own
	// time limit was over. It is context.Canceled or context.DeadlineExceeded
	// for errors.Is, whatever reason was given besides.
	Cause error
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	b.WriteString("dist: ")
	writeWhere(&b, e.Op, e.Seq, e.Group, e.Site)
	what := "timed out"
	if errors.Is(e.Cause, context.Canceled) {
		what = "cancelled"
	}
	b.WriteString(what)
	if why := reason(e.Cause); why != "" {
		fmt.Fprintf(&b, " (%s) while", why)
	}
	b.WriteString(" waiting for ")
	if len(e.Missing) == 0 {
		b.WriteString("its turn, after what was called before it")
	}
	for i, m := range e.Missing {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == maxNamed && len(e.Missing) > maxNamed+1 {
			fmt.Fprintf(&b, "and %d more", len(e.Missing)-i)
			break
		}
		b.WriteString(m.String())
		if i < len(e.Instead) && e.Instead[i].State != DoingUnknown {
			fmt.Fprintf(&b, " (%v)", e.Instead[i])
		}
	}
	return b.String()
}

// maxNamed is how many ranks a message lists.
const maxNamed = 16

func (e *TimeoutError) Unwrap() error { return e.Cause }

// Timeout reports true: it satisfies net.Error's idea of a time-out.
func (e *TimeoutError) Timeout() bool { return !errors.Is(e.Cause, context.Canceled) }

func writeWhere(b *strings.Builder, op string, seq uint64, group, site string) {
	if op == "" || op == "init" { // none, or the making of the group
		fmt.Fprintf(b, "group %q: ", group)
		return
	}
	fmt.Fprintf(b, "%s of group %q", Numbered(op, seq), group)
	if line := siteLine(site); line != "" {
		fmt.Fprintf(b, " (%s)", line)
	}
	b.WriteString(": ")
}

// Numbered is a call by its operation and number: "recv 3", or "recv" for one that
// has not had its turn and so no number.
func Numbered(op string, seq uint64) string {
	if seq == 0 {
		return op
	}
	return fmt.Sprintf("%s %d", op, seq)
}

// siteLine returns file and line of a site without the file's folder:
// "file.go:88". Folders may have spaces, and names of functions slashes.
func siteLine(site string) string {
	line := site
	if file, rest, ok := strings.Cut(site, ".go:"); ok {
		number, _, _ := strings.Cut(rest, " ")
		line = file + ".go:" + number
	}
	return line[strings.LastIndexByte(line, '/')+1:]
}
