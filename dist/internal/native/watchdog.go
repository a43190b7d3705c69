// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A call over connections sets no deadline and no timer, for these cost too much for a
// small call. Instead a [Mesh] has one timer, which runs while calls are under way and looks
// at them now and then. The watchdog ends a call whose context or time has ended: it sets a
// deadline in the past on the connections that the call uses.
//
// Ranks that call different things may wait for each other while nothing passes between
// them. So a collective that has been under way for some time tells the others its call.
// The hub of the star passes on the first such call of a number, and every rank compares it
// with its own call of that number, now or when it comes to it. A rank that has only sent in
// a collective has seen no other call. It tells its call too, unless it makes another one
// soon: two ranks that both took themselves for the root have both done their part.
const (
	// watchPeriod does not divide the period of the beats: in virtual time, frames that
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
	stop       *Stop // of a call over a carrier
	alone      int   // how often its peer has been found gone
}

// begin watches a call until end.
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

// arm starts the timer; the watchdog is locked.
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

// uses notes that a call waits on a connection. Only the goroutine that runs the call may
// call it.
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

// end ends the watch of a call.
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
	if w.stop != nil {
		w.stop.renew()
	}
	*w = watched{dog: d, conns: w.conns[:0], stop: w.stop}
	d.free = append(d.free, w)
}

// anyCollective reports whether a collective is under way for which a condition holds.
func (d *watchdog) anyCollective(is func(c *operation.Call) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.calls, func(w *watched) bool { return w.collective && is(&w.call) })
}

// look ends calls that are out of time, and tells the others of calls that wait.
func (d *watchdog) look() {
	now := time.Now()
	var stalled *operation.Call
	gone := d.mesh.goneFromCarrier()
	d.mu.Lock()
	for _, w := range d.calls {
		waited := now.Sub(w.start)
		if !w.collective && w.stop != nil && gone[w.call.Root] { // what it sent before may still come
			if w.alone++; w.alone > int(newsPatience/watchPeriod) {
				w.stop.end()
			}
		}
		if !w.cut && (w.ctx.Err() != nil || now.Sub(w.call.Begun) >= d.mesh.cfg.Timeout) {
			w.cut = true
			for _, c := range w.conns {
				_ = c.SetDeadline(time.Unix(1, 0))
			}
			if w.stop != nil {
				w.stop.end()
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

// heardCall takes the call in which another rank waits.
func (m *Mesh) heardCall(rank int, c *operation.Call) {
	if err := m.past.heard(&m.cfg, rank, c); err != nil {
		m.Fail(err)
	}
}
