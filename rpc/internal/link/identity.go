// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"

	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// An agent of a list may be started again while others live on. Each of its processes is a
// life, with an id of its own that the handshake says. All connections of a life end
// before anything of the next life is heard. So the end of an old connection, which may be
// noticed late, is never taken for the end of the new life's.

// errSucceeded is the end of the connections of a process in whose place there is another.
var errSucceeded = errors.New("another process has its name and its place now")

// known returns the life that the peer is known to be in, and how many there have been.
func (p *Peer) known() (id string, lives int) {
	p.succeeding.Lock()
	defer p.succeeding.Unlock()
	return p.life, p.lives
}

// numLives is how many lives there have been. Unlike known it does not wait until the
// connections of the life before have ended.
func (p *Peer) numLives() int {
	p.end.mu.RLock()
	defer p.end.mu.RUnlock()
	return p.lives
}

// succeed says that the process of an id has just been found at the peer's address. before
// is how many lives were known when it was looked for. succeed ends the connections of the
// life before. It returns false if another life was found meanwhile: then the caller looks
// again for the later one.
func (p *Peer) succeed(id string, before int) bool {
	p.succeeding.Lock()
	defer p.succeeding.Unlock()
	if p.life == id {
		return true
	}
	if p.lives != before {
		return false
	}
	e := p.end
	var clients []*ClientConn
	var servers []*ServerConn
	e.mu.Lock()
	p.life = id
	p.lives++
	for c := range e.clients {
		if c.Peer == p {
			clients = append(clients, c)
		}
	}
	for s := range e.servers {
		if s.Peer == p {
			servers = append(servers, s)
		}
	}
	e.mu.Unlock()
	for _, c := range clients {
		c.lose(errSucceeded)
	}
	for _, s := range servers {
		s.Lose(errSucceeded)
	}
	return true
}

// Current says whether the connection is one of the peer's present life. A message of an
// earlier life may have been read before that ended, and be looked at only now.
func (s *ServerConn) Current() bool {
	s.end.mu.RLock()
	defer s.end.mu.RUnlock()
	return s.Peer.life == s.id
}

// current says the same of a connection to the peer.
func (c *ClientConn) current() bool {
	c.end.mu.RLock()
	defer c.end.mu.RUnlock()
	return wire.Fingerprint(c.Peer.life) == c.Life
}

// askBackTime limits the question who is at an address. The process that waits for the
// answer to its hello meanwhile waits for longer.
const askBackTime = helloTimeout / 2

// believe says why a process that says hello is not the member of the list that it says it
// is; nil: it is. All members know the token and the list, so the name alone proves
// nothing. The process that listens at the member's address is the member: it is asked
// whether it is the one that says hello.
func (e *Endpoint) believe(p *Peer, id string) *wire.Error {
	if p.Rank < 0 || p.where.ID != "" { // a client, or a member whose process the store named
		return nil
	}
	for {
		life, lives := p.known()
		if lives > 0 && life == id {
			return nil
		}
		there, err := e.ask(e.Context, p)
		var no *wire.Error
		switch {
		case errors.As(err, &no): // an agent, but not the one of the list
			return wire.Errorf(wire.KindNameTaken, "the address of %s in the list of WithPeers, %s, is not yours: %s", p.Name, p.where.addresses(), no.Msg)
		case err != nil:
			return wire.Errorf(wire.KindUnreachable, "it cannot be proven that you are %s: nobody answers at that agent's address in the list of WithPeers, %s: %v", p.Name, p.where.addresses(), err)
		case there.id != id:
			return wire.Errorf(wire.KindNameTaken, "another process is %s: it listens at that agent's address in the list of WithPeers, %s", p.Name, p.where.addresses())
		}
		if p.succeed(id, lives) {
			return nil
		}
	}
}

// ask asks which process listens at a peer's address. It asks under the name of a client:
// a member would be asked back.
func (e *Endpoint) ask(ctx context.Context, p *Peer) (w welcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, askBackTime)
	defer cancel()
	where := p.where
	where.Shm = false // too much for a few bytes
	there := &Peer{Name: p.Name, Rank: p.Rank, end: e, where: where, listens: true}
	conn, _, err := e.dial(ctx, there, &there.where)
	if err != nil {
		if last := there.failed.Load(); last != nil {
			err = *last
		}
		return w, err
	}
	defer conn.Close()
	err = conn.Do(ctx, func() (err error) {
		if err = e.sayHello(conn, there, "visitor-"+NewID(), -1); err == nil {
			w, err = there.readWelcome(conn)
		}
		return err
	})
	return w, err
}
