// SPDX-License-Identifier: Apache-2.0

package dist

import "github.com/cohort-ml/cohort/dist/internal/backend"

// Errors of operations, to be found with [errors.As].
type (
	// RankError says that an operation cannot complete because of another
	// rank: it died, left, or gave up.
	RankError = backend.RankError
	// MismatchError says that two ranks called different things.
	MismatchError = backend.MismatchError
	// TimeoutError says that an operation did not complete in time, and
	// which ranks it was waiting for.
	TimeoutError = backend.TimeoutError
	// Member is a rank as errors name it.
	Member = backend.Member
)

// Causes, to be found with [errors.Is].
var (
	// ErrClosed is the cause of calls on a group that this rank has closed.
	ErrClosed = backend.ErrClosed
	// ErrLeft is the cause when another rank has closed the group.
	ErrLeft = backend.ErrLeft
	// ErrDied is the cause when another rank's process has ended.
	ErrDied = backend.ErrDied
)

// ReduceOp is how an all-reduce makes one element of the ranks' elements.
type ReduceOp = backend.ReduceOp

// The reductions.
const (
	Sum     = backend.Sum
	Product = backend.Product
	Min     = backend.Min
	Max     = backend.Max
)
