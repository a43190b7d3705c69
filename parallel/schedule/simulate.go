// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// SimulateOptions say how long things take in virtual time.
type SimulateOptions struct {
	// Cost returns how long a rank computes an action. nil is [UnitCost].
	Cost func(a Action) time.Duration
	// Delay returns how long the message of a send is on its way between two ranks. nil is no
	// time. The messages of one rank to another come one after the other.
	Delay func(from, to int, send Action) time.Duration
	// Ahead is how many actions ahead a rank posts its receives; see [Schedule.Lower].
	Ahead int
	// Rendezvous lets a message leave only when its receive is posted: the ranks have no
	// memory for messages that nobody awaits.
	Rendezvous bool
	// MaxSends is how many messages of one rank to another may be on their way. Before it
	// starts a further send, a rank waits. 0 is no limit.
	MaxSends int
}

// UnitCost returns a millisecond for a forward pass and for each part of a backward pass, so
// two for a whole backward pass.
func UnitCost(a Action) time.Duration {
	if a.Kind == Backward {
		return 2 * time.Millisecond
	}
	return time.Millisecond
}

// Span is when a rank computes an action.
type Span struct{ Start, End time.Duration }

// Simulation is how a step went in virtual time.
type Simulation struct {
	Time   time.Duration   // when the last rank had done its last action
	Busy   []time.Duration // by rank: how long it computed
	Spans  [][]Span        // by rank: of its actions, in the order of Schedule.Ranks
	Bubble float64         // the part of the ranks' time in which they did not compute
	// Activations is the most that a rank held, by rank: forward passes of a stage whose
	// backward passes were not at their end.
	Activations []int
	// Received is the most values that a rank held, or had posted receives for, before the
	// actions that need them began, by rank.
	Received []int
}

// OrderError says that a rank cannot do its actions in their order.
type OrderError struct {
	Rank    int
	Action  Action
	Problem string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("schedule: rank %d cannot do %v: %s", e.Rank, e.Action, e.Problem)
}

// DeadlockError says that ranks wait for each other.
type DeadlockError struct {
	Ranks    []int    // that wait
	Actions  []Action // that they would do next
	NumRanks int
}

func (e *DeadlockError) Error() string {
	const most = 8
	var waits []string
	for i, r := range e.Ranks[:min(most, len(e.Ranks))] {
		waits = append(waits, fmt.Sprintf("rank %d before %v", r, e.Actions[i]))
	}
	if n := len(e.Ranks) - most; n > 0 {
		waits = append(waits, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("schedule: %d of %s wait for each other: %s", len(e.Ranks), count(e.NumRanks, "rank"), strings.Join(waits, ", "))
}

// Simulate plays a step in virtual time. The ranks execute the programs of [Schedule.Lower].
// The errors are an [*OrderError] and a [*DeadlockError].
func (s *Schedule) Simulate(o SimulateOptions) (*Simulation, error) {
	if o.Cost == nil {
		o.Cost = UnitCost
	}
	p := newPlay(s, o)
	for rank := range s.Ranks {
		p.ready = append(p.ready, rank)
	}
	for len(p.ready) > 0 {
		rank := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		if err := p.ranks[rank].run(); err != nil {
			return nil, err
		}
	}
	return p.result()
}

// play is a step that is under way. What a rank does depends on the times of the messages
// alone, so the order in which the ranks are played changes nothing.
type play struct {
	s        *Schedule
	o        SimulateOptions
	ranks    []*player
	channels map[[2]int]*channel
	ready    []int   // ranks that may go on
	states   []state // by stage and microbatch
	// inputs and gradients are when the values of a stage came, by stage and microbatch; -1 is
	// not yet.
	inputs, gradients []time.Duration
}

// state is how far a stage is with a microbatch.
type state uint8

const (
	untouched state = iota
	forwarded
	inputDone
	finished
)

func newPlay(s *Schedule, o SimulateOptions) *play {
	size := s.NumStages * s.NumMicrobatches
	p := &play{s: s, o: o, channels: map[[2]int]*channel{}, states: make([]state, size)}
	p.inputs = slices.Repeat([]time.Duration{-1}, size)
	p.gradients = slices.Clone(p.inputs)
	for rank, actions := range s.Ranks {
		p.ranks = append(p.ranks, &player{p: p, rank: rank, program: s.Lower(rank, o.Ahead), spans: make([]Span, 0, len(actions))})
	}
	return p
}

// at returns when the value of a receive came.
func (p *play) at(recv Action) *time.Duration {
	values := p.inputs
	if recv.Kind == RecvBackward {
		values = p.gradients
	}
	return &values[recv.Stage*p.s.NumMicrobatches+recv.Microbatch]
}

// channel carries the messages of one rank to another, one after the other.
type channel struct {
	from, to  int
	sent      []stamped // sends that have begun, without those that have met their receives
	posted    []stamped // receives likewise
	numSent   int
	delivered []time.Duration // when the messages came
}

type stamped struct {
	action Action
	at     time.Duration
}

func (p *play) channel(from, to int) *channel {
	c := p.channels[[2]int{from, to}]
	if c == nil {
		c = &channel{from: from, to: to}
		p.channels[[2]int{from, to}] = c
	}
	return c
}

// match delivers the messages whose sends and receives are known.
func (c *channel) match(p *play) error {
	for len(c.sent) > 0 && len(c.posted) > 0 {
		send, recv := c.sent[0], c.posted[0]
		c.sent, c.posted = c.sent[1:], c.posted[1:]
		if want := p.s.message(send.action).recv; want != recv.action {
			return &OrderError{Rank: c.to, Action: recv.action, Problem: fmt.Sprintf("rank %d sends %v first", c.from, send.action)}
		}
		begin := send.at
		if p.o.Rendezvous {
			begin = max(begin, recv.at)
		}
		if n := len(c.delivered); n > 0 {
			begin = max(begin, c.delivered[n-1])
		}
		if p.o.Delay != nil {
			begin += p.o.Delay(c.from, c.to, send.action)
		}
		c.delivered = append(c.delivered, begin)
		*p.at(recv.action) = begin
		p.wake(c.from)
		p.wake(c.to)
	}
	return nil
}

// wake lets a rank that waits try again.
func (p *play) wake(rank int) {
	if r := p.ranks[rank]; r.waits {
		r.waits = false
		p.ready = append(p.ready, rank)
	}
}

// player is a rank that executes its program.
type player struct {
	p       *play
	rank    int
	program []Action
	next    int // in program
	waits   bool
	now     time.Duration
	busy    time.Duration
	spans   []Span

	activations, mostActivations int
	received, mostReceived       int
}

// run executes actions until the rank has to wait for something that has no time yet.
func (r *player) run() error {
	for r.next < len(r.program) {
		a := r.program[r.next]
		done, err := r.do(a)
		if err != nil {
			return err
		}
		if !done {
			r.waits = true
			return nil
		}
		r.next++
	}
	return nil
}

// do executes an action. It reports false if the action has to wait.
func (r *player) do(a Action) (bool, error) {
	switch a.Kind {
	case SendForward, SendBackward:
		return r.send(a)
	case RecvForward, RecvBackward:
		from := a.Stage - 1
		if a.Kind == RecvBackward {
			from = a.Stage + 1
		}
		c := r.p.channel(r.p.s.RankOf(from), r.rank)
		c.posted = append(c.posted, stamped{a, r.now})
		r.received++
		r.mostReceived = max(r.mostReceived, r.received)
		return true, c.match(r.p)
	}
	return r.compute(a)
}

func (r *player) send(a Action) (bool, error) {
	c := r.p.channel(r.rank, r.p.s.message(a).to)
	if limit := r.p.o.MaxSends; limit > 0 && c.numSent >= limit {
		if c.numSent-limit >= len(c.delivered) {
			return false, nil
		}
		r.now = max(r.now, c.delivered[c.numSent-limit])
	}
	c.sent = append(c.sent, stamped{a, r.now})
	c.numSent++
	return true, c.match(r.p)
}

func (r *player) compute(a Action) (bool, error) {
	need := r.p.s.need(a)
	if need.from >= 0 {
		at := *r.p.at(need.recv)
		if at < 0 && need.from == r.rank {
			return false, &OrderError{Rank: r.rank, Action: a, Problem: "what it needs comes later on the same rank"}
		}
		if at < 0 {
			return false, nil
		}
		r.now = max(r.now, at)
		if need.from != r.rank {
			r.received--
		}
	}
	if err := r.step(a); err != nil {
		return false, err
	}
	cost := r.p.o.Cost(a)
	r.spans = append(r.spans, Span{r.now, r.now + cost})
	r.now += cost
	r.busy += cost
	if m := r.p.s.gives(a); m.from >= 0 && m.from == m.to {
		*r.p.at(m.recv) = r.now
	}
	return true, nil
}

// step counts an action, and refuses one that is out of turn.
func (r *player) step(a Action) error {
	state := &r.p.states[a.Stage*r.p.s.NumMicrobatches+a.Microbatch]
	before, after := untouched, forwarded
	switch a.Kind {
	case Backward:
		before, after = forwarded, finished
	case BackwardInput:
		before, after = forwarded, inputDone
	case BackwardWeight:
		before, after = inputDone, finished
	}
	if *state != before {
		return &OrderError{Rank: r.rank, Action: a, Problem: "it is out of turn, or done twice"}
	}
	*state = after
	switch after {
	case forwarded:
		r.activations++
		r.mostActivations = max(r.mostActivations, r.activations)
	case finished:
		r.activations--
	}
	return nil
}

// result sums up a step at its end.
func (p *play) result() (*Simulation, error) {
	sim, stuck := &Simulation{}, &DeadlockError{NumRanks: len(p.ranks)}
	busy := time.Duration(0)
	for _, r := range p.ranks {
		if r.next < len(r.program) {
			stuck.Ranks, stuck.Actions = append(stuck.Ranks, r.rank), append(stuck.Actions, r.program[r.next])
		}
		sim.Time, busy = max(sim.Time, r.now), busy+r.busy
		sim.Busy, sim.Spans = append(sim.Busy, r.busy), append(sim.Spans, r.spans)
		sim.Activations, sim.Received = append(sim.Activations, r.mostActivations), append(sim.Received, r.mostReceived)
	}
	if len(stuck.Ranks) > 0 {
		return nil, stuck
	}
	for i, state := range p.states {
		if state != finished {
			a := Action{i / p.s.NumMicrobatches, i % p.s.NumMicrobatches, Backward}
			return nil, &OrderError{Rank: p.s.RankOf(a.Stage), Action: a, Problem: "it has no such action"}
		}
	}
	if sim.Time > 0 {
		sim.Bubble = 1 - float64(busy)/(float64(sim.Time)*float64(len(p.ranks)))
	}
	return sim, nil
}
