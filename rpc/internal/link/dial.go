// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/internal/transport"
)

// Network connects agents of one process by pipes. Its zero value has no agents.
type Network struct {
	mu     sync.Mutex
	agents map[string]*Endpoint // by id
}

func (n *Network) join(e *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.agents == nil {
		n.agents = map[string]*Endpoint{}
	}
	n.agents[e.me.ID] = e
}

func (n *Network) leave(e *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.agents, e.me.ID)
}

// Pipe connects to this agent from within the process.
func (e *Endpoint) Pipe() (*transport.Conn, error) {
	near, far := transport.Pipe(proto)
	if !e.Go(func() { e.accept(far) }) {
		return nil, errors.New("the agent has been closed") // it may be another one than the caller's
	}
	return near, nil
}

// dial makes a connection to a peer, whose agent is where the record says, and says how.
func (e *Endpoint) dial(ctx context.Context, p *Peer, where *record) (conn *transport.Conn, how string, err error) {
	if p == e.self {
		conn, err = e.Pipe()
		return conn, "pipe", err
	}
	if n := e.Network; n != nil {
		n.mu.Lock()
		to := n.agents[where.ID]
		if name, ok := strings.CutPrefix(where.TCP, pipePrefix); ok {
			for _, a := range n.agents {
				if a.Name == name {
					to = a
				}
			}
		}
		n.mu.Unlock()
		if to == nil {
			return nil, "", errors.New("no such agent is on the network")
		}
		conn, err = to.Pipe()
		return conn, "pipe", err
	}
	addr, how, secure := e.way(ctx, where)
	if addr == "" {
		return nil, "", fmt.Errorf("the peer listens at no address that this agent may use (transport %q)", e.kind)
	}
	opts := []transport.DialOption{transport.WithTLS(secure), transport.WithFailures(func(err error) { p.failed.Store(&err) })}
	if e.meeting != nil || p.listens {
		opts = append(opts, transport.WithListener())
	}
	if how == "shm" {
		conn, err = transport.DialShared(ctx, addr, protoShared, e.Token, opts...)
	} else {
		conn, err = transport.Dial(ctx, addr, proto, e.Token, opts...)
	}
	return conn, how, err
}

// way chooses the address of an agent and the transport.
func (e *Endpoint) way(ctx context.Context, r *record) (addr, how string, secure bool) {
	if r.named {
		return r.Unix, "unix", false
	}
	local := r.Node != "" && r.Node == e.me.Node
	switch e.kind {
	case "auto", "shm", "unix":
		if r.Unix != "" && (local || r.Node == "") {
			if r.Shm && transport.SharedMemory && e.kind != "unix" {
				return r.Unix, "shm", false
			}
			return r.Unix, "unix", false
		}
		if e.kind != "auto" {
			return "", "", false
		}
	case "tls":
		return r.TCP, "tls", true
	}
	if r.TCP == "" {
		return "", "", false
	}
	if e.encrypt.TLS(local || !transport.LeavesHost(ctx, r.TCP), false) {
		return r.TCP, "tls", true
	}
	return r.TCP, "tcp", false
}
