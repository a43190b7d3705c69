// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// restTime is how long the rest of a request may take to come once it has begun.
	restTime = time.Minute
	// answerTime is how long a client may take to make room for its answers.
	answerTime = time.Minute
	// writePart is how much of an answer a client must take within that time.
	writePart = 8 << 20
	// sentBytes is how much of a request a refusal shows.
	sentBytes = 16
)

// pyTorchConn is one client of a PyTorchServer.
type pyTorchConn struct {
	srv     *PyTorchServer
	conn    *transport.Conn
	spins   spinner
	streak  int    // requests in a row without one of another client
	client  uint64 // to the store
	reader  pyTorchReader
	known   bool // a request was taken, so that it speaks what it seems to
	late    bool // a deadline for reads is set
	inside  bool // a request has begun
	sent    [sentBytes]byte
	numSent int
	coming  int64  // bytes of the values of the request that is being read
	waitID  uint64 // of the wait that is under way, or the last one

	out []byte // answers of the reading goroutine, to be written

	// An answer to a wait comes from another client's goroutine, which must not
	// be held up: it is written by one of its own. Writers take turns.
	mu      sync.Mutex
	pending bool // a wait is under way
	queue   []byte
	writing bool
	free    *sync.Cond // on mu: writing has ended
	running sync.WaitGroup
}

// serve answers a client until its connection ends.
func (s *PyTorchServer) serve(c net.Conn) {
	p := &pyTorchConn{srv: s, conn: transport.NewConn(c, "PyTorch's store")}
	p.free = sync.NewCond(&p.mu)
	p.reader.in, p.reader.room, p.reader.keyRoom = bufio.NewReader(p), p.room, p.keyRoom
	p.client = s.mem.attach(p.woken)
	defer p.running.Wait()
	defer c.Close()
	defer s.mem.detach(p.client)
	err := p.begin()
	for err == nil {
		err = p.one()
	}
	var breach *protocolError
	if errors.As(err, &breach) {
		s.report(c, p.reader.gen, p.sent[:p.numSent], err)
	}
}

// Read reads from the connection for the buffer. What has begun must end in time.
func (p *pyTorchConn) Read(b []byte) (int, error) {
	if !p.inside {
		if p.late {
			p.late = false
			if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
				return 0, err
			}
		}
		return p.conn.Read(b)
	}
	p.late = true
	if err := p.conn.SetReadDeadline(time.Now().Add(restTime)); err != nil {
		return 0, err
	}
	n, err := p.conn.Read(b)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		err = breach("a request whose rest did not come within %v", restTime)
	}
	return n, err
}

// begin finds out which generation the client speaks, if it is one.
func (p *pyTorchConn) begin() error {
	in := p.reader.in
	head, err := in.Peek(1) // a second connection of 1.13 never says anything
	if err != nil {
		return err
	}
	p.inside = true
	if head[0] == transport.HelloStart[0] { // none of the operations of 1.13
		return p.mistaken()
	}
	p.reader.gen = PyTorch1
	if head[0] != 0 {
		return nil
	}
	if head, err = in.Peek(5); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(head[1:]) != pyTorchMagic {
		return nil // that began the length of a key
	}
	p.reader.gen = PyTorch2
	_, err = in.Discard(5)
	return err
}

// mistaken refuses what may be a Cohort client, and tells it whom it has come to.
func (p *pyTorchConn) mistaken() error {
	head, err := p.reader.in.Peek(len(transport.HelloStart))
	p.numSent = copy(p.sent[:], head)
	if err != nil {
		return err
	}
	if string(head) != transport.HelloStart {
		return breach("it does not speak PyTorch's protocol")
	}
	client := struct {
		io.Reader
		io.Writer
	}{p.reader.in, p.conn}
	if err := transport.SayPyTorch(client); err != nil {
		return err
	}
	p.numSent = 0
	return breach(`a Cohort client came to PyTorch's store: dist.WithBackend("gloo") joins PyTorch's ranks, and cohort store --wire cohort serves Cohort's clients`)
}

// one reads a request and does it.
func (p *pyTorchConn) one() error {
	in := p.reader.in
	if len(p.out) > 0 && in.Buffered() == 0 {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.inside = false
	// A client that is alone may have its next request ready soon.
	if in.Buffered() == 0 && p.streak >= minStreak && p.alone() {
		p.spins.wait(p.conn, p.alone)
	}
	if _, err := in.Peek(1); err != nil {
		return err
	}
	if p.streak++; !p.alone() {
		p.srv.last.Store(p.client)
		p.streak = 0
	}
	p.inside = true
	head, _ := in.Peek(min(in.Buffered(), sentBytes))
	p.numSent = copy(p.sent[:], head)
	v, err := p.reader.verb()
	if err != nil {
		return err
	}
	if p.known {
		if done, err := p.glance(v); done || err != nil {
			return err
		}
	}
	defer p.release()
	q, err := p.reader.arguments(v)
	if err != nil {
		return err
	}
	if !p.known { // other bytes than a client's say nothing of what the job's ranks are
		p.known = true
		p.srv.heard(p.reader.gen, v == verbPing)
	}
	return p.do(&q)
}

// room takes room in the store for the bytes of a value that come next.
func (p *pyTorchConn) room(n int) error { return p.take("value", n, maxServed) }

// keyRoom takes it for a key that may be new.
func (p *pyTorchConn) keyRoom(n int) error { return p.take("key", n, maxServed+maxServedKeys) }

func (p *pyTorchConn) take(what string, n int, most int64) error {
	p.coming += int64(n)
	coming := p.srv.coming.Add(int64(n))
	if held := p.srv.mem.grow(0); held+coming > most {
		return breach("a %s for which there is no room: the store holds %d MiB, %d MiB are on their way, %d MiB are the most", what, held>>20, coming>>20, most>>20)
	}
	return nil
}

// release gives back the room of a request that has been done, or will not be.
func (p *pyTorchConn) release() {
	if p.coming > 0 {
		p.srv.coming.Add(-p.coming)
		p.coming = 0
	}
}

// alone says whether the last request of all was this client's.
func (p *pyTorchConn) alone() bool { return p.srv.last.Load() == p.client }

// glance answers a get of a key that exists, and a wait for it, without taking
// the request apart into things of their own.
func (p *pyTorchConn) glance(v verb) (done bool, err error) {
	if v != verbGet && v != verbWait {
		return false, nil
	}
	in, lists := p.reader.in, 0
	if v == verbWait {
		lists = 8
	}
	if in.Buffered() < lists+8 {
		return false, nil // it is not all there yet
	}
	head, err := in.Peek(lists + 8)
	if err != nil {
		return false, err
	}
	if v == verbWait && binary.LittleEndian.Uint64(head) != 1 {
		return false, nil
	}
	n := binary.LittleEndian.Uint64(head[lists:])
	if n > uint64(in.Buffered()) {
		return false, nil
	}
	size := lists + 8 + int(n)
	if size > in.Buffered() {
		return false, nil
	}
	b, err := in.Peek(size)
	if err != nil {
		return false, err
	}
	key := b[lists+8:]
	if n == 0 || key[0] != '/' || p.isWaiting() {
		return false, nil
	}
	value, ok := p.srv.mem.peek(key[1:])
	if !ok {
		return false, nil
	}
	if _, err := in.Discard(size); err != nil {
		return false, err
	}
	if v == verbWait {
		return true, p.says(saysReady)
	}
	return true, p.gives(value)
}

// isWaiting says whether a wait is under way.
func (p *pyTorchConn) isWaiting() bool {
	if p.waitID == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

// do does a request and answers it.
func (p *pyTorchConn) do(q *pyTorchRequest) error {
	if q.verb == verbCancelWait {
		return p.cancel()
	}
	if p.isWaiting() {
		return breach("%v while its wait is under way", q.verb)
	}
	what := request{keys: q.keys, value: q.value, values: q.values, expected: q.expected, delta: q.number}
	switch q.verb {
	case verbSet:
		what.op = opSet
	case verbCompareSet:
		what.op = opPyTorchCAS
	case verbGet, verbMultiGet:
		what.op = opPyTorchGet
	case verbAdd:
		what.op = opPyTorchAdd
	case verbCheck:
		what.op = opPyTorchCheck
	case verbWait:
		what.op = opPyTorchWait
	case verbNumKeys:
		what.op = opPyTorchNumKeys
	case verbDelete:
		what.op = opDelete
	case verbAppend:
		what.op = opPyTorchAppend
	case verbMultiSet:
		what.op = opMultiSet
	case verbPush:
		what.op = opPush
	case verbPop:
		what.op = opPyTorchPop
	case verbQueueLen:
		what.op = opQueueLen
	case verbListKeys:
		what.op = opPyTorchList
	case verbBarrier:
		what.op, what.delta, what.need = opPyTorchBarrier, 1, q.number
	case verbPing:
		p.out = binary.LittleEndian.AppendUint32(p.out, uint32(q.number))
		return nil
	case verbWatch:
		return p.says(saysWatching) // nothing of PyTorch's uses what would come then
	}
	if what.op.waits() {
		if len(p.out) > 0 { // for the wait's own answer may come from elsewhere
			if err := p.flush(); err != nil {
				return err
			}
		}
		p.waitID++
		p.mu.Lock()
		p.pending = true
		p.mu.Unlock()
	}
	r, outcome := p.srv.mem.apply(call{p.client, p.waitID}, what)
	if outcome == waiting {
		return nil
	}
	if what.op.waits() {
		p.mu.Lock()
		p.pending = false
		p.mu.Unlock()
	}
	return p.answer(q, &r)
}

// answer gathers the answer to a request.
func (p *pyTorchConn) answer(q *pyTorchRequest, r *reply) error {
	if err := r.err(); err != nil {
		return breach("%v %s: %v, which PyTorch's protocol has no answer for", q.verb, quoteKeys(q.keys), err)
	}
	switch q.verb {
	case verbSet, verbAppend, verbMultiSet, verbPush: // have none
		return nil
	case verbCompareSet:
		return p.gives(r.value)
	case verbGet, verbMultiGet:
		for _, v := range r.values {
			if err := p.gives(v); err != nil {
				return err
			}
		}
		return nil
	case verbCheck:
		if r.status == statusNo {
			return p.says(saysNotReady)
		}
		return p.says(saysReady)
	case verbWait, verbBarrier:
		return p.says(saysReady)
	case verbAdd, verbNumKeys, verbQueueLen:
		return p.counts(r.number)
	case verbDelete:
		if r.status == statusNo {
			return p.counts(0)
		}
		return p.counts(1)
	case verbPop:
		if err := p.counts(r.number); err != nil || r.number == 0 {
			return err
		}
		return p.gives(r.value)
	case verbListKeys:
		p.out = binary.LittleEndian.AppendUint64(p.out, uint64(len(r.values)))
		for _, k := range r.values {
			p.out = appendPyTorchKey(p.out, string(k))
		}
		return nil
	}
	return fmt.Errorf("no answer for %v", q.verb)
}

// cancel ends the wait that is under way. The client gets one answer to that,
// and one before it if the wait has just ended.
func (p *pyTorchConn) cancel() error {
	if p.waitID != 0 {
		p.srv.mem.cancel(call{p.client, p.waitID})
	}
	return p.says(saysCancelled)
}

// woken is told, with the store locked, that a wait has ended.
func (p *pyTorchConn) woken(_ uint64, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = false
	if r.status == statusCancelled {
		return // cancel says so
	}
	p.queue = append(p.queue, saysReady)
	if !p.writing {
		p.writing = true
		p.running.Add(1)
		go p.tell()
	}
}

// tell writes what others' requests have to say to this client.
func (p *pyTorchConn) tell() {
	defer p.running.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		b := p.queue
		p.queue = nil
		p.mu.Unlock()
		err := p.write(b)
		p.mu.Lock()
		if err != nil {
			p.conn.Close() // the reading goroutine finds it so
			p.queue = nil
		}
	}
	p.writing = false
	p.free.Broadcast()
}

func (p *pyTorchConn) says(b byte) error {
	p.out = append(p.out, b)
	return nil
}

func (p *pyTorchConn) counts(n int64) error {
	p.out = binary.LittleEndian.AppendUint64(p.out, uint64(n))
	return nil
}

// gives gathers a value, or writes it when it is long.
func (p *pyTorchConn) gives(v []byte) error {
	if len(v) <= gatherLimit {
		p.out = appendVec(p.out, v)
		if len(p.out) > gatherLimit {
			return p.flush()
		}
		return nil
	}
	p.out = binary.LittleEndian.AppendUint64(p.out, uint64(len(v)))
	if err := p.flush(); err != nil {
		return err
	}
	return p.write(v)
}

// flush writes the gathered answers, behind those that others' requests have given.
func (p *pyTorchConn) flush() error {
	if p.waitID != 0 {
		p.mu.Lock()
		for p.writing {
			p.free.Wait()
		}
		p.mu.Unlock()
	}
	err := p.write(p.out)
	p.out = p.out[:0]
	if cap(p.out) > keepOut {
		p.out = nil
	}
	return err
}

// write writes, for as long as a client may take to read it. Nothing bounds a write that
// the system takes at once.
func (p *pyTorchConn) write(b []byte) error {
	if len(b) > keepOut {
		defer p.conn.SetWriteDeadline(time.Time{})
	}
	for len(b) > keepOut { // what is long, in parts that each have the time
		if err := p.conn.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
			return err
		}
		part := b[:min(len(b), writePart)]
		if n, err := p.conn.Write(part); err != nil || n < len(part) {
			if err == nil {
				err = io.ErrShortWrite
			}
			return err
		}
		b = b[len(part):]
	}
	n, err := p.conn.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}
