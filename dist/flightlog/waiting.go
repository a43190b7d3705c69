// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"cmp"
	"slices"
	"time"
)

// waiting describes the collective that ranks are stuck in.
func (v *view) waiting(r *Report, seq uint64, g *GroupReport, dumps map[int]*Dump) *Waiting {
	w := &Waiting{Seq: seq}
	times := v.waitTimes(w)
	came, absent, late := v.whoCame(w, g.culprits(), times)
	w.Ranks = ranksOf(came)
	silent := v.silent()
	if w.Missing = ranksOf(slices.Clone(absent)); v.foreign() {
		w.Unrecorded = silent
	} else {
		w.Missing = w.Missing.union(silent)
	}
	for _, rank := range absent {
		if len(w.Absent) == maxDetails {
			return w
		}
		a := v.absence(rank, late[rank])
		// A dump from before the others came says nothing of what followed,
		// unless it was written at this rank's end.
		d := dumps[rank]
		if by := times.first.Sub(d.Time()); d.Reason == "asked" && (by > clockError || by > 0 && d.Host == times.firstHost) {
			a.StaleNS = int64(r.latest.Sub(d.Time()))
		}
		w.Absent = append(w.Absent, a)
	}
	for _, s := range silent {
		for rank := s.First; rank <= s.Last; rank++ {
			if len(w.Absent) == maxDetails {
				return w
			}
			a := Absence{Member: r.member(rank), Why: "no dump"}
			if dumps[rank] != nil {
				a.Why = "not made the group, or left it"
				a.Doing, a.At, a.Stack = doing(dumps[rank]), dumps[rank].At, dumps[rank].Stack
			}
			w.Absent = append(w.Absent, a)
		}
	}
	return w
}

// waitTimes is when ranks came to a collective and gave it up. The hosts are those of the
// clocks.
type waitTimes struct {
	first      time.Time // when the first rank came
	firstHost  string
	gaveUp     time.Time // when the first rank gave up, zero if none has
	gaveUpHost string
}

// waitTimes finds when ranks came to a collective, and how long they have waited.
func (v *view) waitTimes(w *Waiting) (t waitTimes) {
	var longest, longestFailed int64
	for _, p := range v.parts {
		e := p.find(w.Seq)
		if e == nil || !open(e) {
			continue
		}
		if w.Call == "" {
			w.Call = e.Op
		}
		if at := p.dump.at(e.BegunNS); t.first.IsZero() || at.Before(t.first) {
			t.first, t.firstHost = at, p.dump.Host
		}
		if e.State == Begun {
			longest = max(longest, p.dump.TimeNS-e.BegunNS)
			continue
		}
		w.GaveUp = true
		longestFailed = max(longestFailed, e.EndedNS-e.BegunNS)
		if at := p.dump.at(e.EndedNS); t.gaveUp.IsZero() || at.Before(t.gaveUp) {
			t.gaveUp, t.gaveUpHost = at, p.dump.Host
		}
	}
	if w.LongestNS = longest; w.GaveUp {
		w.LongestNS = longestFailed
	}
	return t
}

// whoCame returns the ranks that have come to a collective and those that have not. A
// blamed rank that came after the first one gave up is absent; late says by how many
// nanoseconds it came late.
func (v *view) whoCame(w *Waiting, blamed Ranks, t waitTimes) (came, absent []int, late map[int]int64) {
	late = map[int]int64{}
	sites := map[string][]int{}
	for _, p := range v.parts {
		rank := p.dump.Rank
		e := p.find(w.Seq)
		if e == nil && p.group.Called < w.Seq {
			absent = append(absent, rank)
			continue
		}
		if e != nil && !t.gaveUp.IsZero() && (blamed.Count() == 0 || blamed.Has(rank)) {
			by := p.dump.at(e.CalledNS).Sub(t.gaveUp)
			if by > clockError || by > 0 && p.dump.Host == t.gaveUpHost {
				late[rank] = int64(by)
				absent = append(absent, rank)
				continue
			}
		}
		came = append(came, rank)
		if e != nil {
			s := p.dump.site(e)
			sites[s] = append(sites[s], rank)
		}
	}
	for s, ranks := range sites {
		if s != "" {
			w.Sites = append(w.Sites, SiteCount{Site: s, Ranks: ranksOf(ranks)})
		}
	}
	slices.SortFunc(w.Sites, func(a, b SiteCount) int {
		return cmp.Or(b.Ranks.Count()-a.Ranks.Count(), cmp.Compare(a.Site, b.Site))
	})
	w.Sites = w.Sites[:min(len(w.Sites), maxDetails)]
	return came, absent, late
}

// silent returns the members of which no dump knows the group.
func (v *view) silent() Ranks {
	var known []int
	for rank := range v.byRank {
		known = append(known, rank)
	}
	if v.ranks == nil {
		return ranksOf(known).without(v.size)
	}
	var out []int
	for _, rank := range v.ranks {
		if v.byRank[rank] == nil {
			out = append(out, rank)
		}
	}
	return ranksOf(out)
}

// absence describes a member that has a dump and did not come.
func (v *view) absence(rank int, lateNS int64) Absence {
	p := v.byRank[rank]
	a := Absence{Member: Member{Rank: rank, Host: p.dump.Host, PID: p.dump.PID}, Why: "elsewhere", LateNS: lateNS}
	switch {
	case lateNS > 0:
		a.Why = "late"
	case p.group.Closed:
		a.Why = "left the group"
	}
	if n := len(p.calls); n > 0 {
		a.Last = lastCall(p.dump, p.calls[n-1])
	}
	a.Doing, a.At, a.Stack = doing(p.dump), p.dump.At, p.dump.Stack
	if p.dump.Reason != "asked" {
		a.Reason = p.dump.Reason
	}
	return a
}

// doing returns the call that a rank has been running for longest, nil if there is none.
func doing(d *Dump) *LastCall {
	for i := range d.Entries {
		if e := &d.Entries[i]; e.State == Begun {
			return lastCall(d, e)
		}
	}
	return nil
}

func lastCall(d *Dump, e *Entry) *LastCall {
	since := e.CalledNS
	switch e.State {
	case Begun:
		since = e.BegunNS
	case Ended, Failed:
		since = e.EndedNS
	}
	return &LastCall{Group: d.Groups[e.Group].Name, Call: e.Op, Seq: e.Seq, State: e.State, Site: d.site(e), AgoNS: max(0, d.TimeNS-since)}
}
