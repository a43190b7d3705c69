// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
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
	Strategy string // of [ShardStrategies]
	DType    string // "float32" or "bfloat16", which is autocast
	Batch    int    // samples or sequences of a rank's step; 0 is the model's own
	// Microbatches is how many passes a step has, which divide its samples. 0 is 1.
	Microbatches int
	Steps        int // that are measured, after a few that are not
}

// ShardModels are the models that Shard knows.
func ShardModels() []string { return []string{"gpt", "mlp", "llama", "moe"} }

// ShardStrategies are the ways in which Shard spreads a model over the ranks. Under
// single, every rank trains a model of its own, at the same time as the others: what the
// machine allows without communication.
func ShardStrategies() []string { return []string{"single", "ddp", "fsdp", "hsdp"} }

// Validate reports the first option that makes no sense.
func (o ShardOptions) Validate() error {
	if err := oneOf("model", o.Model, ShardModels()); err != nil {
		return err
	}
	if err := oneOf("strategy", o.Strategy, ShardStrategies()); err != nil {
		return err
	}
	if o.Microbatches < 0 || o.Microbatches > maxBatch {
		return fmt.Errorf("%d microbatches: want 1 to %d, or 0 for one", o.Microbatches, maxBatch)
	}
	return StepOptions{Model: "mlp", DType: o.DType, Batch: o.Batch, Steps: o.Steps}.Validate()
}

// Sharding says what a training step took of the rank that needed most, and what was
// predicted before the first step.
type Sharding struct {
	// StateBytes is the parameters, gradients and optimizer state that a rank holds.
	StateBytes          int64 `json:"state_bytes"`
	PredictedStateBytes int64 `json:"predicted_state_bytes"`
	// PeakBytes is the most that a rank's tensors held at once in a step.
	PeakBytes          int64 `json:"peak_bytes"`
	PredictedPeakBytes int64 `json:"predicted_peak_bytes"`
	// SentBytes is the data that a rank gave to others in a step; see dist.Traffic.
	SentBytes          int64 `json:"sent_bytes"`
	PredictedSentBytes int64 `json:"predicted_sent_bytes"`
	// ExposedMicros is for how long the rank that computes stood still for communication
	// in a step: the median of the steps.
	ExposedMicros float64 `json:"exposed_us"`
}

// writeText writes the result for people.
func (s *Sharding) writeText(w io.Writer) {
	fmt.Fprintf(w, "  state %s (predicted %s)  peak %s (%s)  sent %s (%s)  exposed %s",
		size(s.StateBytes), size(s.PredictedStateBytes), size(s.PeakBytes), size(s.PredictedPeakBytes),
		size(s.SentBytes), size(s.PredictedSentBytes), span(s.ExposedMicros))
}

// Shard measures training steps of a model under a strategy. Every rank of group calls
// it. The work of a rank does not depend on the number of ranks. There is a barrier before
// each step. The times are those of this rank; the bytes those of the rank that has most.
func Shard(ctx context.Context, group *dist.Group, o ShardOptions) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	w := newModel(StepOptions{Model: o.Model, DType: o.DType, Batch: o.Batch})
	numParams := nn.NumParams(w.model)
	parts, err := w.microbatches(max(1, o.Microbatches))
	if err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	strategy, err := newStrategy(ctx, w.model, group, o.Strategy)
	if err != nil {
		return Result{}, err
	}
	w.begin()
	predicted := parallel.Predict(ctx, strategy, parallel.PredictOptions{
		Optimizer: w.optimizer, Autocast: w.autocast, BatchBytes: bytesOf(w.x) + bytesOf(w.y),
		Loss: func(c *nn.Ctx, forward any) *tensor.Tensor { return w.lossOf(c, forward, parts[0].x, parts[0].y) },
	})
	if err := cmp.Or(predicted.NoPeak, predicted.NoSent); err != nil {
		return Result{}, fmt.Errorf("bench shard: %w", err)
	}
	m, err := w.measureShard(ctx, group, strategy, parts, o.Steps)
	if err != nil {
		return Result{}, err
	}
	s, err := mostOf(ctx, group, Sharding{
		StateBytes: w.stateBytes(), PredictedStateBytes: predicted.StateBytes,
		PeakBytes: m.peak, PredictedPeakBytes: predicted.PeakBytes,
		SentBytes: m.sent, PredictedSentBytes: predicted.SentBytes,
		ExposedMicros: micros(m.exposed.median()),
	})
	if err != nil {
		return Result{}, err
	}
	return Result{
		Bench: "shard", Case: o.Strategy, Model: o.Model, Transport: group.Transport(), DType: o.DType,
		Ranks: group.Size(), Threads: tensor.NumThreads(), Batch: w.batch, Params: numParams,
		MedianMicros: micros(m.steps.median()), MinMicros: micros(m.steps.quantile(0)),
		GFlopPerSec: perSecond(w.flops*float64(group.Size()), m.steps.median()),
		Sharding:    s,
	}, nil
}

// newStrategy spreads a model over the ranks of a group. Under hsdp two ranks share a model,
// and there are as many models as the ranks need.
func newStrategy(ctx context.Context, model any, group *dist.Group, name string) (parallel.Strategy, error) {
	var axes []mesh.Axis
	switch name {
	case "single":
		return parallel.NewSingle(model)
	case "ddp":
		return parallel.NewDDP(ctx, model, group)
	case "fsdp":
		axes = []mesh.Axis{{Name: "fsdp"}}
	default:
		axes = []mesh.Axis{{Name: "replicate"}, {Name: "fsdp", Size: min(2, group.Size())}}
	}
	m, err := mesh.New(ctx, group, axes...)
	if err != nil {
		return nil, fmt.Errorf("bench shard: %w", err)
	}
	return parallel.FullyShard(ctx, model, m)
}

// sharded is what steps of a rank took.
type sharded struct {
	steps, exposed times
	peak, sent     int64
}

// measureShard runs training steps, the first few of which do not count. The bytes are
// those of the step that took most.
func (w *workload) measureShard(ctx context.Context, group *dist.Group, strategy parallel.Strategy, parts []samples, numSteps int) (*sharded, error) {
	const warmUp = 5
	m := &sharded{}
	for i := range warmUp + numSteps {
		if i == warmUp {
			runtime.GC() // what building has left is not the steps'
		}
		if err := group.Barrier(ctx); err != nil {
			return nil, err
		}
		tensor.ResetMemoryPeak()
		before, start := group.Traffic(), time.Now()
		if err := w.step(ctx, strategy, parts); err != nil {
			return nil, err
		}
		took, waited := time.Since(start), group.Traffic().Since(before).Waited
		if err := group.Barrier(ctx); err != nil { // the others have read what they take
			return nil, err
		}
		if i < warmUp {
			continue
		}
		m.steps, m.exposed = append(m.steps, took), append(m.exposed, waited)
		_, peak := tensor.MemoryInUse()
		m.peak, m.sent = max(m.peak, peak), max(m.sent, group.Traffic().Since(before).SentBytes)
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
	w.optimizer.Step(nil)
	loss.Item() // which waits for the device
	return nil
}

// stateBytes returns what the tensors of the parameters, the gradients and the optimizer
// hold, after a step.
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

func bytesOf(t *tensor.Tensor) int64 { return int64(t.NumElems() * t.DType().Size()) }

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
