// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Proto is the name under which collectives share a port.
const Proto = "coll"

// Kinds of frames. Their numbers travel between ranks: add at the end only.
const (
	frameHello   byte = iota + 1 // first on every connection: what it is for
	frameSegment                 // hub to spoke: the control segment's descriptor and size
	frameSlab                    // reply to a request for a slab: its descriptor and size
	frameRefused                 // reply: why the connection is refused
	framePipe                    // a message pipe's descriptor
	frameDone                    // reply: taken
	frameFault                   // a rank is at fault
	frameBye                     // the sender leaves the group
	frameLeft                    // hub to spoke: another rank has left
	frameData                    // a piece of a collective or a message
	frameStalled                 // a rank and the collective that it waits in
	frameBeat                    // the sender is alive, and how far it has come (see heartbeat)
	frameAsk                     // what is a rank doing?
	frameDoing                   // what a rank is doing
	frameSkew                    // hub to spoke: who is late
	frameCheck                   // the last calls of a rank that wants to leave
	frameChecked                 // a rank has made them; hub to spoke: all have
)

// purpose is what a connection is for.
type purpose uint8

const (
	forControl purpose = iota + 1
	forSlab            // the slab with the number that the hello carries
	forPipe            // of the use that the hello carries as its number
	forCollectives
	forMessages
)

const (
	// maxFaultText is the most bytes that a rank says about why it gave up.
	maxFaultText = 1024
	// MaxKey is the most bytes of the name by which members of a group meet.
	MaxKey     = 512
	maxHello   = 64 + MaxKey
	maxControl = 64 + max(maxFaultText, maxTold*skewEntry, doingHead+4*2+maxTextName+2*maxSite+maxStack)
)

// hello opens a connection between ranks.
type hello struct {
	purpose purpose
	rank    int    // of the sender
	number  uint64 // of a slab, the use of a pipe, or what members must agree on
	group   string // the key by which the members meet
}

func (h *hello) encode() []byte {
	b := make([]byte, 0, maxHello)
	b = append(b, byte(h.purpose))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.rank))
	b = binary.LittleEndian.AppendUint64(b, h.number)
	return append(b, h.group...)
}

// parseHello reads a hello.
func parseHello(b []byte) (hello, error) {
	if len(b) < 13 || len(b) > maxHello {
		return hello{}, fmt.Errorf("hello of %d bytes", len(b))
	}
	h := hello{
		purpose: purpose(b[0]),
		rank:    int(binary.LittleEndian.Uint32(b[1:])),
		number:  binary.LittleEndian.Uint64(b[5:]),
		group:   string(b[13:]),
	}
	if h.rank > math.MaxInt32 {
		return hello{}, fmt.Errorf("hello from rank %d", h.rank)
	}
	return h, nil
}

// encodeFault makes the payload of frameFault and frameLeft.
func encodeFault(rank int, kind uint32, text string) []byte {
	b := make([]byte, 0, 8+len(text))
	b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	b = binary.LittleEndian.AppendUint32(b, kind)
	return append(b, text[:min(len(text), maxFaultText)]...)
}

func parseFault(b []byte, numRanks int) (rank int, kind uint32, text string, err error) {
	if len(b) < 8 || len(b) > 8+maxFaultText {
		return 0, 0, "", fmt.Errorf("fault of %d bytes", len(b))
	}
	r := binary.LittleEndian.Uint32(b)
	kind = binary.LittleEndian.Uint32(b[4:])
	if uint64(r) >= uint64(numRanks) || kind < kindDied || kind > kindTimeout {
		return 0, 0, "", fmt.Errorf("fault of kind %d about rank %d of %d", kind, r, numRanks)
	}
	return int(r), kind, string(b[8:]), nil
}

// callSize is the length of an encoded call, which begins every data frame.
const callSize = 32

// appendCall encodes what ranks must agree on.
func appendCall(b []byte, c *operation.Call) []byte {
	b = append(b, byte(c.Op), byte(c.Reduce.Kind()), byte(c.DType), 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Root))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Count))
	b = binary.LittleEndian.AppendUint64(b, c.Seq)
	return binary.LittleEndian.AppendUint64(b, c.Layout)
}

func parseCall(b []byte) (operation.Call, error) {
	if len(b) != callSize {
		return operation.Call{}, fmt.Errorf("call of %d bytes, want %d", len(b), callSize)
	}
	count := binary.LittleEndian.Uint64(b[8:])
	if b[3] != 0 || count > math.MaxInt {
		return operation.Call{}, errors.New("a call that no rank would make")
	}
	return operation.Call{
		Op: operation.Op(b[0]), Reduce: operation.ReduceOp(b[1]), DType: operation.DType(b[2]),
		Root: int(binary.LittleEndian.Uint32(b[4:])), Count: int(count), Seq: binary.LittleEndian.Uint64(b[16:]), Layout: binary.LittleEndian.Uint64(b[24:]),
	}, nil
}

// encodeStalled makes the payload of frameStalled: a call, and as its Recvs what the rank
// wants from each other rank, where only the two know that; -1 where it does not know.
func encodeStalled(rank int, c *operation.Call) []byte {
	b := appendCall(binary.LittleEndian.AppendUint32(nil, uint32(rank)), c)
	bare := len(b)
	for _, n := range c.Recvs {
		b = binary.AppendUvarint(b, uint64(n+1))
	}
	if len(b) > bare+maxWants {
		return b[:bare] // too many ranks: they are not told
	}
	return b
}

// maxWants is the most bytes of what a rank wants from the others.
const maxWants = 512

func parseStalled(b []byte, numRanks int) (rank int, c operation.Call, err error) {
	if len(b) < 4+callSize || len(b) > 4+callSize+maxWants {
		return 0, c, fmt.Errorf("a call under way of %d bytes", len(b))
	}
	r := binary.LittleEndian.Uint32(b)
	if uint64(r) >= uint64(numRanks) {
		return 0, c, fmt.Errorf("a call under way of rank %d of %d", r, numRanks)
	}
	if c, err = parseCall(b[4:][:callSize]); err != nil {
		return 0, c, err
	}
	if c.Recvs, err = parseParts(b[4+callSize:], numRanks); err != nil {
		return 0, c, err
	}
	for i := range c.Recvs {
		c.Recvs[i]--
	}
	return int(r), c, nil
}
