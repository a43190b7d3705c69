// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// OneCycleOptions are PyTorch's, with its defaults for zero values: MaxLR the
// group's base learning rate, PctStart 0.3, AnnealStrategy "cos" (or "linear"),
// BaseMomentum 0.85, MaxMomentum 0.95, DivFactor 25, FinalDivFactor 1e4.
// TotalSteps must be given. KeepMomentum leaves the momentum alone (PyTorch's
// cycle_momentum=False).
type OneCycleOptions struct {
	MaxLR                     float64
	TotalSteps                int
	PctStart                  float64
	AnnealStrategy            string
	KeepMomentum              bool
	BaseMomentum, MaxMomentum float64
	DivFactor, FinalDivFactor float64
	ThreePhase                bool
}

// OneCycle is the policy of Smith and Topin 2018: the learning rate rises from
// MaxLR/DivFactor to MaxLR and falls to the start divided by FinalDivFactor,
// while the momentum (Beta1 of Adam) goes the other way. With ThreePhase it
// falls back to the start, at the speed of the rise, before the end. Steps from
// TotalSteps on stay at the last values, where PyTorch raises an error.
type OneCycle struct {
	o      OneCycleOptions
	phases []phase
}

// phase goes from where the one before ended to end; values are 0 for the
// start's, 1 for the maximum's, 2 for the last learning rate's.
type phase struct {
	end      float64
	from, to int
	fromM    int // 0 for MaxMomentum, 1 for BaseMomentum
	toM      int
}

// OneCycleLR returns the policy.
func OneCycleLR(o OneCycleOptions) *OneCycle {
	orDefault(&o.PctStart, 0.3)
	orDefault(&o.BaseMomentum, 0.85)
	orDefault(&o.MaxMomentum, 0.95)
	orDefault(&o.DivFactor, 25)
	orDefault(&o.FinalDivFactor, 1e4)
	if o.AnnealStrategy == "" {
		o.AnnealStrategy = "cos"
	}
	c := checks{op: "one cycle lr"}
	c.notNegative("MaxLR", o.MaxLR)
	c.positive("TotalSteps", o.TotalSteps)
	c.want(o.PctStart >= 0 && o.PctStart <= 1, "PctStart is %v: it must be in [0, 1]", o.PctStart)
	c.want(o.AnnealStrategy == "cos" || o.AnnealStrategy == "linear", "AnnealStrategy is %q: it must be cos or linear", o.AnnealStrategy)
	c.decay("BaseMomentum", o.BaseMomentum)
	c.decay("MaxMomentum", o.MaxMomentum)
	c.want(o.DivFactor > 0 && !math.IsInf(o.DivFactor, 0), "DivFactor is %v: it must be positive", o.DivFactor)
	c.want(o.FinalDivFactor > 0 && !math.IsInf(o.FinalDivFactor, 0), "FinalDivFactor is %v: it must be positive", o.FinalDivFactor)
	c.end()
	n := float64(o.TotalSteps)
	s := &OneCycle{o: o}
	if o.ThreePhase {
		s.phases = []phase{{o.PctStart*n - 1, 0, 1, 0, 1}, {2*o.PctStart*n - 2, 1, 0, 1, 0}, {n - 1, 0, 2, 0, 0}}
	} else {
		s.phases = []phase{{o.PctStart*n - 1, 0, 1, 0, 1}, {n - 1, 1, 2, 1, 0}}
	}
	return s
}

// at returns the phase of a step and how much of it is done. Steps after the
// last stay at the end.
func (s *OneCycle) at(step int) (phase, float64) {
	now, start := min(max(step, 0), s.o.TotalSteps-1), 0.0
	for i, p := range s.phases {
		if float64(now) <= p.end || i == len(s.phases)-1 {
			if p.end == start {
				return p, 1
			}
			return p, (float64(now) - start) / (p.end - start)
		}
		start = p.end
	}
	panic("optim: a cycle has phases") // not reached: the loop ends with the last
}

func (s *OneCycle) between(from, to, done float64) float64 {
	if s.o.AnnealStrategy == "linear" {
		return from + (to-from)*done
	}
	return cosine(from, to, done)
}

// LR is the learning rate of a step: a [Schedule].
func (s *OneCycle) LR(step int, base float64) float64 {
	most := s.o.MaxLR
	if most == 0 {
		most = base
	}
	start := most / s.o.DivFactor
	values := [...]float64{start, most, start / s.o.FinalDivFactor}
	p, done := s.at(step)
	return s.between(values[p.from], values[p.to], done)
}

// Momentum is the momentum of a step.
func (s *OneCycle) Momentum(step int) float64 {
	values := [...]float64{s.o.MaxMomentum, s.o.BaseMomentum}
	p, done := s.at(step)
	return s.between(values[p.fromM], values[p.toM], done)
}

// Apply sets the learning rate and, unless KeepMomentum is set, the momentum
// of each group of opt for a step. A group without momentum panics then.
func (s *OneCycle) Apply(opt Optimizer, step int) {
	Schedule(s.LR).Apply(opt, step)
	if s.o.KeepMomentum {
		return
	}
	m := s.Momentum(step)
	for i, g := range opt.Groups() {
		c := checks{op: "one cycle lr"}
		c.want(g.cycles, "group %d was made without momentum, which the cycle moves: give the optimizer some, or set KeepMomentum of OneCycleOptions", i)
		c.end()
		g.SetMomentum(m)
	}
}
