// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// workload is a model with one batch and its optimizer.
type workload struct {
	model     nn.Module
	optimizer optim.Optimizer
	x, y      *tensor.Tensor
	flops     float64 // of a step's matrix products
}

// StepModels are the models that Step knows.
func StepModels() []string { return []string{"mlp", "gpt"} }

func newWorkload(name string) (*workload, error) {
	b := &nn.Build{Generator: tensor.NewGenerator(0)}
	switch name {
	case "mlp":
		return newMLP(b, 256), nil
	case "gpt":
		return newGPT(b), nil
	}
	return nil, fmt.Errorf("bench step: no model %q; there are %v", name, StepModels())
}

// newMLP is 784-1024-1024-10 with SGD.
func newMLP(b *nn.Build, batch int) *workload {
	m := nn.NewSequential(nn.NewLinear(b, 784, 1024), &nn.ReLU{}, nn.NewLinear(b, 1024, 1024), &nn.ReLU{}, nn.NewLinear(b, 1024, 10))
	x := tensor.Zeros(batch, 784)
	b.Generator.Normal(x, 0, 1)
	// The input needs no gradient: the first layer has two products, the others three.
	flops := 2 * float64(batch) * (2*784*1024 + 3*1024*1024 + 3*1024*10)
	return &workload{m, optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.01}), x, randomIDs(b.Generator, 10, batch), flops}
}

// untiedGPT is a decoder with an output layer of its own.
type untiedGPT struct {
	Decoder *models.Decoder
	Head    *nn.Linear
}

func (m *untiedGPT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Head, c.Call(m.Decoder, ids))
}

// newGPT is four layers of width 256, 8 heads, over 8 sequences of 128 bytes,
// with AdamW.
func newGPT(b *nn.Build) *workload {
	const batch, time, width, layers, vocab = 8, 128, 256, 4, 256
	g := models.GPTConfig{Vocab: vocab, Context: time, Width: width, Heads: 8, Layers: layers}
	m := &untiedGPT{models.NewDecoder(b, g), nn.NewLinear(b, width, vocab)}
	perToken := float64(12*width*width*layers + width*vocab)
	flops := 6*perToken*batch*time + 3*4*batch*time*time*width*layers
	opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.01})
	return &workload{m, opt, randomIDs(b.Generator, vocab, batch, time), randomIDs(b.Generator, vocab, batch, time), flops}
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
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	w.optimizer.ZeroGrad()
	l := tensor.CrossEntropy(c.Call(forward, w.x), w.y)
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	w.optimizer.Step(1)
	return l.Item(), nil
}

// Step measures training steps of a model in this process.
func Step(ctx context.Context, model string, numSteps int) (Result, error) {
	before := residentBytes()
	w, err := newWorkload(model)
	if err != nil {
		return Result{}, err
	}
	const warmUp = 3
	var ts times
	for i := range warmUp + numSteps {
		start := time.Now()
		if _, err := w.run(ctx, w.model); err != nil {
			return Result{}, err
		}
		if i >= warmUp {
			ts = append(ts, time.Since(start))
		}
	}
	peak := peakRSSBytes()
	return Result{
		Bench: "step", Case: model, DType: "float32", Threads: tensor.NumThreads(), Params: nn.NumParams(w.model),
		MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)),
		GFlopPerSec:  w.flops / ts.median().Seconds() / 1e9,
		PeakRSSBytes: peak, GrowthBytes: peak - before,
	}, nil
}
