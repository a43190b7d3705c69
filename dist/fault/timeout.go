// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// TimeoutError says that an operation did not complete in time, or was cancelled, and
// for which ranks it waited.
type TimeoutError struct {
	Group   string   // the group's name
	Op      string   // the operation, "all_reduce"; "init" while the group is formed
	Seq     uint64   // the operation's number in the group
	Site    string   // the line at which this rank called it, as in a [RankError]
	Missing []Member // the ranks that were waited for; none if the operation had not begun
	// Instead is what the first of the missing ranks were doing, as far as they
	// answered.
	Instead []Doing
	// Cause is why the wait ended: the cause of the context's end, or that the
	// group's own time limit was over. [errors.Is] finds [context.Canceled] or
	// [context.DeadlineExceeded] in it, whatever reason was given besides.
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

// Unwrap returns Cause.
func (e *TimeoutError) Unwrap() error { return e.Cause }

// Timeout reports whether the time was up, as in [net.Error]; false if the operation
// was cancelled.
func (e *TimeoutError) Timeout() bool { return !errors.Is(e.Cause, context.Canceled) }

// reason returns what the cause of a time-out says beyond that it is one.
func reason(cause error) string {
	if cause == nil {
		return ""
	}
	text := cause.Error()
	for _, plain := range []error{context.Canceled, context.DeadlineExceeded} {
		if text == plain.Error() {
			return ""
		}
		text = strings.TrimSuffix(text, ": "+plain.Error())
	}
	return text
}
