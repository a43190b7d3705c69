// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	// DefaultConcurrency is how many handlers of an agent run at once, unless
	// [WithConcurrency] says otherwise.
	DefaultConcurrency = 1024
	// maxQueued is how many calls wait for a handler at most, and maxQueuedBytes how
	// much they have brought along.
	maxQueued      = 1 << 18
	maxQueuedBytes = 8 << 30
)

// ServeOption changes how a method is served.
type ServeOption func(*served) error

// Concurrency bounds how many calls of the method run at once; others wait for
// their turn. With 1 the handler needs no lock. Such calls count apart from those
// that [WithConcurrency] bounds.
func Concurrency(n int) ServeOption {
	return func(s *served) error {
		if n < 1 {
			return fmt.Errorf("a concurrency of %d for method %q", n, s.name)
		}
		s.gate = &gate{limit: n}
		return nil
	}
}

// Quick promises that the handler takes some microseconds at most and waits for
// nothing, neither locks that are held for long nor calls of its own: it may then
// run where the call was read, and whatever comes after it on that connection
// waits until it returns.
func Quick() ServeOption {
	return func(s *served) error { s.quick = true; return nil }
}

// Transient promises that the handler keeps no tensor of its arguments and of its
// result: neither them nor views of their memory are used when it has returned and
// its answer has been sent, and the result is no view of what it keeps. Their memory
// is then given back at once, instead of when the collector finds them, and the next
// request lies in memory that is still in the caches. Agents with a hook, such as
// that of distributed autograd, keep what they need, and the promise is of no use.
func Transient() ServeOption {
	return func(s *served) error { s.transient = true; return nil }
}

// served is a method and who answers it.
type served struct {
	methodInfo
	where     string // the handler, for stacks
	quick     bool
	transient bool
	gate      *gate              // nil: the agent's
	open      func(in *incoming) // of a stream; nil for others
	run       func(in *incoming) // decodes, calls the handler, answers
	stats     *methodStats
}

// Serve makes handler answer a method's calls: an option of [Init] and
// [Agent.Offer]. Every call has a goroutine of its own; ctx ends at the caller's
// deadline, when the caller gives up, and when the connection or the agent ends.
// A panic is an error of that call, with the line; the agent that serves writes it
// and its stack to standard error, once a minute for a method. Tensors in the result
// are read until the answer is out, after the handler has returned: of one that is
// changed in place, as parameters are by an optimizer, it returns a Clone. Calls whose
// end comes before their turn are not run.
func Serve[A, R any](m *Method[A, R], handler func(ctx context.Context, in A) (R, error), opts ...ServeOption) Option {
	s := &served{methodInfo: m.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		var out R
		args, err := m.decodeArgs(in)
		if err == nil {
			out, err = run(in, handler, args)
		}
		m.answer(in, out, err)
	}
	return serving(s, opts)
}

// ServeAsync makes handler answer a method's calls by a future: it may return long
// before that is done, and takes up no place among the running handlers until
// then. So a parameter server waits for the last of its trainers. A peer that has
// 16,384 such calls under way, or 8 GiB of them, gets [KindBusy] for more, and so does
// everybody where all peers have sixteen times as many.
func ServeAsync[A, R any](m *Method[A, R], handler func(ctx context.Context, in A) *Future[R], opts ...ServeOption) Option {
	s := &served{methodInfo: m.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		var zero R
		args, err := m.decodeArgs(in)
		if err != nil {
			m.answer(in, zero, err)
			return
		}
		if err := in.park(); err != nil {
			m.answer(in, zero, err)
			return
		}
		f, err := run(in, func(ctx context.Context, a A) (*Future[R], error) { return handler(ctx, a), nil }, args)
		if err == nil && f == nil {
			err = errors.New("the handler returned no future")
		}
		if err != nil {
			m.answer(in, zero, err)
			return
		}
		var once sync.Once
		waits := f.onDone(func() {
			out, err := f.result()
			once.Do(func() { m.answer(in, out, err) })
		})
		if in.keep == nil { // a value that stays here may have other users than its caller
			in.own.park(func(why error) {
				once.Do(func() {
					f.forget(waits)
					in.runs = true
					m.answer(in, zero, why)
				})
			})
		}
	}
	return serving(s, opts)
}

// serving is the option that adds a method.
func serving(s *served, opts []ServeOption) Option {
	return func(o *options) error {
		mine := *s // an option may be given to several agents
		for _, opt := range opts {
			if err := opt(&mine); err != nil {
				return err
			}
		}
		o.serves = append(o.serves, &mine)
		return nil
	}
}

// placeOf names a function and the line where it begins.
func placeOf(f any) string {
	fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
	if fn == nil {
		return "a handler"
	}
	file, line := fn.FileLine(fn.Entry())
	return fmt.Sprintf("%s (%s:%d)", fn.Name(), filepath.Base(file), line)
}

// incoming is a call that has come.
type incoming struct {
	agent  *Agent
	from   *serverLink
	caller *Peer
	id     uint64
	method *served
	msg    *received
	began  time.Time
	size   int
	own    callContext
	ctx    context.Context  // the handler's: own, or what the hook made of it
	flow   *flow            // of a stream
	args   []*tensor.Tensor // whose memory is given back after the answer
	parked bool             // counted among those that are answered later
	runs   bool             // it is given up, and what its handler has begun goes on
	// before are run in order before the handler is, in its goroutine.
	before []func(ctx context.Context) error
	// keep, if there is one, gets the result or the error, and the caller the number
	// kept in place of it.
	keep func(value any, err error) error
	kept uint64
}

// decodeArgs reads the arguments of a call, as far as that is not the handler's.
func (m *Method[A, R]) decodeArgs(in *incoming) (args A, err error) {
	r := in.msg
	defer func() {
		r.release()
		in.msg = nil
	}()
	a := in.agent
	in.ctx = &in.own
	if h := a.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: r.dec.tensors, Extra: r.hook}
		ctx, err := h.ReceiveCall(in.ctx, in.caller.hook(in.from.life), &msg)
		if err != nil {
			return args, err
		}
		in.ctx = ctx
		r.dec.tensors = msg.Tensors
	} else if in.method.transient && in.keep == nil {
		in.args = slices.Clone(r.dec.tensors)
	}
	r.dec.agent, r.dec.peer, r.dec.call = a, in.caller, in
	if m.args.Empty {
		r.dec.Skip()
		r.dec.End()
	} else {
		box := m.argPool.Get().(*A)
		m.args.Decode(&r.dec.Decoder, unsafe.Pointer(box))
		r.dec.End()
		args = *box
		var zero A
		*box = zero
		m.argPool.Put(box)
	}
	if err := r.dec.Err(); err != nil {
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
	if !in.from.done(in) { // nobody waits for it any more
		if h := a.hook; h != nil {
			_ = h.SendReply(ctx, in.caller.hook(in.from.life), &hook.Message{Method: in.method.name, Failed: true, Running: in.runs})
		}
		in.freeArgs()
		a.abandoned.remove(in)
		in.finish(0, errClosed)
		return
	}
	msg := newOutgoing(frameReply, a, in.caller)
	if err == nil {
		if err = msg.encodeReply(ctx, in, result); err != nil {
			msg.release(err)
			kind := KindApplication
			var p *panicked
			switch {
			case isTooLarge(err):
				kind = KindTooLarge
			case errors.As(err, &p):
				kind = KindPanic
			}
			err = &Error{Method: in.method.name, Rank: -1, Kind: kind, Msg: fmt.Sprintf("the result cannot be sent: %v", err), err: err}
			msg = newOutgoing(frameReply, a, in.caller)
		}
	}
	if err != nil {
		err = in.atTheEnd(err)
		msg.kind = frameFailure
		var extra []byte
		if h := a.hook; h != nil {
			hm := hook.Message{Method: in.method.name, Failed: true}
			if herr := h.SendReply(ctx, in.caller.hook(in.from.life), &hm); herr == nil {
				extra = hm.Extra
			}
		}
		where := fmt.Sprintf("%s: %s served by %s", a.name, in.method.name, in.method.where)
		msg.encodeFailure(in.id, extra, err, where, a.errors)
		if ferr := msg.finish(maxHead); ferr != nil {
			msg.release(ferr)
			in.finish(0, ferr)
			return
		}
	}
	if in.method.transient && a.hook == nil && in.keep == nil {
		msg.gone = append(msg.gone, func(error) {
			for _, t := range msg.tensors {
				t.Free()
			}
			in.freeArgs()
		})
	}
	size := msg.size
	// The last of the calls that are under way on its connection is written at once.
	hurry := in.from.alone() || !msg.small()
	_ = in.from.send(in.from.ctx, msg, hurry) // nobody is left to be told of an error
	in.finish(size, err)
}

// freeArgs gives back the memory of a transient call's arguments.
func (in *incoming) freeArgs() {
	for _, t := range in.args {
		t.Free()
	}
	in.args = nil
}

// atTheEnd makes an error that only says that the call's own time is over one of
// that kind: the caller's clock may be a little behind.
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

// finish gives back what a call holds and counts it.
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
func (o *outgoing) encodeReply(ctx context.Context, in *incoming, result func(e *cbor.Encoder)) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicError(v)
		}
	}()
	e := &o.enc.Encoder
	result(e)
	if e.Err != nil {
		return e.Err
	}
	var extra []byte
	if h := in.agent.hook; h != nil {
		msg := hook.Message{Method: in.method.name, Tensors: o.tensors}
		if err := h.SendReply(ctx, in.caller.hook(in.from.life), &msg); err != nil {
			return err
		}
		extra = msg.Extra
	}
	b := &o.body
	b.Buf = append(b.Buf[:0], 0, 0, 0, 0)
	b.Array(4)
	b.Uint(in.id)
	encodeExtras(b, extra, nil)
	if err := o.describe(b); err != nil {
		return err
	}
	o.join()
	return o.finish(in.from.limit)
}

// gate bounds how many calls run at once. Others wait in the order in which they came.
type gate struct {
	limit int

	mu      sync.Mutex
	running int
	queue   []*incoming
	first   int // of queue
	bytes   int // of those in queue
}

// enter says whether a call may run now. If not it is in the queue, unless that is full.
func (g *gate) enter(in *incoming) (now, full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.limit {
		g.running++
		return true, false
	}
	if n := len(g.queue) - g.first; n >= maxQueued || n > 0 && in.size > maxQueuedBytes-g.bytes {
		return false, true
	}
	g.bytes += in.size
	g.queue = append(g.queue, in)
	return false, false
}

// next ends a call's turn and returns the one whose turn it is now, or nil.
func (g *gate) next() *incoming {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first == len(g.queue) {
		g.running--
		return nil
	}
	in := g.queue[g.first]
	g.bytes -= in.size
	g.queue[g.first] = nil
	if g.first++; g.first == len(g.queue) {
		g.queue, g.first = g.queue[:0], 0
	}
	return in
}

// runAll runs a call, and then those that have been waiting for its turn.
func (g *gate) runAll(in *incoming) {
	defer func() {
		if in != nil { // its handler took the goroutine with it
			in.fail(recover())
			if in = g.next(); in != nil {
				go g.runAll(in)
			}
		}
	}()
	in.method.run(in)
	for in = g.next(); in != nil; in = g.next() {
		if err := in.own.Err(); err != nil { // while it was in the queue
			kind := KindTimeout
			if errors.Is(err, context.Canceled) {
				kind = KindCanceled
			}
			in.refuse(&Error{Method: in.method.name, Rank: -1, Kind: kind, Msg: "it was over before its turn came: " + err.Error(), err: err})
			continue
		}
		in.method.run(in)
	}
}

// errLeft is a handler that ends its goroutine, as a test's FailNow does.
var errLeft = errors.New("the handler left without an answer (runtime.Goexit)")

// fail answers a call whose handler has left by a panic outside of itself, which v
// is, or otherwise.
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
