// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// inlineLimit is how many bytes may be on their way to a rank that does not read at the
	// moment. Up to that size a rank can send and then receive. It is less where sockets
	// have smaller buffers than usual.
	inlineLimit = 16 << 10
	// inlinePart is the part of a connection's buffers, at both ends, that can be relied
	// on: small pieces take much more room there than their bytes.
	inlinePart = 8
)

// inlineRoom returns how many bytes may be on their way over a connection. It assumes that
// the peer's buffers are as large as this rank's.
func inlineRoom(conn *transport.Conn) int {
	out, in := conn.Buffers()
	if out+in == 0 { // not known
		return inlineLimit
	}
	return min(inlineLimit, (out+in)/inlinePart)
}

// prepare implements [link]. It opens the outgoing connections. The first receive from a peer
// waits for the peer's connection (see incomingFrom), after this rank has sent what it could.
// A rank that waited here for an absent one would keep others waiting, and they would blame
// it.
//
// All sends fit if those over each connection are few bytes, and those through each pipe are
// no more than its slots. A pipe may still hold pieces of the previous call. That does no
// harm: the ranks that are furthest behind find nothing older in their pipes, so that one of
// them can always go on.
func (m *Mesh) prepare(ctx context.Context, c *operation.Call, p *collective.Plan) (release func(), fits bool, err error) {
	w := m.watch.begin(ctx, c, true)
	w.quiet = len(p.Recvs) == 0
	release = func() { m.watch.end(w) }
	if err := m.anyDeserted(c); err != nil {
		release()
		return nil, false, err
	}
	if m.carrier != nil {
		m.running = w
		m.stopOf(w)
		return release, len(p.Recvs) == 0, nil
	}
	fits = true
	total, size := 0, c.DType.Size()
	for i := range p.Sends {
		to := p.Sends[i].To
		if m.localOf[to] >= 0 {
			if m.links[to]++; m.links[to] > numSlots {
				fits = false
			}
			continue
		}
		total += p.Sends[i].Len()*size + callSize
		if m.to[to] == nil {
			if m.to[to], err = m.connect(ctx, c, way{to, forCollectives}); err != nil {
				release()
				return nil, false, err
			}
			m.inline = min(m.inline, inlineRoom(m.to[to]))
		}
		w.uses(m.to[to])
	}
	for i := range p.Sends {
		m.links[p.Sends[i].To] = 0
	}
	for i := range p.Recvs {
		from := p.Recvs[i].From
		if m.from[from] != nil {
			w.uses(m.from[from])
		}
	}
	m.running = w
	return release, fits && total <= m.inline, nil
}

// incomingFrom returns the connection on which a peer sends its pieces, for the collective
// under way. culprit is the rank to name as missing if no connection comes.
func (m *Mesh) incomingFrom(ctx context.Context, c *operation.Call, peer, culprit int) (*transport.Conn, error) {
	if conn := m.from[peer]; conn != nil {
		return conn, nil
	}
	conn, err := m.accept(ctx, c, way{peer, forCollectives}, culprit)
	if err != nil {
		return nil, err
	}
	m.from[peer] = conn
	m.running.uses(conn)
	return conn, nil
}

// connect opens a connection to a peer.
func (m *Mesh) connect(ctx context.Context, c *operation.Call, w way) (*transport.Conn, error) {
	limit, cancel := m.cfg.withLimit(ctx, c)
	defer cancel()
	defer context.AfterFunc(m.whole, cancel)()
	conn, err := m.dialWhole(limit, w)
	switch {
	case err == nil:
	case err == errCut:
		return nil, m.cfg.faultError(c, w.peer, kindSilent, m.cutText(m.cfg.dialLimit()))
	case limit.Err() != nil && m.whole.Err() == nil:
		return nil, m.broken(ctx, c, w.peer, w.peer, errLate)
	default:
		return nil, m.broken(ctx, c, w.peer, w.peer, err)
	}
	if !m.keep(conn, w.peer) {
		return nil, m.explain(c, w.peer, fault.ErrClosed)
	}
	return conn, nil
}

// accept returns the connection from a peer, which opens it when it first has something to
// send. culprit is the rank to name as missing if no connection comes.
func (m *Mesh) accept(ctx context.Context, c *operation.Call, w way, culprit int) (*transport.Conn, error) {
	limit, cancel := m.cfg.withLimit(ctx, c)
	defer cancel()
	came := m.waitingFor(w)
	for {
		m.mu.Lock()
		failed, left, news := m.fault, m.left[w.peer], m.news
		m.mu.Unlock()
		select {
		case conn := <-came:
			return conn, nil
		default:
		}
		if failed != nil {
			return nil, m.explain(c, w.peer, fault.ErrLeft)
		}
		var gone <-chan time.Time
		if left { // but what it opened before may still be on its way in
			gone = time.After(newsPatience)
		}
		select {
		case conn := <-came:
			return conn, nil
		case <-news:
		case <-gone:
			return nil, m.explain(c, w.peer, fault.ErrLeft)
		case <-limit.Done():
			return nil, m.broken(ctx, c, w.peer, culprit, errLate)
		}
	}
}

// messagesTo and messagesFrom return the connections of messages with a peer.
func (m *Mesh) messagesTo(ctx context.Context, c *operation.Call, peer int) (*transport.Conn, error) {
	m.mu.Lock()
	conn := m.outgoing[peer]
	m.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	conn, err := m.connect(ctx, c, way{peer, forMessages})
	if err == nil {
		m.mu.Lock()
		m.outgoing[peer] = conn
		m.mu.Unlock()
	}
	return conn, err
}

func (m *Mesh) messagesFrom(ctx context.Context, c *operation.Call, peer int) (*transport.Conn, error) {
	if conn := m.arrived(peer); conn != nil {
		return conn, nil
	}
	conn, err := m.accept(ctx, c, way{peer, forMessages}, peer)
	if err == nil {
		m.mu.Lock()
		m.incoming[peer] = conn
		m.mu.Unlock()
	}
	return conn, err
}

// arrived returns the connection for messages that a peer has opened, nil if there is none.
func (m *Mesh) arrived(peer int) *transport.Conn {
	came := m.waitingFor(way{peer, forMessages})
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case conn := <-came:
		m.incoming[peer] = conn
	default:
	}
	return m.incoming[peer]
}

// fromLocal returns the error of a call from the error of the Shm inside. If a fault of the
// mesh has ended the wait there, it is the mesh's error.
func (m *Mesh) fromLocal(c *operation.Call, peer int, err error) error {
	if err == nil {
		return nil
	}
	m.mu.Lock()
	failed := m.fault
	m.mu.Unlock()
	var late *fault.TimeoutError
	var mismatch *fault.MismatchError
	if errors.As(err, &mismatch) {
		for _, call := range []*operation.Call{&mismatch.Here.Call, &mismatch.There.Call} {
			if call.Op == operation.Send || call.Op == operation.Recv {
				call.Root = m.local.cfg.Members[call.Root].Rank
			}
		}
		return err
	}
	switch {
	case failed != nil:
		return m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
	case errors.As(err, &late) || m.local.seg == nil:
		return err
	}
	if _, _, _, failed := m.local.seg.fault(); failed {
		return m.explain(c, peer, err)
	}
	var gone *fault.RankError
	if errors.As(err, &gone) && errors.Is(err, fault.ErrLeft) { // the star knows why
		return m.explain(c, gone.Rank, err)
	}
	return err
}
