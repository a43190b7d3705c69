// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// ShardOptions choose what Shard measures.
type ShardOptions struct {
	Model    string // of [ShardModels]
	Strategy string // of [ShardStrategies], or a mesh
	DType    string // "float32" or "bfloat16", which is autocast
	Batch    int    // samples or sequences of a rank's step; 0 is the model's own
	// Microbatches is how many passes a step has, which divide its samples. 0 is 1, and 4 in a
	// pipeline.
	Microbatches int
	Steps        int // that are measured, after a few that are not
}

// ShardModels are the models that Shard knows.
func ShardModels() []string { return []string{"gpt", "mlp", "llama", "moe"} }

// ShardStrategies are the ways in which Shard spreads a model over the ranks. Under
// single, every rank trains a model of its own, at the same time as the others: what the
// machine allows without communication. Under dp the process of rank 0 trains on the samples of all
// ranks, with as many groups of threads as there are ranks, and the other ranks wait. Under
// diloco:H every rank is an island, and the islands exchange what they have learned every H steps.
//
// Beside these names a strategy can be a mesh: axes with their sizes, outermost first, such as
// fsdp2.tp2. An axis without a size has the ranks that the others leave, so tp alone is a mesh of
// all ranks. The axis pp takes a schedule: pp:zbv.
func ShardStrategies() []string {
	return append(namedStrategies(), "diloco:H", "tp", "pp", "ep", "cp", "MESH")
}

// namedStrategies are those that are no mesh.
func namedStrategies() []string { return []string{"single", "dp", "ddp", "zero1", "fsdp", "hsdp"} }

// Validate reports the first option that makes no sense.
func (o ShardOptions) Validate() error {
	if err := oneOf("model", o.Model, ShardModels()); err != nil {
		return err
	}
	every, err := islandSteps(o.Strategy)
	if err != nil {
		return err
	}
	if every == 0 && !slices.Contains(namedStrategies(), o.Strategy) {
		m, err := parseMesh(o.Strategy)
		if err != nil {
			return err
		}
		if err := m.suits(o.Model); err != nil {
			return err
		}
	}
	if o.Microbatches < 0 || o.Microbatches > maxBatch {
		return fmt.Errorf("%d microbatches: want 1 to %d, or 0 for one", o.Microbatches, maxBatch)
	}
	if err := (StepOptions{Model: "mlp", DType: o.DType, Batch: o.Batch, Steps: o.Steps}).Validate(); err != nil {
		return err
	}
	return o.checkIslandSteps()
}

// CheckRanks reports a strategy that so many ranks cannot have.
func (o ShardOptions) CheckRanks(numRanks int) error {
	m, err := meshOf(o.Strategy, numRanks)
	if err != nil {
		return err
	}
	_, _, err = m.predictStep(passTimes{}, o.passes(m)) // which asks for the schedule
	return err
}

// passes returns the number of passes of a step.
func (o ShardOptions) passes(m *strategyMesh) int {
	usual := 1
	if m.size("pp") > 1 {
		usual = 4
	}
	return cmp.Or(o.Microbatches, usual)
}

// Sharding says what a training step took of the rank that needed most, and what was
// predicted before the first step. Predicted bytes of -1 are not known.
type Sharding struct {
	// StateBytes is the parameters, gradients and optimizer state that a rank holds.
	StateBytes          int64 `json:"state_bytes"`
	PredictedStateBytes int64 `json:"predicted_state_bytes"`
	// PeakBytes is the most that a rank's tensors held at once in a step.
	PeakBytes          int64 `json:"peak_bytes"`
	PredictedPeakBytes int64 `json:"predicted_peak_bytes"`
	// SentBytes is the data that a rank gave to others in a step; see dist.Traffic. Of islands it is
	// what the exchanges gave, divided by the steps.
	SentBytes          int64 `json:"sent_bytes"`
	PredictedSentBytes int64 `json:"predicted_sent_bytes"`
	// ExposedMicros is for how long the rank that computes stood still for communication
	// in a step: the median of the steps, and with islands the mean.
	ExposedMicros float64 `json:"exposed_us"`
	// PredictedMicros is the time of a step in which the ranks that share samples divide the
	// work evenly and messages take no time.
	PredictedMicros float64 `json:"predicted_us"`
	// Bubble is the part of the ranks' time for which they stood still in a pipeline.
	// PredictedBubble is the one of its schedule.
	Bubble          float64 `json:"bubble,omitempty"`
	PredictedBubble float64 `json:"predicted_bubble,omitempty"`
}

// writeText writes the result for people.
func (s *Sharding) writeText(w io.Writer) {
	predicted := func(n int64) string {
		if n < 0 {
			return "unknown"
		}
		return size(n)
	}
	fmt.Fprintf(w, "  state %s (predicted %s)  peak %s (%s)  sent %s (%s)  exposed %s  predicted %s",
		size(s.StateBytes), predicted(s.PredictedStateBytes), size(s.PeakBytes), predicted(s.PredictedPeakBytes),
		size(s.SentBytes), predicted(s.PredictedSentBytes), span(s.ExposedMicros), span(s.PredictedMicros))
	if s.PredictedBubble > 0 {
		fmt.Fprintf(w, "  bubble %.1f %% (predicted %.1f %%)", 100*s.Bubble, 100*s.PredictedBubble)
	}
}

// Shard measures training steps of a model under a strategy. Every rank of group calls
// it. The work of a rank does not depend on the number of ranks. There is a barrier before
// each step. The times are those of this rank; the bytes those of the rank that has most.
func Shard(ctx context.Context, group *dist.Group, o ShardOptions) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	grid, err := meshOf(o.Strategy, group.Size())
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	o.Microbatches = o.passes(grid)
	alone, err := timePasses(ctx, group, o)
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	step, bubble, err := grid.predictStep(alone, o.Microbatches)
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	w := newModel(StepOptions{Model: o.Model, DType: o.DType, Batch: o.Batch})
	batch := w.batch // of a rank, or a group of threads
	if o.Strategy == "dp" && group.Rank() == 0 {
		w = newModel(StepOptions{Model: o.Model, DType: o.DType, Batch: batch * group.Size()})
	}
	numParams := nn.NumParams(w.model)
	parts, err := w.microbatches(o.Microbatches)
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	strategy, err := newStrategy(ctx, w.model, group, o.Strategy, grid, parts[0].x)
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	if err := w.beginOn(ctx, group, o.Strategy == "zero1"); err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	predicted := parallel.Predict(ctx, strategy, parallel.PredictOptions{
		Optimizer: w.optimizer, Autocast: w.autocast, BatchBytes: bytesOf(w.x) + bytesOf(w.y), Microbatches: len(parts),
		Loss: func(c *nn.Ctx, forward any) *tensor.Tensor { return w.lossOf(c, forward, parts[0].x, parts[0].y) },
	})
	if err := cmp.Or(predicted.NoPeak, predicted.NoSent); err != nil && slices.Contains(namedStrategies(), o.Strategy) {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	if predicted.StateBytes == 0 {
		predicted.StateBytes = -1
	}
	if predicted.NoPeak != nil {
		predicted.PeakBytes = -1
	}
	if predicted.NoSent != nil {
		predicted.SentBytes = -1
	}
	m, err := w.measureShard(ctx, group, strategy, parts, o.Steps, o.Strategy == "dp" && group.Rank() > 0)
	if err == nil {
		err = closeIslands(ctx, group, strategy)
	}
	if err != nil {
		return Result{}, err
	}
	exposed := m.exposed.median()
	if d, is := strategy.(*parallel.DiLoCo); is {
		predicted.SentBytes = predicted.IslandBytes / int64(d.Every())
		exposed = m.islands.Waited / time.Duration(o.Steps)
	}
	s, err := mostOf(ctx, group, Sharding{
		StateBytes: w.stateBytes() + outerBytes(strategy), PredictedStateBytes: predicted.StateBytes,
		PeakBytes: m.peak, PredictedPeakBytes: predicted.PeakBytes,
		SentBytes: m.sent, PredictedSentBytes: predicted.SentBytes,
		ExposedMicros: micros(exposed),
	})
	if err != nil {
		return Result{}, err
	}
	s.PredictedMicros, s.PredictedBubble = micros(step), bubble
	if bubble > 0 {
		if s.Bubble, err = exposure(ctx, group, m); err != nil {
			return Result{}, err
		}
	}
	return Result{
		Bench: "shard", Case: o.Strategy, Model: o.Model, Transport: group.Transport(), DType: o.DType,
		Ranks: group.Size(), Threads: tensor.NumThreads(), Batch: batch, Params: numParams,
		MedianMicros: micros(m.steps.median()), MinMicros: micros(m.steps.quantile(0)),
		GFlopPerSec: perSecond(w.flops*float64(grid.numBatches()), m.steps.median()),
		Sharding:    s,
	}, nil
}

// newStrategy spreads a model over the ranks of a group. Under hsdp two ranks share a model,
// and there are as many models as the ranks need.
func newStrategy(ctx context.Context, model any, group *dist.Group, name string, grid *strategyMesh, example *tensor.Tensor) (parallel.Strategy, error) {
	var axes []mesh.Axis
	if every, err := islandSteps(name); every > 0 || err != nil {
		return newIslands(ctx, model, group, every)
	}
	switch name {
	case "single":
		return parallel.NewSingle(model)
	case "dp":
		if group.Rank() > 0 {
			return parallel.NewSingle(model)
		}
		devices, err := threadGroups(group.Size())
		if err != nil {
			return nil, err
		}
		return parallel.NewDataParallel(model, devices)
	case "ddp", "zero1":
		return parallel.NewDDP(ctx, model, group)
	case "fsdp":
		axes = []mesh.Axis{{Name: "fsdp"}}
	case "hsdp":
		axes = []mesh.Axis{{Name: "replicate"}, {Name: "fsdp", Size: min(2, group.Size())}}
	default:
		return grid.make(ctx, model, group, example)
	}
	m, err := mesh.New(ctx, group, axes...)
	if err != nil {
		return nil, err
	}
	return parallel.FullyShard(ctx, model, m)
}

// beginOn makes the optimizer, whose state the ranks may divide.
func (w *workload) beginOn(ctx context.Context, group *dist.Group, divide bool) error {
	if !divide {
		w.begin()
		return nil
	}
	z, err := parallel.NewZeroRedundancyOptimizer(ctx, group, nn.Parameters(w.model), w.optimize)
	if err == nil {
		w.optimizer = z
	}
	return err
}

// threadGroups returns the CPU and further groups of as many threads.
func threadGroups(n int) ([]tensor.Device, error) {
	devices := []tensor.Device{tensor.CPU()}
	for i := 1; i < n; i++ {
		g, err := tensor.NewThreadGroup(fmt.Sprintf("cpu:%d", i), tensor.NumThreads())
		if err != nil {
			return nil, err
		}
		devices = append(devices, g)
	}
	return devices, nil
}

// sharded is what steps of a rank took.
type sharded struct {
	steps, exposed times
	peak, sent     int64
	islands        parallel.DiLoCoStats // of the steps
}

// measureShard runs training steps, the first few of which do not count. The bytes are
// those of the step that took most. An idle rank waits for the others.
func (w *workload) measureShard(ctx context.Context, group *dist.Group, strategy parallel.Strategy, parts []samples, numSteps int, idle bool) (*sharded, error) {
	const warmUp = 5
	m := &sharded{}
	var before parallel.DiLoCoStats
	for i := range warmUp + numSteps {
		if i == warmUp {
			runtime.GC() // what building has left is not the steps'
			var err error
			if before, err = exchanged(ctx, strategy); err != nil {
				return nil, err
			}
		}
		if err := group.Barrier(ctx); err != nil {
			return nil, err
		}
		tensor.ResetMemoryPeak()
		traffic, start := group.Traffic(), time.Now()
		if !idle {
			if err := w.step(ctx, strategy, parts); err != nil {
				return nil, err
			}
		}
		took, waited := time.Since(start), group.Traffic().Since(traffic).Waited
		if err := group.Barrier(ctx); err != nil { // the others have read what they take
			return nil, err
		}
		if i < warmUp {
			continue
		}
		m.steps, m.exposed = append(m.steps, took), append(m.exposed, waited)
		_, peak := tensor.MemoryInUse()
		m.peak, m.sent = max(m.peak, peak), max(m.sent, group.Traffic().Since(traffic).SentBytes)
	}
	if _, is := strategy.(*parallel.DiLoCo); is {
		after, err := exchanged(ctx, strategy)
		if err != nil {
			return nil, err
		}
		m.islands = parallel.DiLoCoStats{Exchanges: after.Exchanges - before.Exchanges, SentBytes: after.SentBytes - before.SentBytes, Waited: after.Waited - before.Waited}
		m.sent = m.islands.SentBytes / int64(numSteps)
	}
	return m, nil
}

// samples are those of one pass.
type samples struct{ x, y *tensor.Tensor }

// microbatches divides the batch.
func (w *workload) microbatches(n int) ([]samples, error) {
	if w.batch%n != 0 {
		return nil, fmt.Errorf("%d samples in %d microbatches: %d %% %d = %d; change --batch or --microbatches", w.batch, n, w.batch, n, w.batch%n)
	}
	parts, size := make([]samples, n), w.batch/n
	for i := range parts {
		parts[i] = samples{w.x.Narrow(0, i*size, size), w.y.Narrow(0, i*size, size)}
	}
	return parts, nil
}

// step does one training step of a strategy.
func (w *workload) step(ctx context.Context, strategy parallel.Strategy, parts []samples) error {
	w.optimizer.ZeroGrad()
	passes := make([]parallel.Microbatch, len(parts))
	share := 1 / float64(len(parts))
	for i, part := range parts {
		passes[i] = parallel.Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx, nn.WithAutocast(w.autocast)) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				loss := w.lossOf(c, strategy, part.x, part.y)
				if share == 1 {
					return loss
				}
				return loss.MulScalar(share)
			},
		}
	}
	loss, err := strategy.Step(ctx, passes)
	if err != nil {
		return err
	}
	if err := parallel.Update(ctx, w.optimizer, nil); err != nil {
		return err
	}
	if d, is := strategy.(*parallel.DiLoCo); is {
		if err := d.Updated(ctx); err != nil {
			return err
		}
	}
	loss.Item() // which waits for the device
	return nil
}

// stateBytes returns what the tensors of the parameters, the gradients and the optimizer
// hold, after a step. What other stages of a pipeline hold is on tensor.Meta here.
func (w *workload) stateBytes() int64 {
	sum := int64(0)
	for _, p := range nn.Parameters(w.model) {
		sum += bytesOf(p.Data())
		if g := p.Grad(); g != nil {
			sum += bytesOf(g)
		}
	}
	for _, s := range w.optimizer.State() {
		sum += bytesOf(s.Tensor)
	}
	return sum
}

func bytesOf(t *tensor.Tensor) int64 {
	if t.Device() == tensor.Meta {
		return 0
	}
	return int64(t.NumElems() * t.DType().Size())
}

// mostOf returns the greatest of each number over all ranks.
func mostOf(ctx context.Context, group *dist.Group, s Sharding) (*Sharding, error) {
	numbers := []*int64{&s.StateBytes, &s.PredictedStateBytes, &s.PeakBytes, &s.PredictedPeakBytes, &s.SentBytes, &s.PredictedSentBytes}
	exposed := int64(s.ExposedMicros * 1e3) // ns
	numbers = append(numbers, &exposed)
	own := make([]int64, len(numbers))
	for i, n := range numbers {
		own[i] = *n
	}
	most := tensor.FromInt64(own)
	if err := group.AllReduce(ctx, most, dist.Max); err != nil {
		return nil, err
	}
	for i, n := range most.Int64s() {
		*numbers[i] = n
	}
	s.ExposedMicros = float64(exposed) / 1e3
	return &s, nil
}
