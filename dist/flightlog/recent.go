// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"cmp"
	"fmt"
	"slices"
)

// maxRecent is how many of the last collectives of a group are shown side by side.
const maxRecent = 8

// Recent is a collective of a group, and where its members are with it, those of most ranks first.
type Recent struct {
	Seq   uint64       `json:"seq"`
	Calls []RecentCall `json:"calls"`
}

// RecentCall is what some ranks know alike of a collective. State "" says that they have not come to it.
type RecentCall struct {
	Ranks Ranks  `json:"ranks"`
	Call  string `json:"call,omitempty"`
	State State  `json:"state,omitempty"`
	Site  string `json:"site,omitempty"`
}

// recent compares the last collectives of the members that have a dump, the newest first.
func (v *view) recent() (out []Recent) {
	newest := uint64(0)
	for _, p := range v.parts {
		if n := len(p.calls); n > 0 {
			newest = max(newest, p.calls[n-1].Seq)
		}
	}
	for seq := newest; seq > 0 && len(out) < maxRecent; seq-- {
		ranks := map[recentKey][]int{}
		for _, p := range v.parts {
			switch e := p.find(seq); {
			case e != nil:
				key := recentKey{e.String(), e.State, p.dump.site(e)}
				ranks[key] = append(ranks[key], p.dump.Rank)
			case p.group.Called < seq:
				ranks[recentKey{}] = append(ranks[recentKey{}], p.dump.Rank)
			}
		}
		r := Recent{Seq: seq}
		for key, of := range ranks {
			slices.Sort(of)
			r.Calls = append(r.Calls, RecentCall{Ranks: ranksOf(of), Call: key.call, State: key.state, Site: key.site})
		}
		slices.SortFunc(r.Calls, func(a, b RecentCall) int {
			return cmp.Or(cmp.Compare(b.Ranks.Count(), a.Ranks.Count()), cmp.Compare(a.Ranks[0].First, b.Ranks[0].First))
		})
		if len(r.Calls) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// recentKey is what ranks know of a collective.
type recentKey struct {
	call  string
	state State
	site  string
}

// Table returns the last collectives of the groups in trouble side by side, as lines of text.
func (r *Report) Table() (lines []string) {
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.calm() {
			continue
		}
		lines = append(lines, fmt.Sprintf("the last collectives of group %q, the newest first:", g.Name))
		for _, c := range g.Recent[:min(len(g.Recent), maxRecent)] {
			for _, of := range c.Calls[:min(len(c.Calls), maxDetails)] {
				if of.State == "" {
					lines = append(lines, fmt.Sprintf("  %5d  not called by %s", c.Seq, of.Ranks.phrase()))
				} else {
					lines = append(lines, fmt.Sprintf("  %5d  %s: %s, %s%s", c.Seq, of.Ranks.phrase(), of.Call, of.State, at(of.Site)))
				}
			}
		}
	}
	return lines
}
