// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"math"
)

// PlateauOptions are PyTorch's, with its defaults for zero values: Mode "min"
// (or "max"), Factor 0.1, Patience 10 (negative for 0), Threshold 1e-4 relative
// to the best (ThresholdMode "rel", or "abs"), Cooldown 0, MinLR 0, Eps 1e-8:
// the least change of a learning rate that is made.
type PlateauOptions struct {
	Mode          string
	Factor        float64
	Patience      int
	Threshold     float64
	ThresholdMode string
	Cooldown      int
	MinLR, Eps    float64
}

// Plateau is PyTorch's ReduceLROnPlateau: it multiplies the learning rate of
// each group by Factor when a metric has not become better for more than
// Patience calls of Step. A [Schedule] applied to the same optimizer would
// overwrite what it sets.
type Plateau struct {
	opt   Optimizer
	o     PlateauOptions
	state PlateauState
}

// PlateauState is what a run must save to go on; it can be marshalled to JSON.
type PlateauState struct {
	// Best is the best metric, if any was better than nothing at all.
	Best            float64
	Seen            bool
	NumBadEpochs    int
	CooldownCounter int
	LRs             []float64 // of the groups
}

// ReduceLROnPlateau returns a plateau that sets the learning rates of opt.
func ReduceLROnPlateau(opt Optimizer, o PlateauOptions) *Plateau {
	orDefault(&o.Factor, 0.1)
	orDefault(&o.Threshold, 1e-4)
	orDefault(&o.Eps, 1e-8)
	if o.Patience == 0 {
		o.Patience = 10
	}
	o.Patience = max(o.Patience, 0)
	if o.Mode == "" {
		o.Mode = "min"
	}
	if o.ThresholdMode == "" {
		o.ThresholdMode = "rel"
	}
	c := checks{op: "reduce lr on plateau"}
	c.want(o.Mode == "min" || o.Mode == "max", "Mode is %q: it must be min or max", o.Mode)
	c.want(o.ThresholdMode == "rel" || o.ThresholdMode == "abs", "ThresholdMode is %q: it must be rel or abs", o.ThresholdMode)
	c.decay("Factor", o.Factor)
	c.notNegative("Threshold", o.Threshold)
	c.want(o.Cooldown >= 0, "Cooldown is %d: it must not be negative", o.Cooldown)
	c.notNegative("MinLR", o.MinLR)
	c.notNegative("Eps", o.Eps)
	c.end()
	return &Plateau{opt: opt, o: o}
}

// better reports whether a metric beats the best. NaN never does.
func (p *Plateau) better(metric float64) bool {
	best := p.state.Best
	if !p.state.Seen {
		best = math.Inf(1)
		if p.o.Mode == "max" {
			best = math.Inf(-1)
		}
	}
	by := p.o.Threshold
	switch {
	case p.o.Mode == "min" && p.o.ThresholdMode == "rel":
		return metric < best*(1-by)
	case p.o.Mode == "min":
		return metric < best-by
	case p.o.ThresholdMode == "rel":
		return metric > best*(1+by)
	}
	return metric > best+by
}

// Step takes the metric of an epoch, such as the loss on held-out data, and
// reports whether it reduced the learning rates. All ranks must give the same.
func (p *Plateau) Step(metric float64) (reduced bool) {
	s := &p.state
	if p.better(metric) {
		s.Best, s.Seen, s.NumBadEpochs = metric, true, 0
	} else {
		s.NumBadEpochs++
	}
	if s.CooldownCounter > 0 {
		s.CooldownCounter--
		s.NumBadEpochs = 0
	}
	if s.NumBadEpochs <= p.o.Patience {
		return false
	}
	s.CooldownCounter, s.NumBadEpochs = p.o.Cooldown, 0
	for _, g := range p.opt.Groups() {
		if lr := max(g.LR()*p.o.Factor, p.o.MinLR); g.LR()-lr > p.o.Eps {
			g.SetLR(lr)
			reduced = true
		}
	}
	return reduced
}

// State returns what a run must save.
func (p *Plateau) State() PlateauState {
	s := p.state
	for _, g := range p.opt.Groups() {
		s.LRs = append(s.LRs, g.LR())
	}
	return s
}

// SetState goes on from a saved state, with its learning rates.
func (p *Plateau) SetState(s PlateauState) error {
	groups := p.opt.Groups()
	if len(s.LRs) != len(groups) {
		return fmt.Errorf("optim: the saved plateau has %d parameter groups, the optimizer %d", len(s.LRs), len(groups))
	}
	for i, lr := range s.LRs {
		if !(lr >= 0) || math.IsInf(lr, 0) {
			return fmt.Errorf("optim: the saved plateau has the learning rate %v for group %d", lr, i)
		}
	}
	if s.NumBadEpochs < 0 || s.CooldownCounter < 0 {
		return fmt.Errorf("optim: the saved plateau has negative counts: %d bad epochs, %d of the cooldown", s.NumBadEpochs, s.CooldownCounter)
	}
	for i, g := range groups {
		g.SetLR(s.LRs[i])
	}
	s.LRs = nil
	p.state = s
	return nil
}
