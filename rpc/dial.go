// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// helloTimeout is how long the peer may take for the first words.
const helloTimeout = 10 * time.Second

// goneTime is for how long a peer's machine may confirm nothing of what was sent to
// it: the connection has ended then, and calls on it are lost, not late.
const goneTime = 30 * time.Second

// Network connects agents of one process by pipes, without the system: for tests,
// also in virtual time, and for what would otherwise be ranks as goroutines.
type Network struct {
	mu     sync.Mutex
	agents map[string]*Agent // by id
}

// NewNetwork returns a network without agents.
func NewNetwork() *Network { return &Network{agents: map[string]*Agent{}} }

func (n *Network) join(a *Agent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agents[a.me.ID] = a
}

func (n *Network) leave(a *Agent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.agents, a.me.ID)
}

// newID returns what tells an agent from an earlier one at its address.
func newID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// pipeTo connects to an agent of this process.
func pipeTo(b *Agent) (*transport.Conn, error) {
	near, far := transport.Pipe(proto)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the agent has been closed")
	}
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		b.accept(far)
	}()
	return near, nil
}

// dial makes a connection to a peer and says how.
func (a *Agent) dial(ctx context.Context, p *Peer) (conn *transport.Conn, how string, err error) {
	if p == a.self {
		conn, err = pipeTo(a)
		return conn, "pipe", err
	}
	if n := a.network; n != nil {
		n.mu.Lock()
		b := n.agents[p.where.ID]
		n.mu.Unlock()
		if b == nil {
			return nil, "", errors.New("no such agent is on the network")
		}
		conn, err = pipeTo(b)
		return conn, "pipe", err
	}
	addr, how, secure := a.way(ctx, p)
	if addr == "" {
		return nil, "", fmt.Errorf("the peer listens at no address that this agent may use (transport %q)", a.kind)
	}
	opts := []transport.DialOption{transport.WithTLS(secure), transport.WithFailures(func(err error) { p.failed.Store(&err) })}
	if a.meeting != nil || p.there {
		opts = append(opts, transport.WithListener())
	}
	if how == "shm" {
		conn, err = transport.DialShared(ctx, addr, protoShared, a.token, opts...)
	} else {
		conn, err = transport.Dial(ctx, addr, proto, a.token, opts...)
	}
	return conn, how, err
}

// way chooses the address of a peer and how to go there.
func (a *Agent) way(ctx context.Context, p *Peer) (addr, how string, secure bool) {
	r := &p.where
	local := r.Node != "" && r.Node == a.me.Node
	switch a.kind {
	case "auto", "shm", "unix":
		if r.Unix != "" && (local || r.Node == "") {
			if r.Shm && transport.SharedMemory && a.kind != "unix" {
				return r.Unix, "shm", false
			}
			return r.Unix, "unix", false
		}
		if a.kind != "auto" {
			return "", "", false
		}
	case "tls":
		return r.TCP, "tls", true
	}
	if r.TCP == "" {
		return "", "", false
	}
	if a.encrypt.TLS(local || !transport.LeavesHost(ctx, r.TCP), false) {
		return r.TCP, "tls", true
	}
	return r.TCP, "tcp", false
}

// connect makes a connection and says hello.
func (p *Peer) connect(ctx context.Context) (*link, error) {
	a := p.agent
	if a.ctx.Err() != nil {
		return nil, errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.ctx, func() { cancel(errClosed) })()
	conn, how, err := a.dial(ctx, p)
	if err != nil {
		return nil, err
	}
	before := p.numLives()
	var w welcome
	err = conn.Do(ctx, func() (err error) {
		if err = a.sayHello(conn, p); err == nil {
			w, err = p.readWelcome(conn)
		}
		return err
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	for !p.succeed(w.id, before) {
		// The process that answered is kept if it is the later one: it would take the end
		// of this connection for that of this agent.
		before = p.numLives()
		if there, err := a.ask(ctx, p); err != nil || there.id != w.id {
			conn.Close()
			return nil, errSucceeded
		}
	}
	conn.RetrySoon(time.Second)
	conn.GiveUpAfter(goneTime)
	l := newLink(a, p, conn, how, w)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		conn.Close()
		return nil, errClosed
	}
	if p.life != w.id {
		conn.Close()
		return nil, errSucceeded
	}
	a.links[l] = struct{}{}
	a.running.Add(1)
	go func() {
		defer a.running.Done()
		l.receive()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.links, l)
	}()
	return l, nil
}

// sayHello sends the first frame: [version, name, rank, id, limit, name of the peer],
// and with WithPeers the list's fingerprint.
func (a *Agent) sayHello(conn *transport.Conn, p *Peer) error {
	return a.sayHelloAs(conn, p, a.name, a.rank)
}

func (a *Agent) sayHelloAs(conn *transport.Conn, p *Peer, name string, rank int) error {
	m := newOutgoing(frameHello, a, p)
	defer m.release(nil)
	e := &m.enc
	items := 6
	if a.list != 0 {
		items++
	}
	e.Array(items)
	e.Uint(wireVersion)
	e.Text(name)
	e.Int(int64(rank))
	e.Text(a.me.ID)
	e.Uint(uint64(a.maxMessage))
	if p.rank < 0 {
		e.Text("") // who is there is to be seen
	} else {
		e.Text(p.name)
	}
	if a.list != 0 {
		e.Uint(a.list)
	}
	if err := m.finish(maxHead); err != nil {
		return err
	}
	return m.write(conn, nil)
}

// maxHello bounds the first frames.
const maxHello = 4 << 10

// welcome is the answer to a hello.
type welcome struct {
	name  string
	rank  int64
	id    string
	limit int
}

func (p *Peer) readWelcome(conn *transport.Conn) (w welcome, err error) {
	r, err := readHello(conn)
	if err != nil {
		return w, err
	}
	defer r.release()
	d := &r.dec
	n := d.Array()
	switch r.kind {
	case frameWelcome:
	case frameRefuse: // [kind, message]
		kind, msg := Kind(d.Text()), string(d.Text())
		if d.Err() != nil {
			return w, protocolError("a refusal that cannot be read")
		}
		if kind == KindMembers {
			msg += "; here it has " + p.agent.names()
		}
		return w, errorf(kind, "", p, "it refused the connection: %s", msg)
	default:
		return w, protocolError("a frame of kind %d in answer to the hello", r.kind)
	}
	version := d.Uint()
	w.name, w.rank, w.id = string(d.Text()), d.Int(), string(d.Text())
	w.limit = int(min(d.Uint(), maxMessageLimit))
	switch {
	case d.Err() != nil || n < 5:
		return w, protocolError("a welcome that cannot be read: %v", d.Err())
	case version != wireVersion:
		return w, errorf(KindVersion, "", p, "it speaks version %d of the protocol, this agent version %d", version, wireVersion)
	case p.where.ID != "" && w.id != p.where.ID:
		return w, errorf(KindUnreachable, "", p, "another agent, %s, is at its address now", w.name)
	case p.rank >= 0 && w.name != p.name:
		return w, errorf(KindUnknownPeer, "", p, "the agent at its address is called %q", w.name)
	}
	return w, nil
}

// readHello reads a first frame.
func readHello(conn *transport.Conn) (*received, error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	kind, size, err := conn.ReadHeader(maxHello)
	if err != nil {
		return nil, err
	}
	r, err := readHeadOf(conn, kind, size)
	if err == nil {
		err = conn.Discard()
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return r, err
}

// acceptShared is accept for a peer that hands over memory to share.
func (a *Agent) acceptShared(conn *transport.Conn) {
	ctx, cancel := context.WithTimeout(a.ctx, helloTimeout)
	shared, err := transport.AcceptShared(ctx, conn)
	cancel()
	if err == nil {
		a.accept(shared)
	}
}

// accept answers a connection until it ends.
func (a *Agent) accept(conn *transport.Conn) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		conn.Close()
		return
	}
	a.opening[conn] = struct{}{}
	a.running.Add(1)
	a.mu.Unlock()
	defer a.running.Done()
	select {
	case <-a.opened:
	case <-a.ctx.Done():
	}
	s, err := a.greet(conn)
	a.mu.Lock()
	delete(a.opening, conn)
	if err == nil && !a.closed && s.peer.life == s.id { // else the peer has been started again meanwhile
		a.servers[s] = struct{}{}
	} else {
		a.mu.Unlock()
		conn.Close()
		return
	}
	a.mu.Unlock()
	s.serve()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.servers, s)
}

// greet reads a hello and answers it.
func (a *Agent) greet(conn *transport.Conn) (*serverLink, error) {
	r, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	defer r.release()
	if r.kind != frameHello {
		return nil, protocolError("a frame of kind %d in place of a hello", r.kind)
	}
	d := &r.dec
	n := d.Array()
	version := d.Uint()
	if d.Err() == nil && version != wireVersion {
		err := &Error{Kind: KindVersion, Msg: fmt.Sprintf("version %d of the protocol is not spoken here, version %d is", version, wireVersion)}
		return nil, a.turnAway(conn, err)
	}
	name, rank, id := string(d.Text()), d.Int(), string(d.Text())
	limit := int(min(d.Uint(), maxMessageLimit))
	to := string(d.Text())
	if d.Err() != nil || n < 6 || !agentName.MatchString(name) || limit < maxHello {
		return nil, a.turnAway(conn, protocolError("a hello that cannot be read").(*Error))
	}
	if to != "" && to != a.name {
		return nil, a.turnAway(conn, &Error{Kind: KindUnknownPeer, Msg: fmt.Sprintf("this is agent %q, not %q", a.name, to)})
	}
	if n > 6 && a.list != 0 {
		if list := d.Uint(); d.Err() == nil && list != a.list {
			return nil, a.turnAway(conn, &Error{Kind: KindMembers, Msg: "the lists of WithPeers differ, or their order does, which gives the ranks: there it has " + a.names()})
		}
	}
	p := a.guest(name, int(rank), id)
	if no := a.believe(p, id); no != nil {
		return nil, a.turnAway(conn, no)
	}
	m := newOutgoing(frameWelcome, a, nil)
	defer m.release(nil)
	e := &m.enc
	e.Array(5)
	e.Uint(wireVersion)
	e.Text(a.name)
	e.Int(int64(a.rank))
	e.Text(a.me.ID)
	e.Uint(uint64(a.maxMessage))
	if err := m.finish(maxHead); err != nil {
		return nil, err
	}
	if err := m.write(conn, nil); err != nil {
		return nil, err
	}
	conn.RetrySoon(time.Second)
	conn.GiveUpAfter(goneTime)
	s := &serverLink{agent: a, peer: p, id: id, life: fingerprint(id), conn: conn, limit: limit, active: map[uint64]*incoming{}}
	s.sender.conn, s.sender.lost, s.sender.patience, s.sender.bounded = conn, s.lose, a.timeout, true
	ctx := context.WithValue(a.ctx, callerKey{}, s)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s, nil
}

// guest returns the peer that a hello comes from: a member of the job, or a client.
func (a *Agent) guest(name string, rank int, id string) *Peer {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if p := a.byName[name]; p != nil && p.rank == rank && (p.where.ID == "" || p.where.ID == id) {
		return p
	}
	p := &Peer{agent: a, name: name, rank: -1, life: id}
	p.err = errorf(KindUnknownPeer, "", p, "it is a client, which serves nothing")
	return p
}

// turnAway tells a peer why it is not served.
func (a *Agent) turnAway(conn *transport.Conn, why *Error) error {
	m := newOutgoing(frameRefuse, a, nil)
	defer m.release(nil)
	m.enc.Array(2)
	m.enc.Text(string(why.Kind))
	m.enc.Text(why.Msg)
	if err := m.finish(maxHead); err != nil {
		return err
	}
	if err := m.write(conn, nil); err != nil {
		return err
	}
	return why
}
