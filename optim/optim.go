// SPDX-License-Identifier: Apache-2.0

// Package optim changes parameters by their gradients.
//
// An [Optimizer] holds parameters in groups with options of their own, and the
// state (moments, momentum) that goes into a checkpoint by the parameters'
// names. Step reads the gradients that the backward pass left; parameters
// without one are not touched, as in PyTorch. Schedules are pure functions of
// the step that give a factor for the learning rate.
//
//	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 1e-3})
//	for step := range steps {
//		opt.ZeroGrad()
//		… forward, loss.Backward(ctx) …
//		opt.SetLRScale(optim.WarmupCosine(step, 100, steps, 0.1))
//		_, scale := optim.ClipGradNorm(params, 1)
//		opt.Step(scale)
//	}
//
// An optimizer belongs to the goroutine of its model.
package optim

import (
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Optimizer updates parameters.
type Optimizer interface {
	// Step applies one update from the present gradients, each multiplied by
	// gradScale first: 1, or what ClipGradNorm returned.
	Step(gradScale float64)
	// ZeroGrad forgets the gradients of all parameters.
	ZeroGrad()
	// SetLRScale multiplies every group's learning rate from now on.
	SetLRScale(factor float64)
	// State returns the tensors that a checkpoint needs, by name; writing
	// them loads a state.
	State() nn.NamedTensors
	// NumSteps returns how often Step has run; SetNumSteps goes with loading
	// a state.
	NumSteps() int
	SetNumSteps(n int)
}

// group is what the parameters of one AddGroup share.
type group[O any] struct {
	params  []*nn.Parameter
	options O
	kinds   []string           // of the state tensors
	state   [][]*tensor.Tensor // by parameter, then kind
	steps   []int              // updates of each parameter
}

// base is the part that all optimizers have in common.
type base[O any] struct {
	groups   []group[O]
	lrScale  float64
	numSteps int
}

// addGroup adds parameters with options of their own and a state tensor of
// each kind. A parameter that is there already panics: a step would update it
// twice, and a checkpoint would have two states by one name.
func (b *base[O]) addGroup(params []*nn.Parameter, options O, kinds ...string) {
	seen := make(map[*nn.Parameter]bool)
	for _, g := range b.groups {
		for _, p := range g.params {
			seen[p] = true
		}
	}
	for _, p := range params {
		if seen[p] {
			panic(&tensor.Error{
				Op: "add group", Names: []string{p.Name()}, Shapes: [][]int{p.Data().Shape()}, DTypes: []tensor.DType{p.Data().DType()},
				Msg: "the parameter is in a group already",
			})
		}
		seen[p] = true
	}
	g := group[O]{params: params, options: options, kinds: kinds, steps: make([]int, len(params))}
	for _, p := range params {
		var state []*tensor.Tensor
		for range kinds {
			d := p.Data()
			state = append(state, tensor.New(d.Device(), d.DType(), d.Shape()...))
		}
		g.state = append(g.state, state)
	}
	b.groups = append(b.groups, g)
}

// ZeroGrad forgets the gradients of all parameters.
func (b *base[O]) ZeroGrad() {
	for _, g := range b.groups {
		for _, p := range g.params {
			p.ZeroGrad()
		}
	}
}

// SetLRScale multiplies every group's learning rate from now on.
func (b *base[O]) SetLRScale(factor float64) { b.lrScale = factor }

// State returns the state tensors, named KIND.PARAMETER.
func (b *base[O]) State() nn.NamedTensors {
	var out nn.NamedTensors
	for _, g := range b.groups {
		for k, kind := range g.kinds {
			for i, p := range g.params {
				out = append(out, nn.NamedTensor{Name: kind + "." + p.Name(), Tensor: g.state[i][k]})
			}
		}
	}
	return out
}

// NumSteps returns how often Step has run.
func (b *base[O]) NumSteps() int { return b.numSteps }

// SetNumSteps sets the count, when a state is loaded. Every parameter then
// counts as updated so often.
func (b *base[O]) SetNumSteps(n int) {
	b.numSteps = n
	for _, g := range b.groups {
		for i := range g.steps {
			g.steps[i] = n
		}
	}
}

// ClipGradNorm returns the Euclidean norm of all gradients together and the
// factor, at most 1, that brings it down to maxNorm: pass it to Step. Nothing
// is written.
func ClipGradNorm(params []*nn.Parameter, maxNorm float64) (norm, scale float64) {
	sum := 0.0
	for _, p := range params {
		if g := p.Grad(); g != nil {
			sum += g.SumSquares()
		}
	}
	norm = math.Sqrt(sum)
	return norm, min(1, maxNorm/(norm+1e-6))
}

// WarmupCosine is the factor at a step, counted from 0: it rises linearly over
// numWarmup steps to 1 and falls to floor at numSteps along half a cosine.
func WarmupCosine(step, numWarmup, numSteps int, floor float64) float64 {
	if step < numWarmup {
		return float64(step+1) / float64(numWarmup)
	}
	if step >= numSteps {
		return floor
	}
	done := float64(step-numWarmup) / float64(max(1, numSteps-numWarmup))
	return floor + (1-floor)*0.5*(1+math.Cos(math.Pi*done))
}
