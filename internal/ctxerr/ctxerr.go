// SPDX-License-Identifier: Apache-2.0

// Package ctxerr says why a context has ended. Its error has the words of the
// context's cause, and is also [context.Canceled] or [context.DeadlineExceeded],
// on which callers branch.
//
// Neither function of package context does both: [context.Cause] returns a cause
// that is not Canceled, and Context.Err returns Canceled without the cause.
package ctxerr

import (
	"context"
	"errors"
)

// Of returns why ctx has ended, nil if it has not. The text is that of the cause.
// [errors.Is] and [errors.As] find the cause, and ctx.Err() as well.
func Of(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return &causedError{err, cause}
}

// causedError is the error of a context and the cause that its owner gave.
type causedError struct{ err, cause error }

func (e *causedError) Error() string   { return e.cause.Error() }
func (e *causedError) Unwrap() []error { return []error{e.err, e.cause} }
