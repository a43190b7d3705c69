// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// nilError is an error that cannot be asked anything when it is nil, as a handler
// has it that returns its nil pointer for no error.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// pickyError can say what it is, and not what it is like.
type pickyError struct{}

func (pickyError) Error() string { return "picky" }
func (pickyError) Is(target error) bool {
	return target == errSentinel && (*nilError)(nil).Error() == ""
}

// TestErrorThatPanics: an error or a result that panics when it is put into an answer
// is an error of that call, which has its answer at once, and of no other.
func TestErrorThatPanics(t *testing.T) {
	plain := NewMethod[string, int]("mute.plain")
	quick := NewMethod[string, int]("mute.quick")
	later := NewMethod[string, int]("mute.later")
	result := NewMethod[struct{}, *tensor.Tensor]("mute.result")
	maker := NewMaker[string, *nilError]("mute.maker")
	on := NewOn[*nilError, struct{}, int]("mute.on")
	of := func(how string) error {
		if how == "picky" {
			return pickyError{}
		}
		return (*nilError)(nil)
	}
	handler := func(_ context.Context, how string) (int, error) { return 1, of(how) }
	a := agents(t, "pipe", 2, serveBasics(), WithTimeout(time.Minute), WithError("sentinel", errSentinel), Serve(plain, handler), Serve(quick, handler, WithQuick()),
		ServeAsync(later, func(_ context.Context, how string) *Future[int] {
			f, resolve := NewFuture[int]()
			go resolve(1, of(how))
			return f
		}),
		Serve(result, func(context.Context, struct{}) (*tensor.Tensor, error) { return &tensor.Tensor{}, nil }),
		ServeMaker(maker, func(_ context.Context, how string) (*nilError, error) { return nil, of(how) }),
		ServeOn(on, func(context.Context, *nilError, struct{}) (int, error) { return 0, nil }))
	p := a[0].Peer("w1")
	for _, how := range []string{"nil", "picky"} {
		for _, m := range []*Method[string, int]{plain, quick, later} {
			_, err := m.Call(t.Context(), p, how)
			if KindOf(err) != KindPanic || !strings.Contains(err.Error(), "panics when it is asked") {
				t.Errorf("%s of %s: %v, want its panic", how, m.Name(), err)
			}
		}
		ref, err := maker.Remote(t.Context(), p, how)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := on.Call(t.Context(), ref, struct{}{}); KindOf(err) != KindPanic {
			t.Errorf("%s of a maker: %v, want its panic", how, err)
		}
	}
	if _, err := result.Call(t.Context(), p, struct{}{}); KindOf(err) != KindPanic || !strings.Contains(err.Error(), "the result cannot be sent") {
		t.Errorf("a result that panics: %v", err)
	}
	if _, err := noop.Call(t.Context(), p, struct{}{}); err != nil {
		t.Errorf("a call thereafter: %v", err)
	}
}
