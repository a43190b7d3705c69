// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"syscall"
)

// Kind says what is wrong with a journal.
type Kind string

// Full: the disk has no space. Nothing of the call is in the log.
const Full Kind = "full disk"

// Failed: the file system failed otherwise.
const Failed Kind = "failed"

// Damaged: bytes that were acknowledged are not there, or are not what was written.
const Damaged Kind = "damaged"

// Foreign: the directory belongs to another server, job or set of tables.
const Foreign Kind = "foreign"

// Busy: another process has the directory.
const Busy Kind = "busy"

// Closed: the journal was closed.
const Closed Kind = "closed"

// ErrFull matches every [*Error] of kind [Full] in [errors.Is].
var ErrFull = errors.New("full disk")

// Error is the error of a journal.
type Error struct {
	Kind Kind
	Path string // the file or directory
	LSN  uint64 // the entry, 0 if no entry is meant
	What string // what happened, and what to do
	Err  error
}

func (e *Error) Error() string {
	s := "journal: " + e.Path + ": "
	if e.LSN != 0 {
		s += fmt.Sprintf("entry %d: ", e.LSN)
	}
	s += e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the error is of the kind that target names.
func (e *Error) Is(target error) bool { return target == ErrFull && e.Kind == Full }

// failure returns the error of an operation on the file system.
func failure(path, what string, err error) *Error {
	kind := Failed
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		kind = Full
	}
	return &Error{Kind: kind, Path: path, What: what, Err: err}
}

func damaged(path string, lsn uint64, format string, args ...any) *Error {
	return &Error{Kind: Damaged, Path: path, LSN: lsn, What: fmt.Sprintf(format, args...)}
}
