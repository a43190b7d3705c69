// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// AdagradOptions are PyTorch's, with its defaults for zero values: LR 1e-2,
// Eps 1e-10. Step t, counted from 0, has the learning rate LR/(1 + t·LRDecay).
// InitialAccumulatorValue is what the sums of squares begin with. Maximize
// climbs.
type AdagradOptions struct {
	LR, LRDecay, WeightDecay, InitialAccumulatorValue, Eps float64
	Maximize                                               bool
}

// Adagrad is the optimizer of Duchi, Hazan and Singer 2011. A gradient by rows
// moves these rows alone; it cannot have weight decay, as in PyTorch.
type Adagrad struct {
	base[AdagradOptions]
	updates []tensor.AdagradUpdate
}

// NewAdagrad returns the optimizer of params; see AddGroup for more of them.
func NewAdagrad(params []*nn.Parameter, o AdagradOptions) *Adagrad {
	a := &Adagrad{}
	a.AddGroup(params, o)
	return a
}

// AddGroup adds parameters with options of their own.
func (a *Adagrad) AddGroup(params []*nn.Parameter, o AdagradOptions) {
	orDefault(&o.LR, 1e-2)
	orDefault(&o.Eps, 1e-10)
	c := checks{op: "adagrad"}
	c.notNegative("LR", o.LR)
	c.notNegative("LRDecay", o.LRDecay)
	c.notNegative("WeightDecay", o.WeightDecay)
	c.notNegative("InitialAccumulatorValue", o.InitialAccumulatorValue)
	c.notNegative("Eps", o.Eps)
	c.end()
	g := a.addGroup(Group{params: params, baseLR: o.LR}, o, "sum")
	g.first = o.InitialAccumulatorValue
}

// Step applies one update; see Optimizer.
func (a *Adagrad) Step(scale *tensor.Tensor) {
	a.updates = a.updates[:0]
	a.eachGrad(func(g *group[AdagradOptions], i int, p *nn.Parameter, step int) {
		o := g.options
		s := tensor.AdagradScalars{
			LR: g.lr / (1 + float64(step-1)*o.LRDecay), WeightDecay: o.WeightDecay, Eps: o.Eps, Maximize: o.Maximize,
		}
		if rows := p.RowGrad(); rows != nil {
			if o.WeightDecay != 0 {
				a.fail("adagrad", p, "its gradient comes by rows: WeightDecay must be 0, for it would move every row")
			}
			tensor.AdagradRows(p.Data(), g.state[i][0], *rows, s, scale)
			return
		}
		a.updates = append(a.updates, tensor.AdagradUpdate{Param: p.Data(), Grad: p.Grad(), Sum: g.state[i][0], AdagradScalars: s})
	})
	tensor.Adagrad(a.updates, scale)
	clear(a.updates)
}
