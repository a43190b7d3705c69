// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/tensor"
)

// Received is a message that has come: its head, and its tensors. [ReadHead] reads the
// head; the tensors stay on the connection until [Received.ReadTensors].
type Received struct {
	Kind byte
	Size int          // of the frame's payload
	Dec  cbor.Decoder // of the head; its Env is the message
	// From is what the decoders of references need to know of the sender: package rpc's
	// Peer.
	From    any
	Tensors []*tensor.Tensor
	// Hook and RRef are the extras, parts of the head. nil: the message has none.
	Hook, RRef []byte

	scratch []byte
}

var receiveds = sync.Pool{New: func() any {
	r := &Received{scratch: make([]byte, 0, 512)}
	r.Dec.Env = r
	return r
}}

// Release gives the message back for another use, when nothing of its head is in use.
func (r *Received) Release() {
	clear(r.Tensors)
	r.Tensors = r.Tensors[:0]
	r.From, r.Hook, r.RRef = nil, nil, nil
	if cap(r.scratch) > headTrust {
		r.scratch = make([]byte, 0, 512)
	}
	receiveds.Put(r)
}

// ReadHead reads the head of a frame whose header has been read.
func ReadHead(conn *transport.Conn, kind byte, size int) (r *Received, err error) {
	if size < sizePrefix {
		return nil, Protocolf("a frame of kind %d with %d bytes", kind, size)
	}
	r = receiveds.Get().(*Received)
	r.Kind, r.Size = kind, size
	b := r.scratch[:sizePrefix]
	if err := conn.ReadPayload(b); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > size-sizePrefix || n > MaxHead {
		return nil, Protocolf("a frame of kind %d and %d bytes with a head of %d", kind, size, n)
	}
	// Memory is allocated as the bytes come.
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
	r.scratch = b
	r.Dec.Reset(b)
	return r, nil
}

// Items reads the head's array, which has as many items as its kind of frame wants, and
// the first of them: the number of the call that the message is about.
func (r *Received) Items() (id uint64, err error) {
	d := &r.Dec
	n := d.Array()
	id = d.Uint()
	if d.Err() != nil {
		return 0, Protocolf("a frame of kind %d whose head cannot be read: %v", r.Kind, d.Err())
	}
	if int(r.Kind) >= len(numItems) || numItems[r.Kind] == 0 {
		return 0, Protocolf("a frame of the unknown kind %d", r.Kind)
	}
	if n != numItems[r.Kind] {
		return 0, Protocolf("a frame of kind %d with %d items, want %d", r.Kind, n, numItems[r.Kind])
	}
	return id, nil
}

// ReadExtras reads the map of extras, or null.
func (r *Received) ReadExtras() {
	d := &r.Dec
	if d.Null() {
		return
	}
	for n := d.Map(); n > 0 && d.Err() == nil; n-- {
		key := d.Uint()
		value := d.Bytes()
		switch key {
		case extraHook:
			r.Hook = value
		case extraRRef:
			r.RRef = value
		}
	}
}

// shaped is a tensor that a message describes.
type shaped struct {
	dtype tensor.DType
	shape []int
}

// ReadTensors reads the list of tensors, and the tensors themselves, which are all that is
// left of the frame. If the list is wrong, no tensor is read, and bad says why. moved
// counts the pieces that have come.
func (r *Received) ReadTensors(conn *transport.Conn, moved *atomic.Uint64) (bad, err error) {
	if r.Dec.Null() {
		if n := conn.Unread(); n != 0 {
			return fmt.Errorf("%d bytes of tensors that are not described", n), nil
		}
		return nil, nil
	}
	var room [4]shaped
	list, bad := r.readShapes(room[:0], conn.Unread())
	if bad != nil {
		return bad, nil
	}
	for _, s := range list {
		t := tensor.Empty(s.dtype, s.shape...)
		r.Tensors = append(r.Tensors, t)
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

// readShapes appends what the head says of the tensors, which must take up all of the
// left bytes.
func (r *Received) readShapes(list []shaped, left int) ([]shaped, error) {
	d := &r.Dec
	n := d.Array()
	if d.Err() != nil {
		return nil, d.Err()
	}
	if n > maxTensors {
		return nil, fmt.Errorf("%d tensors in one message, at most %d", n, maxTensors)
	}
	var dims [maxDims]int
	for i := range n {
		k := d.Array() - 1
		dtype := d.Uint()
		if d.Err() != nil {
			return nil, d.Err()
		}
		if k < 0 || k > maxDims || dtype > 255 || !tensor.DType(dtype).Valid() {
			return nil, fmt.Errorf("tensor %d has the element type %d and %d dims", i, dtype, k)
		}
		numElems, size := 1, tensor.DType(dtype).Size()
		for j := range k {
			v := d.Uint()
			if v > MaxMessage {
				return nil, fmt.Errorf("tensor %d has a dim of %d", i, v)
			}
			dims[j] = int(v)
			if v != 0 && numElems > MaxMessage/int(v) {
				return nil, fmt.Errorf("tensor %d has more elements than any message", i)
			}
			numElems *= int(v)
		}
		if d.Err() != nil {
			return nil, d.Err()
		}
		if numElems > left/size {
			return nil, fmt.Errorf("tensor %d has %d bytes, the message has %d left", i, numElems*size, left)
		}
		left -= numElems * size
		list = append(list, shaped{tensor.DType(dtype), append([]int(nil), dims[:k]...)})
	}
	if left != 0 {
		return nil, fmt.Errorf("%d bytes of tensors that are not described", left)
	}
	return list, nil
}
