// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Failure describes one rank that has failed, or that the agent has ended.
type Failure struct {
	Rank, LocalRank int
	Host            string
	PID             int
	Code            int            // exit code, -1 with Signal
	Signal          syscall.Signal // what ended the process; 0 for an exit
	Time            time.Time      // when the agent saw the end
	After           time.Duration  // Time, as a duration since the start of the attempt
	Stopped         bool           // the agent had asked the rank to end
	Suspended       bool           // the process was stopped (SIGSTOP) when the agent asked it to end
	Tail            []string       // the last lines of its standard error

	// The rank's error file says these: Message is one line, Callstack says where the error
	// happened, Raised when, to the second. ErrorFile is the path of the file, empty if the
	// file does not stay.
	Message, Callstack string
	Raised             time.Time
	ErrorFile          string
	// Memory says that memory had run out when the rank ended, if the system says so.
	Memory string
	// Final says that the rank would end in the same way if it were started again.
	Final bool

	raw    []byte // the content of the error file
	python string // the path of the interpreter, if a Python module was not found
}

// how says how the process ended: "exited with code 3", "was killed by SIGKILL".
func (f *Failure) how() string {
	if f.Signal != 0 {
		return "was killed by " + signalName(f.Signal)
	}
	return fmt.Sprintf("exited with code %d", f.Code)
}

// ended says how the process of a rank ended that the agent had asked to end.
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

// fault says what the launcher knows of a rank for which the others waited.
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

// when returns the time of the failure, to the second: the time in the error file, unless
// that is after the end of the process or before the start of the job. Such a rank has
// another clock.
func (f *Failure) when() time.Time {
	if !f.Raised.IsZero() && f.Raised.Before(f.Time) && f.Time.Sub(f.Raised) < f.After+time.Second {
		return f.Raised.Truncate(time.Second)
	}
	return f.Time.Truncate(time.Second)
}

// lacksModule reports whether a Python program ended because it did not find a module.
func (f *Failure) lacksModule() bool {
	const text = "ModuleNotFoundError: No module named "
	return strings.Contains(f.Message, text) || slices.ContainsFunc(f.Tail, func(line string) bool { return strings.HasPrefix(line, text) })
}

// failure collects what the agent knows of a worker that has ended.
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

// Error describes a job that failed or was stopped.
type Error struct {
	Program    string
	NumRanks   int
	Attempt    int            // how often the ranks had been restarted before
	Failures   []Failure      // the likely cause first, then the others by time
	Signal     syscall.Signal // the signal to the agent that stopped the job; 0: none
	Notice     string         // the notice (Config.Notice) that stopped the job; empty: none
	Cause      error          // the cause of the context whose end stopped the job
	StartErr   error          // why a rank could not be started
	Unkillable []int          // PIDs of workers that SIGKILL did not end
	NumStrays  int            // how many processes that workers had started SIGKILL did not end
	// Recorders are the first lines of the report that package flightlog makes of the
	// ranks' flight recorders. RecorderDir is the directory of their dumps. Both are empty
	// if no rank wrote a dump.
	Recorders   []string
	RecorderDir string
	// Suspects are the ranks that the flight recorders name as the cause, if they agree, or
	// the ranks whose processes had been stopped (SIGSTOP). A suspect need not be among
	// Failures: it may have ended with code 0.
	Suspects []Suspect

	left      []Failure // the ranks that ended with code 0 before the first failure
	itself    bool      // the program of the job is this one (Spawn)
	differ    bool      // the first failure says how the ranks' calls differ
	carriedOn bool      // the surviving ranks have ended well: the report is for information

	restartsLeft int // how many restarts were left when this attempt ended
}

// Error says in one line how the job ended. Report says more.
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

// Unwrap returns Cause and StartErr, if they are set.
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

// stopped says which signal or notice has stopped the job.
func (e *Error) stopped() string {
	if e.Notice != "" {
		return "stopped, because this machine is about to go: " + e.Notice
	}
	return "stopped by " + signalName(e.Signal)
}

// subject returns what has failed. If a program has started its own ranks, that is the
// job: the program itself has not failed.
func (e *Error) subject() string {
	if e.itself {
		return "the job"
	}
	return e.Program
}

// again says which attempt it was, if the job has been restarted.
func (e *Error) again() string {
	if e.Attempt == 0 {
		return ""
	}
	return fmt.Sprintf(" in attempt %d", e.Attempt)
}

// sameAsFirst returns the ranks that ended by themselves, with the same code and the same
// error as the first failure.
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
