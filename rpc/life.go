// SPDX-License-Identifier: Apache-2.0

package rpc

import "errors"

// errSucceeded is the end of the connections of a process in whose place there is
// another.
var errSucceeded = errors.New("another process has its name and its place now")

// A member of the list of [WithPeers] may be started again while others live on. Each
// of its processes is a life, with an id of its own that its connections say. What a
// life left behind ends before anything of the next one is heard: so no end of an old
// connection, which may be noticed late, is taken for one of the new life's.

// known returns the life that the peer is known to be in, and how many there have been.
func (p *Peer) known() (id string, lives int) {
	p.succeeding.Lock()
	defer p.succeeding.Unlock()
	return p.life, p.lives
}

// numLives is the second of known. It does not wait for the end of the life before.
func (p *Peer) numLives() int {
	p.agent.mu.RLock()
	defer p.agent.mu.RUnlock()
	return p.lives
}

// succeed says that the process of an id has just been found at the peer's address.
// before is how many lives were known when it was looked for. It ends the connections
// of the life before, and returns false if another life was found meanwhile: which of
// the two is the later one is to be looked for again.
func (p *Peer) succeed(id string, before int) bool {
	p.succeeding.Lock()
	defer p.succeeding.Unlock()
	if p.life == id {
		return true
	}
	if p.lives != before {
		return false
	}
	a := p.agent
	var links []*link
	var servers []*serverLink
	a.mu.Lock()
	p.life = id
	p.lives++
	for l := range a.links {
		if l.peer == p {
			links = append(links, l)
		}
	}
	for s := range a.servers {
		if s.peer == p {
			servers = append(servers, s)
		}
	}
	a.mu.Unlock()
	for _, l := range links {
		l.lose(errSucceeded)
	}
	for _, s := range servers {
		s.lose(errSucceeded)
	}
	return true
}

// current says whether the connection is one of the peer's present life. What comes from
// an earlier one may have been read before, and be looked at only now.
func (s *serverLink) current() bool {
	s.agent.mu.RLock()
	defer s.agent.mu.RUnlock()
	return s.peer.life == s.id
}

// current says the same of a connection to the peer.
func (l *link) current() bool {
	l.agent.mu.RLock()
	defer l.agent.mu.RUnlock()
	return fingerprint(l.peer.life) == l.life
}
