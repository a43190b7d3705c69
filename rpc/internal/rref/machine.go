// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Node names a process. One that is started again is the same node, with a
// higher instance.
type Node uint64

// Ref names a value: who owns it, who asked for it (the owner itself, if it put
// a value of its own behind a reference), and which of the fork counters of
// those two it began with.
type Ref struct {
	Owner, Creator Node
	N              uint64
}

// Handle is a reference in the hands of a program: a fork at another node, or,
// with N zero, one of the owner's holds.
type Handle struct {
	Ref Ref
	N   uint64
}

// Pass is what travels with a call that carries a reference.
type Pass struct {
	Ref  Ref
	From Node   // whose handle it is made of
	N    uint64 // which of the passes from that node to the receiver
}

// Kind is what a message says.
type Kind byte

// The numbers are the wire's.
const (
	KindAdd      Kind = 1 // to the owner: count my fork N of Ref; this settles your pass Pass, if not 0
	KindAdded    Kind = 2 // from the owner: fork N counts
	KindGone     Kind = 3 // from the owner: fork N is of a value that is gone
	KindDrop     Kind = 4 // to the owner: fork N is no more
	KindDropped  Kind = 5 // from the owner: fork N does not count
	KindAccept   Kind = 6 // to who passed a reference: pass N is settled
	KindAccepted Kind = 7 // the answer to it
	KindBeat     Kind = 8 // to the owner: my forks up to N are no more, the others live
	KindBeatBack Kind = 9 // from the owner: your forks up to N do not count
	// to all: this node has no forks and no values any more
	KindLeave Kind = 10
)

// Message is what machines send each other.
type Message struct {
	Kind Kind
	N    uint64
	Ref  Ref    // KindAdd
	Pass uint64 // KindAdd
}

// Reason says why a handle was lost.
type Reason byte

// Reasons.
const (
	Freed   Reason = 1 // the owner has freed the value, or never had it
	Expired Reason = 2 // the owner has not heard from this node for the lease
	Silent  Reason = 3 // the owner has not been heard of for two leases
	Left    Reason = 4 // the owner has left
)

func (r Reason) String() string {
	switch r {
	case Freed:
		return "its owner does not have the value (any more)"
	case Expired:
		return "its owner had heard nothing from this process for the whole lease, and dropped its references"
	case Silent:
		return "its owner has not answered for two leases"
	case Left:
		return "its owner has left"
	}
	return "it is lost"
}

// An Action is something for the shell to do, in order.
type Action interface{ isAction() }

type (
	// Send sends a message. It may fail or be lost.
	Send struct {
		To      Node
		Message Message
	}
	// Free drops the value: no reference is left.
	Free struct{ Ref Ref }
	// Created says that the value of a reference that was adopted before its
	// value was asked for is now asked for.
	Created struct{ Ref Ref }
	// Missing says that such a call will not come: what waits for the value waits
	// in vain, and the handles on it are of no use.
	Missing struct{ Ref Ref }
	// Lost says that a fork is of no use any more. It need not be released.
	Lost struct {
		Handle Handle
		Reason Reason
	}
	// Lapsed says that the lease of a node has ended, with this many forks.
	Lapsed struct {
		Node  Node
		Forks int
	}
)

func (Send) isAction()    {}
func (Free) isAction()    {}
func (Created) isAction() {}
func (Missing) isAction() {}
func (Lost) isAction()    {}
func (Lapsed) isAction()  {}

// Config sets the times. Shells call Tick twice every Retry.
type Config struct {
	Lease time.Duration // how long a silent node's forks count
	Beat  time.Duration // between signs of life
	Retry time.Duration // between two sendings of a message without an answer
	// Limit is how many forks one node may have here, and how many references
	// may wait for their creation; 0 is a million.
	Limit int
}

// DefaultConfig is for nodes in one job.
func DefaultConfig() Config {
	return Config{Lease: 30 * time.Second, Beat: 3 * time.Second, Retry: time.Second}
}

// owned is a value here, or one that is awaited.
type owned struct {
	ref     Ref
	holds   int  // handles of this node
	forks   int  // of other nodes
	passes  int  // on their way from here
	running bool // the method that makes the value has not returned

	// The call that creates the value has not come, though references to it
	// have.
	awaited bool
	since   time.Time
	accepts []debt // what is settled when it comes
}

// debt is a pass of another node's that is to be accepted.
type debt struct {
	to Node
	n  uint64
}

// useState is where a fork of this node stands.
type useState byte

const (
	creating useState = iota // the call that creates the value is on its way
	adding                   // the owner has not confirmed it
	held
	dropping // released, and the owner has not confirmed that
)

// use is a fork of this node's.
type use struct {
	ref      Ref
	n        uint64
	state    useState
	passes   int // on their way from here
	released bool
	accept   debt // what is settled when the owner knows; n 0: nothing
}

// pass is a reference on its way from here.
type pass struct {
	owned *owned // or
	use   *use
	until time.Time
}

// letter is a message that is repeated until it is answered.
type letter struct {
	kind Kind
	n    uint64
}

type post struct {
	message Message
	due     time.Time
}

// doom is when the forks of an instance end that is no more: those up to one.
type doom struct {
	through uint64
	at      time.Time
}

// maxDooms bounds them: those of more instances within a lease end together.
const maxDooms = 64

// peer is what is known of another node.
type peer struct {
	node     Node
	instance uint64 // 0: not heard of
	heard    time.Time

	// its forks of values here
	alive time.Time // when it last said something as their user
	forks map[uint64]*owned
	gone  spans  // counters of forks that never count again
	top   uint64 // the highest counter that it has used
	floor uint64 // what BeatBack says
	dooms []doom // of those of the instances before this one, in order

	// forks of this node's of values there
	uses     map[uint64]*use
	lastFork uint64
	done     spans // counters of those that are over
	since    time.Time
	beat     time.Time

	// references that were passed to it, and those that came from it
	given    map[uint64]*pass
	lastPass uint64
	taken    spans

	post map[letter]*post
}

// Machine is one node's part of the protocol. Make one with New.
type Machine struct {
	self     Node
	instance uint64
	config   Config
	now      time.Time
	ticked   time.Time
	owned    map[Ref]*owned
	awaited  int
	lastOwn  uint64
	peers    map[Node]*peer
	actions  []Action
}

// New returns the machine of node self. All of its counters begin behind
// instance, which must be more than any counter of the process that was this
// node before: the time in nanoseconds will do.
func New(self Node, instance uint64, c Config) *Machine {
	if c.Limit == 0 {
		c.Limit = 1_000_000
	}
	return &Machine{
		self: self, instance: instance, config: c, lastOwn: instance,
		owned: map[Ref]*owned{}, peers: map[Node]*peer{},
	}
}

// Instance returns what New got; it goes with all messages.
func (m *Machine) Instance() uint64 { return m.instance }

// Actions returns what is to be done since the last call, in order.
func (m *Machine) Actions() []Action {
	a := m.actions
	m.actions = nil
	return a
}

// Busy says whether the machine needs ticks: while it does not, time is
// nothing to it.
func (m *Machine) Busy() bool {
	if m.awaited > 0 {
		return true
	}
	for _, p := range m.peers {
		if len(p.forks)+len(p.uses)+len(p.given)+len(p.post) > 0 {
			return true
		}
	}
	return false
}

// at begins every call. Ticks that have not come for a good part of the lease tell
// that this process was stopped.
func (m *Machine) at(now time.Time) {
	if now.After(m.now) {
		m.now = now
	}
	gap := m.now.Sub(m.ticked)
	if m.ticked.IsZero() || !m.Busy() {
		m.ticked = m.now
	} else if gap > m.config.Lease/4 {
		m.absent(gap)
		m.ticked = m.now
	}
}

func (m *Machine) do(a Action) { m.actions = append(m.actions, a) }

func (m *Machine) peer(n Node) *peer {
	p := m.peers[n]
	if p == nil {
		p = &peer{
			node: n, heard: m.now, lastFork: m.instance, lastPass: m.instance, forks: map[uint64]*owned{}, uses: map[uint64]*use{},
			given: map[uint64]*pass{}, post: map[letter]*post{},
		}
		p.done.trim(m.instance)
		m.peers[n] = p
	}
	return p
}

// sorted returns a map's keys in order, so that the same events have the same
// effects in the same order.
func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// send sends a message once.
func (m *Machine) send(p *peer, msg Message) { m.do(Send{To: p.node, Message: msg}) }

// mail sends a message until it is answered.
func (m *Machine) mail(p *peer, msg Message) {
	m.engage(p)
	p.post[letter{msg.Kind, msg.N}] = &post{message: msg, due: m.now.Add(m.config.Retry)}
	m.send(p, msg)
}

// engage begins to wait for signs of life of an owner, if nothing did before.
func (m *Machine) engage(p *peer) {
	if len(p.uses)+len(p.post) == 0 {
		p.since = m.now
		p.beat = m.now.Add(m.config.Beat)
	}
}

// Receive takes a message from an instance of a node. What an earlier one has
// sent is nothing; a later one ends all that there was with those before it.
func (m *Machine) Receive(now time.Time, from Node, instance uint64, msg Message) {
	m.at(now)
	p := m.peer(from)
	if !m.meet(p, instance) {
		return
	}
	p.heard = m.now
	switch msg.Kind {
	case KindAdd, KindDrop, KindBeat:
		p.alive = m.now
	}
	switch msg.Kind {
	case KindAdd:
		m.onAdd(p, msg)
	case KindDrop:
		m.onDrop(p, msg.N)
	case KindBeat:
		m.onBeat(p, msg.N)
	case KindAccept:
		m.settle(p, msg.N)
		m.send(p, Message{Kind: KindAccepted, N: msg.N})
	case KindLeave:
		m.leave(p)
	case KindAdded:
		m.onAdded(p, msg.N)
	case KindGone:
		m.onGone(p, msg.N)
	case KindDropped:
		if u := p.uses[msg.N]; u != nil && u.state == dropping {
			m.finish(p, u)
		}
	case KindAccepted:
		delete(p.post, letter{KindAccept, msg.N})
	case KindBeatBack:
		for _, n := range sorted(p.uses) {
			if u := p.uses[n]; n <= msg.N && u.state == held {
				m.lose(p, u, Expired)
			}
		}
	}
}

// meet notes which instance of a node is there, and says whether it is the one
// that was heard of, or a later one.
func (m *Machine) meet(p *peer, instance uint64) bool {
	if instance > p.instance {
		if p.instance != 0 {
			// Forks of the one before still protect what it has passed on.
			if len(p.dooms) == maxDooms {
				p.dooms = p.dooms[:maxDooms-1]
			}
			p.dooms = append(p.dooms, doom{instance - 1, m.now.Add(m.config.Lease)})
			// What has not been confirmed, and what was passed on, may be at the new
			// one; that will tell, or the lease.
			for _, n := range sorted(p.uses) {
				if u := p.uses[n]; u.state == held {
					m.lose(p, u, Left)
				}
			}
		}
		p.instance = instance
	}
	return instance == p.instance
}

// Tick does what is due.
func (m *Machine) Tick(now time.Time) {
	m.at(now)
	m.ticked = m.now
	for _, n := range sorted(m.peers) {
		p := m.peers[n]
		if len(p.forks) > 0 && m.now.Sub(p.alive) > m.config.Lease {
			m.lapse(p)
		}
		for len(p.dooms) > 0 && m.now.After(p.dooms[0].at) {
			m.bury(p, 0, p.dooms[0].through)
			p.dooms = p.dooms[1:]
		}
		last := p.heard
		if p.since.After(last) {
			last = p.since
		}
		if len(p.uses)+len(p.post) > 0 && m.now.Sub(last) > 2*m.config.Lease {
			m.abandon(p, Silent)
		}
		for _, t := range sorted(p.given) {
			if m.now.After(p.given[t].until) {
				m.settle(p, t)
			}
		}
		if len(p.uses) > 0 && !m.now.Before(p.beat) {
			p.beat = m.now.Add(m.config.Beat)
			m.send(p, Message{Kind: KindBeat, N: p.done.through})
		}
		m.repeat(p)
	}
	if m.awaited > 0 {
		m.review()
	}
}

// repeat sends again what has not been answered.
func (m *Machine) repeat(p *peer) {
	var due []letter
	for l, o := range p.post {
		if !m.now.Before(o.due) {
			due = append(due, l)
		}
	}
	slices.SortFunc(due, func(a, b letter) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.n, b.n)) })
	for _, l := range due {
		p.post[l].due = m.now.Add(m.config.Retry)
		m.send(p, p.post[l].message)
	}
}

// absent shifts the leases of the others by the time that this process was
// stopped: their signs of life may lie unread.
func (m *Machine) absent(d time.Duration) {
	for _, p := range m.peers {
		p.heard = p.heard.Add(d)
		p.alive = p.alive.Add(d)
		p.since = p.since.Add(d)
		for i := range p.dooms {
			p.dooms[i].at = p.dooms[i].at.Add(d)
		}
		for _, g := range p.given {
			g.until = g.until.Add(d)
		}
	}
	for _, o := range m.owned {
		o.since = o.since.Add(d)
	}
}

// leave ends all that there is with a node that says that it goes.
func (m *Machine) leave(p *peer) {
	m.bury(p, 0, p.top)
	m.abandon(p, Left)
	for _, t := range sorted(p.given) {
		m.settle(p, t)
	}
}

// Near returns the nodes that have forks here, and those that own what this
// node has forks of: who is told when this node leaves.
func (m *Machine) Near() []Node {
	var near []Node
	for _, n := range sorted(m.peers) {
		if p := m.peers[n]; n != m.self && len(p.forks)+len(p.uses)+len(p.given)+len(p.post) > 0 {
			near = append(near, n)
		}
	}
	return near
}

// Count says how much there is: values here, those of them that other nodes have
// forks of, by node, and forks of this node.
func (m *Machine) Count() (values, uses int, forks map[Node]int) {
	forks = map[Node]int{}
	for n, p := range m.peers {
		if len(p.forks) > 0 {
			forks[n] = len(p.forks)
		}
		uses += len(p.uses)
	}
	return len(m.owned) - m.awaited, uses, forks
}
