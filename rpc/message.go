// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/tensor"
)

// The wire format; docs/rpc-wire.md describes it.
const (
	proto       = "rpc"
	protoShared = "rpcshm" // the same, through memory handed over first
	wireVersion = 1

	frameHello   = 1
	frameWelcome = 2
	frameRefuse  = 3

	frameCall    = 16
	frameReply   = 17
	frameFailure = 18
	frameCancel  = 19
	frameItem    = 20
	frameEnd     = 21
	frameCredit  = 22
	frameNote    = 23

	// Keys of a message's extras.
	extraHook = 1
	extraRRef = 2

	maxTensors = 1 << 16
	maxDims    = 16
	// maxHead bounds what of a message is no tensor.
	maxHead = 256 << 20
	// headTrust is for how much of a head memory is taken before the bytes have come.
	headTrust = 1 << 20
	// inlineLimit is up to which size messages are gathered, tensors and all.
	inlineLimit = 16 << 10
	sizePrefix  = 4
	// pieceSize is how much of a tensor is read at once: where a peer stands still
	// is found to that.
	pieceSize = 8 << 20
	// maxWhole is up to which size a message is written by one call.
	maxWhole = 64 << 20
)

// outgoing is a message that is being made or sent: a head, and tensors whose
// memory is written as it is. They are used again.
type outgoing struct {
	kind    byte
	enc     encoding
	tensors []*tensor.Tensor
	dense   []*tensor.Tensor // the same without gaps, as they are sent
	size    int              // of the frame's payload
	bytes   int              // of the tensors
	// gone is called when nothing of the message will be sent any more: with an
	// error if it may not have been sent.
	gone []func(err error)
	over chan struct{} // closed with that, if it is there
	body cbor.Encoder  // an extra's
	vec  [][]byte
}

var outgoings = sync.Pool{New: func() any {
	m := &outgoing{}
	m.enc.Env = &m.enc
	m.enc.msg = m
	return m
}}

// newOutgoing begins a message to a peer.
func newOutgoing(kind byte, a *Agent, p *Peer) *outgoing {
	m := outgoings.Get().(*outgoing)
	m.kind = kind
	m.enc.agent, m.enc.peer = a, p
	// Room for the head's length.
	m.enc.Buf = append(m.enc.Buf[:0], 0, 0, 0, 0)
	return m
}

// release gives the message back. err says why it may not have been sent.
func (m *outgoing) release(err error) {
	for _, f := range m.gone {
		f(err)
	}
	for i, c := range m.dense {
		if c != m.tensors[i] { // a copy without gaps
			c.Free()
		}
	}
	clear(m.gone)
	clear(m.tensors)
	clear(m.dense)
	clear(m.vec)
	m.gone, m.tensors, m.dense, m.vec = m.gone[:0], m.tensors[:0], m.dense[:0], m.vec[:0]
	m.enc.agent, m.enc.peer, m.enc.Err, m.enc.deadline = nil, nil, nil, time.Time{}
	m.size, m.bytes = 0, 0
	if m.over != nil {
		close(m.over)
		m.over = nil
	}
	if cap(m.enc.Buf) > headTrust {
		m.enc.Buf = nil
	}
	outgoings.Put(m)
}

// tensor returns the number of a tensor in the message.
func (m *outgoing) tensor(t *tensor.Tensor) int {
	for i, have := range m.tensors {
		if have == t {
			return i
		}
		if i == 64 {
			break // who sends more sends them twice
		}
	}
	m.tensors = append(m.tensors, t)
	return len(m.tensors) - 1
}

// describe appends the list of the tensors, whose values come after the head.
func (m *outgoing) describe(e *cbor.Encoder) error {
	if len(m.tensors) == 0 {
		e.Null()
		return nil
	}
	if len(m.tensors) > maxTensors {
		return fmt.Errorf("%d tensors in one message, at most %d", len(m.tensors), maxTensors)
	}
	e.Array(len(m.tensors))
	m.bytes = 0
	for i, t := range m.tensors {
		if t.Device() != tensor.CPU() {
			return fmt.Errorf("tensor %d is on device %s, which has no data to send", i, t.Device().Name())
		}
		if t.NumDims() > maxDims {
			return fmt.Errorf("tensor %d has %d dims, at most %d", i, t.NumDims(), maxDims)
		}
		loan, err := t.Lend()
		if err != nil {
			return fmt.Errorf("tensor %d %w", i, err)
		}
		c := t
		if !t.IsContiguous() {
			c = t.Detach().Contiguous()
		}
		m.dense = append(m.dense, c)
		e.Array(1 + len(loan.Shape))
		e.Uint(uint64(t.DType()))
		for _, n := range loan.Shape {
			e.Uint(uint64(n))
		}
		m.bytes += t.NumElems() * t.DType().Size()
	}
	return nil
}

// finish closes the head. limit is the receiver's.
func (m *outgoing) finish(limit int) error {
	if m.enc.Err != nil {
		return m.enc.Err
	}
	head := len(m.enc.Buf) - sizePrefix
	m.size = len(m.enc.Buf) + m.bytes
	if m.size > limit || head > maxHead {
		return fmt.Errorf("%w: the message has %d bytes, at most %d (%d beside tensors)", errTooLarge, m.size, limit, maxHead)
	}
	binary.LittleEndian.PutUint32(m.enc.Buf, uint32(head))
	return nil
}

var errTooLarge = errors.New("over the receiver's limit")

// small says whether the message is gathered with others.
func (m *outgoing) small() bool { return m.size <= inlineLimit }

// watch returns what is closed when the message's tensors are read no more, nil if
// that is so as soon as it has been sent.
func (m *outgoing) watch() chan struct{} {
	if m.small() || len(m.tensors) == 0 {
		return nil
	}
	m.over = make(chan struct{})
	return m.over
}

// appendTo appends the whole frame.
func (m *outgoing) appendTo(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, transport.HeaderSize)...)
	transport.PutHeader(b[at:], m.kind, m.size)
	b = append(b, m.enc.Buf...)
	for _, t := range m.dense {
		b = append(b, t.Buffer().Data...)
	}
	return b
}

// write writes the frame from where its parts are. turns counts the pieces of one
// that is very long.
func (m *outgoing) write(conn *transport.Conn, turns *atomic.Uint64) error {
	if m.size > maxWhole {
		return m.writePieces(conn, turns)
	}
	m.vec = append(m.vec[:0], m.enc.Buf)
	for _, t := range m.dense {
		m.vec = append(m.vec, t.Buffer().Data)
	}
	return conn.WriteFrame(m.kind, m.vec...)
}

func (m *outgoing) writePieces(conn *transport.Conn, turns *atomic.Uint64) error {
	head := make([]byte, transport.HeaderSize, transport.HeaderSize+len(m.enc.Buf))
	transport.PutHeader(head, m.kind, m.size)
	if _, err := conn.Write(append(head, m.enc.Buf...)); err != nil {
		return err
	}
	for _, t := range m.dense {
		for b := t.Buffer().Data; len(b) > 0; {
			n := min(len(b), pieceSize)
			if _, err := conn.Write(b[:n]); err != nil {
				return err
			}
			turns.Add(1)
			b = b[n:]
		}
	}
	return nil
}

// received is a message that has come: its head, and its tensors.
type received struct {
	kind    byte
	size    int
	dec     decoding
	head    []byte
	scratch []byte
	// extras are the values of the keys that are known, part of the head.
	hook, rref []byte
}

var receiveds = sync.Pool{New: func() any {
	r := &received{scratch: make([]byte, 0, 512)}
	r.dec.Env = &r.dec
	return r
}}

// release gives the message back when nothing of its head is in use.
func (r *received) release() {
	clear(r.dec.tensors)
	r.dec.tensors = r.dec.tensors[:0]
	r.dec.agent, r.dec.peer, r.dec.call = nil, nil, nil
	r.head, r.hook, r.rref = nil, nil, nil
	if cap(r.scratch) > headTrust {
		r.scratch = make([]byte, 0, 512)
	}
	receiveds.Put(r)
}

// readHead reads a frame up to its tensors. The rest is unread then. A frame may be
// too long, up to a limit: its head says whom to tell.
func readHead(conn *transport.Conn, limit int) (r *received, err error) {
	kind, size, err := conn.ReadHeader(transport.MaxFrame)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, protocolError("a frame of %d bytes, at most %d", size, limit)
	}
	return readHeadOf(conn, kind, size)
}

// readHeadOf reads the head of a frame whose header has been read.
func readHeadOf(conn *transport.Conn, kind byte, size int) (r *received, err error) {
	if size < sizePrefix {
		return nil, protocolError("a frame of kind %d with %d bytes", kind, size)
	}
	r = receiveds.Get().(*received)
	r.kind, r.size = kind, size
	b := r.scratch[:sizePrefix]
	if err := conn.ReadPayload(b); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > size-sizePrefix || n > maxHead {
		return nil, protocolError("a frame of kind %d and %d bytes with a head of %d", kind, size, n)
	}
	// Memory is taken as the bytes come.
	b = r.scratch[:0]
	for len(b) < n {
		more := min(n-len(b), max(headTrust, len(b)))
		if cap(b) < len(b)+more {
			b = append(make([]byte, 0, len(b)+more), b...)
		}
		if err := conn.ReadPayload(b[len(b) : len(b)+more]); err != nil {
			return nil, err
		}
		b = b[:len(b)+more]
	}
	r.scratch, r.head = b, b
	r.dec.Reset(b)
	return r, nil
}

var errFailure = errors.New("the answer is a failure")

// trouble says whether an answer that has not been read yet is a failure.
func (r *received) trouble() error {
	if r.kind == frameFailure {
		return errFailure
	}
	return nil
}

// items reads the head's array, which has the items of its kind of frame, and
// what it is about: the number of a call.
func (r *received) items() (id uint64, err error) {
	d := &r.dec
	n := d.Array()
	id = d.Uint()
	if d.Err() != nil {
		return 0, protocolError("a frame of kind %d whose head cannot be read: %v", r.kind, d.Err())
	}
	if int(r.kind) >= len(numItems) || numItems[r.kind] == 0 {
		return 0, protocolError("a frame of kind %d, which there is not", r.kind)
	}
	if n != numItems[r.kind] {
		return 0, protocolError("a frame of kind %d with %d items, want %d", r.kind, n, numItems[r.kind])
	}
	return id, nil
}

// numItems is how many items the heads have.
var numItems = [...]int{frameCall: 7, frameReply: 4, frameFailure: 7, frameCancel: 1, frameItem: 3, frameEnd: 1, frameCredit: 2}

// readExtras reads the map of extras, or null.
func (r *received) readExtras() {
	d := &r.dec
	if d.Null() {
		return
	}
	for n := d.Map(); n > 0 && d.Err() == nil; n-- {
		key := d.Uint()
		value := d.Bytes()
		switch key {
		case extraHook:
			r.hook = value
		case extraRRef:
			r.rref = value
		}
	}
}

// readTensors reads the list of tensors, and the tensors themselves, which are
// all that is left of the frame. If the list is not what it should be nothing
// has been read, and bad says why.
// moved counts the pieces that have come.
func (r *received) readTensors(conn *transport.Conn, moved *atomic.Uint64) (bad, err error) {
	d := &r.dec
	if d.Null() {
		if n := conn.Unread(); n != 0 {
			return fmt.Errorf("%d bytes of tensors that are not described", n), nil
		}
		return nil, nil
	}
	n := d.Array()
	if d.Err() != nil {
		return d.Err(), nil
	}
	if n > maxTensors {
		return fmt.Errorf("%d tensors in one message, at most %d", n, maxTensors), nil
	}
	type shaped struct {
		dtype tensor.DType
		shape []int
	}
	var room [4]shaped
	list, dims := room[:0], [maxDims]int{}
	left := conn.Unread()
	for i := range n {
		k := d.Array() - 1
		dtype := d.Uint()
		if d.Err() != nil {
			return d.Err(), nil
		}
		if k < 0 || k > maxDims || dtype > 255 || !tensor.DType(dtype).Valid() {
			return fmt.Errorf("tensor %d has the element type %d and %d dims", i, dtype, k), nil
		}
		numElems, size := 1, tensor.DType(dtype).Size()
		for j := range k {
			v := d.Uint()
			if v > maxMessageLimit {
				return fmt.Errorf("tensor %d has a dim of %d", i, v), nil
			}
			dims[j] = int(v)
			if v != 0 && numElems > maxMessageLimit/int(v) {
				return fmt.Errorf("tensor %d has more elements than any message", i), nil
			}
			numElems *= int(v)
		}
		if d.Err() != nil {
			return d.Err(), nil
		}
		if numElems > left/size {
			return fmt.Errorf("tensor %d has %d bytes, the message has %d left", i, numElems*size, left), nil
		}
		left -= numElems * size
		list = append(list, shaped{tensor.DType(dtype), append([]int(nil), dims[:k]...)})
	}
	if left != 0 {
		return fmt.Errorf("%d bytes of tensors that are not described", left), nil
	}
	for _, s := range list {
		t := tensor.Empty(s.dtype, s.shape...)
		r.dec.tensors = append(r.dec.tensors, t)
		for b := t.Buffer().Data; len(b) > 0; {
			n := min(len(b), pieceSize)
			if err := conn.ReadPayload(b[:n]); err != nil {
				return nil, err
			}
			moved.Add(1)
			b = b[n:]
		}
	}
	return nil, nil
}

// protocolError is what ends a connection.
func protocolError(format string, args ...any) error {
	return &Error{Rank: -1, Kind: KindProtocol, Msg: fmt.Sprintf(format, args...)}
}
