// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// SGDOptions are PyTorch's. LR 0 means 1e-3.
type SGDOptions struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
}

// SGD is stochastic gradient descent, with momentum if asked for.
type SGD struct{ base[SGDOptions] }

// NewSGD returns the optimizer of params; see AddGroup for more of them.
func NewSGD(params []*nn.Parameter, o SGDOptions) *SGD {
	s := &SGD{base[SGDOptions]{lrScale: 1}}
	s.AddGroup(params, o)
	return s
}

// AddGroup adds parameters with options of their own. They have a momentum
// buffer if they have momentum.
func (s *SGD) AddGroup(params []*nn.Parameter, o SGDOptions) {
	if o.LR == 0 {
		o.LR = 1e-3
	}
	var kinds []string
	if o.Momentum != 0 {
		kinds = []string{"momentum_buffer"}
	}
	s.addGroup(params, o, kinds...)
}

// Step applies one update; see Optimizer.
func (s *SGD) Step(gradScale float64) {
	s.numSteps++
	for _, g := range s.groups {
		o := g.options
		scalars := tensor.SGDScalars{
			LR: o.LR * s.lrScale, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay,
			Nesterov: o.Nesterov, GradScale: gradScale,
		}
		for i, p := range g.params {
			grad := p.Grad()
			if grad == nil {
				continue
			}
			var momentum *tensor.Tensor
			if o.Momentum != 0 {
				momentum = g.state[i][0]
			}
			scalars.First = g.steps[i] == 0
			g.steps[i]++
			tensor.SGD(p.Data(), grad, momentum, scalars)
		}
	}
}

var (
	_ Optimizer = (*AdamW)(nil)
	_ Optimizer = (*SGD)(nil)
)
