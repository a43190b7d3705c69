// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// messagePiece is the bytes of a frame of a message.
	messagePiece = 1 << 20
	// inlineLimit is what may be on its way to a rank that does not read at
	// the moment: below it a rank can send and then receive.
	inlineLimit = 16 << 10
)

// Collective implements [collective.Backend].
func (r *Ring) Collective(ctx context.Context, c collective.Call, in, out collective.Data) error {
	if err := r.usable(&c); err != nil {
		return err
	}
	if err := r.collective(ctx, &c, in, out); err != nil {
		return r.fail(err)
	}
	return nil
}

func (r *Ring) collective(ctx context.Context, c *collective.Call, in, out collective.Data) error {
	p, err := collective.PlanFor(c, r.cfg.Rank, r.cfg.Topology, r.cfg.Options)
	if err != nil {
		return err
	}
	return r.run(ctx, c, &p, in.Bytes(), out.Bytes())
}

// run runs a plan. Ranks whose calls differ find out by the first piece that
// comes round the ring; where nothing would come, something is sent.
func (r *Ring) run(ctx context.Context, c *collective.Call, p *collective.Plan, in, out []byte) error {
	if p.OffRing {
		check := collective.RingBarrier(r.n, r.cfg.Rank)
		if err := r.exec.run(ctx, r, c, &check, nil, nil); err != nil {
			return err
		}
	}
	return r.exec.run(ctx, r, c, p, in, out)
}

// prepare implements [link]. Every rank opens its outgoing connections before
// it waits for those that come.
func (r *Ring) prepare(ctx context.Context, c *collective.Call, p *collective.Plan) (release func(), fits bool, err error) {
	if !p.OffRing {
		total := 0
		for _, s := range p.Sends {
			total += s.Len()*c.DType.Size() + callSize
		}
		return r.bound(ctx, r.next, r.prev), total <= inlineLimit, nil
	}
	var conns []*transport.Conn
	use := func(conn *transport.Conn, err error) error {
		if err == nil && !slices.Contains(conns, conn) {
			conns = append(conns, conn)
		}
		return err
	}
	total, last := 0, -1
	for _, s := range p.Sends {
		total += s.Len()*c.DType.Size() + callSize
		if s.To != last {
			if err := use(r.connTo(ctx, c, way{s.To, forCollectives})); err != nil {
				return nil, false, err
			}
		}
		last = s.To
	}
	last = -1
	for _, v := range p.Recvs {
		if v.From != last {
			if err := use(r.connFrom(ctx, c, way{v.From, forCollectives})); err != nil {
				return nil, false, err
			}
		}
		last = v.From
	}
	return r.bound(ctx, conns...), total <= inlineLimit, nil
}

// sendPiece implements [link].
func (r *Ring) sendPiece(ctx context.Context, c *collective.Call, to int, data []byte) error {
	conn := r.next
	if to != (r.cfg.Rank+1)%r.n {
		conn = r.opened(r.outgoing, to)
	}
	if err := r.writePiece(conn, c, data); err != nil {
		return r.broken(ctx, c, to, to, err)
	}
	return nil
}

// recvPiece implements [link].
func (r *Ring) recvPiece(ctx context.Context, c *collective.Call, from, culprit int, into []byte, reduce collective.Reducer) error {
	conn := r.prev
	if from != (r.cfg.Rank+r.n-1)%r.n {
		conn = r.opened(r.incoming, from)
	}
	if err := r.readCall(conn, c, from, c.Matches, len(into)); err != nil {
		return r.pieceError(ctx, c, from, culprit, err)
	}
	to := into
	if reduce != nil {
		if r.in == nil {
			r.in = aligned(collective.PieceBytes)
		}
		to = r.in[:len(into)]
	}
	if err := late(conn.ReadPayload(to)); err != nil {
		return r.broken(ctx, c, from, culprit, err)
	}
	if reduce != nil {
		reduce(into, to)
	}
	return nil
}

// opened returns a connection off the ring that prepare has opened.
func (r *Ring) opened(conns map[way]*transport.Conn, peer int) *transport.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return conns[way{peer, forCollectives}]
}

// writePiece writes a frame: the call, then data.
func (r *Ring) writePiece(conn *transport.Conn, c *collective.Call, data []byte) error {
	var head [callSize]byte
	return late(conn.WriteFrame(frameData, appendCall(head[:0], c), data))
}

// readCall reads the head of a frame, whose data is to be want bytes, and the
// call of the peer, which must match.
func (r *Ring) readCall(conn *transport.Conn, c *collective.Call, peer int, matches func(*collective.Call) bool, want int) error {
	kind, length, err := conn.ReadHeader(callSize + messagePiece)
	if err != nil {
		return late(err)
	}
	if kind != frameData || length < callSize {
		return &protocolError{fmt.Errorf("a frame of kind %d and %d bytes", kind, length)}
	}
	var head [callSize]byte
	if err := conn.ReadPayload(head[:]); err != nil {
		return late(err)
	}
	there, err := parseCall(head[:])
	if err != nil {
		return &protocolError{err}
	}
	if !matches(&there) {
		return &collective.MismatchError{Group: r.cfg.Group, Seq: c.Seq,
			Here: collective.RankCall{Rank: r.cfg.Rank, Call: *c}, There: collective.RankCall{Rank: peer, Call: there}}
	}
	if length != callSize+want {
		return &protocolError{fmt.Errorf("a piece of %d bytes, want %d", length-callSize, want)}
	}
	return nil
}

// protocolError is a frame that no rank would send.
type protocolError struct{ err error }

func (e *protocolError) Error() string { return "broke the protocol: " + e.err.Error() }

// pieceError returns the error of a call from that of readCall.
func (r *Ring) pieceError(ctx context.Context, c *collective.Call, peer, missing int, err error) error {
	var mismatch *collective.MismatchError
	var protocol *protocolError
	switch {
	case errors.As(err, &mismatch):
		return err
	case errors.As(err, &protocol):
		return r.cfg.faultError(c, peer, kindFailed, err.Error())
	}
	return r.broken(ctx, c, peer, missing, err)
}

// late marks the error of a connection that has run into its deadline.
func late(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errLate
	}
	return err
}

// Send implements [collective.Backend]. It returns when the system has taken the
// message.
func (r *Ring) Send(ctx context.Context, c collective.Call, data collective.Data) error {
	if err := r.usable(&c); err != nil {
		return err
	}
	if err := r.send(ctx, &c, data.Bytes()); err != nil {
		return r.fail(err)
	}
	return nil
}

func (r *Ring) send(ctx context.Context, c *collective.Call, data []byte) error {
	peer := c.Root
	conn, err := r.connTo(ctx, c, way{peer, forMessages})
	if err != nil {
		return err
	}
	defer r.bound(ctx, conn)()
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), messagePiece)
		if err := r.writePiece(conn, c, data[:n]); err != nil {
			return r.broken(ctx, c, peer, peer, err)
		}
		data = data[n:]
	}
	return nil
}

// Recv implements [collective.Backend].
func (r *Ring) Recv(ctx context.Context, c collective.Call, data collective.Data) error {
	if err := r.usable(&c); err != nil {
		return err
	}
	if err := r.recv(ctx, &c, data.Bytes()); err != nil {
		return r.fail(err)
	}
	return nil
}

func (r *Ring) recv(ctx context.Context, c *collective.Call, data []byte) error {
	peer := c.Root
	conn, err := r.connFrom(ctx, c, way{peer, forMessages})
	if err != nil {
		return err
	}
	defer r.bound(ctx, conn)()
	matches := func(there *collective.Call) bool {
		return there.Op == collective.OpSend && there.Root == r.cfg.Rank && there.DType == c.DType && there.Count == c.Count && there.Seq == c.Seq
	}
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), messagePiece)
		if err := r.readCall(conn, c, peer, matches, n); err != nil {
			return r.pieceError(ctx, c, peer, peer, err)
		}
		if err := late(conn.ReadPayload(data[:n])); err != nil {
			return r.broken(ctx, c, peer, peer, err)
		}
		data = data[n:]
	}
	return nil
}

// anyGlance is how long a receive from any rank looks at one connection.
const anyGlance = 50 * time.Microsecond

// AwaitAny implements [collective.Backend]: it looks at the connections from
// all peers in turn.
func (r *Ring) AwaitAny(ctx context.Context, c collective.Call) (src int, err error) {
	if err := r.usable(&c); err != nil {
		return 0, err
	}
	start := time.Now()
	for {
		for i := 1; i < r.n; i++ {
			peer := (r.cfg.Rank + i) % r.n
			conn := r.arrived(way{peer, forMessages})
			if conn == nil {
				continue
			}
			_ = conn.SetReadDeadline(time.Now().Add(anyGlance))
			begun, err := conn.Begun()
			if begun {
				return peer, nil
			}
			if err != nil && !r.hasGone(peer) {
				return 0, r.fail(r.explain(&c, peer, err))
			}
		}
		if err := r.troubleWithAll(ctx, &c, start); err != nil {
			return 0, r.fail(err)
		}
		timer := time.NewTimer(anyPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// arrived returns the connection that a peer has opened, nil if it has not.
func (r *Ring) arrived(w way) *transport.Conn {
	came := r.waitingFor(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case conn := <-came:
		r.incoming[w] = conn
	default:
	}
	return r.incoming[w]
}

func (r *Ring) hasGone(peer int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left[peer]
}

// troubleWithAll returns why waiting for a message from any peer is in vain,
// nil if it is not.
func (r *Ring) troubleWithAll(ctx context.Context, c *collective.Call, start time.Time) error {
	r.mu.Lock()
	fault, numLeft := r.fault, len(r.left)
	r.mu.Unlock()
	others := append([]collective.Member(nil), r.cfg.Members[:r.cfg.Rank]...)
	others = append(others, r.cfg.Members[r.cfg.Rank+1:]...)
	cause := ctx.Err()
	switch {
	case fault != nil:
		return r.cfg.faultError(c, fault.rank, fault.kind, fault.text)
	case numLeft == r.n-1:
		return r.cfg.faultError(c, others[0].Rank, kindLeft, "")
	case cause != nil:
		cause = context.Cause(ctx)
	case time.Since(start) >= r.cfg.Timeout:
		cause = fmt.Errorf("the group's limit of %v: %w", r.cfg.Timeout, context.DeadlineExceeded)
	default:
		return nil
	}
	return &collective.TimeoutError{Group: r.cfg.Group, Op: c.Op.String(), Seq: c.Seq, Missing: others, Cause: cause}
}
