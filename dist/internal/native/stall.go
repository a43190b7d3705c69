// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A call over connections sets no deadline and no timer: those cost more than
// a small call may. Instead a [Mesh] has one timer, which runs while calls are
// under way and looks at them now and then. A call whose context or time has
// ended is ended by a deadline in the past on the connections that it uses.
//
// A collective that has been under way for some time tells the others what it
// is: ranks that call different things may wait for each other without a word
// between them. The hub of the star passes the first such call of a number on,
// and every rank compares it with its own of that number, now or when it comes
// to it. A rank that has only sent in a collective, and so has seen nobody's
// call, tells the others likewise if it makes no other one soon: two ranks that
// each took themselves for the root have both done their part.
const (
	// watchPeriod is not one of which beats' is a multiple: in virtual time what
	// both send at one instant would go over the star in any order.
	watchPeriod = 50*time.Millisecond + time.Microsecond
	stallAfter  = 200 * time.Millisecond
	quietAfter  = 50 * time.Millisecond
)

// watchdog looks after the calls of a mesh that are under way.
type watchdog struct {
	mesh *Mesh

	mu     sync.Mutex
	calls  []*watched
	free   []*watched
	timer  *time.Timer
	armed  bool
	quiet  operation.Call // the last collective, if nobody's piece came in it
	since  time.Time      // when it ended
	closed bool
}

// watched is a call under way.
type watched struct {
	dog        *watchdog
	ctx        context.Context
	call       operation.Call
	collective bool
	quiet      bool // this rank gets nothing from anybody in it
	start      time.Time
	conns      []*transport.Conn
	told, cut  bool
}

// begin looks after a call until end.
func (d *watchdog) begin(ctx context.Context, c *operation.Call, coll bool) *watched {
	now := time.Now()
	if c.Begun.IsZero() {
		c.Begun = now
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var w *watched
	if n := len(d.free); n > 0 {
		w, d.free = d.free[n-1], d.free[:n-1]
	} else {
		w = &watched{dog: d}
	}
	w.ctx, w.call, w.collective, w.start = ctx, *c, coll, now
	w.call.Parts, w.call.Recvs = nil, nil
	d.calls = append(d.calls, w)
	if coll {
		d.quiet.Seq = 0
	}
	d.arm()
	return w
}

// arm has the timer look; the watchdog is locked.
func (d *watchdog) arm() {
	if d.armed || d.closed {
		return
	}
	d.armed = true
	if d.timer == nil {
		d.timer = time.AfterFunc(watchPeriod, d.look)
	} else {
		d.timer.Reset(watchPeriod)
	}
}

// uses says that a call waits on a connection. The goroutine that runs the call
// says so, and no other.
func (w *watched) uses(c *transport.Conn) {
	if n := len(w.conns); n > 0 && w.conns[n-1] == c || slices.Contains(w.conns, c) {
		return
	}
	w.dog.mu.Lock()
	w.conns = append(w.conns, c)
	if w.cut {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
	w.dog.mu.Unlock()
}

// end takes a call out.
func (d *watchdog) end(w *watched) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.cut { // it may have ended well just then: the next one is not to suffer
		for _, c := range w.conns {
			_ = c.SetDeadline(time.Time{})
		}
	}
	i := slices.Index(d.calls, w)
	last := len(d.calls) - 1
	d.calls[i], d.calls[last] = d.calls[last], nil
	d.calls = d.calls[:last]
	if w.quiet && !w.cut {
		d.quiet, d.since = w.call, time.Now()
		d.arm()
	}
	clear(w.conns)
	*w = watched{dog: d, conns: w.conns[:0]}
	d.free = append(d.free, w)
}

// anyCollective reports whether a collective is under way of which something is true.
func (d *watchdog) anyCollective(is func(c *operation.Call) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.calls, func(w *watched) bool { return w.collective && is(&w.call) })
}

// look ends calls that are out of time and speaks for those that wait.
func (d *watchdog) look() {
	now := time.Now()
	var stalled *operation.Call
	d.mu.Lock()
	for _, w := range d.calls {
		waited := now.Sub(w.start)
		if !w.cut && (w.ctx.Err() != nil || now.Sub(w.call.Begun) >= d.mesh.cfg.Timeout) {
			w.cut = true
			for _, c := range w.conns {
				_ = c.SetDeadline(time.Unix(1, 0))
			}
		}
		if w.collective && !w.told && waited >= stallAfter {
			w.told = true
			call := w.call
			stalled = &call
		}
	}
	if d.quiet.Seq != 0 && stalled == nil && now.Sub(d.since) >= quietAfter {
		call := d.quiet
		stalled, d.quiet.Seq = &call, 0
	}
	d.armed = (len(d.calls) > 0 || d.quiet.Seq != 0) && !d.closed
	if d.armed {
		d.timer.Reset(watchPeriod)
	}
	d.mu.Unlock()
	if stalled != nil {
		d.mesh.past.wants(d.mesh.cfg.Rank, d.mesh.n, stalled)
		d.mesh.star.tellStalled(d.mesh.cfg.Rank, stalled)
	}
}

// close stops the timer. A look under way finds nothing to do.
func (d *watchdog) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// pastCalls is how many collectives a rank remembers.
const pastCalls = 16

// history is the collectives that a rank has called last, and one that
// another rank has called and waits in.
type history struct {
	mu    sync.Mutex
	calls [pastCalls]operation.Call // by number, modulo
	parts [pastCalls][2][]int       // likewise: memory for their parts
	there fault.RankCall            // with number 0: none
	last  uint64                    // number of the last one
	asked []askedCalls              // what ranks that want to leave have called
}

// add takes down a call that begins and returns an error if another rank has
// told of a different one. fit is the number up to which calls are now known to
// fit that another rank has asked about, 0 if none has.
func (h *history) add(cfg *Config, c *operation.Call) (fit uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(c)
	if len(h.asked) > 0 {
		if fit, err = h.catchUp(cfg); err != nil {
			return 0, err
		}
	}
	return fit, h.compare(cfg, c.Seq)
}

// keep takes down a call; the history is locked. Its parts are the caller's.
func (h *history) keep(c *operation.Call) {
	i := c.Seq % pastCalls
	h.calls[i], h.last = *c, c.Seq
	for j, list := range []*[]int{&h.calls[i].Parts, &h.calls[i].Recvs} {
		if *list != nil {
			h.parts[i][j] = append(h.parts[i][j][:0], *list...)
			*list = h.parts[i][j]
		}
	}
}

// note takes down a call of which others do not see everything.
func (h *history) note(c *operation.Call) {
	h.mu.Lock()
	h.keep(c)
	h.mu.Unlock()
}

// heard compares what another rank waits in with this rank's call of that
// number, if it has come so far.
func (h *history) heard(cfg *Config, rank int, c *operation.Call) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.there = fault.RankCall{Rank: rank, Call: *c}
	return h.compare(cfg, c.Seq)
}

// call returns the collective of a number, if it is remembered.
func (h *history) call(seq uint64) (operation.Call, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.calls[seq%pastCalls]
	c.Parts, c.Recvs = slices.Clone(c.Parts), slices.Clone(c.Recvs)
	return c, c.Seq == seq && seq > 0
}

// mismatch is the error that a rank has called something else. A piece of an
// earlier number than the one that is waited for was sent by a call that was
// another than this rank's of that number.
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

func (h *history) compare(cfg *Config, seq uint64) error {
	mine := &h.calls[seq%pastCalls]
	if mine.Seq != seq || h.there.Call.Seq != seq {
		return nil
	}
	if mine.Matches(&h.there.Call) {
		if wants := h.there.Call.Recvs; cfg.Rank < len(wants) && wants[cfg.Rank] >= 0 {
			return h.parcel(cfg, mine, wants[cfg.Rank])
		}
		return nil
	}
	return &fault.MismatchError{Group: cfg.Group, Seq: seq, Here: fault.RankCall{Rank: cfg.Rank, Call: *mine}, There: h.there}
}

// parcel returns an error if this rank had not as much for another one as that
// waits for: nothing at all comes of a part that its sender takes for empty.
func (h *history) parcel(cfg *Config, mine *operation.Call, want int) error {
	have := mine.HasFor(h.there.Rank)
	if have == want {
		return nil
	}
	there := h.there
	there.Call.Recvs = nil
	return &fault.MismatchError{Group: cfg.Group, Seq: mine.Seq, Here: fault.RankCall{Rank: cfg.Rank, Call: *mine}, There: there,
		Parcel: &fault.Parcel{From: cfg.Rank, To: there.Rank, Have: have, Want: want}}
}

// wants adds to a call that this rank waits in what it expects from each rank,
// where the others do not know it.
func (h *history) wants(rank, numRanks int, c *operation.Call) {
	mine, ok := h.call(c.Seq)
	c.Recvs = nil
	if !ok || c.Op == operation.Gather && c.Root != rank || c.Op == operation.Scatter && c.Root == rank {
		return
	}
	var all []int
	for from := range numRanks {
		n, own := mine.Wants(from)
		switch {
		case !own:
			return
		case from == rank, c.Op == operation.Scatter && from != c.Root:
			n = -1
		}
		all = append(all, n)
	}
	c.Recvs = all
}

// heardCall takes the call that another rank waits in.
func (m *Mesh) heardCall(rank int, c *operation.Call) {
	if err := m.past.heard(&m.cfg, rank, c); err != nil {
		m.Fail(err)
	}
}
