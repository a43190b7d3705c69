// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The decider makes the next state from the cards that it has read. It is a pure function of
// what it has seen, and does not know how states are written.

// sight is what one node has seen of another.
type sight struct {
	card  Card
	first time.Time // when this node saw the card first
	moved time.Time // when this node last saw it change
}

// decider is what a node needs to decide. A node that becomes the decider begins with an
// empty one, so that safety does not depend on it.
type decider struct {
	set    *Settings
	sights map[string]*sight
	looked time.Time // time of the last look
	list   []string  // the arrivals that the state has not dealt with yet

	version uint64    // of the state to which the times below belong
	phase   Phase     // of that state
	short   time.Time // gathering: since when there have been too few nodes
	enough  time.Time // gathering: since when there have been enough nodes
	called  time.Time // running: since when nodes have waited to be taken in
}

func newDecider(set *Settings) *decider {
	return &decider{set: set, sights: map[string]*sight{}}
}

// look takes in the cards that have been read.
func (d *decider) look(now time.Time, cards []Card) {
	// After a long time without a look, nobody knows how long a card has not changed.
	blind := !d.looked.IsZero() && now.Sub(d.looked) > 3*d.set.Timing.Beat
	for i := range cards {
		c := &cards[i]
		g := d.sights[c.Node.ID]
		switch {
		case g == nil:
			d.sights[c.Node.ID] = &sight{*c, now, now}
		case c.Beat > g.card.Beat: // else it is an old write that has come late
			g.card, g.moved = *c, now
		}
	}
	if blind {
		for _, g := range d.sights {
			g.first, g.moved = now, now
		}
	}
	d.looked = now
}

// lost reports whether a node has been silent for too long.
func (d *decider) lost(now time.Time, id string) bool {
	g := d.sights[id]
	return g != nil && now.Sub(g.moved) > d.set.Timing.Lost()
}

// card returns the last card that was seen of a node; nil if there is none.
func (d *decider) card(id string) *Card {
	if g := d.sights[id]; g != nil {
		return &g.card
	}
	return nil
}

// wants lists the nodes whose cards the decision needs.
func (d *decider) wants(s *State) []string {
	ids := make([]string, 0, len(s.Members)+len(s.Waiting)+len(d.list))
	for _, nodes := range [][]Node{s.Members, s.Waiting} {
		for i := range nodes {
			ids = append(ids, nodes[i].ID)
		}
	}
	return append(ids, d.list...)
}

// arrivals takes in the list of the nodes that have arrived, and keeps the new ones.
func (d *decider) arrivals(s *State, list []string) {
	d.list = nil
	fresh := list[min(s.Arrived, len(list)):]
	if len(fresh) == 0 {
		return
	}
	known := make(map[string]bool, len(s.Members)+len(s.Waiting)+len(fresh))
	for _, nodes := range [][]Node{s.Members, s.Waiting} {
		for i := range nodes {
			known[nodes[i].ID] = true
		}
	}
	for _, id := range fresh {
		if !known[id] { // a node may be in the list twice
			known[id] = true
			d.list = append(d.list, id)
		}
	}
}

// decide returns the next state, or nil if the state s need not change. total is the length
// of the list of arrivals.
func (d *decider) decide(now time.Time, s *State, total int) *State {
	if s.Phase == Closed {
		return nil
	}
	if d.phase != s.Phase || d.version == 0 {
		d.phase, d.short, d.enough, d.called = s.Phase, time.Time{}, time.Time{}, time.Time{}
	}
	d.version = s.Version
	n := s.clone()
	changed := d.admit(n, total)
	switch n.Phase {
	case Gathering:
		changed = d.gather(now, n) || changed
	case Running:
		changed = d.watch(now, n) || changed
	}
	if !changed {
		return nil
	}
	n.Version++
	return n
}

// admit deals with the nodes that have arrived.
func (d *decider) admit(n *State, total int) bool {
	if n.Arrived >= total {
		return false
	}
	for _, id := range d.list {
		c := d.card(id)
		if c == nil {
			return false // its card has not been read yet
		}
		// The node that holds the node rank may be this host before its agent was started
		// again. It is known to live if its card has changed since, and else given up.
		if h := holder(n, c); h != nil && !d.lives(h.ID, d.sights[id].first) {
			return false
		}
	}
	for _, id := range d.list {
		c := d.card(id)
		if why := refuse(n, c); why != "" {
			n.Refused = append(n.Refused, Refusal{id, why})
			if len(n.Refused) > maxRefused {
				n.Refused = n.Refused[1:]
			}
			continue
		}
		n.Waiting = append(n.Waiting, c.Node)
	}
	n.Arrived, d.list, n.Fresh = total, nil, n.Phase == Gathering
	return true
}

// refuse says why a node cannot take part; empty if it can.
func refuse(n *State, c *Card) string {
	if c.Max == 0 {
		return "the other nodes cannot read what this one says of itself: " + c.Text
	}
	if err := n.mismatch(&Settings{Job: n.Job, Min: c.Min, Max: c.Max, MaxRestarts: c.MaxRestarts, Timing: Timing{Beat: c.Lost, Misses: 1}}); err != nil {
		return err.Error()
	}
	node := &c.Node
	if node.Rank >= n.Max {
		return fmt.Sprintf("--node-rank %d: with %d nodes, ranks are 0 to %d", node.Rank, n.Max, n.Max-1)
	}
	if h := holder(n, c); h != nil {
		return fmt.Sprintf("--node-rank %d is that of %s already: give each node its own", node.Rank, h.Name())
	}
	return ""
}

// holder returns the node that has the node rank for which another one asks, or nil.
func holder(n *State, c *Card) *Node {
	for _, nodes := range [][]Node{n.Members, n.Waiting} {
		for i := range nodes {
			if c.Node.Rank >= 0 && nodes[i].Rank == c.Node.Rank {
				return &nodes[i]
			}
		}
	}
	return nil
}

// lives reports whether a node has written its card since a time, and is not leaving.
func (d *decider) lives(id string, since time.Time) bool {
	g := d.sights[id]
	return g != nil && g.moved.After(since) && g.card.Status != Leaving && g.card.Status != Left
}

// leave sorts nodes into those that are left, those that have gone, and those that are lost.
func (d *decider) leave(now time.Time, nodes []Node, out bool) (left []Node, gone, lost []string) {
	for i := range nodes {
		n := &nodes[i]
		c := d.card(n.ID)
		switch {
		case c != nil && c.Status == Left, c != nil && c.Status == Leaving && out:
			gone = append(gone, because(n, c))
		case d.lost(now, n.ID):
			lost = append(lost, n.Name())
			delete(d.sights, n.ID) // if it comes again, its card is read again
		default:
			left = append(left, *n)
		}
	}
	return left, gone, lost
}

func because(n *Node, c *Card) string {
	if c.Text == "" {
		return n.Name()
	}
	return n.Name() + ": " + c.Text
}

// gather decides while the next round forms.
func (d *decider) gather(now time.Time, n *State) (changed bool) {
	server := n.storeNode()
	members, gone, lost := d.leave(now, n.Members, false)
	waiting, goneToo, lostToo := d.leave(now, n.Waiting, true)
	if len(gone)+len(lost) > 0 {
		changed = true
		if n.Ending != nil {
			n.Ending.Lost = true
			told := func(who string) bool { return strings.Contains(n.Ending.Text, who) }
			n.Ending.Text = clip(n.Ending.Text + tail(slices.DeleteFunc(gone, told), slices.DeleteFunc(lost, told)))
		}
	}
	changed = changed || len(goneToo)+len(lostToo) > 0
	if e := n.Ending; e != nil {
		left := 0
		for i := range n.Members[:e.Left] { // members has some of these, in the same order
			if left < len(members) && members[left].ID == n.Members[i].ID {
				left++
			}
		}
		if e.Left = left; left == 0 {
			// No node of the round is left: the job begins anew.
			n.Ending, n.Restarts, n.Fresh, changed = nil, 0, true, true
		}
	}
	n.Members, n.Waiting = members, waiting
	for len(n.Members) < n.Max && len(n.Waiting) > 0 {
		n.Members, n.Waiting = append(n.Members, n.Waiting[0]), n.Waiting[1:]
		changed = true
	}
	if server != nil && n.storeNode() == nil && len(n.Members) > 0 {
		return shut(n, false, fmt.Sprintf("%s, which serves the store that the nodes meet in, has gone", server.Name()))
	}
	for i := range n.Members {
		// When a node leaves, ranks of other nodes fail because of that.
		if c := d.card(n.Members[i].ID); c != nil && c.Status == Leaving && n.Ending != nil && !n.Ending.Lost {
			changed, n.Ending.Lost = true, true
		}
	}
	if e := n.Ending; e != nil && !e.Judged && d.answered(n, e) {
		changed = true
		if d.judge(n, e) {
			return true
		}
	}
	if len(n.Members) < n.Min {
		d.enough = time.Time{}
		if d.short.IsZero() {
			d.short = now
		}
		if now.Sub(d.short) > d.set.Timing.Join {
			return shut(n, false, fmt.Sprintf("%d of at least %d nodes came within %v (%s)%s", len(n.Members), n.Min, d.set.Timing.Join, names(n.Members), forgotten(n.Members)+after(n.Ending)))
		}
		return changed
	}
	d.short = time.Time{}
	if d.enough.IsZero() {
		d.enough = now
	}
	last := n.Fresh && len(n.Members) < n.Max && now.Sub(d.enough) < d.set.Timing.LastCall
	if last || n.Ending != nil && !n.Ending.Judged || !d.ready(n) {
		return changed
	}
	if e := n.Ending; e != nil && e.Cause == Failure && !e.Lost && d.final(n) {
		return shut(n, false, e.Text+"; it would happen again, so that restarts are of no use")
	}
	d.form(n)
	return true
}

// final reports whether the ranks that failed in the last round would fail again.
func (d *decider) final(n *State) bool {
	return slices.ContainsFunc(n.Members, func(m Node) bool {
		c := d.card(m.ID)
		return c != nil && c.Final && c.Round == n.Round
	})
}

// answered reports whether every node of the round has read how it ended. With a fixed number
// of nodes, the answer of one node is enough: the job needs all nodes anyway.
func (d *decider) answered(n *State, e *Ending) bool {
	heard := 0
	for i := range n.Members[:e.Left] {
		if c := d.card(n.Members[i].ID); c != nil && c.Seen >= e.Version {
			heard++
		}
	}
	return heard == e.Left || n.Min == n.Max && heard > 0
}

// judge decides whether the end of a round counts as a failure, and reports whether it ends
// the job.
func (d *decider) judge(n *State, e *Ending) (over bool) {
	e.Judged = true
	failure := e.Cause == Failure && !e.Lost
	if n.Min == n.Max { // with a fixed number of nodes, a lost node counts as a failure
		failure = e.Cause == Failure || e.Cause == Lost || e.Cause == Gone
	}
	if !failure {
		return false
	}
	if n.Restarts < n.MaxRestarts {
		n.Restarts++
		return false
	}
	why := e.Text
	if n.MaxRestarts > 0 {
		why = fmt.Sprintf("%s; the %d restarts of --max-restarts are used up", why, n.MaxRestarts)
	}
	shut(n, false, why)
	return true
}

// ready reports whether no member runs ranks of the last round.
func (d *decider) ready(n *State) bool {
	for i := range n.Members {
		if c := d.card(n.Members[i].ID); c == nil || c.Status != Ready || c.Round != n.Round && n.Ending != nil && c.Seen < n.Ending.Version {
			return false
		}
	}
	return true
}

// form begins a round with the members.
func (d *decider) form(n *State) {
	for i := range n.Members {
		n.Members[i] = d.card(n.Members[i].ID).Node // the card has the port that is free now
	}
	slices.SortStableFunc(n.Members, func(a, b Node) int {
		if a.Rank < 0 || b.Rank < 0 {
			return 0
		}
		return a.Rank - b.Rank
	})
	n.Text = ""
	if n.Ending != nil { // some nodes may not have read it
		n.Text = n.Ending.Text
	}
	n.Phase, n.Fresh, n.Ending = Running, false, nil
	n.Round++
}

// watch decides while a round runs.
func (d *decider) watch(now time.Time, n *State) (changed bool) {
	var done int
	var failed, gone, lost, cut []string
	for i := range n.Members {
		m := &n.Members[i]
		c := d.card(m.ID)
		mine := c != nil && c.Round == n.Round
		switch {
		case mine && c.Status == Done:
			done++
		case mine && c.Status == Failed:
			failed = append(failed, because(m, c))
		case c != nil && (c.Status == Leaving || c.Status == Left):
			gone = append(gone, because(m, c))
		case d.lost(now, m.ID):
			lost = append(lost, m.Name())
		case mine && c.Status == Ready:
			cut = append(cut, because(m, c))
		}
	}
	waiting, goneToo, lostToo := d.leave(now, n.Waiting, true)
	n.Waiting = waiting
	changed = len(goneToo)+len(lostToo) > 0
	switch {
	case done == len(n.Members):
		return shut(n, true, "all ranks ended well")
	case len(failed) > 0:
		return end(n, Failure, strings.Join(failed, "; ")+tail(gone, lost), len(gone)+len(lost) > 0)
	case len(lost) > 0:
		return end(n, Lost, fmt.Sprintf("nothing has been heard of %s for %v", strings.Join(lost, ", "), d.set.Timing.Lost())+tail(gone, nil), false)
	case len(gone) > 0:
		return end(n, Gone, "a node left: "+strings.Join(gone, "; "), false)
	case len(cut) > 0:
		return end(n, Interrupted, strings.Join(cut, "; "), false)
	}
	// A job that is about to end takes no node in.
	if done > 0 || len(n.Waiting) == 0 || len(n.Members) == n.Max {
		d.called = time.Time{}
		return changed
	}
	if d.called.IsZero() {
		d.called = now
	}
	if len(n.Members)+len(n.Waiting) >= n.Max || now.Sub(d.called) >= d.set.Timing.LastCall {
		return end(n, Joined, "nodes came: "+names(n.Waiting), false)
	}
	return changed
}

// end ends a round.
func end(n *State, why Cause, text string, lost bool) bool {
	n.Phase, n.Fresh = Gathering, false
	n.Ending = &Ending{Version: n.Version + 1, Cause: why, Text: clip(text), Lost: lost, Left: len(n.Members)}
	return true
}

// shut ends the job.
func shut(n *State, good bool, text string) bool {
	n.Phase, n.Good, n.Text, n.Waiting = Closed, good, clip(text), nil
	return true
}

func names(nodes []Node) string {
	const most = 8
	var out []string
	for i := range nodes[:min(len(nodes), most)] {
		out = append(out, nodes[i].Name())
	}
	if len(nodes) > most {
		out = append(out, fmt.Sprintf("and %d more", len(nodes)-most))
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}

// tail says which other nodes have left or are lost.
func tail(gone, lost []string) string {
	var b strings.Builder
	if len(gone) > 0 {
		b.WriteString("; left: " + strings.Join(gone, ", "))
	}
	if len(lost) > 0 {
		b.WriteString("; lost: " + strings.Join(lost, ", "))
	}
	return b.String()
}

func after(e *Ending) string {
	if e == nil {
		return ""
	}
	return "; before that, " + e.Text
}

// forgotten asks about --node-rank if all nodes that came are node 0. Without the flag, each
// of the others is node 0 too, and waits in a store of its own.
func forgotten(nodes []Node) string {
	if len(nodes) == 0 || slices.ContainsFunc(nodes, func(n Node) bool { return n.Rank != 0 }) {
		return ""
	}
	return "; was --node-rank forgotten on the others?"
}
