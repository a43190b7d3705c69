// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// spinTime is how long a lone caller asks for its answer before its thread goes
	// to sleep, and blockTime how long that sleeps before the goroutine is parked.
	spinTime  = 50 * time.Microsecond
	blockTime = 2 * time.Millisecond
	// maxSkip is how many waits in a row do without a spin at most.
	maxSkip = 1024
	// idleTime is how long a connection that callers read is left alone.
	idleTime = time.Millisecond
)

// link is a connection on which this agent calls a peer.
type link struct {
	agent *Agent
	peer  *Peer
	conn  *transport.Conn
	how   string // it was made: "shm", "unix", "tcp", "tls", "pipe"
	life  uint64 // of the peer that was connected to
	limit int    // of the peer's messages
	sender

	cmu      sync.Mutex
	lastID   uint64
	pending  map[uint64]*call
	streams  map[uint64]*flow
	deadline *time.Timer // for the first of the pending calls' deadlines; nil: none
	expires  time.Time
	// Who sets reading reads: a goroutine, or a caller that is alone and gets its
	// answer without a wake-up of that.
	reading bool
	polls   bool // the connection can be asked without waiting for it
	numRead int  // by callers
	// within says that part of a frame has been read, and moved how many pieces of
	// frames there have been: for who finds that a call is late.
	within atomic.Bool
	moved  atomic.Uint64
	spins  spinner
	resume chan struct{} // gives the reading back to the goroutine
	cerr   error         // why there will be no more answers
	gone   chan struct{} // closed with cerr
	ended  chan struct{} // closed when the reading goroutine has ended
}

// call is a call that waits for its answer.
type call struct {
	id       uint64
	method   *methodInfo
	link     *link
	ctx      context.Context
	began    time.Time
	deadline time.Time
	answered chan struct{} // of a synchronous call; has room for one
	sink     arrival       // of an asynchronous one, nil for others
	stop     func() bool   // of what watches ctx, or nil
	sent     chan struct{} // closed when its tensors are read no more, nil if it has none
	// The answer, set before anybody is told: a message, or why there is none.
	reply *received
	err   error
}

// arrival is told of the answer of an asynchronous call.
type arrival interface{ arrived() }

// callPool holds synchronous calls. They belong to an agent, for its tests may be
// in a bubble of time of their own.
func newCall() any { return &call{answered: make(chan struct{}, 1)} }

func newLink(a *Agent, p *Peer, conn *transport.Conn, how string, w welcome) *link {
	l := &link{agent: a, peer: p, conn: conn, how: how, life: fingerprint(w.id), limit: w.limit,
		pending: map[uint64]*call{}, streams: map[uint64]*flow{}, reading: true, polls: conn.CanPoll(),
		resume: make(chan struct{}, 1), gone: make(chan struct{}), ended: make(chan struct{})}
	l.sender.conn = conn
	l.sender.lost = l.lose
	return l
}

// lose ends the connection for a reason; the first one counts. Calls without an
// answer fail.
func (l *link) lose(err error) {
	l.peer.link.CompareAndSwap(l, nil) // who calls after the error makes another one
	l.cmu.Lock()
	if l.cerr != nil {
		l.cmu.Unlock()
		return
	}
	l.cerr = err
	close(l.gone)
	l.peer.link.CompareAndSwap(l, nil) // it may have become the peer's only now
	pending, streams := l.pending, l.streams
	l.pending, l.streams = map[uint64]*call{}, map[uint64]*flow{}
	if l.deadline != nil {
		l.deadline.Stop()
	}
	l.cmu.Unlock()
	l.conn.Close()
	l.sender.close(err)
	l.agent.lostPeer(l.peer, l.life, err)
	for _, c := range pending {
		l.complete(c, nil, l.lostError(c.method))
	}
	for _, f := range streams {
		f.fail(l.lostError(f.method))
	}
}

// lostError is what calls get when the connection has ended.
func (l *link) lostError(m *methodInfo) *Error {
	l.cmu.Lock()
	err := l.cerr
	l.cmu.Unlock()
	if errors.Is(err, errClosed) {
		return errorf(KindClosed, m.name, l.peer, "%w", err)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the peer closed it")
	}
	var e *Error
	if errors.As(err, &e) && e.Kind == KindProtocol {
		return errorf(KindProtocol, m.name, l.peer, "%s", e.Msg)
	}
	return errorf(KindLost, m.name, l.peer, "%w", err)
}

// receive is the goroutine that hands answers to their callers until the connection
// ends. When all have theirs it leaves the reading to callers, until they have had
// none for a while: somebody has to notice the connection's end.
func (l *link) receive() {
	defer close(l.ended)
	for {
		if l.readOne() != nil {
			return
		}
		l.cmu.Lock()
		l.reading = len(l.pending)+len(l.streams) > 0 || !l.polls || l.agent.underWay.Load() > 1 || l.conn.FrameBuffered()
		reading, seen := l.reading, l.numRead
		l.cmu.Unlock()
		if reading {
			continue
		}
		idle := time.NewTicker(idleTime)
		for !reading {
			select {
			case <-l.resume:
				reading = true
			case <-l.gone:
				idle.Stop()
				return
			case <-idle.C:
				l.cmu.Lock()
				if !l.reading && l.numRead == seen {
					l.reading, reading = true, true
				}
				seen = l.numRead
				l.cmu.Unlock()
			}
		}
		idle.Stop()
	}
}

// readMine reads answers, as the one who reads, until the call has its own or
// nothing has come for a while.
func (l *link) readMine(c *call) {
	for len(c.answered) == 0 {
		if !l.spins.wait(l.conn) || l.readOne() != nil {
			break
		}
	}
	l.cmu.Lock()
	l.numRead++
	alone := len(l.pending)+len(l.streams) == 0 && !l.conn.FrameBuffered()
	if alone {
		l.reading = false
	}
	l.cmu.Unlock()
	if !alone {
		l.resume <- struct{}{} // has room: who reads gives it back once
	}
}

// wantReader sees to it that somebody reads, with the lock held.
func (l *link) wantReader() {
	if !l.reading {
		l.reading = true
		l.resume <- struct{}{} // has room: nobody else gives the reading away
	}
}

// readOne reads a message for whom it may concern. An error is the connection's end.
func (l *link) readOne() error {
	kind, size, err := l.conn.ReadHeader(transport.MaxFrame)
	if err == nil {
		l.within.Store(true)
		var r *received
		if r, err = readHeadOf(l.conn, kind, size); err == nil {
			err = l.take(r)
		}
		l.within.Store(false)
	}
	if err != nil {
		l.lose(err)
	}
	return err
}

// take hands a message to the call that it answers.
func (l *link) take(r *received) error {
	id, err := r.items()
	if err != nil {
		return err
	}
	switch r.kind {
	case frameItem, frameEnd, frameCredit:
		l.cmu.Lock()
		f := l.streams[id]
		l.cmu.Unlock()
		return takeFlow(l.conn, f, r, l.agent.maxMessage, &l.moved)
	case frameReply, frameFailure:
	default:
		return protocolError("a frame of kind %d in answer to calls", r.kind)
	}
	l.cmu.Lock()
	c, f := l.pending[id], l.streams[id]
	l.cmu.Unlock()
	if c == nil && f == nil { // given up
		r.release()
		return l.conn.Discard()
	}
	var bad error
	r.readExtras()
	if r.kind == frameReply {
		if r.size > l.agent.maxMessage {
			bad = fmt.Errorf("%w: the answer has %d bytes, at most %d", errTooLarge, r.size, l.agent.maxMessage)
		} else {
			var err error
			if bad, err = r.readTensors(l.conn, &l.moved); err != nil {
				return err
			}
		}
	}
	if err := l.conn.Discard(); err != nil {
		return err
	}
	r.dec.agent, r.dec.peer = l.agent, l.peer
	if f != nil && l.forgetStream(f) {
		f.finish(r)
		return nil
	}
	// Until it was read as a whole the call could be given up.
	if c == nil || !l.claim(id, c) {
		r.release()
		return nil
	}
	if bad != nil {
		kind := KindProtocol
		if errors.Is(bad, errTooLarge) {
			kind = KindTooLarge
		}
		r.release()
		l.complete(c, nil, errorf(kind, c.method.name, l.peer, "%w", bad))
		return nil
	}
	l.complete(c, r, nil)
	return nil
}

// complete gives a call, which is in no list any more, its answer.
func (l *link) complete(c *call, r *received, err error) {
	c.reply, c.err = r, err
	if c.sink == nil {
		c.answered <- struct{}{} // has room
		return
	}
	if c.stop != nil {
		c.stop()
	}
	if c.sent != nil {
		select {
		case <-c.sent:
		default:
			go func() {
				l.settle(c.sent)
				l.arrive(c)
			}()
			return
		}
	}
	l.arrive(c)
}

// arrive tells an asynchronous call that its answer is there.
func (l *link) arrive(c *call) {
	l.agent.leave(c.method)
	c.sink.arrived()
}

// start sends a call. For one that is alone mine says that its caller has
// become the one who reads.
func (l *link) start(ctx context.Context, c *call, m *outgoing) (mine bool, err error) {
	c.sent = m.watch()
	l.cmu.Lock()
	if l.cerr != nil {
		l.cmu.Unlock()
		err := l.lostError(c.method)
		m.release(err)
		return false, err
	}
	l.pending[c.id] = c
	alone := len(l.pending) == 1
	if !c.deadline.IsZero() && (l.deadline == nil || c.deadline.Before(l.expires)) {
		l.expireAt(c.deadline)
	}
	mine = c.sink == nil && alone && !l.reading && l.agent.underWay.Load() == 1
	if mine {
		l.reading = true
	} else {
		l.wantReader()
	}
	l.cmu.Unlock()
	if c.sent != nil && c.sink == nil && ctx.Done() != nil {
		// Who writes does not look at its context, and may be held up.
		defer context.AfterFunc(ctx, l.suspect)()
	}
	if err := l.send(ctx, m, alone && (c.sink == nil || m.small()) || c.sink == nil && !m.small()); err != nil {
		if l.forget(c) {
			if mine {
				l.giveReading()
			}
			return false, l.sendError(c, err)
		}
	}
	return mine, nil
}

// giveReading gives the reading back to the goroutine.
func (l *link) giveReading() { l.resume <- struct{}{} }

func (l *link) sendError(c *call, err error) error {
	l.cmu.Lock()
	lost := l.cerr != nil
	l.cmu.Unlock()
	if lost {
		return l.lostError(c.method)
	}
	return errorf(KindTimeout, c.method.name, l.peer, "the connection was taken up by other calls: %w", err)
}

// forget takes a call out of the list and says whether it was there.
func (l *link) forget(c *call) bool {
	return l.claim(c.id, c)
}

// claim takes the call of a number out of the list and says whether it was there. A
// call that has ended may have another number by now.
func (l *link) claim(id uint64, c *call) bool {
	l.cmu.Lock()
	defer l.cmu.Unlock()
	if l.pending[id] != c {
		return false
	}
	delete(l.pending, id)
	return true
}

// nextID returns the number of a new call.
func (l *link) nextID() uint64 {
	l.cmu.Lock()
	defer l.cmu.Unlock()
	l.lastID++
	return l.lastID
}

// giveUp ends a call before its answer has come, and tells the peer. It returns
// false if the answer was quicker.
func (l *link) giveUp(c *call) bool {
	if !l.forget(c) {
		return false
	}
	l.tell(frameCancel, c.id, 0)
	return true
}

// tell sends a short message about a call.
func (l *link) tell(kind byte, id, n uint64) { tellOn(&l.sender, kind, id, n) }

func tellOn(s *sender, kind byte, id, n uint64) {
	m := newOutgoing(kind, nil, nil)
	e := &m.enc
	if kind == frameCredit {
		e.Array(2)
		e.Uint(id)
		e.Uint(n)
	} else {
		e.Array(1)
		e.Uint(id)
	}
	if err := m.finish(maxHead); err != nil {
		m.release(err)
		return
	}
	s.post(m)
}

// expireAt makes calls be looked at at a time, with the lock held.
func (l *link) expireAt(t time.Time) {
	l.expires = t
	if l.deadline == nil {
		l.deadline = time.AfterFunc(time.Until(t), l.expire)
		return
	}
	l.deadline.Reset(time.Until(t))
}

// expire ends the calls whose time is up. There is one timer for all of them: most
// are answered long before.
func (l *link) expire() {
	now := time.Now()
	var late []*call
	l.cmu.Lock()
	if l.cerr != nil {
		l.cmu.Unlock()
		return
	}
	var next time.Time
	for id, c := range l.pending {
		switch {
		case c.deadline.IsZero():
		case !now.Before(c.deadline):
			delete(l.pending, id)
			late = append(late, c)
		case next.IsZero() || c.deadline.Before(next):
			next = c.deadline
		}
	}
	if next.IsZero() {
		l.deadline = nil
	} else {
		l.expireAt(next)
	}
	l.cmu.Unlock()
	if len(late) > 0 && (l.within.Load() || l.sender.busy()) {
		l.suspect()
	}
	for _, c := range late {
		l.tell(frameCancel, c.id, 0)
		l.complete(c, nil, timeoutError(c.method.name, l.peer, c.ctx, now.Sub(c.began)))
	}
}

// stallTime is how long a peer may stand still in the middle of a message, in
// either direction, when a call is late.
const stallTime = 5 * time.Second

// suspect gives the connection up if nothing moves on it for a while: what has begun
// and does not end keeps all calls waiting.
func (l *link) suspect() {
	if within, moved := l.within.Load(), l.moved.Load(); within {
		time.AfterFunc(stallTime, func() {
			if l.within.Load() && l.moved.Load() == moved {
				l.lose(fmt.Errorf("the peer stopped in the middle of a message, for %v", stallTime))
			}
		})
	}
	l.sender.suspect()
}

// timeoutError is what a call gets that was not answered in time.
func timeoutError(method string, p *Peer, ctx context.Context, after time.Duration) *Error {
	cause := error(context.DeadlineExceeded)
	if ctx.Err() != nil {
		cause = ctxerr.Of(ctx)
	}
	if errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return errorf(KindCanceled, method, p, "canceled after %v: %w", after.Round(time.Microsecond), cause)
	}
	return errorf(KindTimeout, method, p, "no answer within %v: %w", after.Round(time.Millisecond), cause)
}

// spinner decides whether to spin. It pays where both sides have a core for
// themselves, and is the worst that one can do where they have not, so each time
// that it brings nothing it is left out for twice as long.
type spinner struct{ skip, last int }

// wait polls the connection.
func (s *spinner) wait(c *transport.Conn) bool {
	if c.Poll(transport.PollOptions{}) {
		return true
	}
	if s.skip > 0 {
		s.skip--
		return c.Poll(transport.PollOptions{Block: blockTime})
	}
	began := time.Now()
	come := c.Poll(transport.PollOptions{Spin: spinTime, Block: blockTime})
	s.learn(come && time.Since(began) < spinTime)
	return come
}

// look polls the connection for no longer than a spin.
func (s *spinner) look(c *transport.Conn) {
	if c.Poll(transport.PollOptions{}) {
		return
	}
	if s.skip > 0 {
		s.skip--
		return
	}
	s.learn(c.Poll(transport.PollOptions{Spin: spinTime}))
}

// learn takes in whether a spin has been worth it.
func (s *spinner) learn(good bool) {
	if good {
		s.last = 0
		return
	}
	s.last = min(2*s.last+1, maxSkip)
	s.skip = s.last
}
