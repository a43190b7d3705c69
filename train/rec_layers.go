// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// layerSchemas returns what the layers of a recommender are on parameter servers, whose first
// values rank 0 brings.
func (c RecConfig) layerSchemas(model nn.ModuleN) []rows.Schema {
	var out []rows.Schema
	for _, p := range ps.LayerWeights(model) {
		s := ps.LayerTable(p)
		s.Optimizer = rows.Optimizer{Kind: rows.Adagrad, LR: c.LR, LRDecay: c.Decay}
		out = append(out, s)
	}
	return out
}

// servedLayers are the layers of a recommender that lie on parameter servers. The parameters of
// the ranks have their values, which each step pulls, so a checkpoint has them as those of a run
// without servers. Of the optimizer the ranks have nothing but what a checkpoint needs.
type servedLayers struct {
	*ps.Layers
	group  *dist.Group
	states []*tensor.Tensor // of the optimizer, as a checkpoint has them
	count  *tensor.Tensor
}

// newServedLayers takes over the layers of a model whose tables are attached.
func newServedLayers(model any, client *ps.Client, group *dist.Group) (*servedLayers, error) {
	layers, err := ps.NewLayers(model, client)
	if err != nil {
		return nil, fmt.Errorf("--ps-layers: %w", err)
	}
	return &servedLayers{Layers: layers, group: group, states: layers.States(), count: tensor.Zeros()}, nil
}

// parts are the state of the optimizer in a checkpoint, which is that of a run without servers.
func (l *servedLayers) parts() (out []checkpoint.Part) {
	for i, p := range l.Params() {
		out = append(out, checkpoint.Part{Name: "sum." + p.Name(), Tensor: mesh.Tensor{Local: l.states[i].Reshape(p.Data().Shape()...)}},
			checkpoint.Part{Name: "step." + p.Name(), Tensor: mesh.Tensor{Local: l.count}})
	}
	return out
}

// fetch fills the parameters and the parts with what the servers have in a step.
func (l *servedLayers) fetch(ctx context.Context, step int64) error {
	l.count.Fill(float64(step))
	return l.Lookup(ctx, l.states)
}

// elsewhereOptimizer stands for the optimizer of the servers: it counts steps, and has neither
// state nor anything to update.
type elsewhereOptimizer struct{ optim.Optimizer }

// Step implements [optim.Optimizer].
func (o elsewhereOptimizer) Step(*tensor.Tensor) { o.SetNumSteps(o.NumSteps() + 1) }

// Skipped implements [optim.Optimizer].
func (o elsewhereOptimizer) Skipped() { o.SetNumSteps(o.NumSteps() - 1) }

// State implements [optim.Optimizer].
func (elsewhereOptimizer) State() nn.NamedTensors { return nil }

// Unwrap returns whose settings a checkpoint has; see [optim.Unwrap].
func (o elsewhereOptimizer) Unwrap() optim.Optimizer { return o.Optimizer }

// onServers is the strategy of a rank whose layers lie on servers: it pulls their values before
// the passes of a step. The servers add up the gradients of the ranks, so each rank divides its own.
type onServers struct {
	*parallel.Single
	layers *servedLayers
}

// spread makes the strategy.
func (l *servedLayers) spread(_ context.Context, model any, _ Axes) (parallel.Strategy, error) {
	single, err := parallel.NewSingle(model)
	return &onServers{single, l}, err
}

// Step implements [parallel.Strategy]. Its loss is that of the rank's own samples.
func (s *onServers) Step(ctx context.Context, passes []parallel.Microbatch) (*tensor.Tensor, error) {
	if err := s.layers.Pull(ctx); err != nil {
		return nil, err
	}
	ranks := float64(s.layers.group.Size())
	divided := make([]parallel.Microbatch, len(passes))
	for i, p := range passes {
		divided[i] = parallel.Microbatch{Carrier: p.Carrier, Loss: func(c *nn.Ctx) *tensor.Tensor { return p.Loss(c).MulScalar(1 / ranks) }}
	}
	loss, err := s.Single.Step(ctx, divided)
	if err != nil {
		return nil, err
	}
	return loss.MulScalar(ranks), nil
}

// ClipGradNorm implements [parallel.Strategy]. Nobody has the sum of the gradients here: the norm
// is that of the gradients of all ranks side by side, so all ranks see the same, also one that is
// not finite.
func (s *onServers) ClipGradNorm(ctx context.Context, _ []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	norm, _ = optim.ClipGradNorm(s.layers.Params(), 0)
	if s.layers.group.Size() > 1 {
		squares := norm.Mul(norm).Contiguous()
		if err := s.layers.group.AllReduce(ctx, squares, dist.Sum); err != nil {
			return nil, nil, err
		}
		norm = squares.Sqrt()
	}
	return norm, optim.ClipScale(norm, maxNorm), nil
}

// String implements [parallel.Strategy].
func (s *onServers) String() string {
	return fmt.Sprintf("layers on servers, %d ranks", s.layers.group.Size())
}
