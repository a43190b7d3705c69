// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// AdamWOptions are PyTorch's, with its defaults for zero values: LR 1e-3,
// Beta1 0.9, Beta2 0.999, Eps 1e-8. WeightDecay 0 is none (PyTorch's is 0.01).
type AdamWOptions struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019).
type AdamW struct{ base[AdamWOptions] }

// NewAdamW returns the optimizer of params; see AddGroup for more of them.
func NewAdamW(params []*nn.Parameter, o AdamWOptions) *AdamW {
	a := &AdamW{base[AdamWOptions]{lrScale: 1}}
	a.AddGroup(params, o)
	return a
}

// AddGroup adds parameters with options of their own.
func (a *AdamW) AddGroup(params []*nn.Parameter, o AdamWOptions) {
	for _, d := range []struct {
		v    *float64
		when float64
	}{{&o.LR, 1e-3}, {&o.Beta1, 0.9}, {&o.Beta2, 0.999}, {&o.Eps, 1e-8}} {
		if *d.v == 0 {
			*d.v = d.when
		}
	}
	a.addGroup(params, o, "exp_avg", "exp_avg_sq")
}

// Step applies one update; see Optimizer.
func (a *AdamW) Step(gradScale float64) {
	a.numSteps++
	for _, g := range a.groups {
		o := g.options
		s := tensor.AdamWScalars{
			LR: o.LR * a.lrScale, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, GradScale: gradScale,
		}
		for i, p := range g.params {
			grad := p.Grad()
			if grad == nil {
				continue
			}
			g.steps[i]++
			t := float64(g.steps[i])
			s.Bias1, s.Bias2 = 1-math.Pow(o.Beta1, t), 1-math.Pow(o.Beta2, t)
			tensor.AdamW(p.Data(), grad, g.state[i][0], g.state[i][1], s)
		}
	}
}
