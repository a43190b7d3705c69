// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
)

// askBackTime limits the question to an address who is there. Who waits for the answer
// to its hello meanwhile waits for longer.
const askBackTime = helloTimeout / 2

// believe says why a process that says hello is not the member of the list of
// [WithPeers] that it says it is. Every member knows the token and the list, so that
// the name alone proves nothing: whoever listens at the member's address is asked, and
// is that member if it says that it is the process that says hello.
func (a *Agent) believe(p *Peer, id string) *Error {
	if p.err != nil || p.where.ID != "" { // no member, or one whose process the store named
		return nil
	}
	for {
		life, lives := p.known()
		if lives > 0 && life == id {
			return nil
		}
		there, err := a.ask(a.ctx, p)
		var e *Error
		switch {
		case errors.As(err, &e): // it is an agent, and not the one of the list
			return &Error{Kind: KindNameTaken, Msg: fmt.Sprintf("the address of %s in the list of WithPeers, %s, is not yours: %s", p.name, p.where.addresses(), e.Msg)}
		case err != nil:
			return &Error{Kind: KindUnreachable, Msg: fmt.Sprintf("that you are %s cannot be proven: nobody answers at its address in the list of WithPeers, %s: %v", p.name, p.where.addresses(), err)}
		case there.id != id:
			return &Error{Kind: KindNameTaken, Msg: fmt.Sprintf("another process is %s: the one that listens at its address in the list of WithPeers, %s", p.name, p.where.addresses())}
		}
		if p.succeed(id, lives) {
			return nil
		}
	}
}

// ask asks who listens at a peer's address, as one that is no member: it would be asked
// back.
func (a *Agent) ask(ctx context.Context, p *Peer) (w welcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, askBackTime)
	defer cancel()
	where := p.where
	where.Shm = false // which a few bytes do not want
	there := &Peer{agent: a, name: p.name, rank: p.rank, where: where, there: true}
	conn, _, err := a.dial(ctx, there)
	if err != nil {
		if last := there.failed.Load(); last != nil {
			err = *last
		}
		return w, err
	}
	defer conn.Close()
	err = conn.Do(ctx, func() (err error) {
		if err = a.sayHelloAs(conn, there, "visitor-"+newID(), -1); err == nil {
			w, err = there.readWelcome(conn)
		}
		return err
	})
	return w, err
}
