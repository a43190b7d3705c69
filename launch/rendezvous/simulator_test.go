// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A simulated cluster: any number of machines, a store, lines with latency between
// them, and ranks that fail when one of them is gone. Time is a number.

// world is the cluster.
type world struct {
	rng   *rand.Rand
	now   time.Time
	start time.Time
	queue queue
	seq   int
	set   Settings
	nodes []*host
	work  time.Duration // how long the ranks of a round have to run together

	// The store.
	state *State
	cards map[string]*Card
	list  []string
	calls int

	rounds   map[int]*round
	progress time.Duration // of the last checkpoint
	problems []string
	log      func(format string, args ...any)
	latency  func() time.Duration
	stopTime func() time.Duration
}

// host is one agent and the ranks of its node.
type host struct {
	w      *world
	name   string
	m      *Machine
	life   int // another agent, or no agent, with another number
	dead   bool
	cut    bool
	frozen bool
	held   []func() // what happens when it thaws
	wakes  int
	known  uint64 // the version that it has had news of

	round   *round // that its ranks run in; nil: none do
	froze   map[int]bool
	end     *Result
	endedAt time.Time
}

// round is what the ranks of one round do.
type round struct {
	number   int
	place    Place
	hosts    []*host // by node rank; nil: not started
	began    time.Time
	stalled  time.Time // since when they wait for one that is out of reach
	progress time.Duration
	broken   bool
}

// silence is how long ranks wait for each other.
const silence = 3 * time.Second

type item struct {
	at  time.Time
	seq int
	f   func()
}
type queue []item

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(item)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func newWorld(seed uint64, set Settings) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), set: set, cards: map[string]*Card{}, rounds: map[int]*round{},
		start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), log: func(string, ...any) {},
	}
	w.now = w.start
	w.latency = func() time.Duration { return 200*time.Microsecond + time.Duration(w.rng.IntN(2000))*time.Microsecond }
	w.stopTime = func() time.Duration { return 10*time.Millisecond + time.Duration(w.rng.IntN(300))*time.Millisecond }
	return w
}

func (w *world) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.queue, item{w.now.Add(d), w.seq, f})
}

// run plays until a time, or until done says so.
func (w *world) run(until time.Duration, done func() bool) {
	for len(w.queue) > 0 && w.queue[0].at.Sub(w.start) <= until {
		if done != nil && done() {
			return
		}
		it := heap.Pop(&w.queue).(item)
		w.now = it.at
		it.f()
	}
	if done == nil || !done() {
		w.now = w.start.Add(until)
	}
}

func (w *world) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("%8.3fs ", w.now.Sub(w.start).Seconds())+fmt.Sprintf(format, args...))
}

// join starts an agent on a new host.
func (w *world) join(name string, ranks int) *host {
	h := &host{w: w, name: name, froze: map[int]bool{}}
	w.nodes = append(w.nodes, h)
	n, lives := len(w.nodes), 0
	h.m = NewMachine(w.set, Node{Host: name, PID: n, Addr: name, NumRanks: ranks, Role: "default", Rank: -1}, func() string {
		lives++
		return fmt.Sprintf("%08x%08x", n, lives)
	}, func() int { return 20000 + lives })
	w.log("%s starts", name)
	h.step(Ticked{})
	return h
}

// later runs f on a host, if its agent still lives then, after a thaw if need be.
func (h *host) later(d time.Duration, f func()) {
	life := h.life
	h.w.after(d, func() {
		if h.life == life {
			h.do(f)
		}
	})
}

func (h *host) do(f func()) {
	if h.frozen {
		h.held = append(h.held, f)
		return
	}
	f()
}

// step feeds the machine and does what it says.
func (h *host) step(e Event) {
	if h.dead || h.end != nil {
		return
	}
	for _, a := range h.m.Step(h.w.now, e) {
		h.act(a)
	}
	if wake := h.m.Wake(); !wake.IsZero() {
		h.wakes++
		n := h.wakes
		h.later(max(0, wake.Sub(h.w.now)), func() {
			if h.wakes == n {
				h.step(Ticked{})
			}
		})
	}
}

// ask is a call of the store: do runs there, its result goes back.
func (h *host) ask(do func() Event, failed Event) {
	w := h.w
	sent, life := w.now, h.life
	lost := func() {
		h.later(max(0, sent.Add(w.set.Timing.Call).Sub(w.now)), func() { h.step(failed) })
	}
	if h.cut {
		lost()
		return
	}
	w.after(w.latency(), func() {
		if h.cut {
			if h.life == life {
				lost()
			}
			return
		}
		w.calls++
		answer := do()
		w.after(w.latency(), func() {
			switch {
			case h.life != life:
			case h.cut:
				lost()
			default:
				h.do(func() {
					if w.now.Sub(sent) > w.set.Timing.Call { // it thaws
						h.step(failed)
					} else {
						h.step(answer)
					}
				})
			}
		})
	})
}

func (h *host) act(a Action) {
	w := h.w
	switch a := a.(type) {
	case Write:
		sent := w.now
		h.ask(func() Event {
			w.cards[a.Card.Node.ID] = &a.Card
			return Put{OK: true, Sent: sent}
		}, Put{})
	case Peek:
		h.ask(func() Event { return Read{OK: true, Asked: true, State: w.state} }, Read{Asked: true})
	case Arrive:
		h.ask(func() Event { w.list = append(w.list, a.ID); return Arrived{OK: true} }, Arrived{})
	case Look:
		h.ask(func() Event {
			e := Looked{OK: true}
			for _, id := range a.IDs {
				if c := w.cards[id]; c != nil {
					e.Cards = append(e.Cards, *c)
				}
			}
			if a.List {
				e.List = slices.Clip(w.list)
			}
			return e
		}, Looked{})
	case Swap:
		h.ask(func() Event {
			won := w.state == a.Old
			if won {
				w.publish(a.New)
			}
			return Swapped{OK: true, Won: won, State: w.state}
		}, Swapped{})
	case Start:
		h.start(a.Place)
	case Stop:
		w.log("%s stops its ranks%s: %s", h.name, map[bool]string{true: " at once"}[a.Kill], a.Text)
		d := w.stopTime()
		if a.Kill {
			d = 5 * time.Millisecond
		}
		h.stopRanks(d, Failed, "stopped")
	case Finish:
		r := a.Result
		h.end, h.endedAt = &r, w.now
		w.log("%s ends (good %v, left %v): %s", h.name, r.Good, r.Left, r.Text)
		if h.round != nil {
			w.problem("%s ends with ranks that run", h.name)
		}
	}
}

// publish takes a new state into the store and tells everybody.
func (w *world) publish(s *State) {
	old := w.state
	if old != nil {
		switch {
		case s.Version != old.Version+1:
			w.problem("version %d after %d", s.Version, old.Version)
		case s.Round != old.Round && !(s.Round == old.Round+1 && s.Phase == Running && old.Phase == Gathering):
			w.problem("round %d after %d, %s after %s", s.Round, old.Round, s.Phase, old.Phase)
		case old.Phase == Closed:
			w.problem("a state after the end")
		case s.Restarts > s.MaxRestarts || s.Restarts < old.Restarts && !(s.Restarts == 0 && s.Ending == nil && old.Phase == Gathering):
			w.problem("%d restarts of %d after %d", s.Restarts, s.MaxRestarts, old.Restarts)
		}
	}
	if b := encode(s); len(w.nodes) < 100 {
		if back, err := decodeState(b); err != nil || string(encode(back)) != string(b) {
			w.problem("state %s is not read as it was written: %v", b, err)
		}
	}
	w.state = s
	w.log("state %s", w.describe(s))
	for _, h := range w.nodes {
		h.news()
	}
}

// news tells a host of the newest state as soon as it can be reached.
func (h *host) news() {
	if h.dead || h.end != nil {
		return
	}
	h.later(h.w.latency(), func() {
		switch {
		case h.cut:
			h.later(100*time.Millisecond, h.news)
		case h.m.state != nil && h.known < h.w.state.Version:
			h.known = h.w.state.Version
			h.step(Read{OK: true, State: h.w.state})
		}
	})
}

// name of the host whose agent has an ID.
func (w *world) name(id string) string {
	var n, life int
	_, _ = fmt.Sscanf(id, "%08x%08x", &n, &life)
	if n < 1 || n > len(w.nodes) {
		return "nobody"
	}
	return w.nodes[n-1].name
}

func (w *world) describe(s *State) string {
	list := func(nodes []Node) string {
		var out []string
		for i := range nodes {
			out = append(out, w.name(nodes[i].ID))
		}
		return "[" + strings.Join(out, " ") + "]"
	}
	text := fmt.Sprintf("%d: %s %d of %s by %s", s.Version, s.Phase, s.Round, list(s.Members), w.name(s.Decider))
	if len(s.Waiting) > 0 {
		text += ", waiting " + list(s.Waiting)
	}
	if s.Restarts > 0 {
		text += fmt.Sprintf(", restarts %d", s.Restarts)
	}
	if s.Ending != nil {
		text += fmt.Sprintf(", ended: %s (%s)", s.Ending.Cause, s.Ending.Text)
	}
	if s.Phase == Closed {
		text += fmt.Sprintf(", good %v (%s)", s.Good, s.Text)
	}
	return text
}

// start begins the ranks of a host in a round.
func (h *host) start(p Place) {
	w := h.w
	w.log("%s starts ranks %d to %d of %d in round %d", h.name, p.FirstRank, p.FirstRank+h.m.me.NumRanks-1, p.NumRanks, p.Round)
	if h.round != nil {
		w.problem("%s starts round %d while round %d runs there", h.name, p.Round, h.round.number)
	}
	for _, other := range w.nodes {
		if other.round != nil && other.round.number != p.Round && !other.froze[other.round.number] {
			w.problem("%s starts round %d while round %d runs on %s", h.name, p.Round, other.round.number, other.name)
		}
	}
	if p.NumNodes < w.set.Min || p.NumNodes > w.set.Max {
		w.problem("round %d of %d nodes, want %d to %d", p.Round, p.NumNodes, w.set.Min, w.set.Max)
	}
	r := w.rounds[p.Round]
	if r == nil {
		r = &round{number: p.Round, place: p, hosts: make([]*host, p.NumNodes), progress: w.progress}
		w.rounds[p.Round] = r
		w.after(0, r.tick(w))
	}
	if q := r.place; q.NumNodes != p.NumNodes || q.NumRanks != p.NumRanks || q.MasterAddr != p.MasterAddr || q.MasterPort != p.MasterPort {
		w.problem("round %d is %+v to some and %+v to others", p.Round, q, p)
	}
	if r.hosts[p.NodeRank] != nil {
		w.problem("%s and %s both have node rank %d in round %d", h.name, r.hosts[p.NodeRank].name, p.NodeRank, p.Round)
	}
	r.hosts[p.NodeRank], h.round = h, r
}

// stopRanks ends the ranks of a host after a while.
func (h *host) stopRanks(d time.Duration, status Status, text string) {
	r := h.round
	if r == nil {
		return
	}
	h.later(d, func() {
		if h.round == r {
			h.round = nil
			h.step(Ended{Round: r.number, Status: status, Text: text})
		}
	})
}

// tick plays the ranks of a round for a while: they go on while all can reach each
// other, fail when one is gone, and save what they have done twice a second.
func (r *round) tick(w *world) func() {
	const every = 50 * time.Millisecond
	return func() {
		out, gone, started, live := false, false, true, false
		for _, h := range r.hosts {
			switch {
			case h == nil:
				started = false
			case h.round != r:
				gone = true
			default:
				live = true
				out = out || h.cut || h.frozen
			}
		}
		if !live && (started || gone) {
			return
		}
		switch {
		case gone:
			r.fail(w, "a rank is gone")
			return
		case out:
			if r.stalled.IsZero() {
				r.stalled = w.now
			}
			if w.now.Sub(r.stalled) > silence {
				r.fail(w, "a rank is silent")
				return
			}
		case started:
			r.stalled = time.Time{}
			if r.began.IsZero() {
				r.began = w.now
				w.log("round %d is complete", r.number)
			}
			if r.progress += every; r.progress-w.progress >= time.Second/2 {
				w.progress = r.progress
			}
			if r.progress >= w.work {
				for _, h := range r.hosts {
					h.stopRanks(w.latency(), Done, "")
				}
				return
			}
		}
		w.after(every, r.tick(w))
	}
}

// fail ends the ranks that are left.
func (r *round) fail(w *world, text string) {
	if r.broken {
		return
	}
	r.broken = true
	for _, h := range r.hosts {
		if h != nil && h.round == r {
			h.stopRanks(time.Duration(5+w.rng.IntN(45))*time.Millisecond, Failed, text)
		}
	}
}

// The disturbances.

// kill ends an agent, and with it its ranks.
func (h *host) kill() {
	h.w.log("%s is killed", h.name)
	h.dead, h.round, h.frozen, h.held = true, nil, false, nil
	h.life++
}

// setCut cuts a host off from the others and the store, or ends that.
func (h *host) setCut(cut bool) {
	h.w.log("%s is cut off: %v", h.name, cut)
	h.cut = cut
}

// setFrozen stops all processes of a host, or continues them.
func (h *host) setFrozen(frozen bool) {
	h.w.log("%s is frozen: %v", h.name, frozen)
	h.frozen = frozen
	if h.round != nil {
		h.froze[h.round.number] = true
	}
	if !frozen {
		held := h.held
		h.held = nil
		for _, f := range held {
			h.do(f)
		}
	}
}

// failRank has a rank of a host fail.
func (h *host) failRank() {
	if h.round != nil {
		h.w.log("a rank of %s fails", h.name)
		h.stopRanks(0, Failed, "rank failed")
	}
}

// whole reports whether a round runs on all hosts that could take part in one.
func (w *world) whole() bool {
	if w.state == nil || w.state.Phase != Running {
		return false
	}
	r := w.rounds[w.state.Round]
	if r == nil || r.broken {
		return false
	}
	want := 0
	for _, h := range w.nodes {
		if !h.dead && h.end == nil && !h.cut && !h.frozen && !h.m.leaving {
			want++
		}
	}
	n := 0
	for _, h := range r.hosts {
		if h != nil && h.round == r && !h.dead && !h.cut && !h.frozen {
			n++
		}
	}
	return n == len(r.hosts) && n == min(want, w.set.Max)
}
