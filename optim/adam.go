// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// AdamOptions are PyTorch's, with its defaults for zero values: LR 1e-3,
// Beta1 0.9, Beta2 0.999, Eps 1e-8. WeightDecay is added to the gradient.
// AMSGrad divides by the greatest second moment so far. Maximize climbs.
type AdamOptions struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	AMSGrad, Maximize                  bool
}

// AdamWOptions are PyTorch's, with its defaults for zero values: LR 1e-3,
// Beta1 0.9, Beta2 0.999, Eps 1e-8. WeightDecay 0 is none (PyTorch's is 0.01).
type AdamWOptions struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	AMSGrad, Maximize                  bool
}

// Adam is the optimizer of Kingma and Ba 2015.
type Adam struct{ adam }

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019).
type AdamW struct{ adam }

type adam struct {
	base[AdamOptions]
	updates   []tensor.AdamUpdate
	decoupled bool
}

// NewAdam returns the optimizer of params; see AddGroup for more of them.
func NewAdam(params []*nn.Parameter, o AdamOptions) *Adam {
	a := &Adam{}
	a.AddGroup(params, o)
	return a
}

// NewAdamW returns the optimizer of params; see AddGroup for more of them.
func NewAdamW(params []*nn.Parameter, o AdamWOptions) *AdamW {
	a := &AdamW{adam{decoupled: true}}
	a.AddGroup(params, o)
	return a
}

// AddGroup adds parameters with options of their own.
func (a *Adam) AddGroup(params []*nn.Parameter, o AdamOptions) { a.add("adam", params, o) }

// AddGroup adds parameters with options of their own.
func (a *AdamW) AddGroup(params []*nn.Parameter, o AdamWOptions) {
	a.add("adamw", params, AdamOptions(o))
}

func (a *adam) add(op string, params []*nn.Parameter, o AdamOptions) {
	o.check(op)
	kinds := []string{"exp_avg", "exp_avg_sq"}
	if o.AMSGrad {
		kinds = append(kinds, "max_exp_avg_sq")
	}
	a.addGroup(Group{params: params, baseLR: o.LR, momentum: o.Beta1, cycles: true}, o, kinds...)
}

func (o *AdamOptions) check(op string) {
	orDefault(&o.LR, 1e-3)
	orDefault(&o.Beta1, 0.9)
	orDefault(&o.Beta2, 0.999)
	orDefault(&o.Eps, 1e-8)
	c := checks{op: op}
	c.notNegative("LR", o.LR)
	c.decay("Beta1", o.Beta1)
	c.decay("Beta2", o.Beta2)
	c.notNegative("Eps", o.Eps)
	c.notNegative("WeightDecay", o.WeightDecay)
	c.end()
}

// adamScalars are the numbers of a parameter's step-th update.
func adamScalars(g *group[AdamOptions], step int) tensor.AdamScalars {
	o, t := g.options, float64(step)
	return tensor.AdamScalars{
		LR: g.lr, Beta1: g.momentum, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay,
		Bias1: 1 - math.Pow(g.momentum, t), Bias2: 1 - math.Pow(o.Beta2, t), Maximize: o.Maximize,
	}
}

// Step applies one update; see Optimizer.
func (a *adam) Step(scale *tensor.Tensor) {
	a.updates = a.updates[:0]
	a.eachGrad(func(g *group[AdamOptions], i int, p *nn.Parameter, step int) {
		a.wantDense("adam", p)
		u := tensor.AdamUpdate{Param: p.Data(), Grad: p.Grad(), ExpAvg: g.state[i][0], ExpAvgSq: g.state[i][1], AdamScalars: adamScalars(g, step)}
		u.Decoupled = a.decoupled
		if g.options.AMSGrad {
			u.MaxExpAvgSq = g.state[i][2]
		}
		a.updates = append(a.updates, u)
	})
	tensor.Adam(a.updates, scale)
	clear(a.updates)
}

// SparseAdamOptions are PyTorch's, with its defaults for zero values: LR 1e-3,
// Beta1 0.9, Beta2 0.999, Eps 1e-8. Maximize climbs.
type SparseAdamOptions struct {
	LR, Beta1, Beta2, Eps float64
	Maximize              bool
}

// SparseAdam is Adam for gradients by rows, as PyTorch computes it: moments
// and values of rows without a gradient stay as they are ("lazy"). It panics
// for a dense gradient: put such parameters into another optimizer.
type SparseAdam struct{ base[AdamOptions] }

// NewSparseAdam returns the optimizer of params; see AddGroup for more of them.
func NewSparseAdam(params []*nn.Parameter, o SparseAdamOptions) *SparseAdam {
	a := &SparseAdam{}
	a.AddGroup(params, o)
	return a
}

// AddGroup adds parameters with options of their own.
func (a *SparseAdam) AddGroup(params []*nn.Parameter, o SparseAdamOptions) {
	full := AdamOptions{LR: o.LR, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, Maximize: o.Maximize}
	full.check("sparse adam")
	a.addGroup(Group{params: params, baseLR: full.LR, momentum: full.Beta1, cycles: true}, full, "exp_avg", "exp_avg_sq")
}

// Step applies one update; see Optimizer.
func (a *SparseAdam) Step(scale *tensor.Tensor) {
	a.eachGrad(func(g *group[AdamOptions], i int, p *nn.Parameter, step int) {
		rows := p.RowGrad()
		if rows == nil {
			a.fail("sparse adam", p, "its gradient is dense: use Adam for it. Sparse makes gradients come by rows only for tables that Embedding and EmbeddingBag look up, and only if nothing else reads them")
		}
		tensor.AdamRows(p.Data(), g.state[i][0], g.state[i][1], *rows, adamScalars(g, step), scale)
	})
}
