// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
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
	// after. Otherwise nothing of it is left, or only a stage that the next save
	// removes.
	Committed bool
	Err       error
}

func (e *SaveError) Error() string {
	s := fmt.Sprintf("checkpoint: saving step %d in %s: %s: %v", e.Step, e.Where, e.Op, e.Err)
	switch {
	case e.Committed:
		s += "; the new checkpoint is in place"
	case errors.Is(e.Err, syscall.ENOSPC):
		s += "; the checkpoints before it are untouched: free some space there, or keep fewer, and save again"
	default:
		s += "; the checkpoints before it are untouched"
	}
	return s
}

func (e *SaveError) Unwrap() error { return e.Err }

// RankError is the error of another rank.
type RankError struct {
	Rank int
	Text string // what that rank says
}

func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

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

// BusyError says that another run has claimed a directory, see [Claim].
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("checkpoint: another run is under way in %s: wait for its end, or give each run a directory of its own", e.Dir)
}

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
