// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"reflect"
	"strings"

	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

const (
	maxMsg   = 64 << 10  // bytes of an error's message
	maxStack = 256 << 10 // bytes of its stack
)

func isTooLarge(err error) bool { return errors.Is(err, wire.ErrTooLarge) }

// encodeFailure makes the head of a failure. where is the line of the stack that names the
// serving function.
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
	for _, k := range p.agent.errors.all() {
		if k.code == e.Code {
			e.err = k.revive(r)
			break
		}
	}
	return e
}
