// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Single is the [Strategy] of one rank: the model as it is. It needs no group,
// communicates nothing, and leaves gradients where the model has them.
type Single struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have
	// the same names in the Single.
	Model any `name:""`
}

// NewSingle prepares a model, an nn.Module or nn.ModuleN, for training on one
// rank.
func NewSingle(model any) (*Single, error) {
	err := checkModule(model)
	if err == nil {
		err = checkParams(model)
	}
	if err != nil {
		return nil, fmt.Errorf("single rank: %w", err)
	}
	return &Single{Model: model}, nil
}

// Forward runs a model that is an nn.Module.
func (s *Single) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m, ok := s.Model.(nn.Module)
	if !ok {
		c.Fail(fmt.Errorf("single rank: a %T has several inputs or results: call it by CallN", s.Model))
	}
	return c.Call(m, x)
}

// ForwardN runs a model that is an nn.ModuleN.
func (s *Single) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	m, ok := s.Model.(nn.ModuleN)
	if !ok {
		c.Fail(fmt.Errorf("single rank: a %T has one input and one result: call it by Call", s.Model))
	}
	return c.CallN(m, x...)
}

// NoSync runs fn.
func (*Single) NoSync(fn func() error) error { return fn() }

// Step runs the passes one after the other.
func (s *Single) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	if loss, err = runPasses(ctx, s, microbatches, true, nil); err == nil {
		err = nn.BalanceExperts(s.Model, nil)
	}
	return loss, err
}

// ClipGradNorm is optim.ClipGradNorm: this rank has all gradients.
func (*Single) ClipGradNorm(_ context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	norm, scale = optim.ClipGradNorm(params, maxNorm)
	return norm, scale, nil
}

func (*Single) reduce(context.Context) error { return nil }

// SyncBuffers does nothing.
func (*Single) SyncBuffers(context.Context) error { return nil }

// StateDict returns the parameters and buffers of the model by name.
func (s *Single) StateDict() nn.NamedTensors { return nn.StateDict(s.Model) }

// Layout says that the parameter is whole.
func (*Single) Layout(p *nn.Parameter) mesh.Layout { return mesh.Layout{Shape: p.Data().Shape()} }

// String says that it is one rank.
func (*Single) String() string { return "one rank" }
