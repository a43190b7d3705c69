// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// receiveGate lets receives from given peers run side by side, and a receive
// from any rank alone: until it has its message nobody else may take one.
// Receives pass in the order in which they were issued. The group's lock
// guards it.
type receiveGate struct {
	peers   int     // receives from given peers that have passed and not ended
	any     bool    // a receive from any rank has passed and not ended
	waiting []*Work // in the order of issue
}

// admit lets a receive pass, unless it must wait.
func (q *receiveGate) admit(r *request) bool {
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

// hold makes a receive that was not admitted wait.
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
	src, err := g.backend.AwaitAny(r.ctx, r.call)
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
	return g.backend.Recv(r.ctx, r.call, data)
}
