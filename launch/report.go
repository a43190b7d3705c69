// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/visible"
)

// Failure is the bad end of one rank.
type Failure struct {
	Rank, LocalRank int
	Host            string
	PID             int
	Code            int            // exit code, -1 with Signal
	Signal          syscall.Signal // what ended the process; 0 for an exit
	Time            time.Time      // when the agent saw it
	After           time.Duration  // since the start of the job
	Stopped         bool           // it ended after the agent had asked it to
	Suspended       bool           // its process was stopped (SIGSTOP) when the agent asked it to
	Tail            []string       // the last lines of its standard error

	// What the rank has said in its error file: Message is a line, Callstack where
	// it happened, Raised when, to the second. ErrorFile is the file's path, where it stays.
	Message, Callstack string
	Raised             time.Time
	ErrorFile          string
	// Memory is what the system says of memory that had run out when the rank ended.
	Memory string
	// Final says that the rank, started again, would end in the same way.
	Final bool

	raw    []byte // the error file
	python string // the interpreter, where a module was not found
}

// how says how the process ended: "exited with code 3", "was killed by SIGKILL".
func (f *Failure) how() string {
	if f.Signal != 0 {
		return "was killed by " + signalName(f.Signal)
	}
	return fmt.Sprintf("exited with code %d", f.Code)
}

// ended is how for a rank that the agent has asked to end.
func (f *Failure) ended() string {
	how := f.how()
	if f.Signal != 0 {
		how += ", sent by the launcher"
	}
	if f.Suspended {
		return "had been stopped (SIGSTOP); it " + how
	}
	return how
}

// Error is a job that did not end well.
type Error struct {
	Program    string
	NumRanks   int
	Attempt    int            // how often the ranks had been restarted
	Failures   []Failure      // the likely cause, then the others in the order in which they were seen
	Signal     syscall.Signal // that stopped the job, sent to the agent; 0: none
	Notice     string         // what Signal came of, where it came of Config.Notice
	Cause      error          // why the context ended that stopped the job
	StartErr   error          // a rank could not be started
	Unkillable []int          // PIDs of workers that SIGKILL did not end
	NumStrays  int            // processes of workers that SIGKILL did not end
	// Recorders are the first lines of what the ranks' flight recorders say
	// together, RecorderDir the directory of their dumps, for package
	// flightlog; empty where no rank wrote one.
	Recorders   []string
	RecorderDir string
	// Suspects are the ranks that the recorders name as the cause, where they
	// agree, or those whose processes had been stopped (SIGSTOP). They need not be among Failures: a rank may have left, with code 0.
	Suspects []Suspect

	left      []Failure // those that ended with code 0 before the first failure
	itself    bool      // its program is this one
	differ    bool      // the first failure says how the ranks' calls differ
	carriedOn bool      // those left have ended well: a notice, not an error

	restartsLeft int // when this attempt ended
}

// Error is one line; Report tells more.
func (e *Error) Error() string {
	switch {
	case e.StartErr != nil:
		return e.StartErr.Error()
	case len(e.Failures) > 0 && !e.Failures[0].Stopped && len(e.blamed()) > 0:
		return fmt.Sprintf("%s, of %d", accuse(e.blamed()), e.NumRanks)
	case len(e.Failures) > 0 && !e.Failures[0].Stopped:
		f := &e.Failures[0]
		text := fmt.Sprintf("rank %d of %d %s (pid %d, host %s)", f.Rank, e.NumRanks, f.how(), f.PID, f.Host)
		if f.Message != "" {
			text += ": " + firstLine(f.Message)
		}
		return text
	case e.Signal != 0:
		return e.stopped()
	case e.Cause != nil:
		return fmt.Sprintf("stopped: %v", e.Cause)
	default:
		return e.remains()
	}
}

// Unwrap returns the cause of the context's end or the start's error.
func (e *Error) Unwrap() []error {
	var out []error
	for _, err := range []error{e.Cause, e.StartErr} {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

func (e *Error) remains() string {
	return fmt.Sprintf("%d workers (pids %v) and %d processes that workers started survive SIGKILL: they hang in the kernel", len(e.Unkillable), e.Unkillable, e.NumStrays)
}

// stopped says what stopped the job that a signal has stopped.
func (e *Error) stopped() string {
	if e.Notice != "" {
		return "stopped, because this machine is about to go: " + e.Notice
	}
	return "stopped by " + signalName(e.Signal)
}

// subject is what has failed: of a program that has started its own ranks, not that.
func (e *Error) subject() string {
	if e.itself {
		return "the job"
	}
	return e.Program
}

// again says which attempt it was, of a job that has been restarted.
func (e *Error) again() string {
	if e.Attempt == 0 {
		return ""
	}
	return fmt.Sprintf(" in attempt %d", e.Attempt)
}

// Report writes what a person at the terminal needs: the first failure with its
// rank's last words, then the others, then who stopped the job.
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
		f, which := &failed[0], "first failure"
		blamed := e.blamed()
		if e.differ {
			which = "likely cause"
		} else if len(blamed) == 0 && slices.ContainsFunc(failed, func(other Failure) bool { return other.Time.Before(f.Time) }) {
			which = "likely cause"
			if f.waited() {
				which = "waited in vain"
			}
		}
		if e.carriedOn {
			fmt.Fprintf(&b, "cohort: %s ended well without %d of its %d ranks: rank %d %s, and the others went on\n", e.subject(), len(e.Failures), e.NumRanks, f.Rank, f.how())
		} else if len(blamed) > 0 {
			fmt.Fprintf(&b, "cohort: %s failed%s: %s\n", e.subject(), e.again(), accuse(blamed))
			why := "the flight recorders of the others name " + ranksNamed(blamed)
			if slices.ContainsFunc(blamed, func(s Suspect) bool { return s.unnamed }) {
				why = "a process that is stopped answers nobody, and the others wait for it"
			}
			fmt.Fprintf(&b, "  likely cause: %s; what follows ended because of that\n", why)
		} else {
			fmt.Fprintf(&b, "cohort: %s failed%s: rank %d %s\n", e.subject(), e.again(), f.Rank, f.how())
		}
		how := ""
		if len(blamed) > 0 {
			how = " " + f.how()
		}
		fmt.Fprintf(&b, "  %s: rank %d (local rank %d), host %s, pid %d%s, at %s, %v after the start\n",
			which, f.Rank, f.LocalRank, f.Host, f.PID, how, f.Time.Format(time.RFC3339), f.After.Round(time.Millisecond))
		switch {
		case f.Memory != "":
			fmt.Fprintf(&b, "  %s\n", f.Memory)
		case f.Signal == syscall.SIGKILL:
			b.WriteString("  nobody here sent it SIGKILL; where memory ran out, the kernel does (see dmesg)\n")
		}
		f.words(&b)
		if f.python != "" {
			fmt.Fprintf(&b, "  %s ran it: PYTHON_EXEC names another Python\n", f.python)
		}
	}
	same := e.sameAsFirst()
	switch n := len(same); n {
	case 0:
	case 1:
		b.WriteString("  and another rank with the same error\n")
	default:
		fmt.Fprintf(&b, "  and %d other ranks with the same error\n", n)
	}
	for i := 1; i < len(failed); i++ {
		f := &failed[i]
		if slices.Contains(same, f.Rank) {
			continue
		}
		order, by, when := "then", f.Time.Sub(failed[0].Time), "later"
		if by < 0 {
			order, by, when = "before", -by, "earlier, for what another rank did"
		}
		fmt.Fprintf(&b, "  %s: rank %d (local rank %d), host %s, pid %d %s %v %s\n",
			order, f.Rank, f.LocalRank, f.Host, f.PID, f.how(), by.Round(time.Millisecond), when)
	}
	if len(failed) > 0 && !e.carriedOn {
		const most = 3
		for i := range e.left[:min(len(e.left), most)] {
			f := &e.left[i]
			fmt.Fprintf(&b, "  before: rank %d (pid %d) had ended with code 0, %v earlier\n", f.Rank, f.PID, failed[0].Time.Sub(f.Time).Round(time.Millisecond))
		}
		if rest := len(e.left) - most; rest > 0 {
			fmt.Fprintf(&b, "  and %d more ranks had ended with code 0\n", rest)
		}
	}
	if len(e.Recorders) > 0 {
		b.WriteString("  the ranks' flight recorders say:\n")
		for _, line := range e.Recorders {
			if len(failed) > 0 {
				line = said(line, failed[0].Tail)
			}
			fmt.Fprintf(&b, "    | %s\n", line)
		}
		fmt.Fprintf(&b, "    all of it: cohort recorder %s\n", e.RecorderDir)
	}
	switch {
	case e.Signal != 0:
		fmt.Fprintf(&b, "cohort: %s\n", e.stopped())
	case e.Cause != nil:
		fmt.Fprintf(&b, "cohort: stopped: %v\n", e.Cause)
	}
	if e.carriedOn && len(failed) == 0 {
		fmt.Fprintf(&b, "cohort: %s ended well without %d of its %d ranks\n", e.subject(), len(e.Failures), e.NumRanks)
	}
	for i := range stopped {
		f := &stopped[i]
		if f.Signal == 0 && f.Code == 1 && e.Signal != 0 {
			continue // it ended by itself, as it was asked to
		}
		fmt.Fprintf(&b, "  stopped: rank %d (pid %d) %s\n", f.Rank, f.PID, f.ended())
	}
	if len(e.Unkillable)+e.NumStrays > 0 {
		fmt.Fprintf(&b, "cohort: %s\n", e.remains())
	}
	if why := e.notAgain(); why != "" {
		fmt.Fprintf(&b, "cohort: %s\n", why)
	}
}

// sameAsFirst returns the ranks that ended by themselves, in the same way and with
// the same error as the first.
func (e *Error) sameAsFirst() (ranks []int) {
	if len(e.Failures) == 0 || e.Failures[0].Message == "" {
		return nil
	}
	first := &e.Failures[0]
	for i := range e.Failures[1:] {
		if f := &e.Failures[i+1]; !f.Stopped && f.Message == first.Message && f.how() == first.how() {
			ranks = append(ranks, f.Rank)
		}
	}
	return ranks
}

// said shortens a line of the recorders that repeats one of those shown above.
func said(line string, shown []string) string {
	head, text, ok := strings.Cut(line, ": ")
	if ok && strings.HasPrefix(head, "  told to ") && slices.Contains(shown, text) {
		return head + ": the same as its last line above"
	}
	return line
}

// signalName is the name in capitals that people know.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
