// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"encoding/binary"
	"fmt"

	"github.com/cohort-ml/cohort/dist/operation"
)

// preambleBytes is the length of what every message begins with: six numbers of 64
// bits, little-endian. nbytes, of the whole message; the kind; the slot; an
// offset; the length of the data; an offset. The offsets are of a kind that
// process groups do not use.
const preambleBytes = 48

// kind is what a message is.
type kind uint64

const (
	opSendBuffer kind = iota // into memory that the sender names: not used
	opData                   // data for the oldest receive of the slot
	opSendReady              // the sender has data for the slot
	opRecvReady              // the sender has posted a receive in the slot: a credit
	numKinds
)

var kindNames = [numKinds]string{"SEND_BUFFER", "SEND_UNBOUND_BUFFER", "NOTIFY_SEND_READY", "NOTIFY_RECV_READY"}

func (k kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("opcode %d", uint64(k))
}

// preamble is what a message says of itself.
type preamble struct {
	kind   kind
	slot   slot
	length uint64 // of the data, here or announced
}

// maxLength bounds what a message may announce or carry: more than any tensor.
const maxLength = 1 << 46

// put writes a preamble to the first bytes of b.
func (p preamble) put(b []byte) {
	_ = b[preambleBytes-1]
	n := uint64(preambleBytes)
	if p.kind == opData {
		n += p.length
	}
	binary.LittleEndian.PutUint64(b, n)
	binary.LittleEndian.PutUint64(b[8:], uint64(p.kind))
	binary.LittleEndian.PutUint64(b[16:], uint64(p.slot))
	binary.LittleEndian.PutUint64(b[24:], 0)
	binary.LittleEndian.PutUint64(b[32:], p.length)
	binary.LittleEndian.PutUint64(b[40:], 0)
}

// parsePreamble reads what a message says of itself, and refuses what cannot be.
func parsePreamble(b []byte) (preamble, error) {
	_ = b[preambleBytes-1]
	n := binary.LittleEndian.Uint64(b)
	p := preamble{
		kind:   kind(binary.LittleEndian.Uint64(b[8:])),
		slot:   slot(binary.LittleEndian.Uint64(b[16:])),
		length: binary.LittleEndian.Uint64(b[32:]),
	}
	want := uint64(preambleBytes)
	switch p.kind {
	case opData:
		want += p.length
	case opSendReady, opRecvReady:
	default:
		return p, fmt.Errorf("a message of %v in %v, of %d bytes: no process group sends such", p.kind, p.slot, n)
	}
	if p.length > maxLength {
		return p, fmt.Errorf("%v of %d bytes in %v: at most %d can be", p.kind, p.length, p.slot, uint64(maxLength))
	}
	if n != want {
		return p, fmt.Errorf("%v of %d bytes in %v with a length of %d, want %d", p.kind, n, p.slot, p.length, want)
	}
	return p, nil
}

func (p preamble) String() string {
	return fmt.Sprintf("%v of %d bytes in %v", p.kind, p.length, p.slot)
}

// slot is what the messages of a connection are told apart by: for a collective its
// prefix in the highest byte and its tag below (prefix<<56 | tag<<24), for messages
// between two ranks their tag.
type slot uint64

// prefix is the kind of a collective.
type prefix uint8

const (
	ofMessage prefix = iota // between two ranks: no collective
	ofGather
	ofAllGather
	ofReduce
	ofAllReduce
	ofScatter
	ofBroadcast
	ofBarrier
	ofAllToAll
	numPrefixes
)

var prefixNames = [numPrefixes]string{"send/recv", "gather", "all_gather", "reduce", "all_reduce", "scatter", "broadcast", "barrier", "all_to_all"}

func (p prefix) String() string {
	if p < numPrefixes {
		return prefixNames[p]
	}
	return fmt.Sprintf("collective kind %d", uint8(p))
}

// prefixOf returns the prefix of the collective that serves an operation.
func prefixOf(op operation.Op) prefix {
	switch op {
	case operation.Barrier:
		return ofBarrier
	case operation.AllReduce, operation.ReduceScatter:
		return ofAllReduce
	case operation.Broadcast:
		return ofBroadcast
	case operation.AllGather:
		return ofAllGather
	case operation.Reduce:
		return ofReduce
	case operation.Gather:
		return ofGather
	case operation.Scatter:
		return ofScatter
	case operation.AllToAll:
		return ofAllToAll
	}
	return ofMessage
}

func slotOf(p prefix, tag uint32) slot { return slot(p)<<56 | slot(tag)<<24 }

func (s slot) prefix() prefix { return prefix(s >> 56) }

// tag is that of a collective's slot.
func (s slot) tag() uint32 { return uint32(s >> 24) }

func (s slot) String() string {
	if s.prefix() == ofMessage {
		return fmt.Sprintf("send/recv with tag %d", uint64(s))
	}
	if rest := s & (1<<24 - 1); rest != 0 {
		return fmt.Sprintf("%v with tag %d.%d", s.prefix(), s.tag(), uint64(rest))
	}
	return fmt.Sprintf("%v with tag %d", s.prefix(), s.tag())
}
