// SPDX-License-Identifier: Apache-2.0

package event

import "time"

// Figures are the sums of a stream.
type Figures struct {
	Time     time.Time         `json:"time"`
	Start    time.Time         `json:"start"`
	Step     int               `json:"step"`
	Last     StepNumbers       `json:"-"` // may be not finite, which JSON has not
	Phases   Times             `json:"phases_ns"`
	Memory   MemoryNumbers     `json:"memory"`
	Channels []GroupFigures    `json:"groups"`
	Events   map[string]uint64 `json:"events"`
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
	f := Figures{Time: s.start.Add(now), Start: s.start, Step: s.step, Last: s.lastStep, Phases: c.times, Memory: s.memory, Events: map[string]uint64{}}
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
