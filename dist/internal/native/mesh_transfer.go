// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// messagePiece is the bytes of a frame of a message.
const messagePiece = 1 << 20

// Collective implements [backend.Communicator].
func (m *Mesh) Collective(ctx context.Context, c operation.Call, in, out collective.Data) error {
	if err := m.usable(&c); err != nil {
		return err
	}
	err := m.remember(&c)
	switch {
	case err != nil:
	case m.carrier != nil:
		err = m.carry(ctx, &c, in, out)
	default:
		err = m.exec.execute(ctx, m, &m.cfg, &c, in.Bytes(), out.Bytes())
	}
	if err != nil {
		return m.fail(err)
	}
	return nil
}

// remember adds a call to the history of this rank's calls. Ranks whose calls differ find
// out by the first piece that comes, or by the history: a rank that waits for long tells
// the others its call (see watchdog.go).
func (m *Mesh) remember(c *operation.Call) error {
	fit, err := m.past.add(&m.cfg, c)
	if err == nil && fit > 0 {
		m.star.fits(fit)
	}
	return err
}

// sendPiece implements [link].
func (m *Mesh) sendPiece(ctx context.Context, c *operation.Call, to int, data []byte) error {
	if n := c.HasFor(to); n != c.Count {
		m.dealt = *c
		m.dealt.Count = n
		c = &m.dealt
	}
	if m.carrier != nil {
		return m.framedError(ctx, c, to, to, m.sendFramed(m.stopOf(m.running), c, to, PieceHeads, Pieces, data))
	}
	if i := m.localOf[to]; i >= 0 {
		return m.fromLocal(c, to, m.local.sendPiece(ctx, c, i, data))
	}
	if err := writePiece(m.to[to], c, data); err != nil {
		return m.broken(ctx, c, to, to, err)
	}
	m.given.Add(int64(len(data)))
	return nil
}

// recvPiece implements [link].
func (m *Mesh) recvPiece(ctx context.Context, c *operation.Call, from, culprit int, into []byte, reduce collective.Reducer) error {
	if i := m.localOf[from]; i >= 0 {
		err := m.local.recvPiece(ctx, c, i, i, into, reduce)
		var late *fault.TimeoutError
		if errors.As(err, &late) {
			late.Missing = []fault.Member{m.cfg.Members[culprit]}
		}
		return m.fromLocal(c, from, err)
	}
	to := into
	if reduce != nil {
		if m.in == nil {
			m.in = aligned(collective.PieceBytes)
		}
		to = m.in[:len(into)]
	}
	if m.carrier != nil {
		err := m.recvFramed(m.stopOf(m.running), c, from, PieceHeads, Pieces, c.Matches, to)
		if err == nil && reduce != nil {
			reduce(into, to)
		}
		return m.framedError(ctx, c, from, culprit, err)
	}
	conn, err := m.incomingFrom(ctx, c, from, culprit)
	if err != nil {
		return err
	}
	if err := m.readCall(conn, c, from, c.Matches, len(into)); err != nil {
		return m.pieceError(ctx, c, from, culprit, err)
	}
	if err := late(conn.ReadPayload(to)); err != nil {
		return m.broken(ctx, c, from, culprit, err)
	}
	if reduce != nil {
		reduce(into, to)
	}
	return nil
}

// writePiece writes a frame: the call, then data.
func writePiece(conn *transport.Conn, c *operation.Call, data []byte) error {
	var head [callSize]byte
	return late(conn.WriteFrame(frameData, appendCall(head[:0], c), data))
}

// readCall reads the head of a frame: the peer's call, which must match. The frame's data must
// have want bytes.
func (m *Mesh) readCall(conn *transport.Conn, c *operation.Call, peer int, matches func(*operation.Call) bool, want int) error {
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
		return m.mismatch(c, peer, there)
	}
	if want, own := c.Wants(peer); own && there.Count != want {
		return parcelError(m.mismatch(c, peer, there), there.Count, want)
	}
	if length != callSize+want {
		return &protocolError{fmt.Errorf("a piece of %d bytes, want %d", length-callSize, want)}
	}
	return nil
}

// protocolError says that a peer has sent a frame that no rank would send.
type protocolError struct{ err error }

func (e *protocolError) Error() string { return "broke the protocol: " + e.err.Error() }

// pieceError returns the error of a call from the error of readCall.
func (m *Mesh) pieceError(ctx context.Context, c *operation.Call, peer, missing int, err error) error {
	var mismatch *fault.MismatchError
	var protocol *protocolError
	switch {
	case errors.As(err, &mismatch):
		return err
	case errors.As(err, &protocol):
		return m.cfg.faultError(c, peer, kindFailed, err.Error())
	}
	return m.broken(ctx, c, peer, missing, err)
}

// late replaces the error of a connection whose deadline has passed by errLate.
func late(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errLate
	}
	return err
}

// Send implements [backend.Communicator]. Over a connection it returns when the
// system has taken the message.
func (m *Mesh) Send(ctx context.Context, c operation.Call, data collective.Data) error {
	peer := c.Root
	if err := m.usable(&c); err != nil {
		return err
	}
	if err := m.send(ctx, &c, data); err != nil {
		err = m.fail(err)
		if i := m.localOf[peer]; i >= 0 {
			m.local.Report(m.local.cfg.Rank, kindFailed, meshFailed) // if nobody has yet
			m.local.awaitTaken(i)
		}
		return err
	}
	return nil
}

func (m *Mesh) send(ctx context.Context, c *operation.Call, d collective.Data) error {
	peer := c.Root
	if i := m.localOf[peer]; i >= 0 {
		c.Root = i // as the Shm inside numbers its ranks
		return m.fromLocal(c, peer, m.local.send(ctx, c, &d))
	}
	if m.carrier != nil {
		return m.sendCarried(ctx, c, d.Bytes())
	}
	conn, err := m.messagesTo(ctx, c, peer)
	if err != nil {
		return err
	}
	w := m.watch.begin(ctx, c, false)
	defer m.watch.end(w)
	w.uses(conn)
	data := d.Bytes()
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), messagePiece)
		if err := writePiece(conn, c, data[:n]); err != nil {
			return m.broken(ctx, c, peer, peer, err)
		}
		m.given.Add(int64(n))
		data = data[n:]
	}
	return nil
}

// Sent implements [backend.Meter].
func (m *Mesh) Sent() int64 {
	sum := m.given.Load()
	if m.local != nil {
		sum += m.local.Sent()
	}
	return sum
}

// Sends implements [backend.Meter]. The plan of the call says it, wherever its data lies.
func (m *Mesh) Sends(c *operation.Call, _ bool) (int64, error) {
	if m.carrier != nil && m.carrier.Moves(c) {
		return 0, fmt.Errorf("dist: %v of group %q: what it sends is not known: %s chooses the algorithm", c, m.cfg.Group, m.carrier)
	}
	p, err := collective.PlanFor(c, m.cfg.Rank, m.cfg.Topology, m.cfg.Options)
	if err != nil {
		return 0, err
	}
	sum := 0
	for i := range p.Sends {
		sum += p.Sends[i].Len() * c.DType.Size()
	}
	return int64(sum), nil
}

// Recv implements [backend.Communicator].
func (m *Mesh) Recv(ctx context.Context, c operation.Call, data collective.Data) error {
	if err := m.usable(&c); err != nil {
		return err
	}
	if err := m.recv(ctx, &c, data); err != nil {
		return m.fail(err)
	}
	return nil
}

func (m *Mesh) recv(ctx context.Context, c *operation.Call, d collective.Data) error {
	peer := c.Root
	if i := m.localOf[peer]; i >= 0 {
		c.Root = i
		return m.fromLocal(c, peer, m.local.recv(ctx, c, &d))
	}
	matches := func(there *operation.Call) bool {
		return there.Op == operation.Send && there.Root == m.cfg.Rank && there.DType == c.DType && there.Count == c.Count && there.Seq == c.Seq
	}
	if m.carrier != nil {
		return m.recvCarried(ctx, c, d.Bytes(), matches)
	}
	conn, err := m.messagesFrom(ctx, c, peer)
	if err != nil {
		return err
	}
	w := m.watch.begin(ctx, c, false)
	defer m.watch.end(w)
	w.uses(conn)
	data := d.Bytes()
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), messagePiece)
		if err := m.readCall(conn, c, peer, matches, n); err != nil {
			return m.pieceError(ctx, c, peer, peer, err)
		}
		if err := late(conn.ReadPayload(data[:n])); err != nil {
			return m.broken(ctx, c, peer, peer, err)
		}
		data = data[n:]
	}
	return nil
}

// mismatch returns the error of a rank that has called something else. If its piece has an
// earlier number than the one that this rank waits for, the two ranks' calls of that earlier
// number differ.
func (m *Mesh) mismatch(c *operation.Call, peer int, there operation.Call) *fault.MismatchError {
	mine := *c
	var parcel *fault.Parcel
	if !isMessage(c) && there.Seq < c.Seq {
		if then, ok := m.past.call(there.Seq); ok && !then.Matches(&there) {
			mine = then
		} else if ok { // more than it was to send
			if want, own := then.Wants(peer); own {
				mine, parcel = then, &fault.Parcel{From: peer, To: m.cfg.Rank, Have: there.Count, Want: want}
			}
		}
	} else if !isMessage(c) && there.Seq > c.Seq {
		// It has gone on without a word: it had nothing for this rank, or has
		// called something else, as it will say.
		if want, own := c.Wants(peer); own {
			there = *c
			there.Count, there.Parts, there.Recvs = 0, nil, nil
			parcel = &fault.Parcel{From: peer, To: m.cfg.Rank, Want: want}
		}
	}
	return &fault.MismatchError{Group: m.cfg.Group, Seq: mine.Seq, Parcel: parcel,
		Here: fault.RankCall{Rank: m.cfg.Rank, Call: mine}, There: fault.RankCall{Rank: peer, Call: there}}
}
