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

	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	maxMsg   = 64 << 10  // bytes of an error's message
	maxStack = 256 << 10 // bytes of its stack
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

// tell writes a panic of a handler to standard error, where the process that has it
// is looked at; the caller gets it as its error.
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

func isTooLarge(err error) bool { return errors.Is(err, wire.ErrTooLarge) }

// mute is an error that panics when it is asked what it is, as a nil pointer in an
// error does.
func mute(err error, v any) error {
	p := panicError(v).(*panicked)
	p.value = fmt.Sprintf("the error that was returned, a %T, panics when it is asked: %v", err, v)
	return p
}

// audible returns an error that can be asked, err if that is one. A handler that
// returns another must not take the process with it, nor leave its caller waiting.
func audible(err error) (out error) {
	defer func() {
		if v := recover(); v != nil {
			out = mute(err, v)
		}
	}()
	_, _, _ = err.Error(), KindOf(err), errors.Is(err, context.Canceled)
	return err
}

// encodeFailure makes the head of a failure. where is the line that says who served
// the method.
func encodeFailure(m *wire.Outgoing, id uint64, extra []byte, err error, where string, errs []known) {
	defer func() {
		if v := recover(); v != nil { // of a method of err that audible does not call
			m.Reset()
			describeFailure(m, id, extra, mute(err, v), where, nil)
		}
	}()
	describeFailure(m, id, extra, err, where, errs)
}

// describeFailure writes it: [id, extras, kind, message, stack, code, value].
func describeFailure(m *wire.Outgoing, id uint64, extra []byte, err error, where string, errs []known) {
	kind, msg, stack, code := KindApplication, err.Error(), "", ""
	var e *Error
	var p *panicked
	switch {
	case errors.As(err, &p):
		kind, stack = KindPanic, p.stack
	case errors.As(err, &e):
		if e == err && e.Peer == "" {
			kind, msg = e.Kind, e.Msg // of this agent itself, not of another that it called
		}
		stack, code = e.Stack, e.Code
	}
	if where != "" {
		if stack != "" && !strings.HasSuffix(stack, "\n") {
			stack += "\n"
		}
		stack += where
	}
	var value any
	if code == "" {
		for _, k := range errs {
			if v, ok := k.match(err); ok {
				code, value = k.code, v
				break
			}
		}
	}
	b := &m.Enc
	b.Array(7)
	b.Uint(id)
	wire.EncodeExtras(b, extra, nil)
	b.Text(string(kind))
	b.Text(cut(msg, maxMsg))
	b.Text(cut(stack, maxStack))
	b.Text(code)
	at := len(b.Buf)
	if value == nil {
		b.Null()
		return
	}
	plan, perr := codec.Plan(reflect.TypeOf(value))
	if perr == nil {
		box := reflect.New(reflect.TypeOf(value))
		box.Elem().Set(reflect.ValueOf(value))
		plan.Encode(b, box.UnsafePointer())
	}
	if perr != nil || b.Err != nil || len(m.Tensors) > 0 { // the code alone then
		b.Err, b.Buf = nil, b.Buf[:at]
		m.Tensors = m.Tensors[:0]
		b.Null()
	}
}

func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most] + " …"
	}
	return strings.ToValidUTF8(s, "?")
}

// decodeFailure reads a failure behind its extras and makes the caller's error of it.
func decodeFailure(r *wire.Received, method, types string, p *Peer) error {
	r.From = p
	d := &r.Dec
	e := &Error{Method: method, Peer: p.name, Rank: p.rank}
	e.Kind, e.Msg, e.Stack, e.Code = Kind(d.Text()), string(d.Text()), string(d.Text()), string(d.Text())
	if err := d.Err(); err != nil {
		return errorf(KindProtocol, method, p, "a failure that cannot be read: %w", err)
	}
	switch e.Kind {
	case KindTypes:
		e.Msg += "; here it is " + types
	case KindClosed:
		e.err = errClosed
	}
	if e.Code == "" {
		return e
	}
	for _, k := range p.agent.errors {
		if k.code == e.Code {
			e.err = k.revive(r)
			break
		}
	}
	return e
}
