// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/operation"
)

// maxListed is up to how many members a group's dump lists them: the dumps of a
// job of n ranks would else have n² of them.
const maxListed = 4096

// Asked is the reason of a dump that somebody has asked for: it says where the program is.
const Asked = "asked"

// Dump returns what the recorder holds, and says why it was asked for.
func (r *Recorder) Dump(reason string) *flightlog.Dump {
	r.mu.Lock()
	now := int64(time.Since(r.start))
	entries := slices.Clone(r.entries)
	var logs []*Log
	known := map[*Log]int{}
	add := func(l *Log) {
		if _, ok := known[l]; !ok {
			known[l] = 0
			logs = append(logs, l)
		}
	}
	for l := range r.open {
		add(l)
	}
	for i := range entries {
		add(entries[i].log)
	}
	// What changes under the lock is copied under it.
	type counters struct {
		l      Log
		closed bool
	}
	state := make([]counters, len(logs))
	for i, l := range logs {
		_, isOpen := r.open[l]
		state[i] = counters{*l, !isOpen}
	}
	r.mu.Unlock()

	var at, stack string
	if reason == Asked {
		at, stack = r.where()
	}
	slices.SortFunc(state, func(a, b counters) int {
		return cmp.Or(cmp.Compare(len(b.l.members), len(a.l.members)), cmp.Compare(a.l.key, b.l.key))
	})
	d := &flightlog.Dump{Version: flightlog.Version, Rank: r.who.Rank, WorldSize: r.who.WorldSize, Host: r.who.Host, PID: r.who.PID,
		Reason: reason, At: at, Stack: stack, Start: r.start, TimeNS: now, Sites: []string{""}, Groups: make([]flightlog.Group, len(state))}
	keys := map[string]int{}
	for i := range state {
		keys[state[i].l.key] = i
		d.Groups[i] = state[i].l.dump(state[i].closed)
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	sites := map[*site]int{}
	d.Entries = make([]flightlog.Entry, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		at, ok := sites[e.site]
		if text := e.site.String(); !ok && text != "" {
			at = len(d.Sites)
			sites[e.site] = at
			d.Sites = append(d.Sites, text)
		}
		out := e.dump()
		out.Group, out.Site = keys[e.log.key], at
		d.Entries = append(d.Entries, out)
	}
	return d
}

// dump returns the group. It is called on a copy.
func (l *Log) dump(closed bool) flightlog.Group {
	g := flightlog.Group{Name: l.name, Key: l.key, Rank: l.rank, Size: max(1, len(l.members)),
		Called: l.seqCalled, Begun: l.seqBegun, Ended: l.seqEnded, Calls: l.calls, WaitedNS: l.waited, Closed: closed}
	identity := true
	for i, w := range l.world {
		identity = identity && i == w
	}
	if !identity {
		g.Ranks = slices.Clone(l.world)
	}
	if identity && len(l.members) == l.r.who.WorldSize && len(l.members) <= maxListed {
		for _, m := range l.members {
			g.Members = append(g.Members, flightlog.Member{Rank: m.Rank, Host: m.Host, PID: m.PID})
		}
	}
	if l.about != nil {
		l.about(&g)
	}
	if l.failed != nil {
		g.Error, g.ErrorNS, g.Culprits = l.failed.Error(), l.failedAt, l.culprits(l.failed)
	}
	return g
}

// culprits returns the ranks in the job that an error of the group names.
func (l *Log) culprits(err error) []int {
	var one *fault.RankError
	var late *fault.TimeoutError
	var ranks []int
	switch {
	case errors.As(err, &one):
		ranks = []int{one.Rank}
	case errors.As(err, &late):
		for _, m := range late.Missing {
			ranks = append(ranks, m.Rank)
		}
	}
	var out []int
	for _, r := range ranks {
		if r >= 0 && r < len(l.world) {
			out = append(out, l.world[r])
		}
	}
	return out
}

func (e *entry) dump() flightlog.Entry {
	out := flightlog.Entry{Op: e.op.String(), Seq: e.seq, Count: e.count, CalledNS: e.called, BegunNS: e.begun, EndedNS: e.ended, Background: e.background}
	if e.op != operation.Barrier {
		out.DType = e.dtype.String()
	}
	if e.op.Reduces() {
		out.Reduce = e.reduce.String()
	}
	if e.layout != 0 {
		out.Layout = strconv.FormatUint(e.layout, 16)
	}
	if e.forming() {
		out.Op = fault.FormingOp(e.log.name)
	}
	switch {
	case !isCollective(e.op):
		out.Peer = &e.root
	case e.op.Rooted():
		out.Root = &e.root
	}
	switch {
	case e.err != nil:
		out.State, out.Error = flightlog.Failed, e.err.Error()
	case e.ended != 0:
		out.State = flightlog.Ended
	case e.begun != 0:
		out.State = flightlog.Begun
	default:
		out.State = flightlog.Called
	}
	return out
}
