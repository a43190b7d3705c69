// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// ErrNone says that a storage holds no checkpoint, neither good nor damaged:
// a run may begin there.
var ErrNone = errors.New("there is no checkpoint")

// SaveError says what of a save failed.
type SaveError struct {
	Where string // the storage
	Step  int
	Op    string // "compare", "begin", "write", "commit", "prune", …
	// Committed: the new checkpoint is in place and complete; what failed came
	// after. Otherwise, unless there is a doubt, nothing of it is left, or only a stage that the next save
	// removes.
	Committed bool
	// Doubt: whether the new checkpoint is in place, now or later, is not known: the rank, or the
	// server, that makes it did not answer.
	Doubt bool
	Err   error
}

func (e *SaveError) Error() string {
	s := fmt.Sprintf("checkpoint: saving step %d in %s: %s: %v", e.Step, e.Where, e.Op, e.Err)
	switch {
	case e.Committed:
		s += "; the new checkpoint is in place"
	case e.Doubt:
		s += "; whether the new checkpoint is in place is not known: look there before you save this step again"
	case errors.Is(e.Err, syscall.ENOSPC):
		s += "; the checkpoints before it are untouched: free some space there, or keep fewer, and save again"
	default:
		s += "; the checkpoints before it are untouched"
	}
	return s
}

func (e *SaveError) Unwrap() error { return e.Err }

// RankError is the error of another rank. [errors.Is] knows some kinds of errors from it, such as
// [fs.ErrExist] and a full disk, and [errors.As] a [*storage.BusyError].
type RankError struct {
	Rank int
	Text string // what that rank says

	kinds []string // see errorKinds
	busy  *storage.BusyError
}

func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// Is reports whether the error of the rank was a target that ranks tell each other.
func (e *RankError) Is(target error) bool {
	i := slices.IndexFunc(errorKinds, func(k errorKind) bool { return k.err == target })
	return i >= 0 && slices.Contains(e.kinds, errorKinds[i].name)
}

// As makes a BusyError of that of the rank.
func (e *RankError) As(target any) bool {
	busy, ok := target.(**storage.BusyError)
	if ok = ok && e.busy != nil; ok {
		*busy = e.busy
	}
	return ok
}

// errorKind is a kind of error that ranks tell each other.
type errorKind struct {
	name string
	err  error
}

var errorKinds = []errorKind{
	{"exist", fs.ErrExist}, {"not exist", fs.ErrNotExist}, {"permission", fs.ErrPermission}, {"none", ErrNone},
	{"space", syscall.ENOSPC}, {"read only", syscall.EROFS}, {"quota", syscall.EDQUOT}, {"disk", syscall.EIO},
	{"canceled", context.Canceled}, {"deadline", context.DeadlineExceeded},
}

// rankReport is an error as a rank sends it to others. The zero value is none.
type rankReport struct {
	Text  string
	Kinds []string
	Busy  *storage.BusyError
}

// reportOf makes an error one that can be sent.
func reportOf(err error) (r rankReport) {
	if err == nil {
		return r
	}
	r.Text = err.Error()
	for _, k := range errorKinds {
		if errors.Is(err, k.err) {
			r.Kinds = append(r.Kinds, k.name)
		}
	}
	errors.As(err, &r.Busy)
	return r
}

// isNone says whether the rank had no error.
func (r rankReport) isNone() bool { return r.Text == "" }

// of returns the error on other ranks, nil if there is none.
func (r rankReport) of(rank int) error {
	if r.isNone() {
		return nil
	}
	return &RankError{Rank: rank, Text: r.Text, kinds: r.Kinds, busy: r.Busy}
}

// SpaceError says that a checkpoint would not fit.
type SpaceError struct {
	Where      string
	Need, Free int64 // bytes
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("%s has %d bytes free and the checkpoint needs %d: free some space there, or keep fewer, and save again", e.Where, e.Free, e.Need)
}

// Is makes a SpaceError one of a full disk.
func (e *SpaceError) Is(target error) bool { return target == syscall.ENOSPC }

// DamagedError says in what a checkpoint differs from its manifest.
type DamagedError struct {
	Path    string // the checkpoint, with its storage
	File    string // in it; empty for the whole
	Tensor  string // empty where it is not one tensor
	Problem string
	Err     error // nil where the storage saw no error
}

func (e *DamagedError) Error() string {
	s := "checkpoint: " + e.Path + " is damaged: "
	if e.File != "" {
		s += e.File + " "
	}
	s += e.Problem
	if e.Tensor != "" {
		s += fmt.Sprintf(", in the tensor %q", e.Tensor)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DamagedError) Unwrap() error { return e.Err }

// isBusy reports whether somebody else holds the lock of a storage.
func isBusy(err error) bool {
	var busy *storage.BusyError
	return errors.As(err, &busy)
}
