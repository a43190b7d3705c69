// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Causes of a [RankError], to be found with [errors.Is]. ErrClosed alone is a cause
// of its own.
var (
	// ErrClosed is the cause of a call on a group that this rank has closed.
	ErrClosed = errors.New("the group is closed")
	// ErrLeft is the cause when the rank closed its group while others still needed
	// it.
	ErrLeft = errors.New("left the group")
	// ErrDied is the cause when the rank's process ended.
	ErrDied = errors.New("process ended")
	// ErrSilent is the cause when nothing was heard of the rank for the silence
	// limit, and nothing says that its process has ended. A [SilentError] says how
	// long the silence was.
	ErrSilent = errors.New("nothing was heard of it")
	// ErrGone is the cause when the rank closed its connection on a wire that does
	// not tell why (PyTorch's): its process has ended, or it has left the group while
	// others still needed it.
	ErrGone = errors.New("closed its connection: its process has ended, or it has left the group")
)

// SilentError is the cause of a [RankError] about a silent rank. [errors.Is] finds
// [ErrSilent] in it.
type SilentError struct {
	Text string // how long the silence was, and what else is known: "for 3s; its process is stopped"
	Here bool   // the silent rank is this one: the others heard nothing of it
}

func (e *SilentError) Error() string {
	text := e.Text
	if e.Here { // this rank runs again, or it could not say so
		text = strings.Replace(text, "; its process is stopped", "; its process was stopped", 1)
	}
	return fmt.Sprintf("%v %s", ErrSilent, text)
}

func (e *SilentError) Unwrap() error { return ErrSilent }
