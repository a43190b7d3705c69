// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// ringPiece is the bytes of a frame: reduced while the next one comes.
	ringPiece = 256 << 10
	// messagePiece is the bytes of a frame of a message.
	messagePiece = 1 << 20
	// inlineLimit is what may be on its way to a rank that does not read at
	// the moment: below it a rank can send and then receive.
	inlineLimit = 16 << 10
	// gatherLimit is up to where an all-reduce gathers everybody's data and
	// reduces for itself, which takes half as many steps round the ring.
	gatherLimit = 8 << 10
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
	me, size := r.cfg.Rank, c.DType.Size()
	switch {
	case c.Op == collective.OpBarrier || c.Count == 0:
		return r.execute(ctx, c, collective.RingBarrier(r.n, me), nil, nil, 1)
	case c.Op == collective.OpAllGather:
		copy(out.Bytes()[me*c.Count*size:], in.Bytes())
		return r.execute(ctx, c, collective.RingAllGather(r.n, me, c.Count, ringPiece/size), out.Bytes(), nil, size)
	case c.Op == collective.OpBroadcast:
		return r.execute(ctx, c, collective.RingBroadcast(r.n, me, c.Root, c.Count, ringPiece/size), out.Bytes(), nil, size)
	case c.Op == collective.OpAllReduce:
		reduce, err := collective.ReducerFor(c.Reduce, c.DType)
		if err != nil {
			return err
		}
		if c.Count*size*r.n <= gatherLimit {
			return r.reduceGathered(ctx, c, out.Bytes(), reduce)
		}
		p := collective.RingAllReduce(r.n, me, c.Count, max(1, shareAlign/size), ringPiece/size)
		return r.execute(ctx, c, p, out.Bytes(), reduce, size)
	}
	return fmt.Errorf("dist: no collective %v", c.Op)
}

// reduceGathered gathers the data of all ranks and reduces it in rank order.
func (r *Ring) reduceGathered(ctx context.Context, c *collective.Call, data []byte, reduce collective.Reducer) error {
	if r.all == nil {
		r.all = aligned(gatherLimit)
	}
	all := r.all[:r.n*len(data)]
	copy(all[r.cfg.Rank*len(data):], data)
	p := collective.RingAllGather(r.n, r.cfg.Rank, c.Count, c.Count)
	if err := r.execute(ctx, c, p, all, nil, c.DType.Size()); err != nil {
		return err
	}
	copy(data, all)
	for i := 1; i < r.n; i++ {
		reduce(data, all[i*len(data):][:len(data)])
	}
	return nil
}

// execute runs a plan on data whose elements have size bytes.
func (r *Ring) execute(ctx context.Context, c *collective.Call, p collective.Plan, data []byte, reduce collective.Reducer, size int) error {
	release := r.bound(ctx, r.next, r.prev)
	defer release()
	total := 0
	for _, s := range p.Sends {
		total += s.Len()*size + callSize
	}
	if total <= inlineLimit {
		return r.executeInline(ctx, c, p, data, reduce, size)
	}
	progress := make(chan struct{}, len(p.Recvs)) // a token for each receive
	sent := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		received := 0
		for _, s := range p.Sends {
			for received < s.After {
				select {
				case <-progress:
					received++
				case <-stop:
					sent <- nil
					return
				}
			}
			if err := r.sendPiece(ctx, c, s, data, size); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for _, v := range p.Recvs {
		if err := r.recvPiece(ctx, c, v, data, reduce, size); err != nil {
			// The sender ends with the connections, or has ended.
			close(stop)
			_ = r.fail(err)
			<-sent
			return err
		}
		progress <- struct{}{}
	}
	return <-sent
}

// executeInline runs a plan whose sends fit the connection's buffers.
func (r *Ring) executeInline(ctx context.Context, c *collective.Call, p collective.Plan, data []byte, reduce collective.Reducer, size int) error {
	next := 0
	for received := 0; ; received++ {
		for next < len(p.Sends) && p.Sends[next].After <= received {
			if err := r.sendPiece(ctx, c, p.Sends[next], data, size); err != nil {
				return err
			}
			next++
		}
		if received == len(p.Recvs) {
			return nil
		}
		if err := r.recvPiece(ctx, c, p.Recvs[received], data, reduce, size); err != nil {
			return err
		}
	}
}

func (r *Ring) sendPiece(ctx context.Context, c *collective.Call, s collective.Send, data []byte, size int) error {
	if err := r.writePiece(r.next, c, data[s.Lo*size:s.Hi*size]); err != nil {
		next := (r.cfg.Rank + 1) % r.n
		return r.broken(ctx, c, next, next, err)
	}
	return nil
}

// writePiece writes a frame: the call, then data.
func (r *Ring) writePiece(conn *transport.Conn, c *collective.Call, data []byte) error {
	var head [callSize]byte
	return late(conn.WriteFrame(frameData, appendCall(head[:0], c), data))
}

func (r *Ring) recvPiece(ctx context.Context, c *collective.Call, v collective.Recv, data []byte, reduce collective.Reducer, size int) error {
	prev := (r.cfg.Rank + r.n - 1) % r.n
	if err := r.readCall(r.prev, c, prev, c.Matches, v.Len()*size); err != nil {
		return r.pieceError(ctx, c, prev, v.From, err)
	}
	into := data[v.Lo*size : v.Hi*size]
	if v.Reduce {
		if r.in == nil {
			r.in = aligned(ringPiece)
		}
		into = r.in[:len(into)]
	}
	if err := late(r.prev.ReadPayload(into)); err != nil {
		return r.broken(ctx, c, prev, v.From, err)
	}
	if v.Reduce {
		reduce(data[v.Lo*size:v.Hi*size], into)
	}
	return nil
}

// readCall reads the head of a frame, whose data is to be want bytes, and the
// call of the peer, which must match.
func (r *Ring) readCall(conn *transport.Conn, c *collective.Call, peer int, matches func(collective.Call) bool, want int) error {
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
	if !matches(there) {
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
	r.mu.Lock()
	conn := r.outgoing[peer]
	r.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = r.dial(ctx, peer, forMessages); err != nil {
			return r.explain(c, peer, err)
		}
		if !r.keep(conn) {
			return r.explain(c, peer, collective.ErrClosed)
		}
		r.mu.Lock()
		r.outgoing[peer] = conn
		r.mu.Unlock()
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
	conn, err := r.incomingFrom(ctx, c, peer)
	if err != nil {
		return err
	}
	defer r.bound(ctx, conn)()
	matches := func(there collective.Call) bool {
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

// incomingFrom returns the connection for a peer's messages, which the peer
// opens with its first.
func (r *Ring) incomingFrom(ctx context.Context, c *collective.Call, peer int) (*transport.Conn, error) {
	r.mu.Lock()
	conn := r.incoming[peer]
	r.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	limit, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	came := r.waitingFor(peer)
	for {
		r.mu.Lock()
		fault, left, news := r.fault, r.left[peer], r.news
		r.mu.Unlock()
		select {
		case conn = <-came:
		default:
			if fault != nil || left {
				return nil, r.explain(c, peer, collective.ErrLeft)
			}
			select {
			case conn = <-came:
			case <-news:
				continue
			case <-limit.Done():
				return nil, r.broken(ctx, c, peer, peer, errLate)
			}
		}
		r.mu.Lock()
		r.incoming[peer] = conn
		r.mu.Unlock()
		return conn, nil
	}
}
