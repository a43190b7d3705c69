// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// panicked is a panic as an error.
type panicked struct {
	value any
	hint  string // what the cause may be
	place string // of the panic, empty where the value says it
	stack string
}

func (p *panicked) Error() string {
	if p.place == "" {
		return fmt.Sprint(p.value)
	}
	return fmt.Sprintf("%v%s (at %s)", p.value, p.hint, p.place)
}

// Unwrap returns the value if it is an error, as a *tensor.Error is.
func (p *panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// panicError is called by the deferred function that recovered v.
func panicError(v any) error {
	p := &panicked{value: v, stack: string(debug.Stack())}
	var e *tensor.Error
	if err, ok := v.(error); ok && errors.As(err, &e) { // which has a place of its own
		return p
	}
	frame := panicFrame()
	if p.place = tensor.NewError("", nil, "").Where; p.place == "" { // no line of the program's has a part in it
		p.place = fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
	}
	if _, ok := v.(runtime.Error); ok && strings.HasPrefix(frame.Function, tensorPath) && strings.Contains(p.Error(), "nil pointer") {
		p.hint = "; is a tensor nil?"
	}
	return p
}

// tensorPath begins the names of the functions of package tensor.
var tensorPath = reflect.TypeFor[tensor.Tensor]().PkgPath() + "."

// panicFrame returns the function that panicked, while its deferred functions run.
func panicFrame() runtime.Frame {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for panicking, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicking = true
		case panicking && !strings.HasPrefix(f.Function, "runtime."):
			return f
		}
	}
	return runtime.Frame{}
}

// tellPeriod is how often a method's panics are told of.
const tellPeriod = time.Minute

// tell writes a panic of a handler to standard error. The caller gets it as its error;
// this is for the people who watch the process that panicked.
func (in *incoming) tell(err error) {
	var p *panicked
	if !errors.As(err, &p) {
		return
	}
	st := in.method.stats
	now, last := time.Now().UnixNano(), st.told.Load()
	if last != 0 && now >= last && time.Duration(now-last) < tellPeriod || !st.told.CompareAndSwap(last, now) {
		st.untold.Add(1)
		return
	}
	more := ""
	if n := st.untold.Swap(0); n > 0 {
		more = fmt.Sprintf(" (and %d more since the last line about this method)", n)
	}
	fmt.Fprintf(os.Stderr, "cohort: rpc agent %s: %s, called by %s, panicked: %v%s\n%s", in.agent.name, in.method.name, in.caller.name, err, more, p.stack)
}

// mute replaces an error whose methods panic, as those of a nil pointer in an error do. v
// is the value of the panic.
func mute(err error, v any) error {
	p := panicError(v).(*panicked)
	p.value = fmt.Sprintf("the error that was returned, a %T, panics when it is asked: %v", err, v)
	return p
}

// audible returns err if its methods do not panic, else an error that says so. A handler
// that returns such an error must not end the process, nor leave its caller without an
// answer.
func audible(err error) (out error) {
	defer func() {
		if v := recover(); v != nil {
			out = mute(err, v)
		}
	}()
	_, _, _ = err.Error(), KindOf(err), errors.Is(err, context.Canceled)
	return err
}
