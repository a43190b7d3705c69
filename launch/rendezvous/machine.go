// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"fmt"
	"time"
)

// Machine is one agent's part of a rendezvous: what happens goes in as events,
// what to do comes out as actions. It starts nothing, reads no clock and waits for
// nothing. Every action that asks the store is answered by one event, also when
// the store did not answer.
type Machine struct {
	set   Settings
	me    Node
	newID func() string
	port  func() int // that is free now

	state   *State
	order   int // of this node among the state's members, or -1
	decider *decider
	list    []string // of arrivals, as far as known
	began   time.Time
	proof   time.Time // when the last card was written that is known to have come
	heard   time.Time // when the store last answered

	status    Status
	round     int // of the card
	text      string
	beat      uint64
	dirty     bool      // the card says what is not so any more
	carded    bool      // this life's card is in the store
	told      uint64    // the newest version that the card in the store has seen
	arrived   bool      // this life's arrival is in the list
	arrivedAt time.Time // when it was put there
	admitted  bool      // and the state has had it
	running   bool      // ranks run
	runs      int       // the round that they run in
	stopping  bool      // and have been told to stop
	final     bool      // those that ran last would fail again
	killed    bool
	leaving   bool
	leftAt    time.Time
	over      bool
	result    Result

	putting, peeking, looking, swapping, arriving bool
	written                                       Card      // the last one
	putAt, lookAt, peekAt                         time.Time // when the next is due
	rest                                          time.Time // nothing is asked before: the store has just failed
	vacant                                        time.Time // since when nobody decides
}

// glances is how many beats pass between two readings of a state that no news has
// come of: news comes by itself, but may be lost.
const glances = 20

// Result is how a job ended for one agent.
type Result struct {
	Good bool
	Left bool   // the agent was asked to leave; the job may go on
	Text string // why
}

// Event is something that happened.
type Event interface{ isEvent() }

// The events. OK is false where the store did not answer in time.
type (
	// Read is the state as it is in the store, nil for none: the answer to Peek,
	// or news that came by itself.
	Read struct {
		OK, Asked bool
		State     *State
	}
	// Put answers Write.
	Put struct {
		OK   bool
		Sent time.Time
	}
	// Looked answers Look. A card that cannot be read has the zero value of all but
	// its node's ID and Text, which says why.
	Looked struct {
		OK    bool
		Cards []Card
		List  []string // of all who have arrived
	}
	// Swapped answers Swap, with the state that the store has then.
	Swapped struct {
		OK, Won bool
		State   *State
	}
	// Arrived answers Arrive.
	Arrived struct{ OK bool }
	// Ended says that none of the node's ranks runs any more.
	Ended struct {
		Round  int
		Status Status // Done or Failed; what else, where the ranks had been told to stop, does not matter
		Text   string
		Final  bool // the ranks would fail again
	}
	// Failing says that a rank has failed, and the others are about to end.
	Failing struct {
		Round int
		Text  string
		Final bool
	}
	// Leave asks the node to go.
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
	// Look reads the cards of nodes, and, for List, the list of arrivals.
	Look struct {
		IDs  []string
		List bool
	}
	// Swap writes a state, if the store still has the one before it (nil: none).
	Swap struct{ Old, New *State }
	// Arrive adds an ID to the list of arrivals.
	Arrive struct{ ID string }
	// Start starts the ranks of this node.
	Start struct{ Place Place }
	// Stop ends them: by a signal, or, for Kill, at once.
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

// NewMachine makes the machine of an agent. newID gives it a name for each life,
// port a port that is free on its node.
func NewMachine(set Settings, me Node, newID func() string, port func() int) *Machine {
	m := &Machine{set: set, me: me, newID: newID, port: port, status: Ready, dirty: true}
	m.decider = newDecider(&m.set)
	m.me.ID, m.me.Port = newID(), port()
	return m
}

// State returns the last state that the machine has seen, nil for none.
func (m *Machine) State() *State { return m.state }

// pace is the time between two looks of who decides: often for few nodes, and
// never so often that reading the cards is all that happens.
func (m *Machine) pace() time.Duration {
	if m.state == nil || !m.decides() && !m.awaitsOthers() {
		return m.set.Timing.Beat / 2
	}
	n := len(m.state.Members) + len(m.state.Waiting)
	return min(max(m.set.Timing.Beat/10, time.Duration(n)*20*time.Microsecond), m.set.Timing.Beat)
}

func (m *Machine) decides() bool { return m.state != nil && m.state.Decider == m.me.ID }

// Wake is when Step wants to be called with Ticked; the zero time means never.
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

// patience is how long the store may be out of reach: before it has ever
// answered, as long as nodes may take to come.
func (m *Machine) patience() time.Duration {
	if m.state == nil {
		return m.set.Timing.Join
	}
	return m.set.Timing.Read
}

// Step takes one event, at a time that never goes back.
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
		// The others know.
	case m.admitted:
		// The others have given this node up; its ranks are of no use to them.
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

// anew begins another life of this agent: its ranks are of no use any more.
func (m *Machine) anew(why string) []Action {
	m.admitted, m.arrived, m.carded = false, false, false
	m.me.ID, m.decider, m.list = m.newID(), newDecider(&m.set), nil
	return m.kill(why)
}

// again is anew with a store that knows nothing of the job.
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

// halt has the ranks stopped.
func (m *Machine) halt(text string) []Action {
	if !m.running || m.stopping {
		return nil
	}
	m.stopping = true
	return []Action{Stop{Text: text}}
}

// kill has them killed.
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

// consider looks at what was seen: who decides, decides; the others see whether
// that one is alive.
func (m *Machine) consider(now time.Time) []Action {
	s := m.state
	if s == nil || m.swapping {
		return nil
	}
	if m.decides() {
		m.decider.arrivals(s, m.list)
		for _, id := range m.decider.list {
			if m.decider.card(id) == nil {
				m.lookAt = now // for its card
			}
		}
		n := m.decider.decide(now, s, len(m.list))
		if after := cmp.Or(n, s); m.status == Left && after.Phase != Closed && !after.has(m.me.ID) {
			if n == nil {
				n = s.clone()
				n.Version++
			}
			n.Decider = "" // this node goes
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

// takesOver reports whether this node should decide from now on, because nobody
// does. Members come before others, and each waits a little longer than the one
// before, so that few try at once.
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

// act does what is due by now.
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
		// It may have been taken in, and given up again, without hearing of either.
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

// sees is what this node has to look at.
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

// awaitsOthers reports whether this node stays for others to hear of the end.
func (m *Machine) awaitsOthers() bool { return m.me.Hosts && m.state.Phase == Closed }

func (m *Machine) card() Card {
	m.beat++
	c := Card{Node: m.me, Min: m.set.Min, Max: m.set.Max, MaxRestarts: m.set.MaxRestarts, Lost: m.set.Timing.Lost(), Beat: m.beat, Round: m.round, Status: m.status, Text: m.text, Final: m.final}
	if m.state != nil {
		c.Seen = m.state.Version
	}
	return c
}

// finished reports whether the agent may end: its ranks have, and the others know,
// or have had the time to.
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
	case m.dirty || m.putting: // what is to be said last, unless the store has gone
		return closed && m.told >= m.state.Version && !m.me.Hosts && now.Before(m.rest)
	case !closed || !m.me.Hosts:
		return true
	}
	// Who serves the store stays until all others have read the end in it.
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
