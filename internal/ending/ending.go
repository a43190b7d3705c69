// SPDX-License-Identifier: Apache-2.0

// Package ending says why a context has ended, in a way that keeps both what its
// owner gave as the reason and what callers branch on.
package ending

import (
	"context"
	"errors"
)

// Of returns why ctx has ended: its cause, as which [errors.Is] also finds
// [context.Canceled] or [context.DeadlineExceeded], whichever it was. Whoever
// ends a context with a reason of his own would otherwise take from his callers
// what they branch on. It is nil for a context that has not ended.
func Of(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return &ending{err, cause}
}

// ending is the end of a context for a reason that somebody gave.
type ending struct{ err, cause error }

func (e *ending) Error() string   { return e.cause.Error() }
func (e *ending) Unwrap() []error { return []error{e.err, e.cause} }
