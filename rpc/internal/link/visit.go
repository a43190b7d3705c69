// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// pipePrefix begins the addresses of agents on a [Network].
const pipePrefix = "pipe:"

// Visit returns the agent at an address as a peer, of which nothing else is known. The
// address is host:port, "unix:…", or "pipe:" and the name of an agent of the same
// [Network]. Another process may take the agent's place at the address.
func (e *Endpoint) Visit(ctx context.Context, addr string) (p *Peer, err error) {
	p = &Peer{Name: addr, Rank: -1, end: e, where: record{TCP: addr}, visited: true}
	switch {
	case e.Network != nil:
		if !strings.HasPrefix(addr, pipePrefix) {
			return nil, fmt.Errorf("an agent of a Network visits agents of its Network, whose addresses begin with %q", pipePrefix)
		}
		return p, nil
	case strings.HasPrefix(addr, "unix:"):
		p.where = record{Unix: addr, named: true}
	}
	return p, e.prepareVisits(ctx)
}

// prepareVisits finds out how this agent may connect, if it listens nowhere.
func (e *Endpoint) prepareVisits(ctx context.Context) (err error) {
	e.visiting.Lock()
	defer e.visiting.Unlock()
	if e.kind != "" {
		return nil
	}
	if e.encrypt, err = transport.EncryptFromEnv(); err != nil {
		return err
	}
	if err = e.findToken(ctx); err != nil {
		return err
	}
	e.me.Node = dist.NodeID()
	e.kind, err = envvar.Transport.OneOf(envvar.Transports()...)
	return err
}

// locate finds out where the agent at a TCP address listens for agents of its host. Each
// process that takes the place at the address has another socket for them.
func (e *Endpoint) locate(ctx context.Context, p *Peer) (*record, error) {
	if p.where.Unix != "" || e.Network != nil || e.kind == "tcp" || e.kind == "tls" {
		return &p.where, nil
	}
	conn, _, err := e.dial(ctx, p, &p.where)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var w welcome
	err = conn.Do(ctx, func() (err error) {
		if err = e.sayHello(conn, p, "visitor-"+NewID(), -1); err == nil {
			w, err = p.readWelcome(conn)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	where := p.where
	if w.unix != "" && w.node == e.me.Node {
		where.Unix, where.Shm, where.Node = w.unix, w.shm, w.node
	}
	return &where, nil
}
