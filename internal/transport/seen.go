// SPDX-License-Identifier: Apache-2.0

package transport

import "sync"

const (
	// maxSeen bounds the nonces that a process remembers: about 3 MiB. Only who
	// knows the token can make it remember one, so a stranger forgets nothing.
	maxSeen = 1 << 16
	// seenSize is how much of a nonce is remembered.
	seenSize = 16
)

// seen remembers what members have said first, so that who says it again is
// known to be repeating it. All ports of a process that were opened with one
// Token share it. The zero value is ready.
type seen struct {
	mu     sync.Mutex
	nonces map[[seenSize]byte]struct{}
	order  [][seenSize]byte // a ring once it is full
	next   int              // the oldest then
}

// has says whether a nonce has been here before.
func (s *seen) has(nonce []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.nonces[[seenSize]byte(nonce)]
	return was
}

// fresh says whether a nonce has not been here before, and remembers it.
func (s *seen) fresh(nonce []byte) bool {
	key := [seenSize]byte(nonce)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, was := s.nonces[key]; was {
		return false
	}
	if s.nonces == nil {
		s.nonces = map[[seenSize]byte]struct{}{}
	}
	s.nonces[key] = struct{}{}
	if len(s.order) < maxSeen {
		s.order = append(s.order, key)
		return true
	}
	delete(s.nonces, s.order[s.next])
	s.order[s.next] = key
	s.next = (s.next + 1) % maxSeen
	return true
}
