// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"errors"
	"strings"
)

// Ending returns why ctx has ended: its cause, as which [errors.Is] also finds
// [context.Canceled] or [context.DeadlineExceeded], whichever it was. Whoever
// ends a context with a reason of his own would otherwise take from his callers
// what they branch on. It is nil for a context that has not ended.
func Ending(ctx context.Context) error {
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

// reason returns what the cause of a time-out says beyond that it is one.
func reason(cause error) string {
	if cause == nil {
		return ""
	}
	text := cause.Error()
	for _, plain := range []error{context.Canceled, context.DeadlineExceeded} {
		if text == plain.Error() {
			return ""
		}
		text = strings.TrimSuffix(text, ": "+plain.Error())
	}
	return text
}
