// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// enter counts a call that begins. It is an error if the agent has been closed.
func (a *Agent) enter(m *methodInfo) error {
	if m.hidden {
		if a.closing.Load() {
			return errClosed
		}
		return nil
	}
	return a.outstanding.enter()
}

// leave counts a call that has ended.
func (a *Agent) leave(m *methodInfo) {
	if !m.hidden {
		a.outstanding.add(-1)
	}
}

// callExtras is what a call says beside its arguments.
type callExtras struct{ rref []byte }

// message encodes a call. After it has returned the arguments may change, but not the
// tensors in them: these are read until the message has been written.
func (m *Method[A, R]) message(ctx context.Context, p *Peer, in A, c *link.Call, more callExtras) (*wire.Outgoing, error) {
	msg := wire.New(wire.FrameCall, p)
	msg.Deadline = c.Deadline
	box := m.argPool.Get().(*A)
	*box = in
	err := encodeCall(ctx, msg, &m.methodInfo, p, c, more, m.args, unsafe.Pointer(box))
	var zero A
	*box = zero
	m.argPool.Put(box)
	if err != nil {
		msg.Release(err)
		return nil, encodeError(err, m.name, p)
	}
	return msg, nil
}

// hookError says that the agent's hook has refused a call.
type hookError struct{ err error }

func (e *hookError) Error() string { return e.err.Error() }
func (e *hookError) Unwrap() error { return e.err }

func encodeError(err error, method string, p *Peer) error {
	var refused *hookError
	if errors.As(err, &refused) {
		return errorf(kindOf(err, KindApplication), method, p, "%w", refused.err)
	}
	kind := KindTypes
	switch k := KindOf(err); {
	case k != "":
		kind = k
	case isTooLarge(err):
		kind = KindTooLarge
	}
	return errorf(kind, method, p, "the request cannot be sent: %w", err)
}

// encodeCall makes the head of a call: [id, method, time-out in µs, types,
// extras, tensors, arguments]. What stands before the arguments depends on the
// tensors in them, so the arguments are encoded first.
func encodeCall(ctx context.Context, o *wire.Outgoing, m *methodInfo, p *Peer, c *link.Call, more callExtras, args *cbor.Plan, in unsafe.Pointer) error {
	args.Encode(&o.Enc, in)
	if o.Enc.Err != nil {
		return o.Enc.Err
	}
	var extra []byte
	if h := p.agent.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: o.Tensors}
		if err := h.SendCall(ctx, p.hook(c.Conn.Life), &msg); err != nil {
			return &hookError{err}
		}
		extra = msg.Extra
	}
	b := o.Head()
	b.Array(7)
	b.Uint(c.ID)
	b.Text(m.name)
	timeout := uint64(0)
	if !c.Deadline.IsZero() {
		timeout = uint64(max(c.Deadline.Sub(c.Began).Microseconds(), 1))
	}
	b.Uint(timeout)
	b.Uint(m.sig)
	wire.EncodeExtras(b, extra, more.rref)
	return o.Seal(c.Conn.Limit)
}

// prepare finds the connection and the deadline of a call. It is an error if the agent is
// closed, the context has ended, or the peer cannot be reached.
func (m *methodInfo) prepare(ctx context.Context, p *Peer, c *link.Call) error {
	c.Method, c.Ctx = m.name, ctx
	if ctx.Err() != nil {
		return timeoutError(m.name, p, ctx, 0)
	}
	a := p.agent
	c.Began = time.Now()
	c.Deadline = time.Time{}
	if by, ok := ctx.Deadline(); ok {
		c.Deadline = by
	} else if a.timeout > 0 {
		c.Deadline = c.Began.Add(a.timeout)
	}
	l, err := p.connect(ctx, c.Deadline)
	if err != nil {
		return p.unreachable(m.name, err)
	}
	c.Conn = l
	c.ID = l.NextID()
	return nil
}

// Call calls the method at a peer and waits for the answer. It waits until ctx ends, or
// for the agent's timeout if ctx has no deadline. When Call returns, the caller may change
// and free the tensors in the arguments. So if the call ends while they are being written,
// Call returns when they have been written or the connection has ended.
func (m *Method[A, R]) Call(ctx context.Context, p *Peer, in A) (out R, err error) {
	return m.call(ctx, p, in, callExtras{})
}

func (m *Method[A, R]) call(ctx context.Context, p *Peer, in A, more callExtras) (out R, err error) {
	if p == nil {
		return out, errNoPeer(m.name)
	}
	a := p.agent
	st := a.stats.out(p, &m.methodInfo)
	a.end.Calling.Add(1)
	defer a.end.Calling.Add(-1)
	if err := a.enter(&m.methodInfo); err != nil {
		return out, errorf(KindClosed, m.name, p, "%w", err)
	}
	defer a.leave(&m.methodInfo)
	c := a.calls.Get().(*link.Call)
	if err := m.prepare(ctx, p, c); err != nil {
		a.calls.Put(c)
		st.failed()
		return out, err
	}
	msg, err := m.message(ctx, p, in, c, more)
	if err != nil {
		a.calls.Put(c)
		st.failed()
		return out, err
	}
	sent := msg.Size
	mine, err := c.Conn.Start(ctx, c, msg)
	if err != nil {
		a.calls.Put(c)
		st.failed()
		return out, callError(err, m.name, p)
	}
	if mine {
		c.Conn.ReadFor(c)
	}
	if c.Sent != nil {
		defer c.Conn.Settle(c.Sent)
	}
	select {
	case <-c.Answered:
	default:
		select {
		case <-c.Answered:
		case <-ctx.Done():
			if c.Conn.GiveUp(c) {
				st.failed()
				err := timeoutError(m.name, p, ctx, time.Since(c.Began))
				a.giveBack(c)
				return out, err
			}
			<-c.Answered
		}
	}
	if c.Reply != nil {
		err = m.decode(ctx, p, c, &out)
	} else {
		err = callError(c.Err, m.name, p)
	}
	st.ended(c.Began, sent, answerSize(c), err)
	a.giveBack(c)
	return out, err
}

// answerSize returns the size of a call's answer.
func answerSize(c *link.Call) int {
	if c.Reply == nil {
		return 0
	}
	return c.Reply.Size
}

// giveBack returns a synchronous call that has ended to the pool.
func (a *Agent) giveBack(c *link.Call) {
	if c.Reply != nil {
		c.Reply.Release()
	}
	*c = link.Call{Answered: c.Answered}
	a.calls.Put(c)
}

// decode reads the answer of a call.
func (m *Method[A, R]) decode(ctx context.Context, p *Peer, c *link.Call, out *R) error {
	r := c.Reply
	r.From = p
	if h := p.agent.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: r.Tensors, Extra: r.Hook, Failed: r.Kind == wire.FrameFailure}
		if err := h.ReceiveReply(ctx, p.hook(c.Conn.Life), &msg); err != nil {
			return errorf(KindApplication, m.name, p, "%w", err)
		}
		r.Tensors = msg.Tensors
	}
	if r.Kind == wire.FrameFailure {
		return decodeFailure(r, m.name, m.text, p)
	}
	if m.result.Empty {
		r.Dec.Skip()
		return decodeTrouble(&r.Dec, m.name, m.result.Text, p)
	}
	box := m.resultPool.Get().(*R)
	m.result.Decode(&r.Dec, unsafe.Pointer(box))
	err := decodeTrouble(&r.Dec, m.name, m.result.Text, p)
	if err == nil {
		*out = *box
	}
	var zero R
	*box = zero
	m.resultPool.Put(box)
	return err
}

// decodeTrouble returns what is wrong with an answer that has been decoded, nil if nothing
// is.
func decodeTrouble(d *cbor.Decoder, method, want string, p *Peer) error {
	d.End()
	if err := d.Err(); err != nil {
		return errorf(KindTypes, method, p, "the answer is no %s: %w", want, err)
	}
	return nil
}

// Async starts a call and returns its future. It does not wait for the answer, but waits
// while more than 1 MiB of small calls to the peer has not been written. Tensors in the
// arguments must not be changed or freed until the future is done.
func (m *Method[A, R]) Async(ctx context.Context, p *Peer, in A) *Future[R] {
	return m.async(ctx, p, in, callExtras{})
}

func (m *Method[A, R]) async(ctx context.Context, p *Peer, in A, more callExtras) *Future[R] {
	if p == nil {
		var zero R
		return Resolved(zero, errNoPeer(m.name))
	}
	a := p.agent
	f := &Future[R]{method: m.decodeFuture, info: &m.methodInfo, peer: p, refs: m.refs}
	c := &f.call
	c.Sink = (*sink[R])(f)
	f.stats = a.stats.out(p, &m.methodInfo)
	fail := func(err error) *Future[R] {
		c.Err = err
		f.arrive()
		return f
	}
	if err := a.enter(&m.methodInfo); err != nil {
		return fail(errorf(KindClosed, m.name, p, "%w", err))
	}
	if p.ready() || a.hook != nil && !reserved(m.name) { // a hook sees the arguments in the goroutine of the caller
		if err := m.begin(ctx, p, in, c, more, f); err != nil {
			a.leave(&m.methodInfo)
			return fail(err)
		}
		return f
	}
	// There is no connection yet. Callers of Async do not wait until it has been made.
	connect := func() {
		if err := m.begin(ctx, p, in, c, more, f); err != nil {
			a.leave(&m.methodInfo)
			fail(err)
		}
	}
	if !a.end.Go(connect) {
		a.leave(&m.methodInfo)
		return fail(errorf(KindClosed, m.name, p, "%w", errClosed))
	}
	return f
}

// begin encodes and sends an asynchronous call.
func (m *Method[A, R]) begin(ctx context.Context, p *Peer, in A, c *link.Call, more callExtras, f *Future[R]) error {
	if err := m.prepare(ctx, p, c); err != nil {
		return err
	}
	msg, err := m.message(ctx, p, in, c, more)
	if err != nil {
		return err
	}
	f.sent = msg.Size
	end := func() {
		if c.Conn.GiveUp(c) {
			c.Conn.Complete(c, nil, link.Late(ctx, time.Since(c.Began)))
		}
	}
	var stop func() bool
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, end)
		c.Stop = stop
	}
	if _, err = c.Conn.Start(ctx, c, msg); err != nil {
		if stop != nil {
			stop()
		}
		return callError(err, m.name, p)
	}
	if stop != nil && ctx.Err() != nil {
		end() // the context may have ended before the call was in the list
	}
	return nil
}

// decodeFuture is how a future reads its answer.
func (m *Method[A, R]) decodeFuture(f *Future[R]) error {
	return m.decode(f.call.Ctx, f.peer, &f.call, &f.value)
}
