// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// passTimes is how long a rank takes that shares nothing: for the forward and the backward
// pass of a microbatch, and for an update of the parameters.
type passTimes struct{ forward, backward, update time.Duration }

// timePasses measures passes of a model of its own, while the other ranks do the same. So
// the times are what the machine allows without communication.
func timePasses(ctx context.Context, group *dist.Group, o ShardOptions) (passTimes, error) {
	const warmUp, measured = 2, 5
	w := newWorkload(StepOptions{Model: o.Model, DType: o.DType, Batch: o.Batch})
	parts, err := w.microbatches(o.Microbatches)
	if err != nil {
		return passTimes{}, err
	}
	single, err := parallel.NewSingle(w.model)
	if err != nil {
		return passTimes{}, err
	}
	var forward, backward, update times
	for i := range warmUp + measured {
		if err := group.Barrier(ctx); err != nil {
			return passTimes{}, err
		}
		w.optimizer.ZeroGrad()
		f, b, err := w.timePass(ctx, single, parts[0])
		if err != nil {
			return passTimes{}, err
		}
		start := time.Now()
		w.optimizer.Step(nil)
		if i >= warmUp {
			forward, backward, update = append(forward, f), append(backward, b), append(update, time.Since(start))
		}
	}
	return passTimes{forward.median(), backward.median(), update.median()}, nil
}

// timePass runs one pass, forward and backward.
func (w *workload) timePass(ctx context.Context, model nn.Module, part samples) (forward, backward time.Duration, err error) {
	c := nn.Training(ctx, nn.WithAutocast(w.autocast))
	defer c.Close()
	defer c.Recover(&err)
	start := time.Now()
	loss := w.lossOf(c, model, part.x, part.y)
	loss.Item()
	middle := time.Now()
	err = loss.Backward(ctx)
	return middle.Sub(start), time.Since(middle), err
}

// predictStep returns how long a step takes if the ranks that share a sample divide its work
// evenly, and messages take no time; and the bubble of a pipeline. The stages of a pipeline
// play its schedule. Ranks that hold parts of the parameters divide the update.
func (m *strategyMesh) predictStep(t passTimes, numPasses int) (step time.Duration, bubble float64, err error) {
	sharing := time.Duration(m.size("tp") * m.size("cp"))
	update := t.update / time.Duration(m.size("pp")*m.size("fsdp")*m.size("tp")*max(1, m.updaters))
	if m.size("pp") == 1 {
		return time.Duration(numPasses)*(t.forward+t.backward)/sharing + update, 0, nil
	}
	s, err := schedule.New(m.schedule, m.size("pp"), 0, numPasses)
	if err != nil {
		return 0, 0, err
	}
	parts := sharing * time.Duration(s.NumStages)
	sim, err := s.Simulate(schedule.SimulateOptions{Ahead: 1, Cost: func(a schedule.Action) time.Duration {
		switch a.Kind {
		case schedule.Forward:
			return t.forward / parts
		case schedule.Backward:
			return t.backward / parts
		}
		return t.backward / 2 / parts
	}})
	if err != nil {
		return 0, 0, err
	}
	return sim.Time + update, sim.Bubble, nil
}

// exposure returns the part of the ranks' time for which they stood still: the mean over all
// ranks of the median exposed time, by the median step.
func exposure(ctx context.Context, group *dist.Group, m *sharded) (float64, error) {
	part := tensor.FromFloat64([]float64{m.exposed.median().Seconds() / m.steps.median().Seconds()})
	if err := group.AllReduce(ctx, part, dist.Sum); err != nil {
		return 0, err
	}
	return part.Item() / float64(group.Size()), nil
}
