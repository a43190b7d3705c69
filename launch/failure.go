// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
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

// isKillOrCrash reports whether somebody else killed the rank, or it crashed. Neither
// follows from the failure of another rank.
func (f Failure) isKillOrCrash() bool {
	switch f.Signal {
	case syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE:
		return !f.Stopped
	}
	return false
}

// Line says how a rank ended: "rank 3 exited with code 1 (pid 7, host h)".
func (f *Failure) Line() string {
	text := fmt.Sprintf("rank %d %s (pid %d, host %s)", f.Rank, f.how(), f.PID, f.Host)
	if f.Message != "" {
		text += ": " + f.Message
	}
	return text
}

// when is the second of the failure. A worker that says it was later than its end,
// or before the job, has a clock of its own.
func (f *Failure) when() time.Time {
	if !f.Raised.IsZero() && f.Raised.Before(f.Time) && f.Time.Sub(f.Raised) < f.After+time.Second {
		return f.Raised.Truncate(time.Second)
	}
	return f.Time.Truncate(time.Second)
}

// lacksModule reports whether a Python program ended because a module is not there.
func (f *Failure) lacksModule() bool {
	const text = "ModuleNotFoundError: No module named "
	return strings.Contains(f.Message, text) || slices.ContainsFunc(f.Tail, func(line string) bool { return strings.HasPrefix(line, text) })
}

// failure is what is known of a worker that has ended badly.
func (a *agent) failure(end workerEnd) Failure {
	w := a.workers[end.local]
	f := Failure{
		Rank: a.rank(end.local), LocalRank: end.local, Host: a.host, PID: w.proc.Pid,
		Code: end.code, Signal: end.sig, Time: end.at, After: end.at.Sub(a.begin),
		Stopped: end.stopped, Suspended: w.suspended, Tail: w.tail.last(),
	}
	a.readErrorFile(&f)
	if p := a.program(end.local); p.isPython && f.lacksModule() {
		f.python = p.path
	}
	f.Final = f.Final || f.isFinal(w.tail.printedUsage())
	return f
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
		return fmt.Sprintf("%s, of %d", listSuspects(e.blamed()), e.NumRanks)
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
