// SPDX-License-Identifier: Apache-2.0

// Package liveness knows which processes of a job have ended, and of what.
//
// A [Watch] hears of deaths from two sides: from the agent that launched this process, which
// knows first-hand how a rank of its node has ended, and from the groups of this process,
// whose connections break. It tells all groups that have the rank as a member.
//
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
package liveness

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// NewsPatience is how long an error about a dead rank waits for the agent to
// say how it died. Sockets are quicker than the agent by a little.
const NewsPatience = 250 * time.Millisecond

// Watch knows which processes of the job have ended. It listens to the
// agent that launched this process, if there is one: the agent knows first-hand
// which local rank has died and of what. And it hears of deaths that a group
// finds out, and tells all groups that have the rank as a member.
type Watch struct {
	reader *agentpipe.Reader // nil: no agent
	ended  chan struct{}     // closed when listening has ended

	mu       sync.Mutex
	dump     func(e agentpipe.Event) // answers what the agent asks; nil: not yet
	dead     map[int]Loss            // by rank in the job
	asked    map[int]time.Time       // when it was first asked how a rank died
	news     chan struct{}           // closed and replaced when the agent tells of a death
	watchers map[*watcher]struct{}
	lost     bool // a rank has died or fallen silent
}

// HasLost reports whether a rank has died or fallen silent, as far as is known.
func (w *Watch) HasLost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// RankError returns the error of a group about a member that has died or fallen
// silent.
func (d *Loss) RankError(group string, m fault.Member, how func() native.ProcessEnd) *fault.RankError {
	if d.Silent != "" {
		return native.SilenceError(group, m, d.Silent)
	}
	return native.DeathError(group, m, how())
}

// Loss is what is known of a rank that has died or fallen silent.
type Loss struct {
	native.ProcessEnd
	Who    fault.Member
	Silent string // of a rank that has fallen silent, what is known; "" for one that has died
}

// watcher is told of deaths.
type watcher struct {
	told map[int]bool // by rank in the job
	tell func(rank int, d Loss)
}

// New begins to watch. With launched false there is no agent to listen to.
func New(launched bool) (*Watch, error) {
	var r *agentpipe.Reader
	if launched {
		var err error
		if r, err = agentpipe.Open(); err != nil {
			return nil, err
		}
	}
	w := &Watch{reader: r, ended: make(chan struct{}), dead: map[int]Loss{}, asked: map[int]time.Time{}, news: make(chan struct{}), watchers: map[*watcher]struct{}{}}
	if r == nil {
		close(w.ended)
		return w, nil
	}
	go w.listen()
	return w, nil
}

func (w *Watch) listen() {
	defer close(w.ended)
	for {
		e, err := w.reader.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return
		}
		switch {
		case err != nil && !isLine(err):
			return
		case err == nil && (e.Kind == agentpipe.KindDump || e.Kind == agentpipe.KindFigures):
			w.mu.Lock()
			dump := w.dump
			w.mu.Unlock()
			if dump != nil {
				dump(e)
			}
			continue
		case err != nil || e.Kind != agentpipe.KindExited:
			continue
		}
		d := Loss{ProcessEnd: native.ProcessEnd{Known: true, Signal: e.Signal, Code: e.Code}, Who: fault.Member{Rank: e.Rank, Host: e.Host, PID: e.PID}}
		w.mu.Lock()
		w.dead[e.Rank] = d
		close(w.news)
		w.news = make(chan struct{})
		w.mu.Unlock()
		w.spread(e.Rank, d)
	}
}

// SetDump says what answers the agent's requests for dumps and figures.
func (w *Watch) SetDump(dump func(e agentpipe.Event)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dump = dump
}

// Died takes the news of a death from a group that has found it out.
func (w *Watch) Died(who fault.Member) {
	w.mu.Lock()
	d, known := w.dead[who.Rank]
	if !known {
		d.Who = who
		w.dead[who.Rank] = d
	}
	w.mu.Unlock()
	w.spread(who.Rank, d)
}

// FellSilent takes the news of a rank that has fallen silent. It is told to the
// groups there are: those that are made later find out for themselves.
func (w *Watch) FellSilent(who fault.Member, text string) {
	w.spread(who.Rank, Loss{Who: who, Silent: text})
}

// spread tells of a death all that watch and have not heard of it.
func (w *Watch) spread(rank int, d Loss) {
	w.mu.Lock()
	w.lost = true
	var tell []*watcher
	for v := range w.watchers {
		if !v.told[rank] {
			v.told[rank] = true
			tell = append(tell, v)
		}
	}
	w.mu.Unlock()
	for _, v := range tell {
		v.tell(rank, d)
	}
}

// WatchAll calls tell for every death, past ones first, until stop is called.
func (w *Watch) WatchAll(tell func(rank int, d Loss)) (stop func()) {
	v := &watcher{told: map[int]bool{}, tell: tell}
	w.mu.Lock()
	w.watchers[v] = struct{}{}
	before := maps.Clone(w.dead)
	for r := range before {
		v.told[r] = true
	}
	w.mu.Unlock()
	for r, d := range before {
		tell(r, d)
	}
	return func() {
		w.mu.Lock()
		delete(w.watchers, v)
		w.mu.Unlock()
	}
}

// LastWords is how long a group waits after the news that a member's process has
// ended of itself: with it comes what that had to tell, over other connections.
const LastWords = 100 * time.Millisecond

// WatchMembers calls tell for every death of a member of a group, with its rank there.
func (w *Watch) WatchMembers(world []int, tell func(rank int, d Loss)) (stop func()) {
	return w.WatchAll(func(rank int, d Loss) {
		if i := slices.Index(world, rank); i >= 0 {
			tell(i, d)
		}
	})
}

// isLine reports whether an error is about one line, after which others come.
func isLine(err error) bool {
	var pe *os.PathError
	return !errors.As(err, &pe)
}

// ProcessEnd says how a rank died. Who asks first, and others meanwhile, wait a
// moment for the news.
func (w *Watch) ProcessEnd(rank int) native.ProcessEnd {
	w.mu.Lock()
	first, ok := w.asked[rank]
	if !ok {
		first = time.Now()
		w.asked[rank] = first
	}
	w.mu.Unlock()
	deadline := time.NewTimer(time.Until(first.Add(NewsPatience)))
	defer deadline.Stop()
	for {
		w.mu.Lock()
		o, news := w.dead[rank].ProcessEnd, w.news
		w.mu.Unlock()
		if o.Known || w.reader == nil {
			return o
		}
		select {
		case <-news:
		case <-w.ended:
			return o
		case <-deadline.C:
			return o
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() {
	if w.reader != nil {
		_ = w.reader.Close()
		<-w.ended
	}
}
