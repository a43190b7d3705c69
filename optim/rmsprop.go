// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// RMSpropOptions are PyTorch's, with its defaults for zero values: LR 1e-2,
// Alpha 0.99, Eps 1e-8. Centered subtracts the squared mean of the gradients
// from the mean of their squares. Maximize climbs.
type RMSpropOptions struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Centered, Maximize                    bool
}

// RMSprop is the optimizer of Tieleman and Hinton 2012 (lecture 6.5 of their
// course), centered that of Graves 2013.
type RMSprop struct {
	base[RMSpropOptions]
	updates []tensor.RMSpropUpdate
}

// NewRMSprop returns the optimizer of params; see AddGroup for more of them.
func NewRMSprop(params []*nn.Parameter, o RMSpropOptions) *RMSprop {
	r := &RMSprop{}
	r.AddGroup(params, o)
	return r
}

// AddGroup adds parameters with options of their own. They have a momentum
// buffer if they have momentum.
func (r *RMSprop) AddGroup(params []*nn.Parameter, o RMSpropOptions) {
	orDefault(&o.LR, 1e-2)
	orDefault(&o.Alpha, 0.99)
	orDefault(&o.Eps, 1e-8)
	c := checks{op: "rmsprop"}
	c.notNegative("LR", o.LR)
	c.decay("Alpha", o.Alpha)
	c.notNegative("Eps", o.Eps)
	c.notNegative("WeightDecay", o.WeightDecay)
	c.notNegative("Momentum", o.Momentum)
	c.end()
	kinds := []string{"square_avg"}
	if o.Centered {
		kinds = append(kinds, "grad_avg")
	}
	if o.Momentum != 0 {
		kinds = append(kinds, "momentum_buffer")
	}
	r.addGroup(Group{params: params, baseLR: o.LR, momentum: o.Momentum, cycles: o.Momentum != 0}, o, kinds...)
}

// Step applies one update; see Optimizer.
func (r *RMSprop) Step(scale *tensor.Tensor) {
	r.updates = r.updates[:0]
	r.eachGrad(func(g *group[RMSpropOptions], i int, p *nn.Parameter, _ int) {
		r.wantDense("rmsprop", p)
		o, state := g.options, g.state[i]
		u := tensor.RMSpropUpdate{Param: p.Data(), Grad: p.Grad(), SquareAvg: state[0], RMSpropScalars: tensor.RMSpropScalars{
			LR: g.lr, Alpha: o.Alpha, Eps: o.Eps, WeightDecay: o.WeightDecay, Momentum: g.momentum, Maximize: o.Maximize,
		}}
		if o.Centered {
			u.GradAvg = state[1]
		}
		if g.momentum != 0 {
			u.MomentumBuf = state[len(state)-1]
		}
		r.updates = append(r.updates, u)
	})
	tensor.RMSprop(r.updates, scale)
	clear(r.updates)
}
