// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

const (
	// helloTimeout is how long the peer may take for the first frame.
	helloTimeout = 10 * time.Second
	// goneTime is for how long a peer's machine may confirm nothing of what was sent to it.
	// Then the connection has ended: calls on it are lost, not late.
	goneTime = 30 * time.Second
)

// sayHello sends the first frame: [version, name, rank, id, limit, name of the peer], and
// with a list of agents the list's fingerprint.
func (e *Endpoint) sayHello(conn *transport.Conn, p *Peer, name string, rank int) error {
	m := wire.New(wire.FrameHello, nil)
	defer m.Release(nil)
	enc := &m.Enc
	items := 6
	if e.list != 0 {
		items++
	}
	enc.Array(items)
	enc.Uint(wire.Version)
	enc.Text(name)
	enc.Int(int64(rank))
	enc.Text(e.me.ID)
	enc.Uint(uint64(e.MaxMessage))
	if p.Rank < 0 {
		enc.Text("") // any agent is welcome
	} else {
		enc.Text(p.Name)
	}
	if e.list != 0 {
		enc.Uint(e.list)
	}
	return finishAndWrite(m, conn)
}

// finishAndWrite writes a frame of the handshake.
func finishAndWrite(m *wire.Outgoing, conn *transport.Conn) error {
	if err := m.Finish(wire.MaxHead); err != nil {
		return err
	}
	return m.Write(conn, nil)
}

// welcome is the answer to a hello.
type welcome struct {
	name  string
	rank  int64
	id    string
	limit int
	// Where else the agent listens; see [Endpoint.Visit].
	node, unix string
	shm        bool
}

func (p *Peer) readWelcome(conn *transport.Conn) (w welcome, err error) {
	r, err := readHello(conn)
	if err != nil {
		return w, err
	}
	defer r.Release()
	d := &r.Dec
	n := d.Array()
	switch r.Kind {
	case wire.FrameWelcome:
	case wire.FrameRefuse: // [kind, message]
		kind, msg := string(d.Text()), string(d.Text())
		if d.Err() != nil {
			return w, wire.Protocolf("a refusal that cannot be read")
		}
		if kind == wire.KindMembers {
			msg += "; here it has " + p.end.Names()
		}
		return w, p.errorf(kind, "it refused the connection: %s", msg)
	default:
		return w, wire.Protocolf("a frame of kind %d in answer to the hello", r.Kind)
	}
	version := d.Uint()
	w.name, w.rank, w.id = string(d.Text()), d.Int(), string(d.Text())
	w.limit = int(min(d.Uint(), wire.MaxMessage))
	if n >= 8 {
		w.node, w.unix, w.shm = string(d.Text()), string(d.Text()), d.Bool()
	}
	switch {
	case d.Err() != nil || n < 5:
		return w, wire.Protocolf("a welcome that cannot be read: %v", d.Err())
	case version != wire.Version:
		return w, p.errorf(wire.KindVersion, "it speaks version %d of the protocol, this agent version %d", version, wire.Version)
	case p.where.ID != "" && w.id != p.where.ID:
		return w, p.errorf(wire.KindUnreachable, "another agent, %s, is at its address now", w.name)
	case p.Rank >= 0 && w.name != p.Name:
		return w, p.errorf(wire.KindUnknownPeer, "the agent at its address is called %q", w.name)
	}
	return w, nil
}

// errorf makes an error about a peer.
func (p *Peer) errorf(kind, format string, args ...any) error {
	err := wire.Errorf(kind, format, args...)
	err.Peer, err.Rank = p.Name, p.Rank
	return err
}

// readHello reads a frame of the handshake.
func readHello(conn *transport.Conn) (*wire.Received, error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	kind, size, err := conn.ReadHeader(wire.MaxHello)
	if err != nil {
		return nil, err
	}
	r, err := wire.ReadHead(conn, kind, size)
	if err == nil {
		err = conn.Discard()
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return r, err
}

// acceptShared is accept for a peer that hands over memory to share.
func (e *Endpoint) acceptShared(conn *transport.Conn) {
	ctx, cancel := context.WithTimeout(e.Context, helloTimeout)
	shared, err := transport.AcceptShared(ctx, conn)
	cancel()
	if err == nil {
		e.accept(shared)
	}
}

// accept answers a connection until it ends.
func (e *Endpoint) accept(conn *transport.Conn) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		conn.Close()
		return
	}
	e.opening[conn] = struct{}{}
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()
	select {
	case <-e.answering:
	case <-e.Context.Done():
	}
	s, err := e.greet(conn)
	e.mu.Lock()
	delete(e.opening, conn)
	if err != nil || e.closed || s.Peer.life != s.id { // the peer may have been started again meanwhile
		e.mu.Unlock()
		conn.Close()
		return
	}
	s.server = e.handler.Serve(s)
	e.servers[s] = struct{}{}
	e.mu.Unlock()
	s.serve()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.servers, s)
}

// greet reads a hello and answers it.
func (e *Endpoint) greet(conn *transport.Conn) (*ServerConn, error) {
	r, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if r.Kind != wire.FrameHello {
		return nil, wire.Protocolf("a frame of kind %d in place of a hello", r.Kind)
	}
	p, id, limit, no := e.readGuest(r)
	if no != nil {
		return nil, turnAway(conn, no)
	}
	m := wire.New(wire.FrameWelcome, nil)
	defer m.Release(nil)
	enc := &m.Enc
	enc.Array(8)
	enc.Uint(wire.Version)
	enc.Text(e.Name)
	enc.Int(int64(e.Rank))
	enc.Text(e.me.ID)
	enc.Uint(uint64(e.MaxMessage))
	enc.Text(e.me.Node) // where else it listens, for agents of its host that visit it
	enc.Text(e.me.Unix)
	enc.Bool(e.me.Shm)
	if err := finishAndWrite(m, conn); err != nil {
		return nil, err
	}
	conn.RetrySoon(time.Second)
	conn.GiveUpAfter(goneTime)
	s := &ServerConn{Peer: p, Life: wire.Fingerprint(id), Limit: limit, end: e, id: id, conn: conn}
	s.Reader.conn = conn
	s.Sender.conn, s.Sender.lost, s.Sender.patience, s.Sender.bounded = conn, s.Lose, e.Patience, true
	return s, nil
}

// readGuest reads a hello and returns the peer that it comes from, the id of its process,
// and its limit for messages. no is for the peer to read.
func (e *Endpoint) readGuest(r *wire.Received) (p *Peer, id string, limit int, no *wire.Error) {
	d := &r.Dec
	n := d.Array()
	version := d.Uint()
	if d.Err() == nil && version != wire.Version {
		return nil, "", 0, wire.Errorf(wire.KindVersion, "version %d of the protocol is not spoken here, version %d is", version, wire.Version)
	}
	name, rank := string(d.Text()), d.Int()
	id, limit = string(d.Text()), int(min(d.Uint(), wire.MaxMessage))
	to := string(d.Text())
	if d.Err() != nil || n < 6 || !ValidName(name) || limit < wire.MaxHello {
		return nil, "", 0, wire.Errorf(wire.KindProtocol, "a hello that cannot be read")
	}
	if to != "" && to != e.Name {
		return nil, "", 0, wire.Errorf(wire.KindUnknownPeer, "this is agent %q, not %q", e.Name, to)
	}
	if n > 6 && e.list != 0 {
		if list := d.Uint(); d.Err() == nil && list != e.list {
			return nil, "", 0, wire.Errorf(wire.KindMembers, "the lists of WithPeers differ in their names or in their order, which gives the ranks: there it has %s", e.Names())
		}
	}
	p = e.guest(name, int(rank), id)
	if no := e.believe(p, id); no != nil {
		return nil, "", 0, no
	}
	return p, id, limit, nil
}

// guest returns the peer that a hello comes from: a member of the job, or a client.
func (e *Endpoint) guest(name string, rank int, id string) *Peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if p := e.byName[name]; p != nil && p.Rank == rank && (p.where.ID == "" || p.where.ID == id) {
		return p
	}
	return &Peer{Name: name, Rank: -1, end: e, life: id}
}

// turnAway tells a peer why it is not served.
func turnAway(conn *transport.Conn, why *wire.Error) error {
	m := wire.New(wire.FrameRefuse, nil)
	defer m.Release(nil)
	m.Enc.Array(2)
	m.Enc.Text(why.Kind)
	m.Enc.Text(why.Msg)
	if err := finishAndWrite(m, conn); err != nil {
		return err
	}
	return why
}
