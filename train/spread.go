// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// newBuild returns what builds the model of a run. It is built on tensor.Meta, and each
// rank makes what it holds later, unless its weights are written first: by those of another
// model, say.
func (c SharedConfig) newBuild(written bool) *nn.Build {
	b := &nn.Build{Generator: tensor.NewGenerator(c.Seed)}
	if !written {
		b.Device = tensor.Meta
	}
	return b
}

// isOnMeta reports whether a model has parameters without values.
func isOnMeta(model any) bool {
	return slices.ContainsFunc(nn.Parameters(model), func(p *nn.Parameter) bool { return p.Data().Device() == tensor.Meta })
}

// arrangement is the ranks of a recipe's run, as its settings arrange them.
type arrangement struct {
	mesh *mesh.Mesh // nil where all ranks hold the whole model and take samples of their own
	axes Axes
}

// arrangeRanks makes the mesh of a run, and the group of the ranks among which its samples are
// shared out: those that differ from this one only on the axes replicate, fsdp and ep.
func (c MeshConfig) arrangeRanks(ctx context.Context, task string, group *dist.Group) (a arrangement, err error) {
	a.axes = dataParallel(group)
	if !c.isComposed() && c.FSDP <= 1 {
		return a, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", trainOf(task), err)
		}
	}()
	a.mesh, err = parallel.NewMesh(ctx, group, parallel.Sizes{PP: c.PP, Replicate: c.Replicate, FSDP: c.FSDP, EP: c.EP, CP: c.CP, TP: c.TP})
	if err != nil || c.copies() == 1 {
		return a, err
	}
	var sample []string
	for _, axis := range []string{axisReplicate, axisFSDP, axisEP} {
		if a.mesh.Has(axis) {
			sample = append(sample, axis)
		}
	}
	if sample == nil {
		a.axes.Data, err = group.NewGroup(ctx, []int{group.Rank()})
		return a, err
	}
	flat, err := a.mesh.Flatten(ctx, "samples", sample...)
	if err == nil {
		a.axes.Data = flat.World()
	}
	return a, err
}

// close closes the groups that were made: at the end of the run, when nothing depends on them.
func (a arrangement) close() {
	if a.axes.Data != a.axes.World {
		_ = a.axes.Data.Close()
	}
	if a.mesh != nil {
		_ = a.mesh.Close()
	}
}

// spreading is how a recipe spreads its model over the ranks.
type spreading struct {
	cfg    SharedConfig
	ranks  arrangement
	config parallel.Config               // of a composed mesh
	fill   func(parallel.Strategy) error // reads values of what this rank holds; nil for none
	first  []rows.Schema                 // tables whose first values follow from the keys of the rows
}

// materializer is a strategy that gives a model on tensor.Meta its values.
type materializer interface {
	parallel.Strategy
	Materialize(ctx context.Context, dev tensor.Device) error
}

// strategy spreads a model over the mesh.
func (s spreading) strategy(ctx context.Context, model any) (m materializer, err error) {
	if s.cfg.isComposed() {
		return parallel.Parallelize(ctx, model, s.ranks.mesh, s.config)
	}
	return parallel.FullyShard(ctx, model, s.ranks.mesh)
}

// runOn is Run with the model spread as the settings say: over a mesh, or as Run does it
// without one.
func runOn[B any](ctx context.Context, s spreading, task Task[B], o Options, report Reporter) error {
	group, onMeta := s.ranks.axes.World, isOnMeta(task.Model)
	if onMeta {
		if err := checkRanksMemory(ctx, task.Name, task.Model, s.cfg, group); err != nil {
			return settled(err)
		}
	}
	switch {
	case s.ranks.mesh != nil:
		task.Strategy = func(ctx context.Context, model any, _ Axes) (parallel.Strategy, error) {
			m, err := s.strategy(ctx, model)
			if err == nil && onMeta {
				err = m.Materialize(ctx, tensor.CPU())
			}
			if err == nil && onMeta {
				err = firstRows(s.first, ModelParts(m))
			}
			if err == nil && s.fill != nil {
				err = s.fill(m)
			}
			return m, err
		}
	case onMeta:
		if err := nn.Materialize(task.Model, tensor.CPU()); err != nil {
			return fmt.Errorf("%s: %w", trainOf(task.Name), err)
		}
		if err := firstRows(s.first, checkpoint.Whole(nn.StateDict(task.Model).All())); err != nil {
			return fmt.Errorf("%s: %w", trainOf(task.Name), err)
		}
	}
	if s.cfg.DiLoCo > 0 {
		whole, err := o.resolve(task.Name, task.Samples)
		if err != nil {
			return settled(err)
		}
		task.Strategy = onIslands(s.cfg, whole.Steps, task.Strategy)
	}
	return Run(ctx, group, task, o, report)
}
