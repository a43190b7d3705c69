// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
)

// Method is a name and the types of a request and a response: a value that the
// calling and the serving side share, usually a package variable. It registers
// nothing; [Serve] says who answers it.
//
// A and R may be structs, slices, arrays, maps, pointers, strings, bools, numbers,
// times, any, *tensor.Tensor and references, in any combination; struct{} stands
// for nothing. Exported fields travel under their names (`rpc:"name"` chooses
// another, `rpc:"-"` leaves one out, `rpc:"name,optional"` lets it be missing); those of
// an embedded struct do if its type is exported, as fields of a field.
// Tensors arrive as new, contiguous ones; pointers to the same tensor arrive so.
type Method[A, R any] struct {
	methodInfo
	args, result *cbor.Plan
	argPool      sync.Pool // of *A
	resultPool   sync.Pool // of *R
	refs         bool      // there may be references in the result
}

// methodInfo is what of a method does not depend on its types.
type methodInfo struct {
	name string
	text string // its types
	sig  uint64
	// hidden calls are the protocol's own: no shutdown waits for them.
	hidden bool
}

// maxName bounds the names of methods and agents.
const maxName = 127

var methodName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,127}$`)

// NewMethod declares a method. Names have 1 to 127 letters, digits or any of
// "_./:-"; those that begin with "cohort." are this module's. A type that cannot
// travel panics.
func NewMethod[A, R any](name string) *Method[A, R] {
	checkMethodName(name)
	m := &Method[A, R]{args: planOf[A]("request", name), result: planOf[R]("response", name)}
	m.methodInfo = newMethodInfo(name, m.args.Text+" -> "+m.result.Text)
	m.refs = hasRefs(m.result)
	m.argPool.New = func() any { return new(A) }
	m.resultPool.New = func() any { return new(R) }
	return m
}

func checkMethodName(name string) {
	if !methodName.MatchString(name) {
		panic(fmt.Sprintf("rpc: the method name %q: want 1 to %d letters, digits or any of _./:-", name, maxName))
	}
}

func newMethodInfo(name, text string) methodInfo {
	return methodInfo{name: name, text: text, sig: fingerprint(text), hidden: strings.HasPrefix(name, "cohort.rpc.") || strings.HasPrefix(name, "cohort.rref.")}
}

// Name returns the method's name.
func (m *Method[A, R]) Name() string { return m.name }

// Types returns the method's types as errors and the debug page show them:
// "{X tensor, Y tensor} -> tensor".
func (m *Method[A, R]) Types() string { return m.text }

// String implements fmt.Stringer.
func (m *Method[A, R]) String() string { return m.name + ": " + m.text }

// reserved says whether a name is this module's.
func reserved(name string) bool { return strings.HasPrefix(name, "cohort.") }

// enter counts a call that begins, unless the agent has been closed.
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

// message encodes a call. The arguments may change when it has returned, but for
// tensors, which are read until the message has been written.
func (m *Method[A, R]) message(ctx context.Context, p *Peer, in A, c *call, more callExtras) (*outgoing, error) {
	msg := newOutgoing(frameCall, p.agent, p)
	msg.enc.deadline = c.deadline
	box := m.argPool.Get().(*A)
	*box = in
	err := msg.encodeCall(ctx, &m.methodInfo, c, more, m.args, unsafe.Pointer(box))
	var zero A
	*box = zero
	m.argPool.Put(box)
	if err != nil {
		msg.release(err)
		return nil, encodeError(err, m.name, p)
	}
	return msg, nil
}

// hookError is a call that the agent's hook does not let go.
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
// tensors in them, so they come second.
func (o *outgoing) encodeCall(ctx context.Context, m *methodInfo, c *call, more callExtras, args *cbor.Plan, p unsafe.Pointer) error {
	e := &o.enc.Encoder
	// The arguments first, behind what will be moved before them.
	args.Encode(e, p)
	if e.Err != nil {
		return e.Err
	}
	var extra []byte
	if h := o.enc.agent.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: o.tensors}
		if err := h.SendCall(ctx, o.enc.peer.hook(c.link.life), &msg); err != nil {
			return &hookError{err}
		}
		extra = msg.Extra
	}
	b := &o.body
	b.Buf = append(b.Buf[:0], 0, 0, 0, 0)
	b.Array(7)
	b.Uint(c.id)
	b.Text(m.name)
	timeout := uint64(0)
	if !c.deadline.IsZero() {
		timeout = uint64(max(c.deadline.Sub(c.began).Microseconds(), 1))
	}
	b.Uint(timeout)
	b.Uint(m.sig)
	encodeExtras(b, extra, more.rref)
	if err := o.describe(b); err != nil {
		return err
	}
	o.join()
	return o.finish(c.link.limit)
}

// join puts the body before what is encoded.
func (o *outgoing) join() {
	o.body.Buf = append(o.body.Buf, o.enc.Buf[sizePrefix:]...)
	o.body.Buf, o.enc.Buf = o.enc.Buf, o.body.Buf
}

func encodeExtras(b *cbor.Encoder, hook, rref []byte) {
	n := 0
	if hook != nil {
		n++
	}
	if rref != nil {
		n++
	}
	if n == 0 {
		b.Null()
		return
	}
	b.Map(n)
	if hook != nil {
		b.Uint(extraHook)
		b.Bytes(hook)
	}
	if rref != nil {
		b.Uint(extraRRef)
		b.Bytes(rref)
	}
}

// prepare readies a call: its link and its times. An agent that is closed, a
// context that has ended or a peer that cannot be reached is an error.
func (m *methodInfo) prepare(ctx context.Context, p *Peer, c *call) error {
	c.method, c.ctx = m, ctx
	if ctx.Err() != nil {
		return timeoutError(m.name, p, ctx, 0)
	}
	a := p.agent
	c.began = time.Now()
	c.deadline = time.Time{}
	if by, ok := ctx.Deadline(); ok {
		c.deadline = by
	} else if a.timeout > 0 {
		c.deadline = c.began.Add(a.timeout)
	}
	l, err := p.connection(ctx, c.deadline)
	if err != nil {
		return p.unreachable(m.name, err)
	}
	c.link = l
	c.id = l.nextID()
	return nil
}

// Call calls the method at a peer and waits for its answer, no longer than ctx, or
// than the agent's time limit if ctx has no deadline. When it returns, tensors in the
// arguments are the caller's to change and to free: a call that ends while they are
// being written returns when they are out, or the connection has been given up.
func (m *Method[A, R]) Call(ctx context.Context, p *Peer, in A) (out R, err error) {
	return m.call(ctx, p, in, callExtras{})
}

func (m *Method[A, R]) call(ctx context.Context, p *Peer, in A, more callExtras) (out R, err error) {
	if p == nil {
		return out, errNoPeer(m.name)
	}
	a := p.agent
	st := a.stats.out(p, &m.methodInfo)
	a.underWay.Add(1)
	defer a.underWay.Add(-1)
	if err := a.enter(&m.methodInfo); err != nil {
		return out, errorf(KindClosed, m.name, p, "%w", err)
	}
	defer a.leave(&m.methodInfo)
	c := a.calls.Get().(*call)
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
	sent := msg.size
	mine, err := c.link.start(ctx, c, msg)
	if err != nil {
		a.calls.Put(c)
		st.failed()
		return out, err
	}
	if mine {
		c.link.readMine(c)
	}
	if c.sent != nil {
		defer c.link.settle(c.sent)
	}
	select {
	case <-c.answered:
	default:
		select {
		case <-c.answered:
		case <-ctx.Done():
			if c.link.giveUp(c) {
				st.failed()
				err := timeoutError(m.name, p, ctx, time.Since(c.began))
				a.giveBack(c)
				return out, err
			}
			<-c.answered
		}
	}
	if c.reply != nil {
		err = m.decode(ctx, p, c, &out)
	} else {
		err = c.err
	}
	st.ended(c.began, sent, c.received(), err)
	a.giveBack(c)
	return out, err
}

// received returns the size of the answer.
func (c *call) received() int {
	if c.reply == nil {
		return 0
	}
	return c.reply.size
}

// giveBack keeps a synchronous call that has ended for another.
func (a *Agent) giveBack(c *call) {
	if c.reply != nil {
		c.reply.release()
	}
	*c = call{answered: c.answered}
	a.calls.Put(c)
}

// decode reads the answer of a call.
func (m *Method[A, R]) decode(ctx context.Context, p *Peer, c *call, out *R) error {
	r := c.reply
	if h := p.agent.hook; h != nil {
		msg := hook.Message{Method: m.name, Tensors: r.dec.tensors, Extra: r.hook, Failed: r.kind == frameFailure}
		if err := h.ReceiveReply(ctx, p.hook(c.link.life), &msg); err != nil {
			return errorf(KindApplication, m.name, p, "%w", err)
		}
		r.dec.tensors = msg.Tensors
	}
	if r.kind == frameFailure {
		return decodeFailure(&r.dec, m.name, m.text, p)
	}
	if m.result.Empty {
		r.dec.Skip()
		return decodeTrouble(&r.dec, m.name, m.result.Text, p)
	}
	box := m.resultPool.Get().(*R)
	m.result.Decode(&r.dec.Decoder, unsafe.Pointer(box))
	err := decodeTrouble(&r.dec, m.name, m.result.Text, p)
	if err == nil {
		*out = *box
	}
	var zero R
	*box = zero
	m.resultPool.Put(box)
	return err
}

// decodeTrouble says what is wrong with an answer that has been decoded.
func decodeTrouble(d *decoding, method, want string, p *Peer) error {
	d.End()
	if err := d.Err(); err != nil {
		return errorf(KindTypes, method, p, "the answer is no %s: %w", want, err)
	}
	return nil
}

// Async starts a call and does not wait for its answer; where a MiB of small calls has
// not gone out yet, it waits for room. Tensors in the arguments must neither be changed
// nor freed until the future is done.
func (m *Method[A, R]) Async(ctx context.Context, p *Peer, in A) *Future[R] {
	return m.async(ctx, p, in, callExtras{})
}

func (m *Method[A, R]) async(ctx context.Context, p *Peer, in A, more callExtras) *Future[R] {
	if p == nil {
		var zero R
		return Resolved(zero, errNoPeer(m.name))
	}
	a := p.agent
	f := &Future[R]{method: m.decodeFuture, peer: p, refs: m.refs}
	c := &f.call
	c.sink = f
	f.stats = a.stats.out(p, &m.methodInfo)
	fail := func(err error) *Future[R] {
		c.err = err
		f.arrived()
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
	// The connection is yet to be made, which nobody who calls Async waits for.
	connect := func() {
		if err := m.begin(ctx, p, in, c, more, f); err != nil {
			a.leave(&m.methodInfo)
			fail(err)
		}
	}
	if !a.inBackground(connect) {
		a.leave(&m.methodInfo)
		return fail(errorf(KindClosed, m.name, p, "%w", errClosed))
	}
	return f
}

// begin encodes and sends an asynchronous call.
func (m *Method[A, R]) begin(ctx context.Context, p *Peer, in A, c *call, more callExtras, f *Future[R]) error {
	if err := m.prepare(ctx, p, c); err != nil {
		return err
	}
	msg, err := m.message(ctx, p, in, c, more)
	if err != nil {
		return err
	}
	f.sent = msg.size
	end := func() {
		if c.link.giveUp(c) {
			c.link.complete(c, nil, timeoutError(m.name, p, ctx, time.Since(c.began)))
		}
	}
	var stop func() bool
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, end)
		c.stop = stop
	}
	if _, err = c.link.start(ctx, c, msg); err != nil {
		if stop != nil {
			stop()
		}
		return err
	}
	if stop != nil && ctx.Err() != nil {
		end() // it may have ended before the call was there to be given up
	}
	return nil
}

// decodeFuture is how a future reads its answer.
func (m *Method[A, R]) decodeFuture(f *Future[R]) error {
	return m.decode(f.call.ctx, f.peer, &f.call, &f.value)
}

// ended returns why a context ended.
func ended(ctx context.Context) error { return ctxerr.Of(ctx) }
