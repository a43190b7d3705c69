// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/nearest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// nearestOf returns a hint at a name that is like one that is not there.
func nearestOf(name string, known []string) string {
	if near := nearest.Name(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// chooseStarts returns the names of the modules at which the stages 1, 2, … begin.
func (q *pipeline) chooseStarts(ctx context.Context) ([]string, error) {
	c := q.config
	given := 0
	for _, is := range []bool{c.Starts != nil, c.Layers != nil, c.Measure} {
		if is {
			given++
		}
	}
	if given > 1 {
		return nil, stageError(-1, "Starts, Layers and Measure of PipelineConfig exclude each other: set one of them")
	}
	if c.Starts != nil || c.NumStages == 1 {
		return c.Starts, nil
	}
	layers := longestList(q.p.Model)
	if len(layers) < c.NumStages {
		return nil, stageError(-1, "the longest list of modules in the model has %d layers, and there are %d stages: %d < %d; use fewer stages, or name where they begin by PipelineConfig.Starts",
			len(layers), c.NumStages, len(layers), c.NumStages)
	}
	counts := c.Layers
	var err error
	switch {
	case c.Measure:
		counts, err = q.measure(ctx, layers)
	case counts == nil:
		counts = evenly(len(layers), c.NumStages)
	default:
		err = checkLayers(counts, len(layers), c.NumStages)
	}
	if err != nil {
		return nil, err
	}
	var starts []string
	at := 0
	for _, n := range counts[:len(counts)-1] {
		at += n
		starts = append(starts, layers[at].path)
	}
	return starts, nil
}

// checkLayers fails for numbers of layers that are not those of the model.
func checkLayers(counts []int, numLayers, numStages int) error {
	sum := 0
	for i, n := range counts {
		if n < 1 {
			return stageError(i, "PipelineConfig.Layers gives it %d layers: it needs one at least", n)
		}
		sum += n
	}
	switch {
	case len(counts) != numStages:
		return stageError(-1, "PipelineConfig.Layers has %d numbers, and there are %d stages", len(counts), numStages)
	case sum != numLayers:
		return stageError(-1, "PipelineConfig.Layers has %v, which are %d layers, and the model has %d", counts, sum, numLayers)
	}
	return nil
}

// evenly divides n layers between stages: the first ones have one more where n does not divide.
func evenly(n, numStages int) []int {
	counts := make([]int, numStages)
	for i := range counts {
		counts[i] = n / numStages
		if i < n%numStages {
			counts[i]++
		}
	}
	return counts
}

// longestList returns the elements of the longest list of modules of one type in the model.
func longestList(model any) []pipeStart {
	lists := map[string][]pipeStart{}
	var best []pipeStart
	for path, m := range nn.Modules(model) {
		list, index := parentOf(path)
		if !isNumber(index) || !callable(m) || !hasParams(m) {
			continue
		}
		if l := lists[list]; len(l) > 0 && reflect.TypeOf(l[0].module) != reflect.TypeOf(m) {
			continue
		}
		lists[list] = append(lists[list], pipeStart{path, m})
		if len(lists[list]) > len(best) {
			best = lists[list]
		}
	}
	return best
}

// measure has rank 0 measure how long the layers take, and returns the numbers of layers of the
// stages.
func (q *pipeline) measure(ctx context.Context, layers []pipeStart) ([]int, error) {
	counts := make([]int64, q.config.NumStages)
	var failure error
	if q.p.mesh.Rank() == 0 {
		costs, err := q.costs(ctx, layers)
		var starts []int
		if err == nil {
			starts, _, err = schedule.Partition(costs, q.config.NumStages)
		}
		failure = err
		for i, first := range starts {
			next := len(layers)
			if i+1 < len(starts) {
				next = starts[i+1]
			}
			counts[i] = int64(next - first)
		}
	}
	t := tensor.FromInt64(counts)
	world, err := newRanks(ctx, q.p.mesh.World(), worldAxis)
	if err == nil {
		err = world.broadcast(ctx, t)
	}
	if err != nil {
		return nil, fmt.Errorf("pipeline: tell the ranks where the stages begin: %w", err)
	}
	if failure != nil {
		return nil, failure
	}
	out := make([]int, len(counts))
	for i, n := range t.Int64s() {
		out[i] = int(n)
	}
	if out[0] == 0 {
		return nil, stageError(-1, "rank 0 could not measure the layers; its error says why")
	}
	return out, nil
}

// costs returns the time of each layer. What the model computes before the first layer counts to
// that, and what it computes after the last one to the last.
func (q *pipeline) costs(ctx context.Context, layers []pipeStart) (costs []time.Duration, err error) {
	x := make([]*tensor.Tensor, len(q.config.Example))
	for i, t := range q.config.Example {
		if x[i] = t; t != nil && t.Device() == tensor.Meta {
			x[i] = tensor.New(tensor.CPU(), t.DType(), t.Shape()...)
		}
	}
	for _, p := range nn.Parameters(q.p.Model) {
		if p.Data().Device() == tensor.Meta {
			return nil, stageError(-1, "the layers cannot be measured, for %s is on device %s: build the model on a device with data, or use Starts or Layers", p.Name(), tensor.Meta.Name())
		}
	}
	const rounds = 3
	for range rounds {
		s := &stopwatch{layers: layers, costs: make([]time.Duration, len(layers))}
		if err := s.run(ctx, q.p.Model, x); err != nil {
			return nil, fmt.Errorf("pipeline: measure the layers: %w", err)
		}
		if costs == nil {
			costs = s.costs
		}
		for i, d := range s.costs {
			costs[i] = min(costs[i], d)
		}
	}
	return costs, nil
}

// stopwatch measures the calls of layers.
type stopwatch struct {
	layers []pipeStart
	costs  []time.Duration
	at     int // the layer of what runs
	begun  time.Time
}

// run runs the model once, forward: the backward pass takes about twice as long everywhere.
func (s *stopwatch) run(ctx context.Context, model any, x []*tensor.Tensor) (err error) {
	c := nn.Training(ctx, nn.WithGenerator(tensor.NewGenerator(0)))
	defer c.Close()
	defer c.Recover(&err)
	s.begun = time.Now()
	switch m := model.(type) {
	case nn.Module:
		c.With(s).Call(m, x[0])
	case nn.ModuleN:
		c.With(s).CallN(m, x...)
	}
	s.lap()
	return nil
}

func (s *stopwatch) lap() {
	now := time.Now()
	s.costs[s.at] += now.Sub(s.begun)
	s.begun = now
}

// InterceptCall counts what is before the call of a layer to the one before.
func (s *stopwatch) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	i := slices.IndexFunc(s.layers, func(l pipeStart) bool { return l.module == module })
	if i > s.at {
		s.lap()
		s.at = i
	}
	return next(c, x)
}

// InterceptParam does nothing.
func (*stopwatch) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}
