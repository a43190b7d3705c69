// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// trainGPT returns the losses of a small GPT that learns to count on, with the
// parameters that it ends with.
func trainGPT(t *testing.T, steps int, opts ...nn.CtxOption) ([]float64, []*nn.Parameter) {
	t.Helper()
	const vocab, batch, time = 50, 8, 32
	model := models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(3)},
		models.GPTConfig{Vocab: vocab, Context: time, Width: 64, Heads: 4, Layers: 2, Tanh: true})
	params := nn.Parameters(model)
	opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 2e-3, WeightDecay: 0.01})
	rng := rand.New(rand.NewPCG(4, 5))
	var losses []float64
	for range steps {
		x, y := make([]int64, 0, batch*time), make([]int64, 0, batch*time)
		for range batch {
			at, step := rng.Int64N(vocab), 1+rng.Int64N(3)
			for range time {
				x = append(x, at)
				if at = (at + step) % vocab; rng.IntN(8) == 0 {
					at = rng.Int64N(vocab)
				}
				y = append(y, at)
			}
		}
		opt.ZeroGrad()
		loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, tensor.FromInt64(x, batch, time)), tensor.FromInt64(y, batch, time))
		}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		opt.Step(nil)
		losses = append(losses, loss)
	}
	return losses, params
}

// TestGPTTrainsInBFloat16: fifty steps under autocast go as those of float32, on
// weights and gradients that stay float32.
func TestGPTTrainsInBFloat16(t *testing.T) {
	wide, _ := trainGPT(t, 50)
	low, params := trainGPT(t, 50, nn.WithAutocast(tensor.BFloat16))
	differ := false
	for i := range wide {
		if d := math.Abs(low[i]/wide[i] - 1); !(d < 0.02) {
			t.Errorf("step %d: the loss is %v, in float32 %v", i+1, low[i], wide[i])
		}
		differ = differ || low[i] != wide[i]
	}
	if !differ {
		t.Error("autocast changed nothing")
	}
	if last := low[len(low)-1]; last > 0.8*low[0] {
		t.Errorf("the loss went from %v to %v only", low[0], last)
	}
	for _, p := range params {
		if p.Data().DType() != tensor.Float32 || p.Grad().DType() != tensor.Float32 {
			t.Errorf("%s is %v, its gradient %v", p.Name(), p.Data().DType(), p.Grad().DType())
		}
	}
	t.Logf("losses %.4f to %.4f, in float32 %.4f to %.4f", low[0], low[len(low)-1], wide[0], wide[len(wide)-1])
}
