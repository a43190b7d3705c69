// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
)

// RankSkew says how late a rank comes to the collectives of a group: for how
// long others stand still for it. See [Group.Skew].
type RankSkew struct {
	Rank int `json:"rank"`
	// Late is by how much it is later than the first, a collective on average.
	Late time.Duration `json:"late_ns"`
	// Share is what that is of all time, 0 to 1: at 0.2 others wait for a fifth
	// of the time.
	Share float64 `json:"share"`
	// Step is how long a step took, of those that [Group.StepEnded] marks, or a
	// collective and what is between two of them. Share times Step is what
	// others wait a step.
	Step time.Duration `json:"step_ns"`
}

// Skew returns how late each rank is, in the order of ranks; nil until enough
// steps have ended, and for a group of one rank. Large groups name the 64
// latest ranks only. It costs a look into memory, because the ranks' heartbeats carry
// the numbers.
//
// A rank that comes early to a collective waits in it for the others, so the rank that
// waits the least is the latest. Only time in which the program waits counts: in a call, or in
// [Work.Wait]. A call that runs beside a computation does not count. The figures are
// of the last dozen steps that all ranks have ended, or of the last second
// if no steps are marked. Of the two halves of that time the smaller figure counts, so that
// one slow step makes no slow rank.
func (g *Group) Skew() []RankSkew {
	b, ok := g.comm.(backend.Timekeeper)
	if !ok {
		return nil
	}
	rows := b.Skew()
	if len(rows) == 0 {
		return nil
	}
	skew := make([]RankSkew, len(rows))
	for i, r := range rows {
		skew[i] = RankSkew(r)
	}
	return skew
}

// StepEnded says that this rank's program has ended a step: a piece of work
// that all ranks do over and over, with the same collectives of the group in
// it. That makes [Group.Skew] quicker and more exact. Groups that are trained on
// by parallel's DDP need no call of it.
func (g *Group) StepEnded() {
	if g.markStep()%2 == 0 {
		g.tellProgress()
	}
}

// progress is how far a rank has come with the collectives of a group. How many
// have ended, and for how long calls stood still in them, is in the group's log.
type progress struct {
	stood atomic.Int64 // ns for which somebody stood still in Work.Wait

	mu     sync.Mutex
	begun  time.Time // what times count from
	marked backend.Progress
}

// now returns how far this rank has come; g.progress is locked.
func (g *Group) now() backend.Progress {
	p := &g.progress
	if p.begun.IsZero() {
		p.begun = time.Now().Add(-1) // At begins above 0
	}
	calls, waited := g.log.Waited()
	return backend.Progress{Steps: calls, Calls: calls, Waited: time.Duration(waited + p.stood.Load()), At: time.Since(p.begun)}
}

// markStep marks the end of a step and returns the number of steps.
func (g *Group) markStep() uint64 {
	p := &g.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	now := g.now()
	now.Steps = p.marked.Steps + 1
	p.marked = now
	return now.Steps
}

// howFar returns how far this rank has come at the end of the last step, or
// collective.
func (g *Group) howFar() backend.Progress {
	p := &g.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marked.Steps > 0 {
		return p.marked
	}
	return g.now()
}

// tellEvery is after how many collectives goroutine ranks tell how far they
// are. Those that are processes do so with every beat.
const tellEvery = 8

// tellUnmarked tells how far this rank is where nobody marks steps.
func (g *Group) tellUnmarked(seq uint64) {
	if seq%tellEvery != 0 || g.transport != "goroutines" {
		return
	}
	g.progress.mu.Lock()
	marked := g.progress.marked.Steps > 0
	g.progress.mu.Unlock()
	if !marked {
		g.tellProgress()
	}
}

func (g *Group) tellProgress() {
	if b, ok := g.comm.(backend.Timekeeper); ok {
		b.StepEnded()
	}
}
