// SPDX-License-Identifier: Apache-2.0

// Package errorfile reads and writes error files. In such a file a worker tells its launcher
// the error with which it ends. The launcher names the file in TORCHELASTIC_ERROR_FILE. The
// format is torchrun's, in one of two forms:
//
//	{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "…", "timestamp": "1763634466"}}}
//	{"message": "boom", "timestamp": 1763634466}
//
// A worker of Cohort that would fail again if it were started again, for instance because of
// a wrong setting, adds "cohort_final": true to the extraInfo of the first form ([Final]).
//
// If another launcher has started this launcher, it gets the error file of the worker that
// failed first, with that worker's exit code ([WithCode]).
//
// An error file is input from outside. At most [MaxSize] bytes of a regular file are read, and
// every field may be missing.
package errorfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// MaxSize is the largest size of an error file, in bytes.
const MaxSize = 1 << 20

// Error is the error with which a worker has ended.
type Error struct {
	// Message is one line, such as "ValueError: boom".
	Message string
	// Callstack is the call stack, as the worker's language prints it; may be empty.
	Callstack string
	// Time is the time of the error, to the second; zero if the file has none.
	Time time.Time
	// Final says that the worker would end in the same way if it were started again.
	Final bool
}

// file is the format. Message is a text or a message.
type file struct {
	Message   json.RawMessage `json:"message"`
	Timestamp json.RawMessage `json:"timestamp,omitempty"`
}

type message struct {
	Message   string `json:"message"`
	ExtraInfo extra  `json:"extraInfo"`
}

type extra struct {
	Callstack string          `json:"py_callstack,omitempty"`
	Timestamp json.RawMessage `json:"timestamp,omitempty"`
	Final     json.RawMessage `json:"cohort_final,omitempty"`
}

// Write writes an error file, in one step. Only its owner may read it.
func Write(path string, e Error) error {
	stamp, err := json.Marshal(strconv.FormatInt(e.Time.Unix(), 10))
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	var final json.RawMessage
	if e.Final {
		final = json.RawMessage("true")
	}
	m, err := json.Marshal(message{Message: clip(e.Message), ExtraInfo: extra{clip(e.Callstack), stamp, final}})
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	b, err := json.Marshal(file{Message: m})
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	return WriteRaw(path, b)
}

// clip cuts a text that is too long for the file.
func clip(s string) string {
	const most = MaxSize / 8 // a byte may become six in JSON
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// WriteRaw writes the bytes of another error file to path.
func WriteRaw(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".error-")
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	return nil
}

// Record writes the error with which this process ends into the error file that its launcher
// has named. It does nothing if no launcher has named one, or if err is nil. It also does
// nothing if the file has this error already, so that the time of the first report stays. The
// stack may be empty.
func Record(err error, stack string) {
	path, ok := envvar.ErrorFile.Lookup()
	if !ok || err == nil {
		return
	}
	if said, _, e := Read(path); e == nil && said.Message == err.Error() {
		return
	}
	final := (*Final)(nil)
	_ = Write(path, Error{Message: err.Error(), Callstack: stack, Time: time.Now(), Final: errors.As(err, &final)}) // its end says so too
}

// Read reads the error file at path, and also returns its bytes. The error is fs.ErrNotExist
// if the worker has written no file.
func Read(path string) (*Error, []byte, error) {
	// A worker could have made a pipe of it, to hold its launcher up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("error file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("error file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("error file %s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("error file %s: %w", path, err)
	}
	if len(b) > MaxSize {
		return nil, nil, fmt.Errorf("error file %s has more than %d bytes", path, MaxSize)
	}
	e, err := Parse(b)
	if err != nil {
		return nil, nil, fmt.Errorf("error file %s: %w", path, err)
	}
	return e, b, nil
}

// Parse reads an error file in either form.
func Parse(b []byte) (*Error, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("not the JSON of an error file: %w", err)
	}
	var text string
	if json.Unmarshal(f.Message, &text) == nil {
		return &Error{Message: text, Time: parseTime(f.Timestamp)}, nil
	}
	var m message
	if err := json.Unmarshal(f.Message, &m); err != nil {
		return nil, fmt.Errorf("its message is neither a text nor an object with one: %w", err)
	}
	return &Error{Message: m.Message, Callstack: m.ExtraInfo.Callstack, Time: parseTime(m.ExtraInfo.Timestamp), Final: string(m.ExtraInfo.Final) == "true"}, nil
}

// parseTime reads seconds since 1970, as a number or as a text.
func parseTime(raw json.RawMessage) time.Time {
	text := strings.Trim(string(raw), `"`)
	whole, _, _ := strings.Cut(text, ".")
	const most = 1 << 38 // some thousand years
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n <= 0 || n > most {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// WithCode adds the worker's exit code to the bytes of an error file; the code is negative for
// a signal. The form with a plain text has no place for a code and stays as it is.
func WithCode(b []byte, code int) []byte {
	var f map[string]json.RawMessage
	if json.Unmarshal(b, &f) != nil {
		return b
	}
	var m map[string]json.RawMessage
	if !bytes.HasPrefix(bytes.TrimSpace(f["message"]), []byte("{")) || json.Unmarshal(f["message"], &m) != nil {
		return b
	}
	m["errorCode"] = json.RawMessage(strconv.Itoa(code))
	inner, err := json.Marshal(m)
	if err != nil {
		return b
	}
	f["message"] = inner
	out, err := json.Marshal(f)
	if err != nil {
		return b
	}
	return out
}

// Final is an error with which the worker would end again if it were started again: an error
// of its settings, files or data. A launcher then does not start it again.
type Final struct{ Err error }

func (e *Final) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Final) Unwrap() error { return e.Err }

// Refuse records an error with which this process ends before it has begun its work, for
// instance because of its command line. It would end so each time. Refuse does nothing if this
// process is no worker, that is, no session leader: a program that a worker runs may fail
// without the worker.
func Refuse(err error) {
	if leader, no := unix.Getsid(0); no == nil && leader == os.Getpid() {
		Record(&Final{Err: err}, "")
	}
}

// Repeated is an error that another worker of the job has reported before. The launcher's
// report has it, so that this worker need not print it again.
type Repeated struct{ Err error }

func (e *Repeated) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Repeated) Unwrap() error { return e.Err }
