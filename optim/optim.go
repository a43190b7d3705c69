// SPDX-License-Identifier: Apache-2.0

// Package optim changes parameters by their gradients.
//
// # Mental model
//
// An [Optimizer] holds parameters in groups with options of their own, and the
// state (moments, momentum, counts) that goes into a checkpoint by the
// parameters' names. Step reads the gradients that the backward pass left and
// updates all parameters in one loop over the threads; parameters without a
// gradient are not touched, as in PyTorch.
//
// A [Schedule] is a pure function from the step and a group's base learning
// rate to its learning rate: a run that resumes at step n needs nothing but n.
// What depends on what happened, [Plateau] and [EMA], has state to be saved.
//
//	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 1e-3})
//	schedule := optim.WarmupCosine(100, steps, 0.1)
//	for step := range steps {
//		opt.ZeroGrad()
//		… forward, loss.Backward(ctx) …
//		norm, scale := optim.ClipGradNorm(params, 1)
//		schedule.Apply(opt, step)
//		opt.Step(scale) // opt.Step(nil) without clipping
//		if err := optim.CheckGradNorm(params, norm.Item()); err != nil { opt.Skipped(); … }
//	}
//
// # Caveats
//
//   - Options have PyTorch's names and, where they are zero, its defaults, but
//     for WeightDecay of [AdamW]: 0 is none there, where PyTorch's is 0.01. To
//     ask for zero where that means a default, as for Adam without momentum,
//     give [Zero]. Options that make no sense panic with a *tensor.Error that
//     lists all of them.
//   - Names, and so the state's, are those of the model last walked by
//     nn.Parameters. Several models in one optimizer are walked as one, or they
//     would share names: nn.Parameters(&struct{G, D *Net}{g, d}) calls them
//     g.… and d.…. Messages call a parameter without a name by its place, param 3;
//     State refuses it.
//   - An optimizer belongs to the goroutine of its model.
//   - Parameters are float32: in mixed precision they are the master weights.
//   - Gradients by rows (nn.Parameter.Sparse) are for [SGD], [Adagrad] and
//     [SparseAdam]. The other optimizers move every row at every step and
//     panic.
package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Zero is an option that is nothing, where 0 stands for the default. It is the
// least positive number, and becomes 0 in the arithmetic.
const Zero = math.SmallestNonzeroFloat64

// Optimizer updates parameters.
type Optimizer interface {
	// Step applies one update from the present gradients, each multiplied by
	// scale first: nil for 1, or a tensor of one element, such as ClipGradNorm
	// returns. The parameters' device reads it when it runs the update; a scale on
	// another device is copied there first. A scale that is NaN or infinite leaves the update out: parameters
	// and state keep their bits. Step does not learn of it; see Skipped.
	Step(scale *tensor.Tensor)
	// Skipped says that the last Step wrote nothing, for its scale was not
	// finite: the counts of updates, which Step has moved on, go back. It comes
	// before the next Step, and may be called once for each.
	Skipped()
	// ZeroGrad forgets the gradients of all parameters.
	ZeroGrad()
	// Groups returns the parameter groups, in the order of AddGroup.
	Groups() []*Group
	// State returns the tensors that a checkpoint needs, by name; writing
	// them loads a state.
	State() nn.NamedTensors
	// NumSteps returns how often Step has run; SetNumSteps goes with loading
	// a state.
	NumSteps() int
	SetNumSteps(n int)
}

// Group is the parameters of one AddGroup, with the options that change while
// a model is trained.
type Group struct {
	params     []*nn.Parameter
	baseLR, lr float64
	momentum   float64
	cycles     bool // has a momentum that may be set
}

// Params returns the parameters.
func (g *Group) Params() []*nn.Parameter { return g.params }

// BaseLR returns the learning rate that the group was made with, from which
// schedules start.
func (g *Group) BaseLR() float64 { return g.baseLR }

// LR returns the learning rate of the next step.
func (g *Group) LR() float64 { return g.lr }

// SetLR sets the learning rate from the next step on. It must be finite and
// not negative.
func (g *Group) SetLR(lr float64) {
	c := checks{op: "set lr"}
	c.notNegative("LR", lr)
	c.end()
	g.lr = lr
}

// Momentum returns the momentum of SGD and RMSprop, Beta1 of Adam and AdamW.
func (g *Group) Momentum() float64 { return g.momentum }

// SetMomentum sets the momentum, or Beta1, from the next step on, in [0, 1). A
// group that was made without has no place for it: that panics.
func (g *Group) SetMomentum(m float64) {
	c := checks{op: "set momentum"}
	c.want(g.cycles, "the group was made without momentum")
	c.decay("the momentum", m)
	c.end()
	g.momentum = m
}

// group is a Group with what an optimizer keeps about it.
type group[O any] struct {
	Group
	options O
	kinds   []string           // of the state tensors
	first   float64            // what the state begins with
	state   [][]*tensor.Tensor // by parameter, then kind; nil until it is needed
	made    []origin           // by parameter: what it was when it was added
	// elsewhere says of which parameters other ranks have the state; nil for none.
	elsewhere []bool
	// counts says how often each parameter was updated. It is float32, as
	// PyTorch's: nothing depends on a count beyond 2²⁴.
	counts *tensor.Tensor
}

// base is the part that all optimizers have in common.
type base[O any] struct {
	groups   []*group[O]
	numSteps int
	// counted are the parameters that the last step counted, by group, for Skipped.
	counted [][]int
	turn    turn
}

// origin is what a parameter was when it was added.
type origin struct {
	numElems int
	device   tensor.Device
}

// addGroup adds parameters with options of their own and a state tensor of
// each kind. A parameter that is there already panics: a step would update it
// twice, and a checkpoint would have two states by one name.
func (b *base[O]) addGroup(g Group, options O, kinds ...string) *group[O] {
	seen := make(map[*nn.Parameter]bool)
	for _, p := range b.params() {
		seen[p] = true
	}
	// Later groups may be empty, as that of the biases of a model without.
	wanted := checks{op: "add group"}
	wanted.want(len(b.groups)+len(g.params) > 0, "there are no parameters to optimize: nn.Parameters(model) found none, or was not asked")
	wanted.end()
	for i, p := range g.params {
		position := len(b.params()) + i
		if p == nil {
			wanted.want(false, "param %d is nil", position)
			wanted.end()
		}
		if seen[p] {
			fail("add group", p, position, "the parameter is in a group already")
		}
		if p.Data().DType() != tensor.Float32 {
			fail("add group", p, position, "parameters are float32; compute in another dtype by nn.WithAutocast")
		}
		seen[p] = true
	}
	g.lr = g.baseLR
	added := &group[O]{Group: g, options: options, kinds: kinds, counts: tensor.Zeros(len(g.params)), state: make([][]*tensor.Tensor, len(g.params))}
	for _, p := range g.params {
		added.made = append(added.made, origin{p.Data().NumElems(), p.Data().Device()})
	}
	b.groups = append(b.groups, added)
	return added
}

// params returns the parameters of all groups, in order.
func (b *base[O]) params() []*nn.Parameter {
	var ps []*nn.Parameter
	for _, g := range b.groups {
		ps = append(ps, g.params...)
	}
	return ps
}

// ZeroGrad forgets the gradients of all parameters.
func (b *base[O]) ZeroGrad() {
	for _, g := range b.groups {
		for _, p := range g.params {
			p.ZeroGrad()
		}
	}
}

// Groups returns the parameter groups.
func (b *base[O]) Groups() []*Group {
	groups := make([]*Group, len(b.groups))
	for i, g := range b.groups {
		groups[i] = &g.Group
	}
	return groups
}

// State returns the state tensors, named KIND.PARAMETER, and the counts of
// updates, step.PARAMETER. It panics with a *tensor.Error when there is state to
// name and parameters have no names, or the same.
func (b *base[O]) State() nn.NamedTensors {
	var out nn.NamedTensors
	for _, g := range b.groups {
		if len(g.kinds) == 0 {
			continue // nothing depends on the counts
		}
		wantNames("optimizer state", b.params())
		for k, kind := range g.kinds {
			for i, p := range g.params {
				out = append(out, nn.NamedTensor{Name: kind + "." + p.Name(), Tensor: g.stateOf(i)[k]})
			}
		}
		for i, p := range g.params {
			count := g.counts.Select(0, i)
			if g.isElsewhere(i) {
				count = tensor.New(tensor.Meta, tensor.Float32)
			}
			out = append(out, nn.NamedTensor{Name: "step." + p.Name(), Tensor: count})
		}
	}
	return out
}

// stateOf returns the state tensors of parameter i. They are made when they are first needed,
// where the parameter was when it was added; on tensor.Meta if another rank has them.
func (g *group[O]) stateOf(i int) []*tensor.Tensor {
	if g.state[i] == nil && len(g.kinds) > 0 {
		d, dev := g.params[i].Data(), g.made[i].device
		if g.isElsewhere(i) {
			dev = tensor.Meta
		}
		for range g.kinds {
			t := tensor.New(dev, d.DType(), d.Shape()...)
			if g.first != 0 {
				t.Fill(g.first)
			}
			g.state[i] = append(g.state[i], t)
		}
	}
	return g.state[i]
}

func (g *group[O]) isElsewhere(i int) bool { return g.elsewhere != nil && g.elsewhere[i] }

// NumStates returns how many tensors of its shape an optimizer of this package keeps for a
// parameter on this rank: 2 for Adam, none for plain SGD, none where another rank has them.
func NumStates(o Optimizer, p *nn.Parameter) int {
	if of, ok := Unwrap(o).(interface{ numStates(p *nn.Parameter) int }); ok {
		return of.numStates(p)
	}
	return 0
}

func (b *base[O]) numStates(p *nn.Parameter) int {
	for _, g := range b.groups {
		if i := slices.Index(g.params, p); i >= 0 {
			if g.isElsewhere(i) {
				return 0
			}
			return len(g.kinds)
		}
	}
	return 0
}

// NumSteps returns how often Step has run.
func (b *base[O]) NumSteps() int { return b.numSteps }

// SetNumSteps sets the count, when a state is loaded. How often each parameter
// was updated is part of the state.
func (b *base[O]) SetNumSteps(n int) { b.numSteps = n }

// eachGrad begins a step: it calls fn for every parameter that has a gradient
// with its index in the group and how often it will have been updated.
func (b *base[O]) eachGrad(fn func(g *group[O], i int, p *nn.Parameter, step int)) {
	if !b.turn.later {
		b.numSteps++
		b.counted = slices.Grow(b.counted[:0], len(b.groups))[:len(b.groups)]
		for k := range b.counted {
			b.counted[k] = b.counted[k][:0]
		}
	}
	for k, g := range b.groups {
		g.counts.WithFloat32s(func(counts []float32) {
			for i, p := range g.params {
				if (p.Grad() != nil || p.RowGrad() != nil) && !g.isElsewhere(i) && b.turn.has(p) {
					g.wantPresent(i, p)
					g.stateOf(i)
					counts[i]++
					b.counted[k] = append(b.counted[k], i)
					fn(g, i, p, int(counts[i]))
				}
			}
		})
	}
}

// wantPresent fails for a parameter whose value was replaced by one of another size or on
// another device since its state was made.
func (g *group[O]) wantPresent(i int, p *nn.Parameter) {
	d, was := p.Data(), g.made[i]
	if len(g.kinds) > 0 && (was.numElems != d.NumElems() || was.device != d.Device()) {
		fail("step", p, i, "the optimizer was made when the parameter had %d elements on %s, and it has %d on %s: make the optimizer after what replaces parameters (parallel.FullyShard, Materialize, SetData)",
			was.numElems, was.device.Name(), d.NumElems(), d.Device().Name())
	}
}

// Skipped takes back what the last Step counted; see Optimizer.
func (b *base[O]) Skipped() {
	if len(b.counted) == 0 {
		return
	}
	b.numSteps--
	for k, indices := range b.counted {
		b.groups[k].counts.WithFloat32s(func(counts []float32) {
			for _, i := range indices {
				counts[i]--
			}
		})
	}
	b.counted = b.counted[:0]
}

// wantDense panics for a gradient by rows, as PyTorch does.
func (b *base[O]) wantDense(op string, p *nn.Parameter) {
	if p.RowGrad() != nil {
		b.fail(op, p, "its gradient comes by rows, which %s does not take: use SparseAdam, Adagrad or SGD, or leave Sparse unset", op)
	}
}

// fail panics with an Error about a parameter of the optimizer.
func (b *base[O]) fail(op string, p *nn.Parameter, format string, args ...any) {
	fail(op, p, slices.Index(b.params(), p), format, args...)
}

func fail(op string, p *nn.Parameter, position int, format string, args ...any) {
	panic(&tensor.Error{
		Op: op, Names: []string{nameOf(p, position)}, Shapes: [][]int{p.Data().Shape()}, DTypes: []tensor.DType{p.Data().DType()},
		Msg: fmt.Sprintf(format, args...),
	})
}
