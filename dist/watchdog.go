// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"io"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/diagnosis"
)

// watched is a group as this rank's watchdog sees it.
type watched struct{ *Group }

// World implements [diagnosis.Group].
func (w watched) World() []int { return w.world }

// Asker implements [diagnosis.Group].
func (w watched) Asker() backend.Asker {
	w.mu.Lock()
	defer w.mu.Unlock()
	asker, _ := w.comm.(backend.Asker)
	return asker
}

// Doing implements [diagnosis.Group].
func (w watched) Doing(asker int) Doing { return w.doing(asker) }

// UsualStep implements [diagnosis.Group].
func (w watched) UsualStep() time.Duration { return w.usualStep() }

// End implements [diagnosis.Group].
func (w watched) End(err error) { w.failOpen(err) }

// watchCalls starts the watchdog of a group of all ranks.
func (g *Group) watchCalls() {
	if _, ok := g.comm.(backend.Asker); !ok {
		return
	}
	var to io.Writer = os.Stderr
	if g.host != nil { // a network inside the process, with a time of its own
		to = nil
	}
	g.watchdog = diagnosis.New(g.log, func(key uint64) (diagnosis.Group, bool) {
		found := g.withKey(key)
		return watched{found}, found != nil
	}, to)
}

// doing returns what this rank is doing, for a member of the group.
func (g *Group) doing(asker int) Doing {
	d := g.log.Doing()
	d.Called = g.log.LastCalled()
	g.mu.Lock()
	defer g.mu.Unlock()
	d.Sent, d.Received = g.pairs[pair{asker, true}].issued(), g.pairs[pair{asker, false}].issued()
	// Receives that wait at the gate may be from anybody.
	d.Received += uint64(len(g.gate.waiting))
	return d
}

// issued returns how many calls have been made of a lane, which may be nil.
func (l *lane) issued() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// withKey returns this group, or the one made from it, whose members have met
// by the key that a number stands for, unless it is closed.
func (g *Group) withKey(number uint64) *Group {
	if g.log.Key() == number {
		return g
	}
	for _, c := range g.offspring() {
		if found := c.withKey(number); found != nil {
			return found
		}
	}
	return nil
}

// usualStep is what a step takes, as far as is known: one that the program marks, or a
// collective and what is between two of them.
func (g *Group) usualStep() time.Duration {
	for _, s := range g.Skew() {
		return s.Step
	}
	if p := g.howFar(); p.Steps > 0 {
		return p.At / time.Duration(p.Steps)
	}
	return 0
}
