// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Ring is a rank of a group whose ranks talk over TCP: collectives run round
// a ring of connections, and off it where a plan says so; messages have
// connections of their own. There is one for each pair and direction; those
// that are not of the ring are opened on first use.
type Ring struct {
	cfg    Config
	n      int
	fabric *Fabric
	end    *Endpoint
	star   *star

	next, prev *transport.Conn // of the ring: what most plans use alone

	// whole ends with the first fault; it is the one context that lives as
	// long as the group.
	whole    context.Context
	endWhole context.CancelFunc

	mu       sync.Mutex
	conns    map[*transport.Conn]struct{} // all that a fault must cut
	outgoing map[way]*transport.Conn
	incoming map[way]*transport.Conn
	waiting  map[way]chan *transport.Conn // incoming ones not yet taken
	left     map[int]bool                 // ranks that have closed the group
	fault    *ringFault
	news     chan struct{} // closed and replaced when left or fault changes

	failed atomic.Pointer[failure]
	closed atomic.Bool
	exec   executor
	in     []byte // scratch: a piece to be reduced
}

// way is what a connection carries, to a peer or from it.
type way struct {
	peer int
	why  purpose
}

type ringFault struct {
	rank int
	kind uint32
	text string
}

// OpenRing forms a group over TCP.
func OpenRing(ctx context.Context, cfg Config, fabric *Fabric) (*Ring, error) {
	n := len(cfg.Members)
	r := &Ring{cfg: cfg, n: n, fabric: fabric, exec: executor{rank: cfg.Rank, numRanks: n},
		conns: map[*transport.Conn]struct{}{}, outgoing: map[way]*transport.Conn{}, incoming: map[way]*transport.Conn{},
		waiting: map[way]chan *transport.Conn{}, left: map[int]bool{}, news: make(chan struct{})}
	r.whole, r.endWhole = context.WithCancel(context.Background())
	r.star = newStar(&r.cfg, r.heard, r.hasLeft)
	var err error
	if r.end, err = fabric.attach(cfg.Key, n, r.serve); err != nil {
		return nil, err
	}
	if err := r.meet(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// meet opens the connections of the ring and of the star.
func (r *Ring) meet(ctx context.Context) error {
	if r.cfg.Rank != 0 {
		hub, err := r.dial(ctx, 0, forControl)
		if err == nil {
			err = hub.Do(ctx, func() error { return awaitDone(hub) })
		}
		if err != nil {
			return r.cfg.absent(ctx, 0, err)
		}
		if err := r.star.join(0, hub); err != nil {
			hub.Close()
			return err
		}
	}
	next := (r.cfg.Rank + 1) % r.n
	conn, err := r.dial(ctx, next, forCollectives)
	if err != nil {
		return err
	}
	if !r.keep(conn) {
		return r.explain(nil, next, collective.ErrClosed)
	}
	prev := (r.cfg.Rank + r.n - 1) % r.n
	came := r.waitingFor(way{prev, forCollectives})
	r.mu.Lock()
	r.outgoing[way{next, forCollectives}] = conn
	r.mu.Unlock()
	r.next = conn
	for {
		r.mu.Lock()
		fault, news := r.fault, r.news
		r.mu.Unlock()
		if fault != nil {
			return r.cfg.faultError(nil, fault.rank, fault.kind, fault.text)
		}
		select {
		case conn := <-came:
			r.mu.Lock()
			r.incoming[way{prev, forCollectives}] = conn
			r.mu.Unlock()
			r.prev = conn
			if r.cfg.Rank == 0 {
				return r.star.awaitSpokes(ctx)
			}
			return nil
		case <-news:
		case err := <-r.star.trouble:
			return err
		case <-ctx.Done():
			return &collective.TimeoutError{Group: r.cfg.Group, Op: "init", Missing: []collective.Member{r.cfg.Members[prev]}, Cause: context.Cause(ctx)}
		}
	}
}

func (r *Ring) dial(ctx context.Context, peer int, why purpose) (*transport.Conn, error) {
	conn, err := r.fabric.dial(ctx, r.cfg.World[peer], false, hello{purpose: why, rank: r.cfg.Rank, number: r.cfg.Agreed, group: r.cfg.Key})
	if err != nil {
		return nil, fmt.Errorf("dist: group %q: connect to %v: %w", r.cfg.Group, r.cfg.Members[peer], err)
	}
	return conn, nil
}

// keep adds a connection to those that end with the group; false if it has ended.
func (r *Ring) keep(c *transport.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() || r.fault != nil {
		c.Close()
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

// serve takes a connection from another rank.
func (r *Ring) serve(conn *transport.Conn, h hello) bool {
	if h.rank == r.cfg.Rank {
		return false
	}
	_ = conn.SetDeadline(time.Time{})
	switch h.purpose {
	case forControl:
		err := r.star.mayJoin(h)
		if err == nil {
			// Before it has joined, for news may follow.
			if conn.WriteFrame(frameDone) != nil {
				return false
			}
			err = r.star.join(h.rank, conn)
		}
		if err != nil {
			refuse(conn, err)
		}
		return err == nil
	case forCollectives, forMessages:
		if !r.keep(conn) {
			return false
		}
		select {
		case r.waitingFor(way{h.rank, h.purpose}) <- conn:
			return true
		default:
			return false
		}
	}
	return false
}

// waitingFor returns where a connection from a peer is handed over.
func (r *Ring) waitingFor(w way) chan *transport.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.waiting[w]
	if ch == nil {
		ch = make(chan *transport.Conn, 1)
		r.waiting[w] = ch
	}
	return ch
}

// heard takes the news of a fault: every wait ends.
func (r *Ring) heard(rank int, kind uint32, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return
	}
	r.fault = &ringFault{rank, kind, text}
	r.endWhole()
	for c := range r.conns {
		c.Close()
	}
	close(r.news)
	r.news = make(chan struct{})
}

// hasLeft takes a rank's leave.
func (r *Ring) hasLeft(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[rank] = true
	close(r.news)
	r.news = make(chan struct{})
}

// Died tells the group that a rank's process has ended.
func (r *Ring) Died(rank int) {
	if rank >= 0 && rank < r.n && rank != r.cfg.Rank {
		r.heard(rank, kindDied, "")
		r.star.spread(rank, kindDied, "")
	}
}

// connTo returns the connection to a peer, which is opened on first use.
func (r *Ring) connTo(ctx context.Context, c *collective.Call, w way) (*transport.Conn, error) {
	r.mu.Lock()
	conn := r.outgoing[w]
	r.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	limit, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	defer context.AfterFunc(r.whole, cancel)()
	conn, err := r.dial(limit, w.peer, w.why)
	if err != nil {
		if limit.Err() != nil && r.whole.Err() == nil {
			err = errLate
		}
		return nil, r.broken(ctx, c, w.peer, w.peer, err)
	}
	if !r.keep(conn) {
		return nil, r.explain(c, w.peer, collective.ErrClosed)
	}
	r.mu.Lock()
	r.outgoing[w] = conn
	r.mu.Unlock()
	return conn, nil
}

// connFrom returns the connection from a peer, which the peer opens when it
// first has something to send.
func (r *Ring) connFrom(ctx context.Context, c *collective.Call, w way) (*transport.Conn, error) {
	peer := w.peer
	r.mu.Lock()
	conn := r.incoming[w]
	r.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	limit, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	came := r.waitingFor(w)
	for {
		r.mu.Lock()
		fault, left, news := r.fault, r.left[peer], r.news
		r.mu.Unlock()
		select {
		case conn = <-came:
		default:
			if fault != nil {
				return nil, r.explain(c, peer, collective.ErrLeft)
			}
			var gone <-chan time.Time
			if left { // but what it opened before may still be on its way in
				gone = time.After(newsPatience)
			}
			select {
			case conn = <-came:
			case <-news:
				continue
			case <-gone:
				return nil, r.explain(c, peer, collective.ErrLeft)
			case <-limit.Done():
				return nil, r.broken(ctx, c, peer, peer, errLate)
			}
		}
		r.mu.Lock()
		r.incoming[w] = conn
		r.mu.Unlock()
		return conn, nil
	}
}

// newsPatience is how long a cut connection waits for the star to say why.
const newsPatience = 500 * time.Millisecond

// explain returns the error of a call whose connection with peer has ended
// with err: what the star says of it, or that the peer has died.
func (r *Ring) explain(c *collective.Call, peer int, err error) error {
	timer := time.NewTimer(newsPatience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		fault, left, news := r.fault, r.left[peer], r.news
		r.mu.Unlock()
		switch {
		case fault != nil:
			return r.cfg.faultError(c, fault.rank, fault.kind, fault.text)
		case left:
			return r.cfg.faultError(c, peer, kindLeft, "")
		}
		select {
		case <-news:
		case <-timer.C:
			return r.cfg.faultError(c, peer, kindFailed, "lost the connection: "+err.Error())
		}
	}
}

// usable returns an error if no call can be made any more.
func (r *Ring) usable(c *collective.Call) error {
	if r.closed.Load() {
		return fmt.Errorf("dist: %v %d of group %q: %w", c.Op, c.Seq, r.cfg.Group, collective.ErrClosed)
	}
	if f := r.failed.Load(); f != nil {
		return again(f.err, c)
	}
	r.mu.Lock()
	fault := r.fault
	r.mu.Unlock()
	if fault != nil {
		return r.fail(r.cfg.faultError(c, fault.rank, fault.kind, fault.text))
	}
	return nil
}

// fail makes err the end of the group, here and for the others.
func (r *Ring) fail(err error) error {
	r.failed.CompareAndSwap(nil, &failure{err})
	rank, kind, text := r.cfg.faultOf(err)
	r.mu.Lock()
	known := r.fault != nil
	r.mu.Unlock()
	if !known {
		// Others first: when the connections are cut they look for the reason.
		r.star.spread(rank, kind, text)
		r.heard(rank, kind, text)
	}
	return err
}

// Fail implements [collective.Backend].
func (r *Ring) Fail(err error) { _ = r.fail(err) }

// Close implements [collective.Backend].
func (r *Ring) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	r.endWhole()
	r.star.close()
	r.end.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
	return nil
}

// awaitDone reads a peer's word that it has taken a connection.
func awaitDone(conn *transport.Conn) error {
	kind, payload, err := conn.ReadFrame(nil, maxControl)
	if err == nil && kind != frameDone {
		err = fmt.Errorf("refused: %s", payload)
	}
	return err
}

// errLate marks the error of a wait that the context or the limit has ended.
var errLate = errors.New("out of time")

// bound gives connections until the end of ctx or the group's limit, and
// returns what takes that back.
func (r *Ring) bound(ctx context.Context, conns ...*transport.Conn) (release func()) {
	until := time.Now().Add(r.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	for _, c := range conns {
		_ = c.SetDeadline(until)
	}
	if ctx.Done() == nil {
		return func() {}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.SetDeadline(time.Unix(1, 0))
		}
	})
	return func() { stop() }
}

// broken returns the error of a call from that of a connection.
func (r *Ring) broken(ctx context.Context, c *collective.Call, peer int, missing int, err error) error {
	if !errors.Is(err, errLate) {
		return r.explain(c, peer, err)
	}
	cause := context.Cause(ctx)
	if cause == nil {
		cause = fmt.Errorf("the group's limit of %v: %w", r.cfg.Timeout, context.DeadlineExceeded)
	}
	return &collective.TimeoutError{Group: r.cfg.Group, Op: c.Op.String(), Seq: c.Seq,
		Missing: []collective.Member{r.cfg.Members[missing]}, Cause: cause}
}
