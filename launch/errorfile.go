// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/errorfile"
)

// What workers say of their end in error files: see package errorfile.

// maxStackLines is how much of a call stack a report shows: its end, where
// Python has the error.
const maxStackLines = 40

// readWords reads the error file of a failed worker, if it has written one.
func (a *agent) readWords(f *Failure) {
	path := a.logs.errorFile(f.LocalRank)
	if path == "" {
		return
	}
	_, raw, err := errorfile.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		f.Message = fmt.Sprintf("(what it wrote cannot be read: %v)", err)
	default:
		raw = a.secret.hideJSON(raw)
		if e, err := errorfile.Parse(raw); err == nil {
			f.Message, f.Callstack, f.Raised, f.Final, f.raw = e.Message, e.Callstack, e.Time, e.Final, raw
		}
	}
	if a.Host.logs.scratch == "" { // else it goes with the job
		f.ErrorFile = path
	}
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

// when is the second of the failure. A worker that says it was later than its end,
// or before the job, has a clock of its own.
func (f *Failure) when() time.Time {
	if !f.Raised.IsZero() && f.Raised.Before(f.Time) && f.Time.Sub(f.Raised) < f.After+time.Second {
		return f.Raised.Truncate(time.Second)
	}
	return f.Time.Truncate(time.Second)
}

// handOn tells of a job that failed to whoever launched this process, if it has
// been given an error file: with that of the worker that failed first.
func handOn(err error) {
	var e *Error
	path, ok := envvar.ErrorFile.Lookup()
	if !ok || !errors.As(err, &e) {
		return
	}
	if len(e.Failures) == 0 || len(e.Failures[0].raw) == 0 {
		_ = errorfile.Write(path, errorfile.Error{Message: e.Error(), Time: time.Now()})
		return
	}
	f := &e.Failures[0]
	code := f.Code
	if f.Signal != 0 {
		code = -int(f.Signal)
	}
	_ = errorfile.WriteRaw(path, errorfile.WithCode(f.raw, code))
}

// words writes what a worker has said of its end: in its error file, and on its
// standard error unless that says the same.
func (f *Failure) words(b *strings.Builder) {
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

// lacksModule reports whether a Python program ended because a module is not there.
func (f *Failure) lacksModule() bool {
	const text = "ModuleNotFoundError: No module named "
	return strings.Contains(f.Message, text) || slices.ContainsFunc(f.Tail, func(line string) bool { return strings.HasPrefix(line, text) })
}

// Record writes the error that a rank ends with into the file that its launcher
// has named for it (TORCHELASTIC_ERROR_FILE), so that the launcher's report says
// it, and says which rank's was first. What [Spawn] or dist.Main runs need not
// call it: errors, and the panics of Spawn's, are recorded. It does nothing where
// no launcher wants to know, or err is nil. The stack may be empty.
func Record(err error, stack string) { errorfile.Record(err, stack) }
