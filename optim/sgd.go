// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// SGDOptions are PyTorch's. LR 0 means 1e-3. Maximize climbs.
type SGDOptions struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, Maximize                   bool
}

// SGD is stochastic gradient descent, with momentum if asked for. A gradient
// by rows moves these rows alone; with momentum, whose past moves the others
// too, all rows. It cannot have weight decay, as in PyTorch.
type SGD struct {
	base[SGDOptions]
	updates []tensor.SGDUpdate
}

// NewSGD returns the optimizer of params; see AddGroup for more of them.
func NewSGD(params []*nn.Parameter, o SGDOptions) *SGD {
	s := &SGD{}
	s.AddGroup(params, o)
	return s
}

// AddGroup adds parameters with options of their own. They have a momentum
// buffer if they have momentum.
func (s *SGD) AddGroup(params []*nn.Parameter, o SGDOptions) {
	orDefault(&o.LR, 1e-3)
	c := checks{op: "sgd"}
	c.notNegative("LR", o.LR)
	c.notNegative("Momentum", o.Momentum)
	c.finite("Dampening", o.Dampening)
	c.notNegative("WeightDecay", o.WeightDecay)
	c.want(!o.Nesterov || o.Momentum > 0 && o.Dampening == 0, "Nesterov needs a Momentum and no Dampening, which are %v and %v", o.Momentum, o.Dampening)
	c.end()
	var kinds []string
	if o.Momentum != 0 {
		kinds = []string{"momentum_buffer"}
	}
	s.addGroup(Group{params: params, baseLR: o.LR, momentum: o.Momentum, cycles: o.Momentum != 0}, o, kinds...)
}

// Step applies one update; see Optimizer.
func (s *SGD) Step(scale *tensor.Tensor) {
	s.updates = s.updates[:0]
	s.eachGrad(func(g *group[SGDOptions], i int, p *nn.Parameter, step int) {
		o := g.options
		scalars := tensor.SGDScalars{
			LR: g.lr, Momentum: g.momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay,
			Nesterov: o.Nesterov, First: step == 1, Maximize: o.Maximize,
		}
		var momentum *tensor.Tensor
		if g.momentum != 0 {
			momentum = g.state[i][0]
		}
		if rows := p.RowGrad(); rows != nil {
			if o.WeightDecay != 0 {
				s.fail("sgd", p, "its gradient comes by rows: WeightDecay must be 0, for it would move every row")
			}
			tensor.SGDRows(p.Data(), momentum, *rows, scalars, scale)
			return
		}
		s.updates = append(s.updates, tensor.SGDUpdate{Param: p.Data(), Grad: p.Grad(), MomentumBuf: momentum, SGDScalars: scalars})
	})
	tensor.SGD(s.updates, scale)
	clear(s.updates)
}

var (
	_ Optimizer = (*SGD)(nil)
	_ Optimizer = (*Adam)(nil)
	_ Optimizer = (*AdamW)(nil)
	_ Optimizer = (*SparseAdam)(nil)
	_ Optimizer = (*Adagrad)(nil)
	_ Optimizer = (*RMSprop)(nil)
)
