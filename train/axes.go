// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// Axes are the ranks of a run, by what they do together. Where every rank has
// samples of its own, as under DDP, World and Data are one group. Where several
// ranks share the work on one sample, as the stages of a pipeline do, Data has
// one rank of each such set.
type Axes struct {
	// World is all ranks of the run. They take every step together and agree
	// whether to go on. Its rank 0 reports and writes checkpoints.
	World *dist.Group
	// Data is the ranks among which the samples of a step are shared out, with this
	// rank among them. Its rank and size choose the samples, the random numbers of
	// a pass, and the share of an evaluation. Ranks of World that have one rank in
	// their Data take the same samples, and report the same loss.
	Data *dist.Group
}

// dataParallel has every rank take samples of its own.
func dataParallel(group *dist.Group) Axes { return Axes{World: group, Data: group} }

// resolve fills in what a task has left out, and reports what makes no sense.
func (a Axes) resolve(group *dist.Group) (Axes, error) {
	if a == (Axes{}) {
		return dataParallel(group), nil
	}
	switch {
	case a.World != group || a.Data == nil:
		return a, errors.New("Task.Axes wants World, which is the group that Run is given, and Data: or leave both out")
	case group.Size()%a.Data.Size() != 0:
		return a, fmt.Errorf("Task.Axes: the data axis has %d ranks, which does not divide the %d of the world", a.Data.Size(), group.Size())
	}
	return a, nil
}

// copies is how many ranks take each sample.
func (a Axes) copies() int { return a.World.Size() / a.Data.Size() }

// writesSamples says whether this rank is the one of those that take its samples
// which writes down what they are.
func (a Axes) writesSamples() bool { return slices.Contains(a.Data.Ranks(), a.World.Ranks()[0]) }

// spread wraps the model so that all ranks train it together: as the task says, or
// as replicas where there are several ranks.
func (r *trainer[B]) spread(ctx context.Context) (parallel.Strategy, error) {
	switch {
	case r.task.Strategy != nil:
		return r.task.Strategy(ctx, r.task.Model, r.axes)
	case r.axes.copies() > 1:
		return nil, settled(r.errorf("%d ranks take each sample (Task.Axes): set Task.Strategy, which shares out the work on it", r.axes.copies()))
	case r.axes.World.Size() == 1:
		return parallel.NewSingle(r.task.Model)
	}
	opts, err := r.ddpOptions()
	if err != nil {
		return nil, settled(err)
	}
	return parallel.NewDDP(ctx, r.task.Model, r.axes.Data, opts...)
}

// onDeviceOf makes a pass run where a model computes: on the device of its
// parameters.
func onDeviceOf(model any) nn.CtxOption {
	for _, p := range nn.Parameters(model) {
		if d := p.Data().Device(); d != tensor.Meta { // where another rank has it
			return nn.WithDevice(d)
		}
	}
	return nn.WithDevice(tensor.CPU())
}
