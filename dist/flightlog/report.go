// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Report is what the dumps of a job's ranks say together.
type Report struct {
	Version   int `json:"version"`
	WorldSize int `json:"world_size"`
	// Dumps are the ranks whose dumps there are, NoDump the others: they had
	// ended, were stopped, or wrote elsewhere.
	Dumps  Ranks `json:"dumps"`
	NoDump Ranks `json:"no_dump,omitempty"`
	// Forming are the ranks that wait in dist.Init for others to come to it.
	Forming Ranks `json:"forming,omitempty"`
	// Groups are the groups of the job, those in trouble first.
	Groups []GroupReport `json:"groups"`
	// Notes are what makes the report less sure.
	Notes []string `json:"notes,omitempty"`

	members map[int]Member
	latest  time.Time // when the latest dump was made
}

// GroupReport is what is known of one group.
type GroupReport struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	Size int    `json:"size"`
	// EndedMin and EndedMax are the numbers of the last collective that has
	// ended, on the rank that is behind and on the one that is ahead.
	EndedMin uint64 `json:"ended_min"`
	EndedMax uint64 `json:"ended_max"`
	// Waiting is the first collective that ranks wait in, or have given up.
	Waiting *Waiting `json:"waiting,omitempty"`
	// Mismatches are collectives that ranks called differently, the first ones.
	Mismatches []Mismatch `json:"mismatches,omitempty"`
	// Messages are sends and receives that wait for their peer.
	Messages []MessageWait `json:"messages,omitempty"`
	// Told are the errors that ended calls of the group.
	Told []Told `json:"told,omitempty"`
	// Recent are the last collectives side by side, the newest first.
	Recent []Recent `json:"recent,omitempty"`
	// Slow are the ranks that the others wait for, the slowest first.
	Slow []Slow `json:"slow,omitempty"`
}

// Waiting is a collective that has not ended.
type Waiting struct {
	Seq   uint64 `json:"seq"`
	Call  string `json:"call"`
	Ranks Ranks  `json:"ranks"` // that came to it
	// LongestNS is how long the rank that came first has waited.
	LongestNS int64 `json:"longest_ns"`
	GaveUp    bool  `json:"gave_up"` // it has failed
	// Sites are the lines that called it, those of most ranks first.
	Sites []SiteCount `json:"sites,omitempty"`
	// Missing are the ranks that did not come to it, with those that came
	// after the others had given up; Absent says more of some of them.
	Missing Ranks `json:"missing,omitempty"`
	// Unrecorded are ranks of a group in a PyTorch job that have no dump: PyTorch's
	// ranks keep no recorder, so nobody knows whether they came.
	Unrecorded Ranks     `json:"unrecorded,omitempty"`
	Absent     []Absence `json:"absent,omitempty"`
}

// SiteCount is a call site and the ranks that called from there.
type SiteCount struct {
	Site  string `json:"site"`
	Ranks Ranks  `json:"ranks"`
}

// Absence is what is known of a rank that others wait for.
type Absence struct {
	Member
	// Why is "no dump", "left the group", "not in the group", "late" or
	// "elsewhere": it has done other things so far.
	Why string `json:"why"`
	// LateNS is how long after the others had given up it came, by the clocks
	// of the hosts.
	LateNS int64 `json:"late_ns,omitempty"`
	// StaleNS is how much older its dump is than the latest, if it is from before
	// the others came: it may have come since.
	StaleNS int64 `json:"stale_ns,omitempty"`
	// Last is the last collective of the group that it called, and Doing what it
	// runs now, here or in another group.
	Last  *LastCall `json:"last,omitempty"`
	Doing *LastCall `json:"doing,omitempty"`
	// At is the line at which its program is, Stack the goroutine's that makes its calls.
	At    string `json:"at,omitempty"`
	Stack string `json:"stack,omitempty"`
	// Reason is why it wrote its dump, where that is a failure of its own.
	Reason string `json:"reason,omitempty"`
	// Fate is what [Report.Tell] was told of a rank that has no dump.
	Fate string `json:"fate,omitempty"`
}

// LastCall is a call of one rank.
type LastCall struct {
	Group string `json:"group"`
	Call  string `json:"call"`
	Seq   uint64 `json:"seq"`
	State State  `json:"state"`
	Site  string `json:"site,omitempty"`
	// AgoNS is the time from its end, or its beginning if it has not ended, to
	// the rank's dump.
	AgoNS int64 `json:"ago_ns"`
}

// Mismatch is a collective that ranks called differently.
type Mismatch struct {
	Seq   uint64 `json:"seq"`
	Sides []Side `json:"sides"`
}

// Side is the ranks that called the same thing from the same line.
type Side struct {
	Ranks Ranks  `json:"ranks"`
	Call  string `json:"call"`
	Site  string `json:"site,omitempty"`
}

// MessageWait is a send or a receive that waits.
type MessageWait struct {
	Rank int      `json:"rank"`
	Peer int      `json:"peer"` // -1 for any
	Call LastCall `json:"call"`
	// PeerSeq is how many messages the peer has called for on its side; known
	// only where its dump is there and remembers one.
	PeerSeq   uint64 `json:"peer_seq"`
	PeerKnown bool   `json:"peer_known"`
}

// Told is an error and the ranks that got it.
type Told struct {
	Ranks    Ranks  `json:"ranks"`
	Error    string `json:"error"`
	Culprits Ranks  `json:"culprits,omitempty"`
}

// Slow is how much the others wait for a rank.
type Slow struct {
	Rank int `json:"rank"`
	// WaitNS is for how long the others wait for it a step, of StepNS. Where
	// nobody marked steps a collective, with what lies before it, counts as one.
	WaitNS int64 `json:"wait_ns"`
	StepNS int64 `json:"step_ns"`
}

// maxDetails is how many ranks, sides or messages of one kind are described.
const maxDetails = 16

// Lines returns the report as text, a line an element. The first names the
// ranks that are waited for, if there are any.
func (r *Report) Lines() []string {
	var out []string
	for i := range r.Groups {
		out = append(out, r.Groups[i].lines(r)...)
	}
	if n := r.Forming.Count(); n > 0 {
		verb := "wait"
		if n == 1 {
			verb = "waits"
		}
		line := fmt.Sprintf("%s of %d %s in Init", r.Forming.phrase(), r.WorldSize, verb)
		if r.NoDump.Count() > 0 {
			line += " for " + r.NoDump.phrase()
		}
		out = append([]string{line}, out...)
	} else if r.NoDump.Count() > 0 {
		line := fmt.Sprintf("no dump of %s of %d", r.NoDump.phrase(), r.WorldSize)
		if len(out) == 0 || r.Groups[0].calm() {
			out = append([]string{line}, out...)
		} else {
			out = append(out, line)
		}
	}
	for _, n := range r.Notes {
		out = append(out, "note: "+n)
	}
	if len(out) == 0 {
		out = []string{"there are no dumps"}
	}
	return out
}

// who names ranks, and a single one in full.
func (r *Report) who(ranks Ranks) string {
	if ranks.Count() == 1 {
		return r.member(ranks[0].First).String()
	}
	return ranks.phrase()
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(r.Lines(), "\n")+"\n")
	return err
}

// calm reports whether nothing is wrong with the group.
func (g *GroupReport) calm() bool {
	return g.Waiting == nil && len(g.Mismatches) == 0 && len(g.Told) == 0 && len(g.Messages) == 0
}

func (g *GroupReport) lines(r *Report) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, m := range g.Mismatches {
		if w := g.Waiting; w != nil && w.Missing.Count() > 0 && w.Seq < m.Seq {
			continue // it comes second
		}
		out = append(out, m.lines(g)...)
	}
	early := len(out) > 0
	if w := g.Waiting; w != nil && !(early && g.explained(w)) {
		out = append(out, w.lines(g, r)...)
	}
	if !early {
		for _, m := range g.Mismatches {
			out = append(out, m.lines(g)...)
		}
	}
	for _, m := range g.Messages {
		peer := "any rank"
		if m.Peer >= 0 {
			peer = r.members[m.Peer].String()
		}
		verb, way := "waits in", "of"
		if m.Call.State == Failed {
			verb = "gave up"
		}
		if m.Call.Call == "send" {
			way = "to"
		}
		add("group %q: rank %d %s %s %d, for %s, %s %s%s", g.Name, m.Rank, verb, m.Call.Call, m.Call.Seq, span(m.Call.AgoNS), way, peer, at(m.Call.Site))
		if m.PeerKnown {
			add("  rank %d has called %d in that direction", m.Peer, m.PeerSeq)
		}
	}
	if len(out) == 0 && len(g.Told) > 0 {
		add("group %q has failed", g.Name)
	}
	told := g.Told
	if early && len(told) > 1 { // each side of a mismatch says the same, itself first
		all := told[0]
		for _, t := range told[1:] {
			if t.Culprits.Count() == 0 {
				all.Ranks = all.Ranks.union(t.Ranks)
			}
		}
		rest := slices.DeleteFunc(slices.Clone(told[1:]), func(t Told) bool { return t.Culprits.Count() == 0 })
		told = append([]Told{all}, rest...)
	}
	for _, t := range told {
		add("  told to %s: %s", t.Ranks.phrase(), t.Error)
	}
	if len(out) == 0 {
		ended := fmt.Sprintf("its %d collectives have", g.EndedMax)
		if g.EndedMin != g.EndedMax {
			ended = fmt.Sprintf("%d to %d collectives have", g.EndedMin, g.EndedMax)
		}
		add("group %q of %d ranks: nobody waits; %s ended", g.Name, g.Size, ended)
	}
	for _, s := range g.Slow {
		add("  rank %d is slow: the others wait %s of %s a step for it", s.Rank, span(s.WaitNS), span(s.StepNS))
	}
	return out
}

// explained reports whether a mismatch says all of a wait that was given up: the
// call is the same, and who was missing came when the others had been told.
func (g *GroupReport) explained(w *Waiting) bool {
	return w.GaveUp && slices.ContainsFunc(g.Mismatches, func(m Mismatch) bool { return m.Seq == w.Seq }) &&
		!slices.ContainsFunc(w.Absent, func(a Absence) bool { return a.Why != "late" })
}

// Tell adds what is known of a rank otherwise, such as how its process has ended,
// for where its dump is missing.
func (r *Report) Tell(rank int, fate string) {
	for i := range r.Groups {
		if w := r.Groups[i].Waiting; w != nil {
			for k := range w.Absent {
				if a := &w.Absent[k]; a.Rank == rank && a.Why == "no dump" {
					a.Fate = fate
				}
			}
		}
	}
}

func (w *Waiting) lines(g *GroupReport, r *Report) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	defer func() {
		if w.Unrecorded.Count() > 0 {
			out[0] += fmt.Sprintf("; whether %s called it is not known: there is no dump (PyTorch's ranks keep none)", w.Unrecorded.phrase())
		}
	}()
	missing := w.Missing.Count()
	everybody, all := "all", fmt.Sprintf("all %d ranks", g.Size)
	if w.Unrecorded.Count() > 0 {
		everybody, all = w.Ranks.phrase(), w.Ranks.phrase()
	}
	verb := "waits"
	if w.GaveUp {
		verb = "waited"
	}
	site := ""
	if len(w.Sites) > 0 {
		site = at(w.Sites[0].Site)
	}
	if missing == 0 {
		if c := g.culprits(); w.GaveUp && c.Count() > 0 {
			add("group %q: %s %d %s %s of %d, after %s%s; %s had called it", g.Name, w.Call, w.Seq, w.blames(c), r.who(c), g.Size, span(w.LongestNS), site, everybody)
		} else if w.GaveUp {
			add("group %q: %s %d failed on %s%s; %s had called it", g.Name, w.Call, w.Seq, w.Ranks.phrase(), site, all)
		} else {
			add("group %q: %s %d runs on %s, for %s%s; %s have called it", g.Name, w.Call, w.Seq, w.Ranks.phrase(), span(w.LongestNS), site, all)
		}
		return w.absences(out)
	}
	if c := g.culprits(); w.GaveUp && c.Count() > 0 && c.String() != w.Missing.String() {
		add("group %q: %s %d %s %s of %d, after %s%s; %s had not come", g.Name, w.Call, w.Seq, w.blames(c), r.who(c), g.Size, span(w.LongestNS), site, w.Missing.phrase())
	} else {
		add("group %q: %s %d %s for %s of %d, %s%s", g.Name, w.Call, w.Seq, verb, w.Missing.phrase(), g.Size, span(w.LongestNS), site)
	}
	out = w.absences(out)
	for _, s := range w.Sites {
		add("  called by %s%s", s.Ranks.phrase(), at(s.Site))
	}
	return out
}

// blames says what is known of the ranks that errors name: of those without a recorder
// only that errors name them, which may have waited for them, or lost them.
func (w *Waiting) blames(culprits Ranks) string {
	for _, s := range culprits {
		if w.Unrecorded.Has(s.First) {
			return "failed, and errors name"
		}
	}
	return "failed because of"
}

// absences adds what is known of those that are not known to have come.
func (w *Waiting) absences(out []string) []string {
	for i := range w.Absent {
		out = append(out, "  "+w.Absent[i].line())
		if stack := w.Absent[i].Stack; stack != "" {
			out = append(out, "      "+strings.ReplaceAll(stack, "\n", "\n      "))
		}
	}
	if rest := w.Missing.union(w.Unrecorded).Count() - len(w.Absent); rest > 0 && len(w.Absent) > 0 {
		out = append(out, fmt.Sprintf("  and %d more", rest))
	}
	return out
}

func (a *Absence) line() string {
	var b strings.Builder
	b.WriteString(a.Member.String() + ": ")
	switch a.Why {
	case "no dump":
		if a.Fate != "" {
			b.WriteString("no dump: " + a.Fate)
			break
		}
		b.WriteString("no dump: it has ended, does not answer, or its dump is elsewhere")
	case "late":
		fmt.Fprintf(&b, "came %s after the others had given up", span(a.LateNS))
	case "elsewhere":
		b.WriteString("has not called it")
		if a.StaleNS > 0 {
			fmt.Fprintf(&b, " by its dump, which is %s older than the latest", span(a.StaleNS))
		}
	default:
		b.WriteString("has " + a.Why)
	}
	if d := a.Doing; d != nil && a.Why != "late" {
		fmt.Fprintf(&b, "; runs %s %d of group %q, for %s%s", d.Call, d.Seq, d.Group, span(d.AgoNS), at(d.Site))
	}
	if l := a.Last; l != nil && a.Why != "late" {
		if l.State == Ended {
			fmt.Fprintf(&b, "; its last was %s %d, ended %s before its dump%s", l.Call, l.Seq, span(l.AgoNS), at(l.Site))
		} else {
			fmt.Fprintf(&b, "; its last was %s %d, %s%s", l.Call, l.Seq, l.State, at(l.Site))
		}
	}
	if a.At != "" {
		b.WriteString("; its program is at " + a.At)
	}
	if a.Reason != "" {
		b.WriteString("; " + a.Reason)
	}
	return b.String()
}

func (m *Mismatch) lines(g *GroupReport) []string {
	out := []string{""}
	var sides []string
	for _, s := range m.Sides {
		sides = append(sides, s.Ranks.phrase()+" "+s.Call)
		out = append(out, fmt.Sprintf("  %s: %s%s", s.Ranks.phrase(), s.Call, at(s.Site)))
	}
	out[0] = fmt.Sprintf("group %q: call %d differs: %s", g.Name, m.Seq, strings.Join(sides, "; "))
	return out
}

// at is a call site in a sentence.
func at(site string) string {
	if site == "" {
		return ""
	}
	return " (" + site + ")"
}

// span is a duration as people read it.
func span(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}
