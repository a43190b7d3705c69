// SPDX-License-Identifier: Apache-2.0

package event

import (
	"math"
	"time"
)

// Figures are the sums of a stream.
type Figures struct {
	Time  time.Time `json:"time"`
	Start time.Time `json:"start"`
	Step  int       `json:"step"`
	// Last has the numbers of the last step that are finite: loss, learning_rate, grad_norm, size,
	// seconds, epoch.
	Last     map[string]float64       `json:"last"`
	Phases   map[string]time.Duration `json:"phases_ns"`
	Memory   MemoryNumbers            `json:"memory"`
	Channels []GroupFigures           `json:"groups"`
	Events   map[string]uint64        `json:"events"`
}

// byName returns the times by the names of the phases.
func (t Times) byName() map[string]time.Duration {
	m := make(map[string]time.Duration, NumPhases)
	for p, d := range t {
		m[Phase(p).String()] = d
	}
	return m
}

// finite returns the numbers by their names.
func (n StepNumbers) finite() map[string]float64 {
	m := map[string]float64{"loss": n.Loss, "learning_rate": n.LearningRate, "grad_norm": n.GradNorm, "size": n.Size, "seconds": n.Seconds, "epoch": n.Epoch}
	for name, v := range m {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(m, name)
		}
	}
	return m
}

// GroupFigures are those of a group of ranks.
type GroupFigures struct {
	Name  string    `json:"name"`
	Ranks int       `json:"ranks"`
	Ops   []OpTotal `json:"ops"`
}

// OpTotal is what the calls of an operation have come to.
type OpTotal struct {
	Op string `json:"op"`
	OpFigures
}

// Figures returns the sums so far.
func (s *Stream) Figures() Figures {
	if s == nil {
		return Figures{}
	}
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clock
	c.advance(now)
	if s.compared { // what is told never falls: a scraper would take it for a new beginning
		c.times[Communication], c.times[Waiting] = s.divided[Communication], s.divided[Waiting]
	}
	f := Figures{Time: s.start.Add(now), Start: s.start, Step: s.step, Last: s.lastStep.finite(), Phases: c.times.byName(), Memory: s.memory, Events: map[string]uint64{}}
	for k, n := range s.byKind {
		if n > 0 {
			f.Events[Kind(k).String()] = n
		}
	}
	for _, ch := range s.channels {
		g := GroupFigures{Name: ch.name, Ranks: len(ch.world)}
		for op, of := range ch.ops {
			if of.Calls > 0 {
				g.Ops = append(g.Ops, OpTotal{Op: ch.names[op], OpFigures: of})
			}
		}
		if g.Ops != nil {
			f.Channels = append(f.Channels, g)
		}
	}
	return f
}
