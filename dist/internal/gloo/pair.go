// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// maxSlots bounds in how many slots a peer may have announced messages that this
	// rank has not come to, maxAnnounced how many it may have granted in all or announced
	// in one, and maxEarly in how many collectives it may be ahead.
	maxSlots     = 1 << 14
	maxAnnounced = 1 << 16
	maxEarly     = 1 << 10
)

// waiter is who waits for operations.
type waiter struct{ wake chan struct{} }

func newWaiter() waiter { return waiter{make(chan struct{}, 1)} }

func (w waiter) ping() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// op is one message to send or to receive. It is its owner's again once done.
type op struct {
	waiter
	run  *run // that it is of, nil for a message of its own
	use  use
	data []byte
	head [2 * preambleBytes]byte // what goes before the data, or the credit
	err  error                   // set before done
	done atomic.Bool
}

func (o *op) begin(w waiter, r *run, u use, data []byte) {
	o.waiter, o.run, o.use, o.data, o.err = w, r, u, data, nil
	o.done.Store(false)
}

// end completes an operation and wakes who waits for it.
func (o *op) end(err error) {
	w := o.waiter
	o.data, o.err = nil, err
	o.done.Store(true) // from here on it may be in use again
	w.ping()
}

// went completes a send. Nothing in a run depends on one send: only the last is told.
func (o *op) went() {
	if o.run == nil {
		o.end(nil)
		return
	}
	r := o.run
	o.data = nil
	o.done.Store(true)
	if r.gone.Add(1) == r.due.Load() {
		r.ping()
	}
}

// came completes a receive, in the reader. It returns the run that can go on, which is
// for the reader to see to; nil where somebody has been woken for that.
func (o *op) came() *run {
	r := o.run
	if r == nil {
		o.end(nil)
		return nil
	}
	o.data = nil
	o.done.Store(true)
	return r
}

// fifo is a queue that keeps its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }
func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

func (q *fifo[T]) pop() T {
	var none T
	v := q.items[q.head]
	q.items[q.head] = none
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return v
}

// exchange is the state of one slot of a pair.
type exchange struct {
	recvs   fifo[*op]    // posted
	sends   fifo[*op]    // without a credit
	credits fifo[uint64] // without a send: how many bytes the peer has room for
	// ready is, of messages between two ranks, how many the peer has announced
	// beyond those that receives have been posted for.
	ready int
}

func (x *exchange) idle() bool {
	return x.recvs.len() == 0 && x.sends.len() == 0 && x.credits.len() == 0 && x.ready == 0
}

// pair is the connection with one peer.
type pair struct {
	b    *Communicator
	peer int

	mu    sync.Mutex
	conn  net.Conn // nil until there is one
	slots map[slot]*exchange
	free  []*exchange
	early []slot         // of collectives that this rank has not come to
	lost  error          // why the connection is no more
	line  transport.Line // whether the peer's machine answers
	// granted is how many credits there are without a send, in all slots.
	granted int
	out     outbox
	piece   []byte // of the reader
}

func newPair(b *Communicator, peer int) *pair {
	return &pair{b: b, peer: peer, slots: map[slot]*exchange{}, out: outbox{kick: make(chan struct{}, 1)}}
}

// exchange returns the state of a slot; the pair is locked.
func (p *pair) exchange(s slot) *exchange {
	x := p.slots[s]
	if x == nil {
		if n := len(p.free); n > 0 {
			x, p.free = p.free[n-1], p.free[:n-1]
		} else {
			x = &exchange{}
		}
		p.slots[s] = x
	}
	return x
}

// settle forgets a slot in which nothing is under way; the pair is locked.
func (p *pair) settle(s slot, x *exchange) {
	if x.idle() {
		delete(p.slots, s)
		p.free = append(p.free, x)
	}
}

// postRecv says where the next message of a slot goes, and grants it. flush sends
// the grant.
func (p *pair) postRecv(s slot, o *op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		o.end(p.lost)
		return
	}
	x := p.exchange(s)
	x.recvs.push(o)
	if s.prefix() == ofMessage {
		x.ready--
	}
	preamble{opRecvReady, s, uint64(len(o.data))}.put(o.head[:])
	p.out.add(o.head[:preambleBytes], nil)
}

// postSend sends a message of a slot as soon as the peer has granted it; flush sends
// what can be sent. It is announced at once where a receive may wait for any rank's
// announcement; in a collective with the data, which saves a message on the way.
// An error is that the grant does not fit.
func (p *pair) postSend(s slot, o *op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		o.end(p.lost)
		return nil
	}
	preamble{opSendReady, s, uint64(len(o.data))}.put(o.head[:])
	if s.prefix() == ofMessage {
		p.out.add(o.head[:preambleBytes], nil)
	}
	x := p.exchange(s)
	if x.credits.len() == 0 {
		x.sends.push(o)
		return nil
	}
	granted := x.credits.pop()
	p.granted--
	p.settle(s, x)
	return p.transmit(s, o, granted)
}

// transmit puts a granted message in the way of the writer, unless the peer has
// posted another size; the pair is locked. A PyTorch rank that gets more than it has
// room for aborts its process.
func (p *pair) transmit(s slot, o *op, granted uint64) error {
	n := uint64(len(o.data))
	if granted < n || granted != n && s.prefix() != ofMessage {
		err := &fault.WireError{Sent: preamble{opRecvReady, s, granted}.String(), Why: fmt.Sprintf("this rank has %d bytes for it", n), Other: true, Bytes: int64(granted), Want: int64(n)}
		o.end(err)
		return err
	}
	from := 0
	if s.prefix() == ofMessage {
		from = preambleBytes
	}
	preamble{opData, s, n}.put(o.head[preambleBytes:])
	if n == 0 {
		p.out.add(o.head[from:], o)
		return nil
	}
	p.out.add(o.head[from:], nil)
	p.out.add(o.data, o)
	return nil
}

// available reports whether the peer has announced a message that no receive has
// been posted for.
func (p *pair) available(s slot) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.slots[s]
	return x != nil && x.ready > 0, p.lost
}

// attach gives the pair its connection.
func (p *pair) attach(conn net.Conn) bool {
	p.mu.Lock()
	if p.lost != nil || p.conn != nil {
		p.mu.Unlock()
		return false
	}
	p.conn = conn
	p.out.over(conn)
	p.b.running.Add(2)
	p.mu.Unlock()
	go p.readAll(conn)
	go p.writeAll(conn)
	p.flush()
	return true
}

// attached reports whether there is, or has been, a connection.
func (p *pair) attached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil || p.lost != nil
}

// lose ends the connection, and all that is under way on it with err.
func (p *pair) lose(err error) {
	p.mu.Lock()
	if p.lost != nil {
		p.mu.Unlock()
		return
	}
	p.lost = err
	for _, x := range p.slots {
		for x.recvs.len() > 0 {
			x.recvs.pop().end(err)
		}
		for x.sends.len() > 0 {
			x.sends.pop().end(err)
		}
	}
	clear(p.slots)
	p.free, p.early = nil, nil
	if !p.out.writing { // else who writes does so: what has been written counts
		p.out.drop(err)
	}
	conn := p.conn
	p.mu.Unlock()
	close(p.out.kick)
	if conn != nil {
		conn.Close()
	}
}

// whyLost returns why the connection is no more, nil if it is.
func (p *pair) whyLost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// from says where the peer's connection comes from.
func (p *pair) from() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return ""
	}
	return p.conn.RemoteAddr().String()
}

// took takes the preamble of a message that carries no data, or finds the receive
// that its data are for.
func (p *pair) took(m preamble) (*op, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return nil, p.lost
	}
	s := m.slot
	x := p.slots[s]
	if m.kind == opData {
		if x == nil || x.recvs.len() == 0 {
			return nil, &fault.WireError{Sent: m.String(), Why: "this rank has not granted it"}
		}
		o := x.recvs.pop()
		p.settle(s, x)
		if m.length != uint64(len(o.data)) {
			err := &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("this rank expects %d bytes", len(o.data)), Other: true, Bytes: int64(m.length), Want: int64(len(o.data))}
			o.end(err)
			return nil, err
		}
		return o, nil
	}
	if s.prefix() != ofMessage {
		if err := p.b.tags.check(p, m); err != nil {
			return nil, err
		}
		if m.kind == opSendReady {
			return nil, nil // a receive has been posted, or will be
		}
	}
	if x == nil {
		if len(p.slots) >= maxSlots {
			return nil, &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("has announced messages in %d slots that this rank has not come to", len(p.slots))}
		}
		x = p.exchange(s)
	}
	defer p.settle(s, x)
	if m.kind == opSendReady {
		if x.ready++; x.ready > maxAnnounced {
			return nil, &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("%d such messages wait already", maxAnnounced)}
		}
		if x.ready > 0 {
			p.b.anyone.ping()
		}
		return nil, nil
	}
	if x.sends.len() > 0 {
		return nil, p.transmit(s, x.sends.pop(), m.length)
	}
	if p.granted++; p.granted > maxAnnounced {
		return nil, &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("%d such messages wait already", maxAnnounced)}
	}
	x.credits.push(m.length)
	return nil, nil
}

// readAll takes what the peer sends, until the connection ends.
func (p *pair) readAll(conn net.Conn) {
	defer p.b.running.Done()
	err := p.read(conn)
	if wrong, ok := err.(*fault.WireError); ok {
		p.part()
		p.b.wrong(p, wrong)
		return
	}
	p.b.lose(p, err)
}

// pieceBytes is how much of a message is read at once that is reduced.
const pieceBytes = 128 << 10

// readBytes is how much is read at once of what may be many small messages.
const readBytes = 16 << 10

func (p *pair) read(conn net.Conn) error {
	buf := make([]byte, readBytes)
	lo, hi := 0, 0
	granted := false // what may go out now
	var on *run      // that can go on
	// next does what the messages so far allow, before it takes long for more to come.
	next := func() {
		if on != nil {
			on.goOn()
			on = nil
		}
		if granted {
			p.flush()
			granted = false
		}
	}
	for {
		for hi-lo < preambleBytes {
			next()
			if lo > 0 {
				hi = copy(buf, buf[lo:hi])
				lo = 0
			}
			n, err := conn.Read(buf[hi:])
			if hi += n; err != nil && hi < preambleBytes {
				return err
			}
		}
		m, err := parsePreamble(buf[lo:])
		if err != nil {
			return &fault.WireError{Sent: err.Error()}
		}
		lo += preambleBytes
		o, err := p.took(m)
		if err != nil {
			return err
		}
		if o == nil {
			granted = granted || m.kind == opRecvReady
			continue
		}
		for rest := o.data; len(rest) > 0; {
			part := rest
			if o.use != plain { // a piece at a time, which stays in the cache
				part = grown(&p.piece, min(len(rest), pieceBytes))
			}
			n := copy(part, buf[lo:hi])
			lo += n
			for left := part[n:]; len(left) > 0; {
				next()
				n, err := conn.Read(left)
				if left = left[n:]; err != nil && len(left) > 0 {
					o.end(lossOf(p, err))
					return err
				}
			}
			if o.use == reduce {
				o.run.reduction.into(rest[:len(part)], part)
			}
			rest = rest[len(part):]
		}
		if r := o.came(); r != nil {
			on = r
		}
	}
}

// tags is how far this rank is in the collectives of its group, and what they were.
type tags struct {
	next   atomic.Uint32
	recent [256]atomic.Uint32 // prefixes, by the last bits of the tag
}

// take returns the next tag, for a collective.
func (t *tags) take(p prefix) uint32 {
	tag := t.next.Load()
	t.recent[tag%uint32(len(t.recent))].Store(uint32(p))
	t.next.Store(tag + 1)
	return tag
}

// check says whether a notice of a peer fits what this rank has called, as far as it
// has come. The pair is locked.
func (t *tags) check(p *pair, m preamble) error {
	tag, next := m.slot.tag(), t.next.Load()
	ahead := int32(tag - next)
	if ahead >= 0 {
		for _, s := range p.early {
			if s == m.slot {
				return nil
			}
		}
		if len(p.early) >= maxEarly {
			return &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("this rank has come to tag %d only, and the peer to %d collectives beyond", next, len(p.early))}
		}
		p.early = append(p.early, m.slot)
		return nil
	}
	if -int(ahead) > len(t.recent) {
		return &fault.WireError{Sent: m.String(), Why: fmt.Sprintf("this rank has come to tag %d", next), Other: true}
	}
	return compare(m.slot, prefix(t.recent[tag%uint32(len(t.recent))].Load()), m)
}

// compare says whether a peer's slot fits the collective with its tag here.
func compare(s slot, here prefix, m preamble) error {
	if here == s.prefix() {
		return nil
	}
	sent := m.String()
	if m.kind == 0 { // not kept
		sent = fmt.Sprintf("notice of %v", s)
	}
	return &fault.WireError{Sent: sent, Why: fmt.Sprintf("this rank's call with tag %d is %v", s.tag(), here), Other: true}
}

// arrive takes note that this rank has come to a tag: what peers have sent in it
// before must fit.
func (p *pair) arrive(tag uint32, here prefix) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.early[:0]
	var err error
	for _, s := range p.early {
		switch {
		case int32(s.tag()-tag) > 0:
			kept = append(kept, s)
		case s.tag() == tag && err == nil:
			err = compare(s, here, preamble{})
		}
	}
	p.early = kept
	return err
}

// describe names the peer's host and address.
func (p *pair) describe() string {
	host := p.b.Member(p.peer).Host
	switch from := p.from(); {
	case host == "":
		return from
	case from == "":
		return "host " + host
	default:
		return "host " + host + ", " + from
	}
}

var _ backend.Communicator = (*Communicator)(nil)
