// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// world plays programs on some nodes in virtual time, over a network that
// loses, doubles, delays and reorders the messages of the protocol, while nodes
// die, stand still and are cut off. It knows who has which handle, so it knows
// which value may be freed and which must.
type world struct {
	rng       *rand.Rand
	now       time.Time
	start     time.Time
	events    events
	serial    int
	instances uint64
	faults    faults
	config    Config
	nodes     []*node
	values    map[Ref]*value
	lost      map[[2]int]int // messages lost in a row
	over      bool           // programs have ended
	lines     []string
	wrong     []string
}

// faults is what may happen.
type faults struct {
	loss, twice float64 // of a message of the protocol
	delay       time.Duration
	failure     float64 // of a call
	kills       int
	reborn      bool // the dead are started again
	absences    int  // nodes that stand still or are cut off, for shorter or longer than the lease
}

type node struct {
	id      Node
	m       *Machine
	dead    bool
	frozen  bool
	cut     bool
	handles []*grip
	inbox   []func() // what came while it was frozen
	disturb bool     // it has been away for longer than may go unnoticed
}

// grip is a handle in the hands of a program.
type grip struct {
	node     *node
	h        Handle
	released bool
	lost     bool
	reason   Reason
}

// value is what the oracle knows of a value.
type value struct {
	ref      Ref
	owner    *node // the process
	created  bool  // its owner has it, or had
	running  bool
	freed    bool
	flights  []*node // where references to it will arrive
	handles  []*grip
	doubtful bool // the call that was to create it failed, or a reference came from, or to, a node after an absence
}

type event struct {
	at     time.Time
	serial int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func newWorld(seed uint64, numNodes int, f faults) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 9)), start: time.Unix(1_000_000, 0), now: time.Unix(1_000_000, 0),
		faults: f, config: DefaultConfig(), values: map[Ref]*value{}, lost: map[[2]int]int{},
	}
	w.nodes = make([]*node, numNodes)
	for i := range numNodes {
		w.begin(Node(i))
	}
	return w
}

// begin starts the process of a node.
func (w *world) begin(id Node) {
	n := &node{id: id, m: New(id, w.instance(), w.config)}
	w.nodes[id] = n
	w.after(w.between(0, 500*time.Millisecond), func() { w.tick(n) })
	w.after(w.between(0, time.Second), func() { w.step(n) })
}

// instance is the next of any node.
func (w *world) instance() uint64 { w.instances += 1000; return w.instances }

func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.events, event{w.now.Add(d), w.serial, do})
}

func (w *world) run(until time.Duration) {
	end := w.start.Add(until)
	for len(w.events) > 0 && !w.events[0].at.After(end) && len(w.wrong) == 0 {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *world) log(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf("%8.3fs ", w.now.Sub(w.start).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) problem(format string, args ...any) {
	w.log("WRONG "+format, args...)
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// at runs something on a node: now, when it stands up again, or never.
func (w *world) at(n *node, do func()) {
	switch {
	case n.dead:
	case n.frozen:
		n.inbox = append(n.inbox, do)
	default:
		do()
		w.carryOut(n)
	}
}

func (w *world) tick(n *node) {
	if n.dead {
		return
	}
	if !n.frozen {
		n.m.Tick(w.now)
		w.carryOut(n)
	}
	w.after(w.config.Retry/2, func() { w.tick(n) })
}

func (w *world) carryOut(n *node) {
	for _, a := range n.m.Actions() {
		switch a := a.(type) {
		case Send:
			w.send(n, w.nodes[a.To], a.Message)
		case Free:
			w.free(n, a.Ref)
		case Lost:
			w.lose(n, a.Handle, a.Reason)
		case Missing:
			for _, x := range n.handles {
				if x.h.Ref == a.Ref && !x.released && !x.lost {
					w.lose(n, x.h, Freed)
				}
			}
		case Lapsed:
			w.log("node %d: the lease of %d ends, %d forks", n.id, a.Node, a.Forks)
			if who := w.nodes[a.Node]; !who.dead && !who.disturb && !w.faults.reborn {
				w.problem("node %d ended the lease of %d, which lives", n.id, a.Node)
			}
		}
	}
}

func (w *world) send(from, to *node, msg Message) {
	pair := [2]int{int(from.id), int(to.id)}
	copies := 1
	// Leases outlast a few losses in a row, not any number.
	if w.chance(w.faults.loss) && w.lost[pair] < 4 {
		copies = 0
		w.lost[pair]++
	} else {
		w.lost[pair] = 0
		if w.chance(w.faults.twice) {
			copies = 2
		}
	}
	instance := from.m.Instance()
	for range copies {
		w.after(w.between(0, w.faults.delay), func() {
			to := w.nodes[to.id] // whoever it is by now
			if !from.cut && !to.cut || from == to {
				w.at(to, func() { to.m.Receive(w.now, from.id, instance, msg) })
			}
		})
	}
}

// free checks that a value may go.
func (w *world) free(n *node, r Ref) {
	v := w.values[r]
	w.log("node %d frees %v", n.id, r)
	if v == nil || v.freed || r.Owner != n.id || v.running {
		w.problem("node %d frees %v, which it has freed, does not own or still makes", n.id, r)
		return
	}
	v.freed = true
	for _, to := range v.flights {
		if !to.disturb && !to.dead && !v.doubtful {
			w.problem("%v is freed, and a reference to it is on its way to node %d", r, to.id)
		}
	}
	for _, h := range v.handles {
		if !h.released && !h.lost && !h.node.dead && !h.node.disturb && !v.doubtful {
			w.problem("%v is freed, and node %d has fork %d of it", r, h.node.id, h.h.N)
		}
	}
}

func (w *world) lose(n *node, lost Handle, why Reason) {
	w.log("node %d loses %v: %v", n.id, lost, why)
	v := w.values[lost.Ref]
	if owner := w.owner(v.ref); !v.doubtful && !n.disturb && owner != nil && !owner.disturb {
		w.problem("node %d loses a good handle %v: %v", n.id, lost, why)
	}
	for _, x := range n.handles {
		if x.h == lost && !x.released && !x.lost {
			x.lost, x.reason = true, why
			return
		}
	}
}

// owner returns the process that owns a value, nil if it is dead.
func (w *world) owner(r Ref) *node {
	n := w.nodes[r.Owner]
	if n.dead || w.values[r].owner != n {
		return nil
	}
	return n
}

func (w *world) give(n *node, h Handle) *grip {
	x := &grip{node: n, h: h}
	n.handles = append(n.handles, x)
	w.values[h.Ref].handles = append(w.values[h.Ref].handles, x)
	return x
}

func (w *world) release(x *grip) {
	if !x.released {
		w.log("node %d releases %v", x.node.id, x.h)
		x.released = true
		if !x.lost {
			x.node.m.Release(w.now, x.h)
		}
	}
}
