// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"sync"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/operation"
)

// lane runs calls one after the other in the order in which they were issued:
// the collectives of a group, or the messages of a pair in one direction.
type lane struct {
	mu    sync.Mutex
	busy  bool // somebody runs a call, or will take the next one from queue
	queue []*Work
	seq   uint64
}

// add makes a work the lane's next one.
func (l *lane) add(w *Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r := w.req
	r.call.Seq = l.seq
	if r.ticket == (flight.Ticket{}) {
		r.ticket = r.g.log.Called(&r.call, false)
	} else {
		r.g.log.Numbered(r.ticket, r.call.Root, l.seq)
	}
	l.queue = append(l.queue, w)
	if l.busy {
		w.bound()
		return
	}
	l.busy = true
	go l.drain()
}

// release ends a call that ran on its caller's goroutine.
func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy = false
		return
	}
	go l.drain()
}

// drain runs queued calls until there are none: a group at rest has no goroutine.
func (l *lane) drain() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		w := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.mu.Unlock()
		w.run()
	}
}

// receiveGate lets receives from given peers run side by side, and a receive
// from any rank alone: until it has its message nobody else may take one.
// Receives pass in the order in which they were issued. The group's lock
// guards it.
type receiveGate struct {
	peers   int     // receives from given peers that have passed and not ended
	any     bool    // a receive from any rank has passed and not ended
	waiting []*Work // in the order of issue
}

// pass lets a receive pass, unless it must wait.
func (q *receiveGate) pass(r *request) bool {
	fromAny := r.call.Root == operation.AnyRank
	if q.any || len(q.waiting) > 0 || fromAny && q.peers > 0 {
		return false
	}
	if fromAny {
		q.any = true
	} else {
		q.peers++
	}
	return true
}

// hold makes a receive that has not passed wait.
func (q *receiveGate) hold(r *request) *Work {
	w := newWork(r)
	w.bound()
	q.waiting = append(q.waiting, w)
	return w
}

// leave counts out a receive that has ended and starts those that now may pass.
func (q *receiveGate) leave(g *Group, fromAny bool) {
	if fromAny {
		q.any = false
	} else {
		q.peers--
	}
	for len(q.waiting) > 0 && !q.any {
		w := q.waiting[0]
		peer := w.call.Root
		if peer == operation.AnyRank && q.peers > 0 {
			return
		}
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		if peer == operation.AnyRank {
			q.any = true
			go w.run()
		} else {
			q.peers++
			g.pairLane(peer, false).add(w)
		}
	}
}

// recvAny takes the next message from any rank. It has passed the gate, so no
// other receive runs, and the lane of whichever rank it takes is empty.
func (g *Group) recvAny(r *request, data collective.Data) error {
	r.call.Start() // one limit for the wait and the message
	src, err := g.comm.AwaitAny(r.ctx, r.call)
	if err != nil {
		return err
	}
	g.mu.Lock()
	l := g.pairLane(src, false)
	g.mu.Unlock()
	l.mu.Lock()
	l.seq++
	r.call.Root, r.call.Seq = src, l.seq
	l.mu.Unlock()
	g.log.Numbered(r.ticket, src, r.call.Seq)
	return g.comm.Recv(r.ctx, r.call, data)
}
