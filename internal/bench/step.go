// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// workload is a model with one batch and its optimizer.
type workload struct {
	model     nn.Module
	batch     int
	optimize  func(params []*nn.Parameter) optim.Optimizer // makes optimizer
	optimizer optim.Optimizer                              // nil before begin
	x, y      *tensor.Tensor
	criterion nn.CrossEntropyLoss
	autocast  tensor.DType // 0 for none
	flops     float64      // of a step's matrix products
}

// StepOptions choose what Step measures.
type StepOptions struct {
	Model string // of [StepModels]
	DType string // "float32" or "bfloat16", which is autocast
	Batch int    // samples, sequences (gpt) or images of a step; 0 is the model's own
	Steps int    // that are measured, after a few that are not
}

// StepModels are the models that Step knows.
func StepModels() []string { return []string{"mlp", "gpt", "cnn", "resnet50"} }

// Validate reports the first option that makes no sense.
func (o StepOptions) Validate() error {
	if err := oneOf("model", o.Model, StepModels()); err != nil {
		return err
	}
	if err := oneOf("dtype", o.DType, []string{"float32", "bfloat16"}); err != nil {
		return err
	}
	if o.Batch < 0 || o.Batch > maxBatch {
		return fmt.Errorf("a batch of %d: want 1 to %d, or 0 for the model's own", o.Batch, maxBatch)
	}
	return CheckSteps(o.Steps)
}

const (
	maxBatch = 1 << 16
	maxSteps = 1 << 20
)

// CheckSteps reports a number of steps that makes no sense.
func CheckSteps(n int) error {
	if n < 1 || n > maxSteps {
		return fmt.Errorf("%d steps: want 1 to %d", n, maxSteps)
	}
	return nil
}

// oneOf reports a name that is not among known.
func oneOf(what, name string, known []string) error {
	if slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("no %s %q: want one of %s", what, name, strings.Join(known, ", "))
}

// newWorkload returns a workload that is ready to run.
func newWorkload(o StepOptions) *workload {
	w := newModel(o)
	w.begin()
	return w
}

// begin makes the optimizer, when the parameters are what it is to update.
func (w *workload) begin() { w.optimizer = w.optimize(nn.Parameters(w.model)) }

// newModel returns a workload without its optimizer.
func newModel(o StepOptions) *workload {
	b := &nn.Build{Generator: tensor.NewGenerator(0)}
	var w *workload
	switch o.Model {
	case "gpt":
		w = newGPT(b, cmp.Or(o.Batch, 8))
	case "llama":
		w = newLlama(b, cmp.Or(o.Batch, 8))
	case "moe":
		w = newMoE(b, cmp.Or(o.Batch, 8))
	case "cnn":
		w = newCNN(b, cmp.Or(o.Batch, 64))
	case "resnet50":
		w = newResNet50(b, cmp.Or(o.Batch, 4))
	default:
		w = newMLP(b, cmp.Or(o.Batch, 256))
	}
	if o.DType == "bfloat16" {
		w.autocast = tensor.BFloat16
	}
	return w
}

// newMLP is 784-1024-1024-10 with SGD.
func newMLP(b *nn.Build, batch int) *workload {
	m := nn.NewSequential(nn.NewLinear(b, 784, 1024), &nn.ReLU{}, nn.NewLinear(b, 1024, 1024), &nn.ReLU{}, nn.NewLinear(b, 1024, 10))
	x := tensor.Zeros(batch, 784)
	b.Generator.Normal(x, 0, 1)
	// The input needs no gradient: the first layer has two products, the others three.
	flops := 2 * float64(batch) * (2*784*1024 + 3*1024*1024 + 3*1024*10)
	return &workload{model: m, batch: batch, optimize: sgd, x: x, y: randomIDs(b.Generator, 10, batch), flops: flops}
}

func sgd(params []*nn.Parameter) optim.Optimizer {
	return optim.NewSGD(params, optim.SGDOptions{LR: 0.01})
}

func adamW(params []*nn.Parameter) optim.Optimizer {
	return optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.01})
}

// untiedGPT is a decoder with an output layer of its own.
type untiedGPT struct {
	Decoder *models.GPTDecoder
	Head    *nn.Linear
}

func (m *untiedGPT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Head, c.Call(m.Decoder, ids))
}

// TensorPlan cuts attention between heads, and the output layer between classes.
func (m *untiedGPT) TensorPlan() string {
	return `
decoder.wte: vocabulary
decoder.wpe: sequence
decoder.h.*.ln_?: sequence
decoder.h.*.attn.c_attn: column packed 3 in 8
decoder.h.*.attn.attention: heads
decoder.h.*.attn.c_proj: row
decoder.h.*.mlp.c_fc: column
decoder.h.*.mlp.c_proj: row
decoder.ln_f: sequence
head: column
.: logits`
}

// newGPT is four layers of width 256, 8 heads, over sequences of 128 bytes,
// with AdamW.
func newGPT(b *nn.Build, batch int) *workload {
	const time, width, layers, vocab = 128, 256, 4, 256
	g := models.GPTConfig{Vocab: vocab, Context: time, Width: width, Heads: 8, Layers: layers}
	m := &untiedGPT{models.NewGPTDecoder(b, g), nn.NewLinear(b, width, vocab)}
	perToken := float64(12*width*width*layers + width*vocab)
	tokens := float64(batch * time)
	flops := 6*perToken*tokens + 3*4*tokens*time*width*layers
	x, y := randomIDs(b.Generator, vocab, batch, time), randomIDs(b.Generator, vocab, batch, time)
	return &workload{model: m, batch: batch, optimize: adamW, x: x, y: y, flops: flops}
}

// newLlama is a Llama of the size of newGPT, with half as many heads of keys, and a
// feed-forward network of about 8/3 its width.
func newLlama(b *nn.Build, batch int) *workload {
	const time, width, hidden, layers, vocab = 128, 256, 688, 4, 256
	m := models.NewLlama(b, models.LlamaConfig{Vocab: vocab, Context: time, Width: width, Hidden: hidden, Heads: 8, KeyHeads: 4, Layers: layers})
	perToken := float64((3*width*width+3*width*hidden)*layers + width*vocab)
	tokens := float64(batch * time)
	flops := 6*perToken*tokens + 3*4*tokens*time*width*layers
	x, y := randomIDs(b.Generator, vocab, batch, time), randomIDs(b.Generator, vocab, batch, time)
	return &workload{model: m, batch: batch, optimize: adamW, x: x, y: y, flops: flops}
}

// newMoE is a Llama of the size of newLlama, with 8 experts of hidden width 344 in the place of
// each feed-forward network, 2 of which each token uses. The two have about the work of the
// network.
func newMoE(b *nn.Build, batch int) *workload {
	const time, width, hidden, layers, vocab, experts, active = 128, 256, 344, 4, 256, 8, 2
	m := models.NewMoETransformer(b, models.MoEConfig{
		LlamaConfig: models.LlamaConfig{Vocab: vocab, Context: time, Width: width, Hidden: hidden, Heads: 8, KeyHeads: 4, Layers: layers},
		Experts:     experts, Active: active, Router: nn.MoEOptions{Balance: 0.01},
	})
	perToken := float64((3*width*width+3*width*hidden*active+width*experts)*layers + width*vocab)
	tokens := float64(batch * time)
	flops := 6*perToken*tokens + 3*4*tokens*time*width*layers
	x, y := randomIDs(b.Generator, vocab, batch, time), randomIDs(b.Generator, vocab, batch, time)
	return &workload{model: m, batch: batch, optimize: adamW, x: x, y: y, flops: flops}
}

func randomIDs(g *tensor.Generator, n int, shape ...int) *tensor.Tensor {
	size := 1
	for _, s := range shape {
		size *= s
	}
	ids := make([]int64, size)
	for i := range ids {
		ids[i] = int64(g.Float64() * float64(n))
	}
	return tensor.FromInt64(ids, shape...)
}

// run does one training step of forward, which wraps the model, and returns
// the loss.
func (w *workload) run(ctx context.Context, forward nn.Module) (loss float64, err error) {
	c := nn.Training(ctx, nn.WithAutocast(w.autocast))
	defer c.Close()
	defer c.Recover(&err)
	w.optimizer.ZeroGrad()
	l := w.loss(c, forward)
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	w.optimizer.Step(nil)
	return l.Item(), nil
}

// loss runs forward, which is or wraps the model, on the batch.
func (w *workload) loss(c *nn.Ctx, forward any) *tensor.Tensor { return w.lossOf(c, forward, w.x, w.y) }

// lossOf runs forward on some samples. The loss is a module, so that ranks may share the classes
// or the sequence of a sample.
func (w *workload) lossOf(c *nn.Ctx, forward any, x, y *tensor.Tensor) *tensor.Tensor {
	logits := c.Call(forward.(nn.Module), x.ToDevice(c.Device()))
	return c.CallN(&w.criterion, logits, y.ToDevice(c.Device()))[0]
}

// measure runs training steps of forward and returns the time of each, and what
// all of them spent, without the first few. before, if any, runs ahead of each
// step and is not timed.
func (w *workload) measure(ctx context.Context, forward nn.Module, numSteps int, before func() error) (times, usage, error) {
	const warmUp = 5
	ts := make(times, 0, numSteps)
	var begin usage
	for i := range warmUp + numSteps {
		if i == warmUp {
			runtime.GC() // what building has left is not the steps'
			begin = readUsage()
		}
		if before != nil {
			if err := before(); err != nil {
				return nil, usage{}, err
			}
		}
		start := time.Now()
		if _, err := w.run(ctx, forward); err != nil {
			return nil, usage{}, err
		}
		if i >= warmUp {
			ts = append(ts, time.Since(start))
		}
	}
	return ts, readUsage().since(begin), nil
}

// Step measures training steps of a model in this process.
func Step(ctx context.Context, o StepOptions) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, fmt.Errorf("bench step: %w", err)
	}
	before := residentBytes()
	w := newWorkload(o)
	ts, spent, err := w.measure(ctx, w.model, o.Steps, nil)
	if err != nil {
		return Result{}, err
	}
	peak := peakRSSBytes()
	return Result{
		Bench: "step", Case: o.Model, DType: o.DType, Threads: tensor.NumThreads(),
		Batch: w.batch, Params: nn.NumParams(w.model),
		MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)),
		GFlopPerSec:  perSecond(w.flops, ts.median()),
		PeakRSSBytes: peak, GrowthBytes: peak - before,
		Collected: spent.collected(o.Steps),
	}, nil
}
