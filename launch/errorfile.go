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

// readErrorFile adds to a failure what the worker has written into its error file, if it
// has written one.
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
	if a.Host.logs.scratch == "" { // else the file is removed with the job
		f.ErrorFile = path
	}
}

// passErrorFileOn tells the launcher of this process that the job has failed, if there is
// such a launcher and it has named an error file. It passes the error file of the rank
// that failed first on.
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

// Record writes the error with which a rank ends into the error file that its launcher has
// named (TORCHELASTIC_ERROR_FILE). The launcher's report then quotes the error, and says
// whose error was first. Functions that [Spawn] or dist.Main runs need not call Record:
// their errors are recorded, and under Spawn their panics too. Record does nothing if no
// launcher has named a file, or if err is nil. The stack may be empty.
func Record(err error, stack string) { errorfile.Record(err, stack) }
