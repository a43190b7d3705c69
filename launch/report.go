// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/visible"
)

// Report writes what a person at the terminal needs: the first failure with the last
// words of its rank, then the other failures, then who stopped the job.
func (e *Error) Report(w io.Writer) {
	var b strings.Builder
	defer func() { _, _ = io.WriteString(w, visible.Text(b.String())) }()
	if e.StartErr != nil {
		fmt.Fprintf(&b, "cohort: %v\n", e.StartErr)
		return
	}
	var failed, stopped []Failure
	for _, f := range e.Failures {
		if f.Stopped {
			stopped = append(stopped, f)
		} else {
			failed = append(failed, f)
		}
	}
	if len(failed) > 0 {
		e.reportHeadline(&b, &failed[0])
		e.reportFirst(&b, failed)
		e.reportOthers(&b, failed)
	}
	e.reportRecorders(&b, failed)
	switch {
	case e.Signal != 0:
		fmt.Fprintf(&b, "cohort: %s\n", e.stopped())
	case e.Cause != nil:
		fmt.Fprintf(&b, "cohort: stopped: %v\n", e.Cause)
	}
	if e.carriedOn && len(failed) == 0 {
		fmt.Fprintf(&b, "cohort: %s ended well without %d of its %d ranks\n", e.subject(), len(e.Failures), e.NumRanks)
	}
	e.reportStopped(&b, stopped)
	if len(e.Unkillable)+e.NumStrays > 0 {
		fmt.Fprintf(&b, "cohort: %s\n", e.remains())
	}
	if why := e.notAgain(); why != "" {
		fmt.Fprintf(&b, "cohort: %s\n", why)
	}
}

// reportHeadline writes which rank is the likely cause.
func (e *Error) reportHeadline(b *strings.Builder, f *Failure) {
	blamed := e.blamed()
	switch {
	case e.carriedOn:
		fmt.Fprintf(b, "cohort: %s ended well without %d of its %d ranks: rank %d %s, and the others went on\n", e.subject(), len(e.Failures), e.NumRanks, f.Rank, f.how())
	case len(blamed) > 0:
		fmt.Fprintf(b, "cohort: %s failed%s: %s\n", e.subject(), e.again(), listSuspects(blamed))
		why := "the flight recorders of the others name " + ranksNamed(blamed)
		if slices.ContainsFunc(blamed, func(s Suspect) bool { return s.unnamed }) {
			why = "a stopped process does not answer, and the others wait for it"
		}
		fmt.Fprintf(b, "  likely cause: %s; the ranks below ended because of that\n", why)
	default:
		fmt.Fprintf(b, "cohort: %s failed%s: rank %d %s\n", e.subject(), e.again(), f.Rank, f.how())
	}
}

// reportFirst writes the first failure: where and when, and the last words of its rank.
func (e *Error) reportFirst(b *strings.Builder, failed []Failure) {
	f, blamed := &failed[0], e.blamed()
	how := ""
	if len(blamed) > 0 {
		how = " " + f.how()
	}
	fmt.Fprintf(b, "  %s: rank %d (local rank %d), host %s, pid %d%s, at %s, %v after the start\n",
		e.firstIs(failed), f.Rank, f.LocalRank, f.Host, f.PID, how, f.Time.Format(time.RFC3339), f.After.Round(time.Millisecond))
	switch {
	case f.Memory != "":
		fmt.Fprintf(b, "  %s\n", f.Memory)
		b.WriteString("  if a model is too large for a rank, shard the state of the model over the ranks (cohort train --fsdp)\n")
	case f.Signal == syscall.SIGKILL:
		b.WriteString("  the launcher did not send SIGKILL; the kernel does when memory runs out (see dmesg)\n")
	}
	f.reportWords(b)
	if f.python != "" {
		fmt.Fprintf(b, "  %s ran it: PYTHON_EXEC names another Python\n", f.python)
	}
}

// firstIs says what the failure in front is: the first one, or the likely cause though
// others were seen before it.
func (e *Error) firstIs(failed []Failure) string {
	f := &failed[0]
	earlier := slices.ContainsFunc(failed, func(other Failure) bool { return other.Time.Before(f.Time) })
	switch {
	case e.differ:
		return "likely cause"
	case len(e.blamed()) > 0 || !earlier:
		return "first failure"
	case f.waited():
		return "waited in vain"
	}
	return "likely cause"
}

// reportOthers writes the failures besides the first, and the ranks that had ended with
// code 0 before.
func (e *Error) reportOthers(b *strings.Builder, failed []Failure) {
	same := e.sameAsFirst()
	switch n := len(same); n {
	case 0:
	case 1:
		b.WriteString("  and another rank with the same error\n")
	default:
		fmt.Fprintf(b, "  and %d other ranks with the same error\n", n)
	}
	for i := 1; i < len(failed); i++ {
		f := &failed[i]
		if slices.Contains(same, f.Rank) {
			continue
		}
		order, by, when := "then", f.Time.Sub(failed[0].Time), "later"
		if by < 0 {
			order, by, when = "before", -by, "earlier, because of another rank"
		}
		fmt.Fprintf(b, "  %s: rank %d (local rank %d), host %s, pid %d %s %v %s\n",
			order, f.Rank, f.LocalRank, f.Host, f.PID, f.how(), by.Round(time.Millisecond), when)
	}
	if e.carriedOn {
		return
	}
	const most = 3
	for i := range e.left[:min(len(e.left), most)] {
		f := &e.left[i]
		fmt.Fprintf(b, "  before: rank %d (pid %d) had ended with code 0, %v earlier\n", f.Rank, f.PID, failed[0].Time.Sub(f.Time).Round(time.Millisecond))
	}
	if rest := len(e.left) - most; rest > 0 {
		fmt.Fprintf(b, "  and %d more ranks had ended with code 0\n", rest)
	}
}

// reportRecorders writes what the flight recorders say.
func (e *Error) reportRecorders(b *strings.Builder, failed []Failure) {
	if len(e.Recorders) == 0 {
		return
	}
	b.WriteString("  the ranks' flight recorders say:\n")
	for _, line := range e.Recorders {
		if len(failed) > 0 {
			line = shortenRepeated(line, failed[0].Tail)
		}
		fmt.Fprintf(b, "    | %s\n", line)
	}
	fmt.Fprintf(b, "    all of it: cohort recorder %s\n", e.RecorderDir)
}

// reportStopped writes how the ranks ended that the agent asked to end.
func (e *Error) reportStopped(b *strings.Builder, stopped []Failure) {
	for i := range stopped {
		f := &stopped[i]
		if f.Signal == 0 && f.Code == 1 && e.Signal != 0 {
			continue // it did what it was asked to
		}
		fmt.Fprintf(b, "  stopped: rank %d (pid %d) %s\n", f.Rank, f.PID, f.ended())
	}
}

// shortenRepeated shortens a line of the recorders that repeats one of the lines shown
// above it.
func shortenRepeated(line string, shown []string) string {
	head, text, ok := strings.Cut(line, ": ")
	if ok && strings.HasPrefix(head, "  told to ") && slices.Contains(shown, text) {
		return head + ": the same as its last line above"
	}
	return line
}

// reportWords writes what a rank has said of its end: the error in its error file, and
// the last lines of its standard error unless they say the same.
func (f *Failure) reportWords(b *strings.Builder) {
	if f.Message != "" || f.Callstack != "" {
		b.WriteString("  its error")
		if f.ErrorFile != "" {
			fmt.Fprintf(b, ", from %s", f.ErrorFile)
		}
		b.WriteString(":\n")
		text := strings.TrimRight(f.Callstack, "\n")
		if !strings.Contains(text, firstLine(f.Message)) {
			text = strings.TrimRight(f.Message+"\n"+text, "\n")
		}
		shown := strings.Split(text, "\n")
		if n := len(shown); n > maxStackLines {
			shown = append([]string{fmt.Sprintf("… %d lines", n-maxStackLines)}, shown[n-maxStackLines:]...)
		}
		for _, line := range shown {
			fmt.Fprintf(b, "    | %s\n", strings.TrimRight(line, "\r"))
		}
		if said := firstLine(f.Message); slices.ContainsFunc(f.Tail, func(line string) bool { return strings.Contains(line, said) }) {
			return
		}
	}
	if len(f.Tail) > 0 {
		b.WriteString("  its last lines on standard error:\n")
		for _, line := range f.Tail {
			fmt.Fprintf(b, "    | %s\n", line)
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// maxStackLines is how many lines of a call stack a report shows. It shows the last ones,
// where Python has the error.
const maxStackLines = 40
