// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"slices"
	"time"
)

// How long a call of a program may take in these worlds.
const callTime = 4 * time.Second

// step lets the program on a node do something.
func (w *world) step(n *node) {
	if n.dead || w.over {
		return
	}
	w.at(n, func() {
		if w.over {
			return
		}
		var live []*grip
		for _, h := range n.handles {
			if !h.released && !h.lost {
				live = append(live, h)
			}
		}
		switch r := w.rng.IntN(20); {
		case r < 2:
			h := n.m.Own(w.now)
			w.values[h.Ref] = &value{ref: h.Ref, owner: n, created: true}
			w.give(n, h)
			w.log("node %d owns %v", n.id, h.Ref)
		case r < 6:
			if to := w.nodes[w.rng.IntN(len(w.nodes))]; to != n {
				w.remote(n, to)
			}
		case len(live) == 0:
		case r < 13:
			x := live[w.rng.IntN(len(live))]
			w.share(x, w.nodes[w.rng.IntN(len(w.nodes))])
			if w.chance(0.5) {
				w.release(x)
			}
		case r < 14:
			x := live[w.rng.IntN(len(live))]
			if h, ok := n.m.Hold(w.now, x.h.Ref); ok {
				w.give(n, h)
			}
		default:
			w.release(live[w.rng.IntN(len(live))])
		}
	})
	w.after(w.between(10*time.Millisecond, time.Second), func() { w.step(n) })
}

// reachable says whether a call gets through.
func (w *world) reachable(from, to *node) bool {
	return !to.dead && (from == to || !from.cut && !to.cut) && !w.chance(w.faults.failure)
}

// remote makes a call that leaves its result at another node.
func (w *world) remote(from, to *node) {
	h := from.m.Remote(w.now, to.id)
	v := &value{ref: h.Ref, owner: to}
	w.values[h.Ref] = v
	x := w.give(from, h)
	w.log("node %d asks %d for %v", from.id, to.id, h.Ref)
	reach, back := w.reachable(from, to), !w.chance(w.faults.failure)
	failed := func() {
		v.doubtful = true
		w.at(from, func() {
			w.log("node %d: the call for %v has failed", from.id, h.Ref)
			if !x.released {
				x.released = true
				from.m.Fail(w.now, h)
			}
		})
	}
	if !reach {
		v.doubtful = true
		w.after(callTime, failed)
		return
	}
	if !back {
		w.after(callTime, failed)
	}
	w.after(w.between(0, min(callTime, 2*w.faults.delay)), func() {
		w.at(to, func() {
			switch s := to.m.Create(w.now, from.id, h.Ref); s {
			case Counted:
				w.log("node %d makes %v", to.id, h.Ref)
				v.created, v.running = true, true
				w.after(w.between(0, 3*time.Second), func() {
					w.at(to, func() {
						v.running = false
						to.m.Done(w.now, h.Ref)
					})
				})
			case Unwanted:
				v.doubtful = true
				if !x.released && !x.lost && !from.dead && !from.disturb && !to.disturb {
					w.problem("%v is unwanted, but node %d has a handle", h.Ref, from.id)
				}
			default:
				w.problem("Create of %v: %d", h.Ref, s)
			}
			if back {
				w.after(w.between(0, w.faults.delay), func() {
					w.at(from, func() { from.m.Confirm(w.now, h, to.m.Instance()) })
				})
			}
		})
	})
}

// share passes a reference to another node.
func (w *world) share(x *grip, to *node) {
	from := x.node
	v := w.values[x.h.Ref]
	p, ok := from.m.Share(w.now, x.h, to.id, w.now.Add(callTime))
	if !ok {
		w.problem("node %d cannot share %v, which it has", from.id, x.h)
		return
	}
	w.log("node %d passes %v to %d", from.id, x.h, to.id)
	if !w.reachable(from, to) {
		if w.chance(0.5) {
			w.at(from, func() { from.m.Withdraw(w.now, to.id, p) })
		}
		return
	}
	counts := !from.disturb
	if counts {
		v.flights = append(v.flights, to)
	}
	w.after(w.between(0, min(callTime, 2*w.faults.delay)), func() {
		w.at(to, func() {
			if i := slices.Index(v.flights, to); counts {
				v.flights = slices.Delete(v.flights, i, i+1)
			}
			v.doubtful = v.doubtful || from.disturb || to.disturb
			h, s := to.m.Adopt(w.now, from.id, p)
			switch s {
			case Counted:
				w.give(to, h)
				w.log("node %d takes %v from %d", to.id, h, from.id)
			case Unwanted:
				if !v.doubtful && w.owner(p.Ref) != nil {
					w.problem("node %d gets %v from %d, but it is gone", to.id, p.Ref, from.id)
				}
			default:
				w.problem("Adopt of %v: %d", p, s)
			}
			if _, s := to.m.Adopt(w.now, from.id, p); s != Repeated {
				w.problem("Adopt of %v again: %d", p, s)
			}
		})
	})
}

// trouble lets the faults of a whole run happen.
func (w *world) trouble(span time.Duration) {
	for i := range w.faults.kills {
		n := w.nodes[i]
		w.after(w.between(0, span), func() {
			w.log("node %d dies", n.id)
			n.dead = true
			if w.faults.reborn {
				w.after(w.between(time.Millisecond, w.config.Lease/2), func() {
					w.log("node %d is started again", n.id)
					w.begin(n.id)
				})
			}
		})
	}
	for range w.faults.absences {
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		d := w.between(time.Second, 2*w.config.Lease)
		cut := w.chance(0.5)
		w.after(w.between(0, span), func() {
			if n.frozen || n.cut || n.dead {
				return
			}
			w.log("node %d is away for %v, cut off: %v", n.id, d, cut)
			n.frozen, n.cut = !cut, cut
			if d > w.config.Lease/4 {
				n.disturb = true
				if cut { // whom it passed references on to may also come too late
					for _, o := range w.nodes {
						o.disturb = true
					}
				}
			}
			w.after(d, func() {
				w.log("node %d is back", n.id)
				n.frozen, n.cut = false, false
				inbox := n.inbox
				n.inbox = nil
				if w.chance(0.5) { // its clock may be seen before what came meanwhile
					w.at(n, func() { n.m.Tick(w.now) })
				}
				for _, do := range inbox {
					w.at(n, do)
				}
			})
		})
	}
}

// end lets the programs do nothing more.
func (w *world) end() {
	w.log("the end")
	w.over = true
}

// finish releases every handle.
func (w *world) finish() {
	for _, n := range w.nodes {
		if !n.dead {
			for _, h := range n.handles {
				w.release(h)
			}
			w.carryOut(n)
		}
	}
}
