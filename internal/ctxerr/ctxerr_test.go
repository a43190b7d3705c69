// SPDX-License-Identifier: Apache-2.0

package ctxerr

import (
	"context"
	"errors"
	"testing"
)

// TestOf: the end of a context is its reason and what it is, and reads as the
// reason.
func TestOf(t *testing.T) {
	why := errors.New("my own reason")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	plain, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	late, stop := context.WithTimeoutCause(t.Context(), 0, why)
	defer stop()
	<-late.Done()
	for _, tc := range []struct {
		ctx  context.Context
		is   []error
		text string
	}{
		{cancelled, []error{why, context.Canceled}, "my own reason"},
		{plain, []error{context.Canceled}, "context canceled"},
		{late, []error{why, context.DeadlineExceeded}, "my own reason"},
	} {
		err := Of(tc.ctx)
		for _, want := range tc.is {
			if !errors.Is(err, want) {
				t.Errorf("%v is not %v", err, want)
			}
		}
		if err.Error() != tc.text {
			t.Errorf("the text is %q, want %q", err, tc.text)
		}
	}
	if err := Of(t.Context()); err != nil {
		t.Errorf("a context that goes on gave %v", err)
	}
}
