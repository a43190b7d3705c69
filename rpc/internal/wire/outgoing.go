// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/tensor"
)

// Outgoing is a message that is being made or written: a head, and tensors that are
// written from their own memory. A message is made by [New]. Short heads are encoded into
// Enc and closed by [Outgoing.Finish]. Heads that describe tensors are made in two steps,
// because the description stands before the values that refer to the tensors: the values
// are encoded into Enc first, [Outgoing.Head] begins the rest, [Outgoing.Seal] joins both.
type Outgoing struct {
	Kind byte
	Enc  cbor.Encoder // its Env is the message
	// To is what the encoders of references need to know of the receiver: package rpc's
	// Peer.
	To any
	// Deadline is the call's, zero for an answer. A receiver that has not got the message
	// by then will not get it.
	Deadline time.Time
	Tensors  []*tensor.Tensor
	Size     int // of the frame's payload
	// Gone are called by Release. The error is not nil if the message may not have been
	// sent.
	Gone []func(err error)

	over  chan struct{}    // closed by Release, nil if nobody watches
	dense []*tensor.Tensor // Tensors as they are written: contiguous
	made  map[int]*Made    // of Tensors, which are nil there
	bytes int              // of the tensors
	head  cbor.Encoder
	vec   [][]byte
}

var outgoings = sync.Pool{New: func() any {
	m := &Outgoing{}
	m.Enc.Env = m
	return m
}}

// New begins a message.
func New(kind byte, to any) *Outgoing {
	m := outgoings.Get().(*Outgoing)
	m.Kind, m.To = kind, to
	// Room for the head's length.
	m.Enc.Buf = append(m.Enc.Buf[:0], 0, 0, 0, 0)
	return m
}

// Release gives the message back for another use. err says why it may not have been sent.
func (m *Outgoing) Release(err error) {
	for _, f := range m.Gone {
		f(err)
	}
	for i, c := range m.dense {
		if c != nil && c != m.Tensors[i] { // a contiguous copy
			c.Free()
		}
	}
	clear(m.Gone)
	clear(m.Tensors)
	clear(m.dense)
	clear(m.vec)
	clear(m.made)
	m.Gone, m.Tensors, m.dense, m.vec = m.Gone[:0], m.Tensors[:0], m.dense[:0], m.vec[:0]
	m.To, m.Enc.Err, m.Deadline = nil, nil, time.Time{}
	m.Size, m.bytes = 0, 0
	if m.over != nil {
		close(m.over)
		m.over = nil
	}
	if cap(m.Enc.Buf) > headTrust {
		m.Enc.Buf = nil
	}
	outgoings.Put(m)
}

// Tensor adds a tensor and returns its number in the message.
func (m *Outgoing) Tensor(t *tensor.Tensor) int {
	for i, have := range m.Tensors {
		if have == t {
			return i
		}
		if i == 64 {
			break // more tensors are not compared; one that occurs twice is sent twice
		}
	}
	m.Tensors = append(m.Tensors, t)
	return len(m.Tensors) - 1
}

// Reset drops what has been encoded.
func (m *Outgoing) Reset() {
	m.Enc.Buf, m.Tensors = m.Enc.Buf[:sizePrefix], m.Tensors[:0]
	clear(m.made)
}

// Made is a tensor that is made while its message is written.
type Made struct {
	DType tensor.DType
	Shape []int
	// Unit is a number of bytes. Fill is asked for a multiple of it, from a multiple of it on.
	Unit int
	// Fill writes the bytes from at on. After an error the connection ends.
	Fill func(dst []byte, at int) error
}

// Size returns the bytes of the tensor.
func (t *Made) Size() int {
	n := t.DType.Size()
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// MakeFrom is the size from which making a tensor while it is written can pay.
const MakeFrom = inlineLimit + 1

// Make adds a tensor that is made later, of [MakeFrom] bytes or more, and returns its number
// in the message.
func (m *Outgoing) Make(t *Made) int {
	if m.made == nil {
		m.made = map[int]*Made{}
	}
	m.Tensors = append(m.Tensors, nil)
	m.made[len(m.Tensors)-1] = t
	return len(m.Tensors) - 1
}

// Head begins the part of the head that stands before what Enc has.
func (m *Outgoing) Head() *cbor.Encoder {
	m.head.Buf = append(m.head.Buf[:0], 0, 0, 0, 0)
	return &m.head
}

// Seal appends the description of the tensors to what [Outgoing.Head] began, puts that
// before what Enc has, and closes the head. limit is the receiver's.
func (m *Outgoing) Seal(limit int) error {
	if err := m.describe(&m.head); err != nil {
		return err
	}
	m.head.Buf = append(m.head.Buf, m.Enc.Buf[sizePrefix:]...)
	m.head.Buf, m.Enc.Buf = m.Enc.Buf, m.head.Buf
	return m.Finish(limit)
}

// describe appends the list of the tensors, whose values come after the head.
func (m *Outgoing) describe(e *cbor.Encoder) error {
	if len(m.Tensors) == 0 {
		e.Null()
		return nil
	}
	if len(m.Tensors) > maxTensors {
		return fmt.Errorf("%d tensors in one message, at most %d", len(m.Tensors), maxTensors)
	}
	e.Array(len(m.Tensors))
	m.bytes = 0
	for i, t := range m.Tensors {
		if made := m.made[i]; made != nil {
			if len(made.Shape) > maxDims {
				return fmt.Errorf("tensor %d has %d dims, at most %d", i, len(made.Shape), maxDims)
			}
			m.dense = append(m.dense, nil)
			describeOne(e, made.DType, made.Shape)
			m.bytes += made.Size()
			continue
		}
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
		describeOne(e, t.DType(), loan.Shape)
		m.bytes += t.NumElems() * t.DType().Size()
	}
	return nil
}

// describeOne appends the element type and the dims of a tensor.
func describeOne(e *cbor.Encoder, dtype tensor.DType, shape []int) {
	e.Array(1 + len(shape))
	e.Uint(uint64(dtype))
	for _, n := range shape {
		e.Uint(uint64(n))
	}
}

// Finish closes the head. limit is the receiver's.
func (m *Outgoing) Finish(limit int) error {
	if m.Enc.Err != nil {
		return m.Enc.Err
	}
	head := len(m.Enc.Buf) - sizePrefix
	m.Size = len(m.Enc.Buf) + m.bytes
	if m.Size > limit || head > MaxHead {
		return fmt.Errorf("%w: the message has %d bytes, at most %d (%d beside tensors)", ErrTooLarge, m.Size, limit, MaxHead)
	}
	binary.LittleEndian.PutUint32(m.Enc.Buf, uint32(head))
	return nil
}

// Small says whether the message is gathered with others.
func (m *Outgoing) Small() bool { return m.Size <= inlineLimit }

// Watch returns the channel that is closed when the message's tensors are no longer read.
// It returns nil if that is so as soon as the message has been handed over.
func (m *Outgoing) Watch() chan struct{} {
	if m.Small() || len(m.Tensors) == 0 {
		return nil
	}
	m.over = make(chan struct{})
	return m.over
}

// Over returns the channel that Watch has made, nil if it has made none.
func (m *Outgoing) Over() chan struct{} { return m.over }

// AppendTo appends the whole frame of a small message.
func (m *Outgoing) AppendTo(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, transport.HeaderSize)...)
	transport.PutHeader(b[at:], m.Kind, m.Size)
	b = append(b, m.Enc.Buf...)
	for _, t := range m.dense {
		b = append(b, t.Buffer().Data...)
	}
	return b
}

// Write writes the frame from where its parts are. turns counts the pieces of a frame that
// is very long.
func (m *Outgoing) Write(conn *transport.Conn, turns *atomic.Uint64) error {
	if m.Size > maxWhole || len(m.made) > 0 {
		return m.writePieces(conn, turns)
	}
	m.vec = append(m.vec[:0], m.Enc.Buf)
	for _, t := range m.dense {
		m.vec = append(m.vec, t.Buffer().Data)
	}
	err := conn.WriteFrame(m.Kind, m.vec...)
	runtime.KeepAlive(m)
	return err
}

func (m *Outgoing) writePieces(conn *transport.Conn, turns *atomic.Uint64) error {
	head := make([]byte, transport.HeaderSize, transport.HeaderSize+len(m.Enc.Buf))
	transport.PutHeader(head, m.Kind, m.Size)
	if _, err := conn.Write(append(head, m.Enc.Buf...)); err != nil {
		return err
	}
	for i, t := range m.dense {
		if made := m.made[i]; made != nil {
			err := conn.WriteMade(made.Size(), made.Unit, func(dst []byte, at int) error {
				turns.Add(1)
				return made.Fill(dst, at)
			})
			if err != nil {
				return err
			}
			continue
		}
		for b := t.Buffer().Data; len(b) > 0; {
			n := min(len(b), pieceSize)
			if _, err := conn.Write(b[:n]); err != nil {
				return err
			}
			turns.Add(1)
			b = b[n:]
		}
	}
	runtime.KeepAlive(m)
	return nil
}
