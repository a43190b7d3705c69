// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// incoming is a call that has come.
type incoming struct {
	agent  *Agent
	from   *server
	caller *Peer
	id     uint64
	method *served
	msg    *wire.Received
	began  time.Time
	size   int
	own    callContext
	ctx    context.Context  // the handler's: own, or what the hook made of it
	flow   *flow            // of a stream
	args   []*tensor.Tensor // whose memory is given back after the answer
	parked bool             // counted among those that are answered later
	runs   bool             // it is given up, and its handler's future is not done
	// before are run in order before the handler is, in its goroutine.
	before []func(ctx context.Context) error
	// keep, if there is one, gets the result or the error, and the caller the number
	// kept in place of it.
	keep func(value any, err error) error
	kept uint64
}

// refuse answers a call that is not given to a handler.
func (in *incoming) refuse(err *Error) {
	in.msg.Release()
	in.msg = nil
	in.ctx = &in.own
	if in.keep != nil {
		_ = in.keep(nil, err) // the caller gets the same error
	}
	in.reply(err, nil)
}

// decodeArgs reads the arguments of a call, as far as that is not the handler's.
func (m *Method[A, R]) decodeArgs(in *incoming) (args A, err error) {
	r := in.msg
	defer func() {
		r.Release()
		in.msg = nil
	}()
	a := in.agent
	in.ctx = &in.own
	if h := a.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: r.Tensors, Extra: r.Hook}
		ctx, err := h.ReceiveCall(in.ctx, in.caller.hook(in.from.Life), &msg)
		if err != nil {
			return args, err
		}
		in.ctx = ctx
		r.Tensors = msg.Tensors
	} else if in.method.transient && in.keep == nil {
		in.args = slices.Clone(r.Tensors)
	}
	r.From = in.caller
	if m.args.Empty {
		r.Dec.Skip()
		r.Dec.End()
	} else {
		box := m.argPool.Get().(*A)
		m.args.Decode(&r.Dec, unsafe.Pointer(box))
		r.Dec.End()
		args = *box
		var zero A
		*box = zero
		m.argPool.Put(box)
	}
	if err := r.Dec.Err(); err != nil {
		var zero A
		return zero, &Error{Method: m.name, Rank: -1, Kind: KindTypes, Msg: fmt.Sprintf("the request does not fit: %v; the method served is %s", err, m.text)}
	}
	for _, f := range in.before {
		if err := f(in.ctx); err != nil {
			var zero A
			return zero, err
		}
	}
	return args, nil
}

// run calls a handler and makes its panic an error.
func run[A, R any](in *incoming, handler func(context.Context, A) (R, error), args A) (out R, err error) {
	defer func() {
		if v := recover(); v != nil {
			if f, ok := v.(interface{ Failure() error }); ok { // nn.Ctx.Fail's
				err = f.Failure()
			} else {
				err = panicError(v)
			}
		}
	}()
	return handler(in.ctx, args)
}

// answer sends a call's result, or its error.
func (m *Method[A, R]) answer(in *incoming, out R, err error) {
	if in.keep != nil {
		err = in.keep(out, err)
		in.reply(err, func(e *cbor.Encoder) { e.Uint(in.kept) })
		return
	}
	if err != nil {
		in.reply(err, nil)
		return
	}
	if m.result.Empty {
		in.reply(nil, func(e *cbor.Encoder) { e.Map(0) })
		return
	}
	in.reply(nil, func(e *cbor.Encoder) {
		box := m.resultPool.Get().(*R)
		*box = out
		m.result.Encode(e, unsafe.Pointer(box))
		var zero R
		*box = zero
		m.resultPool.Put(box)
	})
}

// reply sends an answer, which result encodes, or an error, and ends the call.
func (in *incoming) reply(err error, result func(e *cbor.Encoder)) {
	a := in.agent
	ctx := in.ctx
	if ctx == nil {
		ctx = &in.own
	}
	if err != nil {
		err = audible(err)
		in.tell(err)
	}
	if !in.from.done(in) { // its caller does not wait for it any more
		if h := a.hook; h != nil {
			_ = h.SendReply(ctx, in.caller.hook(in.from.Life), &hook.Message{Method: in.method.name, Failed: true, Running: in.runs})
		}
		in.freeArgs()
		a.abandoned.remove(in)
		in.finish(0, errClosed)
		return
	}
	msg := wire.New(wire.FrameReply, in.caller)
	if err == nil {
		if err = in.encodeReply(ctx, msg, result); err != nil {
			msg.Release(err)
			kind := KindApplication
			var p *panicked
			switch {
			case isTooLarge(err):
				kind = KindTooLarge
			case errors.As(err, &p):
				kind = KindPanic
			}
			err = &Error{Method: in.method.name, Rank: -1, Kind: kind, Msg: fmt.Sprintf("the result cannot be sent: %v", err), err: err}
			msg = wire.New(wire.FrameReply, in.caller)
		}
	}
	if err != nil {
		err = in.atTheEnd(err)
		msg.Kind = wire.FrameFailure
		var extra []byte
		if h := a.hook; h != nil {
			hm := hook.Message{Method: in.method.name, Failed: true}
			if herr := h.SendReply(ctx, in.caller.hook(in.from.Life), &hm); herr == nil {
				extra = hm.Extra
			}
		}
		where := fmt.Sprintf("%s: %s served by %s", a.name, in.method.name, in.method.where)
		encodeFailure(msg, in.id, extra, err, where, a.errors.all())
		if ferr := msg.Finish(wire.MaxHead); ferr != nil {
			msg.Release(ferr)
			in.finish(0, ferr)
			return
		}
	}
	if in.method.transient && a.hook == nil && in.keep == nil {
		msg.Gone = append(msg.Gone, func(error) {
			for _, t := range msg.Tensors {
				if t != nil { // it is no LazyTensor
					t.Free()
				}
			}
			in.freeArgs()
		})
	}
	size := msg.Size
	// The last of the calls that are under way on its connection is written at once.
	hurry := in.from.Alone() || !msg.Small()
	_ = in.from.Send(in.from.ctx, msg, hurry) // an error is the connection's end
	in.finish(size, err)
}

// freeArgs gives back the memory of a transient call's arguments.
func (in *incoming) freeArgs() {
	for _, t := range in.args {
		t.Free()
	}
	in.args = nil
}

// atTheEnd gives an error that says only that the call's own time is over the kind of a
// timeout: the caller's clock may be a little behind.
func (in *incoming) atTheEnd(err error) error {
	kind := KindTimeout
	switch {
	case in.own.Err() == nil || KindOf(err) != "":
		return err
	case errors.Is(err, context.DeadlineExceeded):
	case errors.Is(err, context.Canceled):
		kind = KindCanceled
	default:
		return err
	}
	return &Error{Method: in.method.name, Rank: -1, Kind: kind, Msg: "its handler ended with the call: " + err.Error(), err: err}
}

// finish ends the counting of a call and frees what it holds.
func (in *incoming) finish(size int, err error) {
	in.own.finish()
	in.unpark()
	in.method.stats.ended(in.began, in.size, size, err)
	if !in.method.hidden {
		in.agent.handling.add(-1)
	}
}

// encodeReply makes the head of an answer: [id, extras, tensors, result]. A panic of
// a value that is encoded is an error: the caller waits.
func (in *incoming) encodeReply(ctx context.Context, m *wire.Outgoing, result func(e *cbor.Encoder)) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicError(v)
		}
	}()
	result(&m.Enc)
	if m.Enc.Err != nil {
		return m.Enc.Err
	}
	var extra []byte
	if h := in.agent.hook; h != nil {
		msg := hook.Message{Method: in.method.name, Tensors: m.Tensors}
		if err := h.SendReply(ctx, in.caller.hook(in.from.Life), &msg); err != nil {
			return err
		}
		extra = msg.Extra
	}
	b := m.Head()
	b.Array(4)
	b.Uint(in.id)
	wire.EncodeExtras(b, extra, nil)
	return m.Seal(in.from.Limit)
}

// errLeft is a handler that ends its goroutine, as a test's FailNow does.
var errLeft = errors.New("the handler left without an answer (runtime.Goexit)")

// fail answers a call whose handler has left its goroutine: by a panic with the value v,
// outside of the handler itself, or by runtime.Goexit if v is nil.
func (in *incoming) fail(v any) {
	err := errLeft
	if v != nil {
		err = panicError(v)
	}
	if in.keep != nil {
		_ = in.keep(nil, err) // the caller gets the same error
	}
	in.reply(err, nil)
}
