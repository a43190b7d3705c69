// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// header goes with every call of a context, and with its answer.
type header struct {
	context uint64 // noContext: of an evaluation
	life    uint64 // of the context's maker
	// walk is the last backward pass that the sender of a call has heard of, 0 for
	// none: what is sent then comes too late to be part of that pass's loss.
	walk uint64
	// crossed are the positions, in the message, of the tensors that gradients flow
	// back through. The first of them has the message id first, the next first+1 and
	// so on.
	first   uint64
	crossed []int
	// peers are those that take part in the context as far as the sender of an answer
	// knows, by rank.
	peers []member
}

// member is a process of the job: a rank and a life.
type member struct {
	Rank int
	Life uint64
}

// Limits on what a header can ask for.
const (
	headerVersion = 2
	maxCrossed    = 1 << 16
	maxRanks      = 1 << 16
)

// counterBits is how many bits of an id are a process's own counter; above them is
// its rank, as in PyTorch. That of contexts begins anywhere in the lower half: the
// others still refuse the contexts, long over, of one that had the rank before.
const counterBits = 48

// noContext is the id of none: no count is 0.
const noContext = 0

func rankOf(id uint64) int { return int(id >> counterBits) }

// append writes a header: a version, then unsigned varints. Positions and ranks
// increase and are written as differences; the lives come behind all ranks.
func (h *header) append(b []byte) []byte {
	b = append(b, headerVersion)
	for _, v := range [...]uint64{h.context, h.life, h.walk, h.first, uint64(len(h.crossed))} {
		b = binary.AppendUvarint(b, v)
	}
	last := -1
	for _, v := range h.crossed {
		b = binary.AppendUvarint(b, uint64(v-last-1))
		last = v
	}
	b = binary.AppendUvarint(b, uint64(len(h.peers)))
	last = -1
	for _, m := range h.peers {
		b = binary.AppendUvarint(b, uint64(m.Rank-last-1))
		last = m.Rank
	}
	for _, m := range h.peers {
		b = binary.AppendUvarint(b, m.Life)
	}
	return b
}

var errTruncated = errors.New("the header ends too early")

// parseHeader reads a header of a message with numTensors tensors.
func parseHeader(b []byte, numTensors int) (header, error) {
	var h header
	if len(b) == 0 || b[0] != headerVersion {
		return h, fmt.Errorf("the header has version %v, this process knows %d: run the same release everywhere", b[:min(len(b), 1)], headerVersion)
	}
	b = b[1:]
	next := func(v *uint64) bool {
		got, n := binary.Uvarint(b)
		if n <= 0 {
			return false
		}
		*v, b = got, b[n:]
		return true
	}
	if !next(&h.context) || !next(&h.life) || !next(&h.walk) || !next(&h.first) {
		return h, errTruncated
	}
	var ranks []int
	for _, part := range []struct {
		list  *[]int
		limit int
		what  string
	}{{&h.crossed, min(numTensors, maxCrossed), "tensor"}, {&ranks, maxRanks, "rank"}} {
		var n, step uint64
		if !next(&n) {
			return h, errTruncated
		}
		if n > uint64(part.limit) || n > uint64(len(b)) {
			return h, fmt.Errorf("the header lists %d %ss, of at most %d", n, part.what, part.limit)
		}
		last := -1
		for range n {
			if !next(&step) {
				return h, errTruncated
			}
			if step >= uint64(part.limit) || last+1+int(step) >= part.limit {
				return h, fmt.Errorf("the header names %s %d, of %d", part.what, uint64(last+1)+step, part.limit)
			}
			last += 1 + int(step)
			*part.list = append(*part.list, last)
		}
	}
	for _, r := range ranks {
		m := member{Rank: r}
		if !next(&m.Life) {
			return h, errTruncated
		}
		h.peers = append(h.peers, m)
	}
	if len(b) > 0 {
		return h, fmt.Errorf("the header has %d bytes too many", len(b))
	}
	return h, nil
}
