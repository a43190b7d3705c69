// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Config says how [Parallelize] splits a model.
type Config struct {
	FSDP []FSDPOption // of the axis fsdp
	DDP  []DDPOption  // of a mesh without it
}

// Parallel is a model that is split over all axes of a mesh at once. It is a [Strategy].
// [Parallelize] makes it.
type Parallel struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have the same names
	// in the Parallel.
	Model any `name:""`

	mesh   *mesh.Mesh
	engine Strategy               `name:"-"` // sums gradients: an FSDP or a DDP
	parts  []splitter             `name:"-"` // outermost first
	lays   map[*nn.Parameter]*lay `name:"-"`
}

// Parallelize prepares a model, an nn.Module or nn.ModuleN, for training on all ranks of a mesh.
func Parallelize(ctx context.Context, model any, m *mesh.Mesh, c Config) (*Parallel, error) {
	if m == nil {
		return nil, errors.New("parallelize: the mesh is nil: make one with NewMesh")
	}
	p := &Parallel{Model: model, mesh: m, lays: map[*nn.Parameter]*lay{}}
	var err error
	if m.Has(shardAxis) {
		p.engine, err = FullyShard(ctx, model, m, c.FSDP...)
	} else {
		p.engine, err = NewDDP(ctx, model, m.World(), c.DDP...)
	}
	if err != nil {
		return nil, fmt.Errorf("parallelize: %w", err)
	}
	return p, nil
}

// around adds the interceptors of the parts to a carrier.
func (p *Parallel) around(c *nn.Ctx) *nn.Ctx {
	for _, i := range p.parts {
		c = c.With(i)
	}
	return c
}

// Forward runs a model that is an nn.Module, on this rank's part of the work.
func (p *Parallel) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return p.engine.Forward(p.around(c), x)
}

// ForwardN is Forward for an nn.ModuleN.
func (p *Parallel) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	return p.engine.ForwardN(p.around(c), x...)
}

// NoSync runs fn, whose passes add to the gradients without a reduction.
func (p *Parallel) NoSync(fn func() error) error { return p.engine.NoSync(fn) }

// Step runs the passes of a step.
func (p *Parallel) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	return p.engine.Step(ctx, microbatches)
}

// ClipGradNorm returns the norm of the gradients of the whole model.
func (p *Parallel) ClipGradNorm(ctx context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	return p.engine.ClipGradNorm(ctx, params, maxNorm)
}

// SyncBuffers gives every rank rank 0's buffers.
func (p *Parallel) SyncBuffers(ctx context.Context) error { return p.engine.SyncBuffers(ctx) }

// StateDict returns what this rank holds of the model's state, by name.
func (p *Parallel) StateDict() nn.NamedTensors { return p.engine.StateDict() }

// Layout returns how a parameter is spread over the mesh.
func (p *Parallel) Layout(q *nn.Parameter) mesh.Layout { return p.engine.Layout(q) }

// String says what is split over what.
func (p *Parallel) String() string {
	var axes []string
	for _, a := range p.mesh.Axes() {
		axes = append(axes, fmt.Sprintf("%s %d", a.Name, a.Size))
	}
	return strings.Join(axes, " × ") + ": " + p.engine.String()
}
