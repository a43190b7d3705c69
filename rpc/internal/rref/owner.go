// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"slices"
	"time"
)

// Standing is what an owner makes of a call or a reference that came in.
type Standing byte

// Standings.
const (
	Counted  Standing = 1 // it is good
	Unwanted Standing = 2 // nobody has a reference any more
	Repeated Standing = 3 // it has come before
	Invalid  Standing = 4 // it is not for this node, or over a limit
)

// Own puts a value of this node's behind a reference, with one hold.
func (m *Machine) Own(now time.Time) Handle {
	m.at(now)
	m.lastOwn++
	r := Ref{Owner: m.self, Creator: m.self, N: m.lastOwn}
	m.owned[r] = &owned{ref: r, holds: 1}
	return Handle{Ref: r}
}

// Create takes a call of another node's that leaves its result here. Counted:
// the value is kept for it, and [Machine.Done] tells when the method has
// returned. Unwanted: the caller has given the reference up; the method should
// run, for what it does, and its result goes.
func (m *Machine) Create(now time.Time, from Node, r Ref) Standing {
	m.at(now)
	if r.Owner != m.self || r.Creator != from || from == m.self || r.N == 0 {
		return Invalid
	}
	p := m.peer(from)
	p.heard, p.alive = m.now, m.now
	p.top = max(p.top, r.N)
	if p.gone.has(r.N) {
		return Unwanted
	}
	if p.forks[r.N] != nil {
		return Repeated
	}
	if len(p.forks) >= m.config.Limit {
		p.gone.add(r.N)
		return Invalid
	}
	o := m.owned[r]
	if o == nil {
		o = &owned{ref: r}
		m.owned[r] = o
	}
	o.forks++
	o.running = true
	p.forks[r.N] = o
	if o.awaited {
		o.awaited = false
		m.awaited--
		for _, d := range o.accepts {
			m.accept(d)
		}
		o.accepts = nil
		m.do(Created{Ref: r})
	}
	return Counted
}

// Done says that the method of a call that Create counted has returned.
func (m *Machine) Done(now time.Time, r Ref) {
	m.at(now)
	if o := m.owned[r]; o != nil && o.running {
		o.running = false
		m.tryFree(o)
	}
}

// Hold returns another handle of the owner's; false if there is no such value.
func (m *Machine) Hold(now time.Time, r Ref) (Handle, bool) {
	m.at(now)
	o := m.owned[r]
	if o == nil || o.awaited {
		return Handle{}, false
	}
	o.holds++
	return Handle{Ref: r}, true
}

// Has says what a node that uses a reference finds here: Counted, Unwanted, or
// false while the call that creates the value has not come.
func (m *Machine) Has(now time.Time, r Ref) (Standing, bool) {
	m.at(now)
	if r.Owner != m.self {
		return Invalid, true
	}
	o, gone := m.find(r)
	switch {
	case gone:
		return Unwanted, true
	case o == nil:
		return Invalid, true
	case o.awaited:
		return 0, false
	}
	return Counted, true
}

// find returns the value of a reference, which may be awaited, or whether it is
// gone. It returns neither if there is no room to await it.
func (m *Machine) find(r Ref) (o *owned, gone bool) {
	if o = m.owned[r]; o != nil {
		return o, false
	}
	if r.N == 0 || r.Creator == m.self {
		return nil, true
	}
	if c := m.peers[r.Creator]; c != nil && c.gone.has(r.N) {
		return nil, true
	}
	if m.awaited >= m.config.Limit {
		return nil, false
	}
	o = &owned{ref: r, awaited: true, since: m.now}
	m.owned[r] = o
	m.awaited++
	return o, false
}

func (m *Machine) tryFree(o *owned) {
	if o.holds+o.forks+o.passes == 0 && !o.running && !o.awaited && m.owned[o.ref] == o {
		delete(m.owned, o.ref)
		m.do(Free{Ref: o.ref})
	}
}

// onAdd counts a fork. While the value is awaited there is no answer: the user
// asks again.
func (m *Machine) onAdd(p *peer, msg Message) {
	n := msg.N
	p.top = max(p.top, n)
	if p.forks[n] == nil && !p.gone.has(n) {
		if msg.Ref.Owner != m.self || len(p.forks) >= m.config.Limit {
			p.gone.add(n)
		} else if o, gone := m.find(msg.Ref); gone {
			p.gone.add(n)
		} else if o == nil || o.awaited {
			return
		} else {
			o.forks++
			p.forks[n] = o
		}
	}
	if msg.Pass != 0 {
		m.settle(p, msg.Pass)
	}
	if p.forks[n] == nil {
		m.send(p, Message{Kind: KindGone, N: n})
		return
	}
	m.send(p, Message{Kind: KindAdded, N: n})
}

func (m *Machine) onDrop(p *peer, n uint64) {
	p.top = max(p.top, n)
	m.uncount(p, n)
	p.gone.add(n)
	m.send(p, Message{Kind: KindDropped, N: n})
}

func (m *Machine) uncount(p *peer, n uint64) {
	if o := p.forks[n]; o != nil {
		delete(p.forks, n)
		o.forks--
		m.tryFree(o)
	}
}

func (m *Machine) onBeat(p *peer, through uint64) {
	if through > p.gone.through {
		after := uint64(0)
		if n := len(p.dooms); n > 0 {
			after = p.dooms[n-1].through
		}
		m.bury(p, after, through)
	}
	m.send(p, Message{Kind: KindBeatBack, N: p.floor})
}

// lapse ends a node's lease.
func (m *Machine) lapse(p *peer) {
	m.do(Lapsed{Node: p.node, Forks: len(p.forks)})
	m.bury(p, 0, p.top)
	p.floor = max(p.floor, p.top)
}

// bury drops the forks of a node after one and up to another. None that it
// has had up to then counts again.
func (m *Machine) bury(p *peer, after, through uint64) {
	for _, n := range sorted(p.forks) {
		if after < n && n <= through {
			m.uncount(p, n)
		}
	}
	p.gone.trim(through)
}

// review gives up awaited values that will not come.
func (m *Machine) review() {
	var over []*owned
	for _, o := range m.owned {
		if o.awaited && (m.peer(o.ref.Creator).gone.has(o.ref.N) || m.now.Sub(o.since) > m.config.Lease) {
			over = append(over, o)
		}
	}
	slices.SortFunc(over, func(a, b *owned) int { return compareRefs(a.ref, b.ref) })
	for _, o := range over {
		m.peer(o.ref.Creator).gone.add(o.ref.N) // and a call that comes now finds it so
		delete(m.owned, o.ref)
		m.awaited--
		for _, d := range o.accepts {
			m.accept(d)
		}
		m.do(Missing{Ref: o.ref})
	}
}
