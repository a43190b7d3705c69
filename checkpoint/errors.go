// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
)

// ErrNone says that a directory holds no checkpoint, neither good nor damaged:
// a run may begin there.
var ErrNone = errors.New("there is no checkpoint")

// SaveError says which operation of a save failed.
type SaveError struct {
	Dir  string // the run's directory
	Step int
	Op   string // "create", "write", "sync", "rename", "prune", …
	Path string // what it was done to
	// Committed: the new checkpoint is in place and complete; what failed came
	// after. Otherwise nothing of it is left, or only a .tmp directory that
	// the next save removes.
	Committed bool
	Err       error
}

func (e *SaveError) Error() string {
	s := fmt.Sprintf("checkpoint: saving step %d in %s: %s %s: %v", e.Step, e.Dir, e.Op, filepath.Base(e.Path), e.Err)
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

// BusyError says that somebody else is at work in the directory.
type BusyError struct {
	Dir string
	Run bool // a whole run has claimed it; else one save is under way
}

func (e *BusyError) Error() string {
	if e.Run {
		return fmt.Sprintf("checkpoint: another run is under way in %s: wait for its end, or give each run a directory of its own", e.Dir)
	}
	return fmt.Sprintf("checkpoint: another save is under way in %s: give each run a directory of its own", e.Dir)
}

// DamagedError says in what a checkpoint differs from its manifest.
type DamagedError struct {
	Path    string // the checkpoint's directory
	File    string // in it; empty for the directory itself
	Problem string
	Err     error // nil where the operating system saw no error
}

func (e *DamagedError) Error() string {
	s := "checkpoint: " + e.Path + " is damaged: "
	if e.File != "" {
		s += e.File + " "
	}
	s += e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DamagedError) Unwrap() error { return e.Err }
