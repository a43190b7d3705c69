// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"hash/fnv"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
)

// Version is the version of the protocol.
const Version = 1

// The kinds of frames.
const (
	FrameHello   = 1
	FrameWelcome = 2
	FrameRefuse  = 3

	FrameCall    = 16
	FrameReply   = 17
	FrameFailure = 18
	FrameCancel  = 19
	FrameItem    = 20
	FrameEnd     = 21
	FrameCredit  = 22
	FrameNote    = 23
)

// numItems is how many items the head of each kind of frame has. Kinds that it does not
// have are read by functions of their own.
var numItems = [...]int{FrameCall: 7, FrameReply: 4, FrameFailure: 7, FrameCancel: 1, FrameItem: 3, FrameEnd: 1, FrameCredit: 2}

// The keys of a message's extras.
const (
	extraHook = 1
	extraRRef = 2
)

const (
	// MaxMessage bounds the limit that an agent may set for its messages.
	MaxMessage = 1 << 48
	// MaxHead bounds the part of a message that is not tensors.
	MaxHead = 256 << 20
	// MaxHello bounds the frames of the handshake.
	MaxHello = 4 << 10

	maxTensors = 1 << 16
	maxDims    = 16
	sizePrefix = 4
	// headTrust is how much memory is allocated for a head before its bytes have come.
	headTrust = 1 << 20
	// inlineLimit is the size up to which messages are gathered, tensors included.
	inlineLimit = 16 << 10
	// pieceSize is how much of a tensor is read or written at once. Each piece counts
	// as progress of the connection.
	pieceSize = 8 << 20
	// maxWhole is the size up to which a message is written by one system call.
	maxWhole = 64 << 20
)

// EncodeExtras appends the map of extras, or null if there are none. A nil slice is an
// extra that the message does not have.
func EncodeExtras(b *cbor.Encoder, hook, rref []byte) {
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

// Fingerprint is a number that stands for a text: FNV-1a, 64 bits. Two sides compare the
// fingerprints of a method's types, and of their lists of agents.
func Fingerprint(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}
