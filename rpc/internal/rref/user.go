// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"cmp"
	"time"
)

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Creator, b.Creator), cmp.Compare(a.N, b.N))
}

// Remote begins a call that leaves its result at another node. The reference
// travels with it. [Machine.Confirm] or [Machine.Fail] tells how it went.
func (m *Machine) Remote(now time.Time, owner Node) Handle {
	m.at(now)
	p := m.peer(owner)
	u := m.fork(p, creating)
	u.ref = Ref{Owner: owner, Creator: m.self, N: u.n}
	return Handle{Ref: u.ref, N: u.n}
}

func (m *Machine) fork(p *peer, s useState) *use {
	m.engage(p)
	p.lastFork++
	u := &use{n: p.lastFork, state: s}
	p.uses[u.n] = u
	return u
}

// Confirm says that the owner has answered the call of a handle that Remote
// returned, and keeps the result. instance is the owner's.
func (m *Machine) Confirm(now time.Time, h Handle, instance uint64) {
	m.at(now)
	if !m.meet(m.peer(h.Ref.Owner), instance) {
		return
	}
	if u := m.use(h); u != nil && u.state == creating {
		u.state = held
	}
}

// Fail says that the call of a handle that Remote returned has failed, though
// the owner may have seen it. The handle is released by that.
func (m *Machine) Fail(now time.Time, h Handle) { m.Release(now, h) }

func (m *Machine) use(h Handle) *use {
	if p := m.peers[h.Ref.Owner]; p != nil && h.N != 0 {
		return p.uses[h.N]
	}
	return nil
}

// Release gives a handle up. Releasing one that was lost does nothing.
func (m *Machine) Release(now time.Time, h Handle) {
	m.at(now)
	if h.N == 0 {
		if o := m.owned[h.Ref]; o != nil && o.holds > 0 {
			o.holds--
			m.tryFree(o)
		}
		return
	}
	if u := m.use(h); u != nil && !u.released {
		u.released = true
		m.tryDrop(u)
	}
}

// tryDrop tells the owner of the end of a fork that has been released and is
// not on its way elsewhere.
func (m *Machine) tryDrop(u *use) {
	p := m.peers[u.ref.Owner]
	if !u.released || u.passes > 0 || u.state == dropping || p.uses[u.n] != u {
		return
	}
	delete(p.post, letter{KindAdd, u.n})
	u.state = dropping
	m.mail(p, Message{Kind: KindDrop, N: u.n})
}

// finish ends a fork of which the owner knows that it has.
func (m *Machine) finish(p *peer, u *use) {
	delete(p.uses, u.n)
	delete(p.post, letter{KindAdd, u.n})
	delete(p.post, letter{KindDrop, u.n})
	p.done.add(u.n)
	m.accept(u.accept)
}

// lose ends a fork that the owner does not count.
func (m *Machine) lose(p *peer, u *use, why Reason) {
	m.finish(p, u)
	if !u.released {
		m.do(Lost{Handle: Handle{Ref: u.ref, N: u.n}, Reason: why})
	}
}

func (m *Machine) onAdded(p *peer, n uint64) {
	u := p.uses[n]
	if u == nil || u.state != adding {
		return
	}
	delete(p.post, letter{KindAdd, n})
	u.state = held
	if u.accept.to != p.node { // the owner's own pass was settled by the fork
		m.accept(u.accept)
	}
	u.accept = debt{}
}

func (m *Machine) onGone(p *peer, n uint64) {
	u := p.uses[n]
	switch {
	case u == nil || u.state == creating:
	case u.state == dropping:
		m.finish(p, u)
	default:
		m.lose(p, u, Freed)
	}
}

// abandon ends all that this node waits for from another.
func (m *Machine) abandon(p *peer, why Reason) {
	clear(p.post)
	for _, n := range sorted(p.uses) {
		m.lose(p, p.uses[n], why)
	}
}

// Share passes the reference of a handle to a node, in a call that is over
// at until. The handle may be released thereafter. False: the handle is
// released or lost.
func (m *Machine) Share(now time.Time, h Handle, to Node, until time.Time) (Pass, bool) {
	m.at(now)
	g := &pass{until: m.now.Add(m.config.Lease)}
	if d := until.Add(m.config.Lease); d.After(g.until) {
		g.until = d
	}
	if h.N == 0 {
		o := m.owned[h.Ref]
		if o == nil || o.holds == 0 {
			return Pass{}, false
		}
		o.passes++
		g.owned = o
	} else {
		u := m.use(h)
		if u == nil || u.released {
			return Pass{}, false
		}
		u.passes++
		g.use = u
	}
	p := m.peer(to)
	p.lastPass++
	p.given[p.lastPass] = g
	return Pass{Ref: h.Ref, From: m.self, N: p.lastPass}, true
}

// Withdraw takes back a pass that was not sent to the node.
func (m *Machine) Withdraw(now time.Time, to Node, p Pass) {
	m.at(now)
	m.settle(m.peer(to), p.N)
}

func (m *Machine) settle(p *peer, n uint64) {
	g := p.given[n]
	if g == nil {
		return
	}
	delete(p.given, n)
	if g.owned != nil {
		g.owned.passes--
		m.tryFree(g.owned)
		return
	}
	g.use.passes--
	m.tryDrop(g.use)
}

// Adopt takes a reference that came with a call, and returns a handle. It is
// good at once: whoever passed it on keeps the value until the owner knows of
// this node. Unwanted: the value is gone.
func (m *Machine) Adopt(now time.Time, from Node, ps Pass) (Handle, Standing) {
	m.at(now)
	p := m.peer(from)
	p.heard = m.now
	if ps.From != from || ps.N == 0 || ps.Ref.N == 0 {
		return Handle{}, Invalid
	}
	if p.taken.has(ps.N) {
		return Handle{}, Repeated
	}
	p.taken.add(ps.N)
	d := debt{from, ps.N}
	if ps.Ref.Owner == m.self {
		o, gone := m.find(ps.Ref)
		if gone || o == nil {
			m.accept(d)
			return Handle{}, Unwanted
		}
		o.holds++
		if o.awaited {
			o.accepts = append(o.accepts, d)
		} else {
			m.accept(d)
		}
		return Handle{Ref: ps.Ref}, Counted
	}
	owner := m.peer(ps.Ref.Owner)
	u := m.fork(owner, adding)
	u.ref, u.accept = ps.Ref, d
	msg := Message{Kind: KindAdd, N: u.n, Ref: u.ref}
	if from == owner.node {
		msg.Pass = ps.N
	}
	m.mail(owner, msg)
	return Handle{Ref: u.ref, N: u.n}, Counted
}

// accept tells who passed a reference that its receiver needs it no longer.
func (m *Machine) accept(d debt) {
	if d.n != 0 {
		m.mail(m.peer(d.to), Message{Kind: KindAccept, N: d.n})
	}
}
