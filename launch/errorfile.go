// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/errorfile"
)

// What workers say of their end in error files: see package errorfile.

// readErrorFile reads the error file of a failed worker, if it has written one.
func (a *agent) readErrorFile(f *Failure) {
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

// passErrorFileOn tells of a job that failed to whoever launched this process, if it has
// been given an error file: with that of the worker that failed first.
func passErrorFileOn(err error) {
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

// Record writes the error that a rank ends with into the file that its launcher
// has named for it (TORCHELASTIC_ERROR_FILE), so that the launcher's report says
// it, and says which rank's was first. What [Spawn] or dist.Main runs need not
// call it: errors, and the panics of Spawn's, are recorded. It does nothing where
// no launcher wants to know, or err is nil. The stack may be empty.
func Record(err error, stack string) { errorfile.Record(err, stack) }
