// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// streamWindow is how many bytes of a stream's messages may be on their way or
// unread in each direction, and then the message that went over it.
const streamWindow = 1 << 20

// StreamMethod is the name of a method and the types of the messages that the caller sends
// (Up) and receives (Down). Both sides share the value.
type StreamMethod[Up, Down any] struct {
	methodInfo
	up, down *cbor.Plan
}

// NewStream declares a method by which both sides send any number of messages. Names and
// types are those of [NewMethod].
func NewStream[Up, Down any](name string) *StreamMethod[Up, Down] {
	checkMethodName(name)
	m := &StreamMethod[Up, Down]{up: planOf[Up]("message up", name), down: planOf[Down]("message down", name)}
	m.methodInfo = newMethodInfo(name, "stream "+m.up.Text+" -> stream "+m.down.Text)
	return m
}

// Name returns the method's name.
func (m *StreamMethod[Up, Down]) Name() string { return m.name }

// Stream is one end of a stream: it sends messages of type S and receives messages of type
// R, in order. One goroutine may send while another receives. If one side does not
// receive, the other side waits in Send.
type Stream[S, R any] struct {
	flow       *flow
	send, recv *cbor.Plan
}

// flow is the part of a stream that does not depend on its types.
type flow struct {
	agent  *Agent
	method *methodInfo
	peer   *Peer
	id     uint64
	out    *link.Sender
	limit  int              // of the peer's messages
	conn   *link.ClientConn // at the caller's end
	stop   func() bool      // of what watches the caller's context
	stats  *methodStats     // at the caller's end
	began  time.Time

	// early decodes a message when it comes; nil: Recv does.
	early func(r *wire.Received) (value any, err error)

	mu       sync.Mutex
	queue    []streamItem
	queued   int   // bytes in queue
	consumed int   // bytes taken out of queue that have not been granted again
	credit   int64 // bytes that the peer has room for
	over     bool  // the peer sends no more
	sentEnd  bool
	err      error         // how the stream has ended; io.EOF if well
	changed  chan struct{} // closed when any of this has changed; nil if nobody waits
}

// streamItem is a message that has come and has not been received by the program.
type streamItem struct {
	size  int
	msg   *wire.Received // nil: it has been decoded
	value any
	err   error
}

// wake wakes the goroutines that wait, with the lock held.
func (f *flow) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// wait waits for a change, with the lock held when it is called and returns.
func (f *flow) wait(ctx context.Context, l *limit) error {
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	changed := f.changed
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return timeoutError(f.method.name, f.peer, ctx, time.Since(f.began))
	case <-l.over(ctx):
		return errorf(KindTimeout, f.method.name, f.peer, "nothing came on the stream within %v: %w", f.agent.timeout, context.DeadlineExceeded)
	}
}

// limit ends waits under a context without a deadline. It is made when there is one.
type limit struct {
	f     *flow
	timer *time.Timer
}

func (l *limit) over(ctx context.Context) <-chan time.Time {
	if _, ok := ctx.Deadline(); ok || l.f.agent.timeout <= 0 {
		return nil
	}
	if l.timer == nil {
		l.timer = time.NewTimer(l.f.agent.timeout)
	}
	return l.timer.C
}

func (l *limit) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Fail implements [link.Stream].
func (f *flow) Fail(err error) { f.end(callError(err, f.method.name, f.peer)) }

// end ends the stream for a reason; the first one counts.
func (f *flow) end(err error) {
	f.mu.Lock()
	if f.err != nil {
		f.mu.Unlock()
		return
	}
	f.err = err
	f.wake()
	stop := f.stop
	f.mu.Unlock()
	if f.conn == nil {
		return
	}
	if stop != nil {
		stop()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	f.stats.ended(f.began, 0, 0, err)
	f.agent.outstanding.add(-1)
}

// Finish implements [link.Stream]: the answer to the call ends the caller's end.
func (f *flow) Finish(r *wire.Received) {
	err := error(io.EOF)
	if r.Kind == wire.FrameFailure {
		err = decodeFailure(r, f.method.name, f.method.text, f.peer)
	}
	r.Release()
	f.end(err)
}

// Take implements [link.Stream].
func (f *flow) Take(from *link.Reader, r *wire.Received) error {
	if limit := f.agent.end.MaxMessage; r.Size > limit {
		f.end(errorf(KindTooLarge, f.method.name, f.peer, "a message of the stream has %d bytes, at most %d", r.Size, limit))
	} else if r.Kind == wire.FrameItem {
		return f.takeItem(from, r)
	} else {
		f.mu.Lock()
		if r.Kind == wire.FrameEnd {
			f.over = true
		} else {
			f.credit += int64(min(r.Dec.Uint(), math.MaxInt32))
		}
		f.wake()
		f.mu.Unlock()
	}
	r.Release()
	return from.Discard()
}

// takeItem reads a message that the other side has sent.
func (f *flow) takeItem(from *link.Reader, r *wire.Received) error {
	bad, err := from.Tensors(r)
	if err != nil {
		return err
	}
	if bad != nil {
		f.end(errorf(KindProtocol, f.method.name, f.peer, "%w", bad))
		r.Release()
		return from.Discard()
	}
	item := streamItem{size: r.Size, msg: r}
	if f.early != nil {
		item.value, item.err = f.early(r)
		r.Release()
		item.msg = nil
	}
	f.mu.Lock()
	over := f.queued >= streamWindow
	f.queue = append(f.queue, item)
	f.queued += item.size
	f.wake()
	f.mu.Unlock()
	if over {
		return wire.Protocolf("more on a stream than it has room for")
	}
	return from.Discard()
}

// Open opens a stream to a peer. The stream ends when the handler returns, by
// [Stream.Close], and when ctx ends; the deadline of ctx is the handler's too. The agent's
// timeout applies to each message. Open does not wait for the peer: if the peer does not
// serve the method, or with other types, Recv or a later Send returns the error.
func (m *StreamMethod[Up, Down]) Open(ctx context.Context, p *Peer) (*Stream[Up, Down], error) {
	if p == nil {
		return nil, errNoPeer(m.name)
	}
	a := p.agent
	if err := a.outstanding.enter(); err != nil {
		return nil, errorf(KindClosed, m.name, p, "%w", err)
	}
	st := a.stats.out(p, &m.methodInfo)
	c := &link.Call{}
	if err := m.prepare(ctx, p, c); err != nil {
		a.outstanding.add(-1)
		st.failed()
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		c.Deadline = time.Time{}
	}
	msg := wire.New(wire.FrameCall, p)
	var nothing struct{}
	if err := encodeCall(ctx, msg, &m.methodInfo, p, c, callExtras{}, emptyPlan, unsafe.Pointer(&nothing)); err != nil {
		msg.Release(err)
		a.outstanding.add(-1)
		st.failed()
		return nil, encodeError(err, m.name, p)
	}
	conn := c.Conn
	f := &flow{agent: a, method: &m.methodInfo, peer: p, id: c.ID, out: &conn.Sender, limit: conn.Limit, conn: conn, credit: streamWindow, stats: st, began: c.Began}
	f.early = early[Down](f, m.down)
	end := func() { f.cancel(timeoutError(m.name, p, ctx, time.Since(f.began))) }
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, end)
		f.mu.Lock()
		f.stop = stop
		f.mu.Unlock()
	}
	unguard := f.guard(ctx)
	err := callError(conn.StartStream(ctx, f.id, f, msg), m.name, p)
	unguard()
	if err != nil {
		f.end(err)
		return nil, err
	}
	if ctx.Err() != nil {
		end() // the context may have ended before the stream was in the list
	}
	return &Stream[Up, Down]{f, m.up, m.down}, nil
}

var emptyPlan = planOf[struct{}]("request", "of streams")

// cancel ends the caller's end before the handler has.
func (f *flow) cancel(why error) {
	if f.conn.ForgetStream(f.id, f) {
		f.conn.Tell(wire.FrameCancel, f.id)
		f.end(why)
	}
}

// Send sends a message. It waits while the other side has no room for it. When it returns,
// the caller may change and free the message's tensors. If the stream has ended, the error
// says why: io.EOF if the handler has returned.
func (s *Stream[S, R]) Send(ctx context.Context, v S) error {
	f := s.flow
	msg := wire.New(wire.FrameItem, f.peer)
	if err := s.encode(msg, &v); err != nil {
		msg.Release(err)
		return encodeError(err, f.method.name, f.peer)
	}
	l := limit{f: f}
	defer l.stop()
	f.mu.Lock()
	for f.err == nil && f.credit <= 0 && !f.sentEnd {
		if err := f.wait(ctx, &l); err != nil {
			f.mu.Unlock()
			msg.Release(err)
			return err
		}
	}
	err := f.err
	if err == nil && f.sentEnd {
		err = errorf(KindClosed, f.method.name, f.peer, "CloseSend has ended the sending on this side")
	}
	f.credit -= int64(msg.Size)
	f.mu.Unlock()
	if err != nil {
		msg.Release(err)
		return err
	}
	size, sent := msg.Size, msg.Watch()
	defer f.guard(ctx)() // it may be this goroutine that writes
	if err := f.out.Send(ctx, msg, !f.out.Busy()); err != nil {
		if err := f.sendTrouble(); err != nil {
			return err
		}
		return f.takeBack(ctx, size)
	}
	if sent == nil {
		return f.sendTrouble()
	}
	select { // the tensors are the caller's again
	case <-sent:
		return f.sendTrouble()
	case <-ctx.Done():
	case <-l.over(ctx):
	}
	if f.out.Withdraw(sent) {
		return f.takeBack(ctx, size)
	}
	f.out.Settle(sent)
	return f.sendTrouble()
}

// takeBack ends the sending of a message that has not been written in time.
func (f *flow) takeBack(ctx context.Context, size int) error {
	f.mu.Lock()
	f.credit += int64(size)
	f.wake()
	f.mu.Unlock()
	return timeoutError(f.method.name, f.peer, ctx, time.Since(f.began))
}

// guard bounds how long this goroutine may be held up by a message that it writes itself:
// if the peer takes no data, the connection ends a while after ctx, or the agent's
// timeout.
func (f *flow) guard(ctx context.Context) (unguard func()) {
	var stop, still func() bool
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, f.out.Suspect)
	}
	if _, ok := ctx.Deadline(); !ok && f.agent.timeout > 0 {
		still = time.AfterFunc(f.agent.timeout, f.out.Suspect).Stop
	}
	return func() {
		if stop != nil {
			stop()
		}
		if still != nil {
			still()
		}
	}
}

// sendTrouble returns why written messages may not have been sent, nil if they have.
func (f *flow) sendTrouble() error {
	if err := f.out.Err(); err != nil {
		return errorf(KindLost, f.method.name, f.peer, "%w", ownError(err))
	}
	return nil
}

// encode makes the head of an item: [id, tensors, value].
func (s *Stream[S, R]) encode(m *wire.Outgoing, v *S) error {
	s.send.Encode(&m.Enc, unsafe.Pointer(v))
	if m.Enc.Err != nil {
		return m.Enc.Err
	}
	if h := s.flow.agent.hook; h != nil {
		if err := h.SendItem(&hook.Message{Method: s.flow.method.name, Tensors: m.Tensors}); err != nil {
			return &hookError{err}
		}
	}
	b := m.Head()
	b.Array(3)
	b.Uint(s.flow.id)
	return m.Seal(s.flow.limit)
}

// Recv returns the next message of the other side. If the other side sends no more
// messages, the error is io.EOF; if the stream has failed, the error says why.
func (s *Stream[S, R]) Recv(ctx context.Context) (v R, err error) {
	f := s.flow
	l := limit{f: f}
	defer l.stop()
	f.mu.Lock()
	for len(f.queue) == 0 && f.err == nil && !f.over {
		if err := f.wait(ctx, &l); err != nil {
			f.mu.Unlock()
			return v, err
		}
	}
	if len(f.queue) == 0 {
		err := f.err
		f.mu.Unlock()
		if err == nil {
			err = io.EOF
		}
		return v, err
	}
	item := f.queue[0]
	f.queue[0] = streamItem{}
	f.queue = f.queue[1:]
	f.queued -= item.size
	f.consumed += item.size
	grant := 0
	if f.consumed >= streamWindow/2 && f.err == nil {
		grant, f.consumed = f.consumed, 0
	}
	f.mu.Unlock()
	if grant > 0 {
		f.out.Tell(wire.FrameCredit, f.id, uint64(grant))
	}
	if item.msg == nil {
		v, _ = item.value.(R) // not there if there is an error, or if it is a nil interface
		return v, item.err
	}
	defer item.msg.Release()
	return decodeItem[R](f, s.recv, item.msg)
}

// decodeItem reads a message of a stream.
func decodeItem[R any](f *flow, plan *cbor.Plan, r *wire.Received) (v R, err error) {
	r.From = f.peer
	plan.Decode(&r.Dec, unsafe.Pointer(&v))
	if r.Dec.End(); r.Dec.Err() != nil {
		var zero R
		if f.conn == nil { // the caller gets it as this agent's error, like one about arguments
			return zero, &Error{Method: f.method.name, Rank: -1, Kind: KindTypes, Msg: fmt.Sprintf("a message of %s in the stream is no %s: %v", f.peer.name, plan.Text, r.Dec.Err())}
		}
		return zero, errorf(KindTypes, f.method.name, f.peer, "a message of the stream is no %s: %w", plan.Text, r.Dec.Err())
	}
	return v, nil
}

// early returns the function that decodes messages when they come, for types with
// references: these count from then on, however late the program receives the message. For
// other types it returns nil.
func early[R any](f *flow, plan *cbor.Plan) func(r *wire.Received) (any, error) {
	if !hasRefs(plan) {
		return nil
	}
	return func(r *wire.Received) (any, error) { return decodeItem[R](f, plan, r) }
}

// hasRefs says whether there may be references in values of a type.
func hasRefs(plan *cbor.Plan) bool { return strings.Contains(plan.Text, "rref<") }

// All returns the messages of the other side until it sends no more. If there is an error,
// it is the last thing that All yields.
func (s *Stream[S, R]) All(ctx context.Context) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for {
			v, err := s.Recv(ctx)
			if err == io.EOF || !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// CloseSend tells the other side that this side sends no more messages. This side may
// still receive.
func (s *Stream[S, R]) CloseSend() {
	f := s.flow
	f.mu.Lock()
	tell := !f.sentEnd && f.err == nil
	f.sentEnd = true
	f.wake()
	f.mu.Unlock()
	if tell {
		f.out.Tell(wire.FrameEnd, f.id)
	}
}

// Close ends the stream. At the caller's end it ends the stream even if the handler has
// not returned. At the handler's end it does nothing: the stream ends when the handler
// returns.
func (s *Stream[S, R]) Close() {
	if f := s.flow; f.conn != nil {
		f.cancel(errorf(KindCanceled, f.method.name, f.peer, "this side has closed the stream: %w", context.Canceled))
	}
}

// ServeStream makes handler answer the streams of a method. A stream ends when handler
// returns, with its error.
func ServeStream[Up, Down any](m *StreamMethod[Up, Down], handler func(ctx context.Context, s *Stream[Down, Up]) error, opts ...ServeOption) Service {
	s := &served{methodInfo: m.methodInfo, where: placeOf(handler)}
	s.open = func(in *incoming) {
		from := in.from
		in.flow = &flow{agent: in.agent, method: &in.method.methodInfo, peer: in.caller, id: in.id, out: &from.Sender, limit: from.Limit, credit: streamWindow, began: in.began}
		in.flow.early = early[Up](in.flow, m.up)
	}
	s.run = func(in *incoming) {
		in.msg.Release()
		in.msg, in.ctx = nil, &in.own
		stream := &Stream[Down, Up]{in.flow, m.down, m.up}
		_, err := run(in, func(ctx context.Context, s *Stream[Down, Up]) (struct{}, error) { return struct{}{}, handler(ctx, s) }, stream)
		in.flow.end(io.EOF)
		in.reply(err, func(e *cbor.Encoder) { e.Null() })
	}
	return Service{[]servicePart{{s, opts}}}
}
