// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// clockError is how far the clocks of two hosts may differ before a rank
	// is said to have come late.
	clockError = 500 * time.Millisecond
	// minSkewCalls is over how many collectives it is said who is slow,
	// slowShare from what part of a step and slowWait from what time: ranks
	// that do nothing but talk are late by microseconds, in turns.
	minSkewCalls = 10
	slowShare    = 0.10
	slowWait     = 5 * time.Millisecond
)

// view is a group as the dumps of its members see it.
type view struct {
	name, key string
	size      int
	ranks     []int // by rank in the group, nil if the same
	parts     []*part
	byRank    map[int]*part // by rank in the job
}

// part is one rank's dump of a group.
type part struct {
	dump     *Dump
	group    *Group
	calls    []*Entry // collectives, oldest first
	messages []*Entry
}

// Merge makes one report of the dumps of a job's ranks. Of several of a rank
// the latest counts.
func Merge(dumps []*Dump) *Report {
	r := &Report{Version: Version, members: map[int]Member{}}
	latest := r.latestDumps(dumps)
	var present []int
	for rank := range latest {
		present = append(present, rank)
	}
	r.Dumps = ranksOf(present)
	r.NoDump = r.Dumps.without(r.WorldSize)

	var forming []int
	views := map[string]*view{}
	for _, rank := range present { // in rising order: the result is the same each time
		d := latest[rank]
		if len(d.Groups) == 0 {
			forming = append(forming, rank)
		}
		r.addDump(d, views)
	}
	r.Forming = ranksOf(forming)
	for _, v := range views {
		r.Groups = append(r.Groups, v.report(r, latest))
	}
	slices.SortFunc(r.Groups, func(a, b GroupReport) int {
		return cmp.Or(cmp.Compare(b.trouble(), a.trouble()), cmp.Compare(b.Size, a.Size), cmp.Compare(a.Key, b.Key))
	})
	return r
}

// latestDumps returns the latest dump of each rank.
func (r *Report) latestDumps(dumps []*Dump) map[int]*Dump {
	latest := map[int]*Dump{}
	for _, d := range dumps {
		if r.WorldSize != 0 && d.WorldSize != r.WorldSize && len(r.Notes) == 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("dumps of jobs of %d and of %d ranks are mixed", r.WorldSize, d.WorldSize))
		}
		r.WorldSize = max(r.WorldSize, d.WorldSize)
		if d.Time().After(r.latest) {
			r.latest = d.Time()
		}
		if before := latest[d.Rank]; before == nil || d.Time().After(before.Time()) {
			latest[d.Rank] = d
		}
	}
	return latest
}

// addDump adds a rank's part to the views of its groups, which are found by their keys.
func (r *Report) addDump(d *Dump, views map[string]*view) {
	parts := make([]*part, len(d.Groups))
	for i := range d.Groups {
		g := &d.Groups[i]
		for _, m := range g.Members {
			if _, ok := r.members[m.Rank]; !ok {
				r.members[m.Rank] = m
			}
		}
		v := views[g.Key]
		if v == nil {
			v = &view{name: g.Name, key: g.Key, size: g.Size, ranks: g.Ranks, byRank: map[int]*part{}}
			views[g.Key] = v
		}
		if v.byRank[d.Rank] != nil {
			continue // a dump that names a group twice
		}
		parts[i] = &part{dump: d, group: g}
		v.byRank[d.Rank] = parts[i]
		v.parts = append(v.parts, parts[i])
	}
	r.members[d.Rank] = Member{Rank: d.Rank, Host: d.Host, PID: d.PID}
	for i := range d.Entries {
		e := &d.Entries[i]
		p := parts[e.Group]
		switch {
		case p == nil:
		case e.message():
			p.messages = append(p.messages, e)
		default:
			p.calls = append(p.calls, e)
		}
	}
}

// member returns who a rank is, as far as that is known.
func (r *Report) member(rank int) Member {
	m, ok := r.members[rank]
	if !ok {
		m = Member{Rank: rank}
		r.members[rank] = m
	}
	return m
}

// trouble orders groups: what is wrong with them, and for how long.
func (g *GroupReport) trouble() float64 {
	switch {
	case len(g.Mismatches) > 0:
		return 4e18
	case g.Waiting != nil && g.Waiting.Missing.Count() > 0:
		return 2e18 + float64(g.Waiting.LongestNS)/1e3
	case !g.calm():
		return 1
	}
	return 0
}

func (v *view) report(r *Report, dumps map[int]*Dump) GroupReport {
	g := GroupReport{Name: v.name, Key: v.key, Size: v.size}
	for i, p := range v.parts {
		if i == 0 || p.group.Ended < g.EndedMin {
			g.EndedMin = p.group.Ended
		}
		g.EndedMax = max(g.EndedMax, p.group.Ended)
	}
	g.Told = v.told()
	g.Mismatches = v.mismatches()
	if seq, ok := v.stuck(); ok {
		g.Waiting = v.waiting(r, seq, &g, dumps)
	}
	g.Messages = v.messagesWaiting(r)
	g.Slow = v.slow()
	g.Recent = v.recent()
	return g
}

// open reports whether a call has begun and not ended well.
func open(e *Entry) bool { return e.State == Begun || e.State == Failed }

// stuck returns the first collective that a rank waits in or has given up.
func (v *view) stuck() (seq uint64, ok bool) {
	for _, p := range v.parts {
		for _, e := range p.calls {
			if open(e) && (!ok || e.Seq < seq) {
				seq, ok = e.Seq, true
			}
		}
	}
	return seq, ok
}

// find returns a rank's call of a number, nil if it is not remembered.
func (p *part) find(seq uint64) *Entry {
	for _, e := range slices.Backward(p.calls) {
		if e.Seq == seq {
			return e
		}
	}
	return nil
}

// foreign reports whether the group is in a PyTorch job, over PyTorch's wire: ranks
// without a dump may be PyTorch's, and a rank that waits knows only the neighbour that
// it waits for, which may itself wait.
func (v *view) foreign() bool { return v.parts[0].group.Transport == "gloo" }

// told gathers the errors that the members got, those of most members first.
func (v *view) told() []Told {
	type news struct {
		ranks, culprits []int
		at              time.Time // of the first
	}
	all := map[string]*news{}
	var order []string
	for _, p := range v.parts {
		if p.group.Error == "" {
			continue
		}
		n := all[p.group.Error]
		if n == nil {
			n = &news{culprits: slices.Clone(p.group.Culprits)}
			all[p.group.Error] = n
			order = append(order, p.group.Error)
		}
		n.ranks = append(n.ranks, p.dump.Rank)
		if at := p.dump.at(p.group.ErrorNS); n.at.IsZero() || at.Before(n.at) {
			n.at = at
		}
	}
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(len(all[b].ranks)-len(all[a].ranks), all[a].at.Compare(all[b].at))
	})
	var out []Told
	for _, text := range order {
		n := all[text]
		out = append(out, Told{Ranks: ranksOf(n.ranks), Error: text, Culprits: ranksOf(n.culprits)})
	}
	return out[:min(len(out), maxDetails)]
}

// Culprits returns the ranks that are at fault by the errors of the group in most
// trouble: those whom most of its members name, or who were named first. It is nil
// where that is not clear: calls differ, or the errors name nobody or most ranks.
func (r *Report) Culprits() Ranks {
	if len(r.Groups) == 0 || len(r.Groups[0].Mismatches) > 0 {
		return nil
	}
	g := &r.Groups[0]
	if c := g.culprits(); 2*c.Count() <= g.Size {
		return c
	}
	return nil
}

// Known returns those of a set of ranks of whom it is known that they were at fault
// and waited for nobody else: their dumps are there, and no error of theirs names
// another rank.
func (r *Report) Known(ranks Ranks) Ranks {
	var out []int
	for _, s := range ranks {
		for rank := s.First; rank <= s.Last; rank++ {
			if r.Dumps.Has(rank) && !slices.ContainsFunc(r.Groups, func(g GroupReport) bool {
				return slices.ContainsFunc(g.Told, func(t Told) bool { return t.Ranks.Has(rank) && t.Culprits.Count() > 0 && !t.Culprits.Has(rank) })
			}) {
				out = append(out, rank)
			}
		}
	}
	return ranksOf(out)
}

// Unrecorded returns the ranks of PyTorch jobs that keep no recorder, as far as is
// known: whether they waited themselves, when others waited for them, nobody knows.
func (r *Report) Unrecorded() (out Ranks) {
	for i := range r.Groups {
		if w := r.Groups[i].Waiting; w != nil {
			out = out.union(w.Unrecorded)
		}
	}
	return out
}

// Waits reports whether ranks wait for others, and have for at least a time where
// it is known for how long.
func (r *Report) Waits(atLeast time.Duration) bool {
	for i := range r.Groups {
		g := &r.Groups[i]
		if w := g.Waiting; w != nil && w.LongestNS >= int64(atLeast) {
			return true
		}
		for _, m := range g.Messages {
			if m.Call.AgoNS >= int64(atLeast) {
				return true
			}
		}
	}
	return r.Forming.Count() > 0 && r.Forming.Count() < r.WorldSize
}

// culprits returns the ranks that the errors of most members name, or of those
// who heard first: what others are told may only follow from it. A rank that is
// named for having waited for another one stands for that one.
func (g *GroupReport) culprits() Ranks {
	var most Ranks
	count := 0
	by := map[string]int{}
	for i, t := range g.Told { // of most members first, then as they came
		c := g.behind(i)
		by[c.String()] += t.Ranks.Count()
	}
	for i := range g.Told {
		c := g.behind(i)
		if n := by[c.String()]; n > count && c.Count() > 0 {
			most, count = c, n
		}
	}
	return most
}

// behind follows an error's culprit to the one that it names itself, and so on. Of
// ranks that name each other, the first stays.
func (g *GroupReport) behind(i int) Ranks {
	c := g.Told[i].Culprits
	seen := c
	for c.Count() == 1 {
		rank := c[0].First
		var next Ranks
		for _, t := range g.Told {
			if t.Ranks.Has(rank) {
				next = t.Culprits
			}
		}
		if next.Count() == 0 || next.Has(rank) {
			return c
		}
		for _, s := range next {
			if seen.Has(s.First) {
				return g.Told[i].Culprits
			}
		}
		c, seen = next, seen.union(next)
	}
	return c
}

// mismatches returns the first collectives that ranks called differently.
func (v *view) mismatches() []Mismatch {
	first := map[uint64]*Entry{}
	differ := map[uint64]bool{}
	for _, p := range v.parts {
		for _, e := range p.calls {
			if f := first[e.Seq]; f == nil {
				first[e.Seq] = e
			} else if !f.fits(e) {
				differ[e.Seq] = true
			}
		}
	}
	var seqs []uint64
	for seq := range differ {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	const most = 3 // what follows a mismatch is another one
	var out []Mismatch
	for _, seq := range seqs[:min(len(seqs), most)] {
		out = append(out, v.mismatch(seq))
	}
	return out
}

func (v *view) mismatch(seq uint64) Mismatch {
	type side struct{ call, site string }
	sides := map[side][]int{}
	for _, p := range v.parts {
		if e := p.find(seq); e != nil {
			s := side{e.String(), p.dump.site(e)}
			sides[s] = append(sides[s], p.dump.Rank)
		}
	}
	m := Mismatch{Seq: seq}
	for s, ranks := range sides {
		m.Sides = append(m.Sides, Side{Ranks: ranksOf(ranks), Call: s.call, Site: s.site})
	}
	slices.SortFunc(m.Sides, func(a, b Side) int {
		return cmp.Or(b.Ranks.Count()-a.Ranks.Count(), a.Ranks[0].First-b.Ranks[0].First)
	})
	m.Sides = m.Sides[:min(len(m.Sides), maxDetails)]
	return m
}

// messagesWaiting returns the sends and receives that wait for their peer.
func (v *view) messagesWaiting(r *Report) []MessageWait {
	var out []MessageWait
	for _, p := range v.parts {
		for _, e := range p.messages {
			if !open(e) {
				continue
			}
			if len(out) == maxDetails {
				return out
			}
			m := MessageWait{Rank: p.dump.Rank, Peer: -1, Call: *lastCall(p.dump, e)}
			if e.State == Failed {
				m.Call.AgoNS = max(0, e.EndedNS-e.BegunNS) // how long it waited
			}
			if *e.Peer >= 0 {
				m.Peer = p.group.world(*e.Peer)
				r.member(m.Peer)
				m.PeerSeq, m.PeerKnown = v.peerSeq(m.Peer, p.group.Rank, e.Op)
			}
			out = append(out, m)
		}
	}
	return out
}

// peerSeq returns the number of the last message that a peer has called for,
// on its side of a direction.
func (v *view) peerSeq(peer, rank int, op string) (seq uint64, known bool) {
	p := v.byRank[peer]
	if p == nil {
		return 0, false
	}
	for _, e := range p.messages {
		if e.Op != op && *e.Peer == rank {
			seq = max(seq, e.Seq)
		}
	}
	return seq, true
}

// slow returns the ranks that the others wait for: as the ranks themselves have
// found while the job ran, or else by the calls that are remembered.
func (v *view) slow() []Slow {
	var out []Slow
	known := false
	for _, p := range v.parts {
		for _, s := range p.group.Skew {
			known = true
			if s.Share > slowShare && !math.IsInf(s.Share, 0) {
				out = append(out, Slow{Rank: s.Rank, WaitNS: int64(s.Share * float64(s.StepNS)), StepNS: s.StepNS})
			}
		}
		if known {
			break // all ranks have the same table, more or less old
		}
	}
	if !known {
		out = v.slowByCalls()
	}
	out = slices.DeleteFunc(out, func(s Slow) bool { return s.WaitNS < int64(slowWait) })
	slices.SortStableFunc(out, func(a, b Slow) int { return cmp.Compare(b.WaitNS, a.WaitNS) })
	return out[:min(len(out), maxDetails/2)]
}

// slowByCalls compares how long ranks have waited in the same collectives: who
// waits least came last. Only durations are compared, so clocks need not agree.
// Calls in the background do not count: how long they take says nothing of when
// their callers would have come to wait.
func (v *view) slowByCalls() []Slow {
	if len(v.parts) < v.size || v.size < 2 {
		return nil
	}
	lo, hi := uint64(1), ^uint64(0)
	for _, p := range v.parts {
		first, last := p.endedRange()
		lo, hi = max(lo, first), min(hi, last)
	}
	if hi < lo || hi-lo+1 < minSkewCalls {
		return nil
	}
	waited, period := make([]int64, len(v.parts)), make([]int64, len(v.parts))
	most := int64(0)
	for i, p := range v.parts {
		var begin, end, n int64
		for _, e := range p.calls {
			if e.State != Ended || e.Seq < lo || e.Seq > hi || e.Background {
				continue
			}
			n++
			waited[i] += max(0, e.EndedNS-e.BegunNS)
			if begin == 0 || e.BegunNS < begin {
				begin = e.BegunNS
			}
			end = max(end, e.EndedNS)
		}
		if n < minSkewCalls {
			return nil
		}
		waited[i] /= n
		period[i] = max(0, end-begin) / n
		most = max(most, waited[i])
	}
	var out []Slow
	for i, p := range v.parts {
		if late := most - waited[i]; period[i] > 0 && float64(late) > slowShare*float64(period[i]) {
			out = append(out, Slow{Rank: p.dump.Rank, WaitNS: late, StepNS: period[i]})
		}
	}
	return out
}

// endedRange returns the numbers of the last collectives that have ended, one
// after the other, as far as they are remembered.
func (p *part) endedRange() (first, last uint64) {
	for _, e := range slices.Backward(p.calls) {
		switch {
		case e.State != Ended:
		case last == 0:
			first, last = e.Seq, e.Seq
		case e.Seq+1 == first:
			first = e.Seq
		default:
			return first, last
		}
	}
	return first, last
}
