// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"fmt"
	"time"
)

// Machine is the state machine of one node in a rendezvous: events go in, actions come out.
// It starts nothing, reads no clock and waits for nothing. One event answers each action
// that calls the store, also if the store does not answer.
type Machine struct {
	set   Settings
	me    Node
	newID func() string
	port  func() int // returns another port, kept for rank 0 of the next round

	state   *State
	order   int // index of this node among the state's members, or -1
	decider *decider
	list    []string // the list of arrivals, as last read
	began   time.Time
	proof   time.Time // when the last card was sent that the store has confirmed
	heard   time.Time // when the store last answered

	status    Status
	round     int // the round on the card
	text      string
	beat      uint64
	dirty     bool      // the card in the store is out of date
	carded    bool      // a card with the present ID is in the store
	told      uint64    // the newest version of the state that the card in the store names
	arrived   bool      // the present ID is in the list of arrivals
	arrivedAt time.Time // when it was added
	admitted  bool      // the state has had the present ID
	running   bool      // ranks run
	runs      int       // the round in which they run
	stopping  bool      // the ranks have been told to stop
	final     bool      // the ranks that ran last would fail again
	killed    bool
	leaving   bool
	leftAt    time.Time
	over      bool
	result    Result

	putting, peeking, looking, swapping, arriving bool
	written                                       Card      // the last one
	putAt, lookAt, peekAt                         time.Time // when the next one is due
	rest                                          time.Time // the store has failed: it is not called before this time
	vacant                                        time.Time // since when there is no decider
}

// glances is how many heartbeats pass between two readings of the state. The store reports a
// new state by itself, but such a report may be lost.
const glances = 20

// Result is how a job ended for one agent.
type Result struct {
	Good bool
	Left bool   // the node was asked to leave; the job may go on without it
	Text string // the reason
}

// Event is something that has happened.
type Event interface{ isEvent() }

// The events. OK is false if the store did not answer in time.
type (
	// Read brings the state that is in the store, nil if there is none. It answers Peek
	// (Asked), or comes by itself.
	Read struct {
		OK, Asked bool
		State     *State
	}
	// Put answers Write.
	Put struct {
		OK   bool
		Sent time.Time
	}
	// Looked answers Look. A card that cannot be read has only its node's ID, and a Text
	// that says why.
	Looked struct {
		OK    bool
		Cards []Card
		List  []string // the IDs of all nodes that have arrived
	}
	// Swapped answers Swap with the state that the store has now.
	Swapped struct {
		OK, Won bool
		State   *State
	}
	// Arrived answers Arrive.
	Arrived struct{ OK bool }
	// Ended says that none of the node's ranks runs any more.
	Ended struct {
		Round  int
		Status Status // Done or Failed; it does not count if the ranks had been told to stop
		Text   string
		Final  bool // the ranks would fail again
	}
	// Failing says that a rank has failed and that the others are about to end.
	Failing struct {
		Round int
		Text  string
		Final bool
	}
	// Leave asks the node to leave the job.
	Leave struct{ Text string }
	// Ticked says that the time of Wake has come.
	Ticked struct{}
)

func (Read) isEvent()    {}
func (Put) isEvent()     {}
func (Looked) isEvent()  {}
func (Swapped) isEvent() {}
func (Arrived) isEvent() {}
func (Ended) isEvent()   {}
func (Failing) isEvent() {}
func (Leave) isEvent()   {}
func (Ticked) isEvent()  {}

// Action is something for the shell to do.
type Action interface{ isAction() }

// The actions.
type (
	// Peek reads the state.
	Peek struct{}
	// Write writes this node's card.
	Write struct{ Card Card }
	// Look reads the cards of nodes and, if List is set, the list of arrivals.
	Look struct {
		IDs  []string
		List bool
	}
	// Swap writes the state New, if the store still has Old (nil: no state).
	Swap struct{ Old, New *State }
	// Arrive adds an ID to the list of arrivals.
	Arrive struct{ ID string }
	// Start starts the ranks of this node.
	Start struct{ Place Place }
	// Stop ends them: by a signal, or, if Kill is set, at once.
	Stop struct {
		Kill bool
		Text string
	}
	// Finish is the last action.
	Finish struct{ Result Result }
)

func (Peek) isAction()   {}
func (Write) isAction()  {}
func (Look) isAction()   {}
func (Swap) isAction()   {}
func (Arrive) isAction() {}
func (Start) isAction()  {}
func (Stop) isAction()   {}
func (Finish) isAction() {}

// NewMachine makes the machine of a node. newID makes the ID under which the node joins, each
// time it does. port returns another port of the node each time, and keeps it for rank 0 until
// it is called again.
func NewMachine(set Settings, me Node, newID func() string, port func() int) *Machine {
	m := &Machine{set: set, me: me, newID: newID, port: port, status: Ready, dirty: true}
	m.decider = newDecider(&m.set)
	m.me.ID, m.me.Port = newID(), port()
	return m
}

// State returns the last state that the machine has read; nil if there is none.
func (m *Machine) State() *State { return m.state }

// pace is the time between two looks at the cards. The decider looks often if there are few
// nodes, and less often if reading all cards takes long.
func (m *Machine) pace() time.Duration {
	if m.state == nil || !m.decides() && !m.awaitsOthers() {
		return m.set.Timing.Beat / 2
	}
	n := len(m.state.Members) + len(m.state.Waiting)
	return min(max(m.set.Timing.Beat/10, time.Duration(n)*20*time.Microsecond), m.set.Timing.Beat)
}

func (m *Machine) decides() bool { return m.state != nil && m.state.Decider == m.me.ID }

// Wake returns the time at which Step must be called with Ticked; the zero time means never.
func (m *Machine) Wake() time.Time {
	if m.over || m.began.IsZero() {
		return time.Time{}
	}
	next := m.heard.Add(m.patience())
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	ask := func(busy bool, t time.Time) {
		if !busy && t.Before(m.rest) {
			at(m.rest)
		} else if !busy {
			at(t)
		}
	}
	if m.dirty {
		ask(m.putting, m.rest)
	}
	ask(m.putting, m.putAt)
	ask(!m.carded || m.arrived || m.arriving, m.rest)
	ask(!m.arrived || m.peeking || m.swapping, m.peekAt)
	ask(!m.arrived || m.state == nil || m.looking || m.swapping, m.lookAt)
	if m.running && !m.killed {
		at(m.proof.Add(m.set.Timing.Fence()))
	}
	if m.arrived && !m.admitted {
		at(m.arrivedAt.Add(m.set.Timing.Lost()))
	}
	if !m.leftAt.IsZero() {
		at(m.leftAt.Add(m.set.Timing.Close))
	}
	return next
}

// patience is how long the store may be out of reach. Before it has answered for the first
// time, that is how long nodes may take to come.
func (m *Machine) patience() time.Duration {
	if m.state == nil {
		return m.set.Timing.Join
	}
	return m.set.Timing.Read
}

// Step takes one event and returns the actions that follow from it. The time now never goes
// back.
func (m *Machine) Step(now time.Time, e Event) []Action {
	if m.over {
		return nil
	}
	if m.began.IsZero() {
		m.began, m.heard, m.proof = now, now, now
	}
	var out []Action
	switch e := e.(type) {
	case Read:
		if e.Asked {
			m.peeking, m.peekAt = false, now.Add(m.set.Timing.Beat)
			if m.state != nil {
				m.peekAt = now.Add(glances * m.set.Timing.Beat)
			}
		}
		if m.answered(now, e.OK) {
			out = m.learn(now, e.State)
			if e.State == nil && m.state != nil {
				out = append(out, m.again("the store in which the nodes meet has lost what was in it")...)
			}
			if e.State == nil && m.arrived && m.state == nil && !m.swapping && !m.leaving {
				out = append(out, m.propose(nil, &State{
					Version: 1, Born: m.me.ID, Job: m.set.Job, Min: m.set.Min, Max: m.set.Max, MaxRestarts: m.set.MaxRestarts, Lost: m.set.Timing.Lost(),
					Decider: m.me.ID, Phase: Gathering, Fresh: true,
				}))
			}
		}
	case Put:
		m.putting = false
		if m.answered(now, e.OK) && m.written.Node.ID == m.me.ID {
			m.carded, m.told = true, m.written.Seen
			if e.Sent.After(m.proof) {
				m.proof = e.Sent
			}
		} else {
			m.dirty = true
		}
	case Looked:
		m.looking, m.lookAt = false, now.Add(m.pace())
		if m.answered(now, e.OK) {
			if e.List != nil {
				m.list = e.List
			}
			m.decider.look(now, e.Cards)
			out = m.consider(now)
		}
	case Swapped:
		m.swapping, m.peekAt = false, now
		if m.answered(now, e.OK) {
			m.peekAt = now.Add(glances * m.set.Timing.Beat)
			out = m.learn(now, e.State)
		}
	case Arrived:
		m.arriving = false
		if m.answered(now, e.OK) {
			m.arrived, m.arrivedAt, m.peekAt = true, now, now
		}
	case Ended:
		out = m.ended(e)
	case Failing:
		if m.running && !m.stopping && !m.leaving && e.Round == m.runs {
			m.status, m.text, m.final, m.dirty = Failed, clip(e.Text), e.Final, true
		}
	case Leave:
		out = m.leave(now, e.Text)
	}
	out = append(out, m.act(now)...)
	return out
}

// answered notes whether the store answered.
func (m *Machine) answered(now time.Time, ok bool) bool {
	if ok {
		m.heard = now
	} else {
		m.rest = now.Add(m.set.Timing.Beat / 5)
	}
	return ok
}

// learn takes in a state.
func (m *Machine) learn(now time.Time, s *State) (out []Action) {
	if s != nil && m.state != nil && s.Born != m.state.Born {
		out = m.again("the store in which the nodes meet is another one")
	}
	if s == nil || m.state != nil && s.Version <= m.state.Version {
		return out
	}
	if m.state == nil {
		if err := s.mismatch(&m.set); err != nil {
			return m.finish(Result{Text: err.Error()})
		}
		if s.Phase == Closed {
			return m.finish(Result{Text: fmt.Sprintf("job %q has ended here already (%s): give the new one another --rdzv-id", s.Job, s.Text)})
		}
	}
	m.state, m.dirty, m.lookAt = s, true, now
	m.vacant = time.Time{}
	if s.Decider == "" {
		m.vacant = now
	}
	for _, r := range s.Refused {
		if r.ID == m.me.ID {
			return m.finish(Result{Text: r.Text})
		}
	}
	mine := find(s.Members, m.me.ID)
	m.order = mine
	in := mine >= 0 || find(s.Waiting, m.me.ID) >= 0
	switch {
	case s.Phase == Closed:
		out = append(out, m.halt(s.Text)...)
		if !m.running {
			m.status = Left
		}
	case in:
		m.admitted = true
	case m.admitted && m.leaving:
		// The other nodes know that this one has left.
	case m.admitted:
		// The other nodes have given this one up. They do not need its ranks.
		return append(out, m.anew("the other nodes have given this one up: "+m.ending())...)
	}
	if !in || s.Phase == Closed {
		return out
	}
	switch {
	case m.leaving:
	case s.Phase == Gathering:
		if m.running {
			out = append(out, m.halt(m.ending())...)
		} else if m.status != Ready {
			m.status, m.text, m.me.Port = Ready, "", m.port()
		}
		if mine >= 0 {
			m.round = s.Round
		}
	case s.Phase == Running && mine >= 0 && s.Round > m.round && !m.running:
		m.running, m.stopping, m.killed = true, false, false
		m.status, m.round, m.runs, m.text, m.final = Busy, s.Round, s.Round, "", false
		if m.proof.Add(m.set.Timing.Fence()).Before(now) { // news from long ago
			m.running, m.status, m.text = false, Ready, "the node had been cut off from the store"
			return out
		}
		out = append(out, Start{s.place(mine)})
	}
	return out
}

// anew kills the ranks, which nobody needs any more, and joins again under another ID.
func (m *Machine) anew(why string) []Action {
	m.admitted, m.arrived, m.carded = false, false, false
	m.me.ID, m.decider, m.list = m.newID(), newDecider(&m.set), nil
	return m.kill(why)
}

// again joins a store that knows nothing of the job.
func (m *Machine) again(why string) []Action {
	m.state, m.order, m.round, m.told = nil, -1, 0, 0
	m.vacant, m.dirty = time.Time{}, true
	return m.anew(why)
}

func (m *Machine) ending() string {
	if m.state != nil && m.state.Ending != nil {
		return m.state.Ending.Text
	}
	return "the round is over"
}

// ended deals with the end of all ranks of this node.
func (m *Machine) ended(e Ended) []Action {
	if !m.running || e.Round != m.runs {
		return nil
	}
	m.running, m.dirty = false, true
	m.final = m.final || e.Final
	switch {
	case m.leaving, m.state != nil && m.state.Phase == Closed:
		m.status = Left
	case m.stopping || m.killed:
		m.status, m.me.Port = Ready, m.port()
	default:
		m.status, m.text = e.Status, clip(e.Text)
	}
	return nil
}

// leave begins to go.
func (m *Machine) leave(now time.Time, text string) []Action {
	if m.leaving {
		return nil
	}
	m.leaving, m.dirty, m.text = true, true, clip(text)
	m.status = Left
	if m.running {
		m.status = Leaving
		return m.halt(text)
	}
	return nil
}

// halt stops the ranks by a signal.
func (m *Machine) halt(text string) []Action {
	if !m.running || m.stopping {
		return nil
	}
	m.stopping = true
	return []Action{Stop{Text: text}}
}

// kill kills the ranks at once.
func (m *Machine) kill(text string) []Action {
	if !m.running || m.killed {
		return nil
	}
	m.stopping, m.killed, m.text = true, true, text
	return []Action{Stop{Kill: true, Text: text}}
}

// propose offers the next state to the store.
func (m *Machine) propose(old, next *State) Action {
	m.swapping = true
	return Swap{old, next}
}

// consider acts on the cards that were read. The decider decides. The other nodes check
// whether the decider lives.
func (m *Machine) consider(now time.Time) []Action {
	s := m.state
	if s == nil || m.swapping {
		return nil
	}
	if m.decides() {
		m.decider.arrivals(s, m.list)
		for _, id := range m.decider.list {
			if m.decider.card(id) == nil {
				m.lookAt = now // its card has to be read
			}
		}
		n := m.decider.decide(now, s, len(m.list))
		if after := cmp.Or(n, s); m.status == Left && after.Phase != Closed && !after.has(m.me.ID) {
			if n == nil {
				n = s.clone()
				n.Version++
			}
			n.Decider = "" // this node leaves
		}
		if n == nil {
			return nil
		}
		return []Action{m.propose(s, n)}
	}
	if s.Phase == Closed || m.leaving || !m.takesOver(now) {
		return nil
	}
	n := s.clone()
	n.Version++
	n.Decider = m.me.ID
	return []Action{m.propose(s, n)}
}

// takesOver reports whether this node becomes the decider, because there is none that lives.
// Each member waits a little longer than the member before it, and other nodes wait longer
// than all members, so that few nodes try at the same time.
func (m *Machine) takesOver(now time.Time) bool {
	s, order := m.state, m.order
	if order < 0 {
		order = len(s.Members) + 1
	}
	wait := min(time.Duration(order)*m.set.Timing.Beat/10, m.set.Timing.Lost())
	if s.Decider == "" {
		return now.Sub(m.vacant) >= wait
	}
	g := m.decider.sights[s.Decider]
	return g != nil && now.Sub(g.moved) > m.set.Timing.Lost()+wait
}

// act returns the actions that are due at the time now.
func (m *Machine) act(now time.Time) (out []Action) {
	if m.over {
		return nil
	}
	t := &m.set.Timing
	if m.running && !m.killed && now.Sub(m.proof) >= t.Fence() {
		out = append(out, m.kill(fmt.Sprintf("the node has been cut off from the store for %v", t.Fence()))...)
	}
	if now.Sub(m.heard) >= m.patience() {
		if m.running {
			out = append(out, m.kill("the store is out of reach")...)
		} else {
			return append(out, m.finish(Result{Text: fmt.Sprintf("the store has been out of reach for %v", m.patience())})...)
		}
	}
	if m.finished(now) {
		return append(out, m.finish(m.last())...)
	}
	if now.Before(m.rest) {
		return out
	}
	if !m.putting && (m.dirty || !now.Before(m.putAt)) {
		m.putting, m.dirty, m.putAt = true, false, now.Add(t.Beat)
		m.written = m.card()
		out = append(out, Write{m.written})
	}
	if m.arrived && !m.admitted && now.Sub(m.arrivedAt) >= t.Lost() {
		// The others may have taken it in and given it up again, while it read neither state.
		m.arrived = m.leaving
		m.arrivedAt = now
	}
	if m.carded && !m.arrived && !m.arriving && !m.leaving { // the card comes first
		m.arriving = true
		out = append(out, Arrive{m.me.ID})
	}
	if !m.arrived || m.swapping {
		return out
	}
	if !m.peeking && !now.Before(m.peekAt) {
		m.peeking = true
		out = append(out, Peek{})
	}
	if m.state != nil && !m.looking && !now.Before(m.lookAt) {
		m.looking = true
		out = append(out, m.sees())
	}
	return out
}

// sees returns which cards this node has to read.
func (m *Machine) sees() Look {
	switch {
	case m.decides():
		m.decider.arrivals(m.state, m.list)
		return Look{IDs: m.decider.wants(m.state), List: true}
	case m.awaitsOthers():
		return Look{IDs: m.decider.wants(m.state)}
	case m.state.Decider != "":
		return Look{IDs: []string{m.state.Decider}}
	default:
		return Look{}
	}
}

// awaitsOthers reports whether this node stays until the others have read the end.
func (m *Machine) awaitsOthers() bool { return m.me.Hosts && m.state.Phase == Closed }

func (m *Machine) card() Card {
	m.beat++
	c := Card{Node: m.me, Min: m.set.Min, Max: m.set.Max, MaxRestarts: m.set.MaxRestarts, Lost: m.set.Timing.Lost(), Beat: m.beat, Round: m.round, Status: m.status, Text: m.text, Final: m.final}
	if m.state != nil {
		c.Seen = m.state.Version
	}
	return c
}

// finished reports whether the agent may end: its ranks have ended, and the other nodes know
// that, or have had enough time to learn it.
func (m *Machine) finished(now time.Time) bool {
	closed := m.state != nil && m.state.Phase == Closed
	if m.running || !closed && !m.leaving {
		return false
	}
	if m.leftAt.IsZero() {
		m.leftAt, m.dirty, m.lookAt, m.status = now, true, now, Left
	}
	switch {
	case now.Sub(m.leftAt) >= m.set.Timing.Close, !m.arrived:
		return true
	case !closed && m.admitted:
		return !m.state.has(m.me.ID) && !m.decides()
	case m.dirty || m.putting: // the last card has to be written, unless the store has gone
		return closed && m.told >= m.state.Version && !m.me.Hosts && now.Before(m.rest)
	case !closed || !m.me.Hosts:
		return true
	}
	// The node that serves the store stays until all others have read the end in it.
	for i := range m.state.Members {
		n := &m.state.Members[i]
		if n.ID == m.me.ID || m.decider.lost(now, n.ID) {
			continue
		}
		if c := m.decider.card(n.ID); c == nil || c.Status != Left {
			return false
		}
	}
	return true
}

func (m *Machine) last() Result {
	if m.leaving && (m.state == nil || !m.state.Good) {
		return Result{Left: true, Text: m.text}
	}
	return Result{Good: m.state.Good, Text: m.state.Text}
}

func (m *Machine) finish(r Result) []Action {
	m.over, m.result = true, r
	return []Action{Finish{r}}
}
