// SPDX-License-Identifier: Apache-2.0

package transport

import "sync"

const (
	// maxSeen bounds the nonces that a process keeps: about 3 MiB. Only a peer that knows the token
	// can add one, so a stranger cannot push any out.
	maxSeen = 1 << 16
	// seenSize is how much of a nonce is remembered.
	seenSize = 16
)

// nonces are the nonces of the members' hellos, kept so that a repeated hello is recognized. All ports of a
// process that were opened with one Token share them. The zero value is ready.
type nonces struct {
	mu    sync.Mutex
	known map[[seenSize]byte]struct{}
	order [][seenSize]byte // a ring once it is full
	next  int              // the oldest then
}

// has reports whether a nonce is known.
func (s *nonces) has(nonce []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.known[[seenSize]byte(nonce)]
	return was
}

// fresh reports whether a nonce is new, and adds it.
func (s *nonces) fresh(nonce []byte) bool {
	key := [seenSize]byte(nonce)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, was := s.known[key]; was {
		return false
	}
	if s.known == nil {
		s.known = map[[seenSize]byte]struct{}{}
	}
	s.known[key] = struct{}{}
	if len(s.order) < maxSeen {
		s.order = append(s.order, key)
		return true
	}
	delete(s.known, s.order[s.next])
	s.order[s.next] = key
	s.next = (s.next + 1) % maxSeen
	return true
}
