// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/device/cuda/fake"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// llamaTraining is a Llama with grouped keys.
func llamaTraining(dev tensor.Device) training {
	m := NewLlama(&nn.Build{Generator: tensor.NewGenerator(2), Device: dev}, LlamaConfig{Vocab: 17, Context: 8, Width: 16, Heads: 4, KeyHeads: 2, Layers: 2, Hidden: 24})
	ids := tensor.On(dev).FromInt64([]int64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, 2, 6)
	next := tensor.On(dev).FromInt64([]int64{1, 4, 1, 5, 9, 2, 6, 5, 3, tensor.IgnoreIndex, 8, 16}, 2, 6)
	return training{m, optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2}), func(c *nn.Ctx) *tensor.Tensor {
		return tensor.CrossEntropy(c.Call(m, ids), next)
	}}
}

// TestTrainingOnCUDA: models train on a CUDA device, on the stand-in for the driver, as on the
// CPU: 20 steps have the same losses, in float32 up to 1e-5. From the third step on a step asks
// the driver for no memory, waits for nothing, and copies from the host only
// what the models make anew in each pass: the numbers of the positions, the tables of rotations.
func TestTrainingOnCUDA(t *testing.T) {
	if !dlopen.Built {
		t.Skip("the driver is loaded only with -tags cuda")
	}
	f, err := fake.Build(t.TempDir())
	if errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(string(envvar.CUDAPath), f.Dir)
	t.Cleanup(f.Stop)
	for _, c := range []struct {
		name      string
		make      func(dev tensor.Device) training
		dtype     tensor.DType
		tolerance float64
		uploads   int
	}{
		{"gpt", trainings["gpt"], tensor.Float32, 1e-5, 1},
		{"gpt", trainings["gpt"], tensor.BFloat16, 3e-2, 1},
		{"llama", llamaTraining, tensor.Float32, 1e-5, 2},
	} {
		t.Run(c.name+"/"+c.dtype.String(), func(t *testing.T) {
			if err := f.Start(fake.Options{Seed: 1}); err != nil {
				t.Fatal(err)
			}
			dev, err := cuda.Open(cuda.Options{Poison: true})
			if err != nil {
				t.Fatal(err)
			}
			options := []nn.CtxOption{nn.WithGenerator(tensor.NewGenerator(1))}
			if c.dtype != tensor.Float32 {
				options = append(options, nn.WithAutocast(c.dtype))
			}
			here, there := c.make(tensor.CPU()), c.make(dev)
			for i := range 20 {
				want := here.step(t, tensor.CPU(), options...)
				waits, uploads, blocks := f.Count(fake.Waits), f.Count(fake.Uploads), f.Count(fake.Blocks)
				got := there.step(t, dev, options...)
				waits, uploads, blocks = f.Count(fake.Waits)-waits, f.Count(fake.Uploads)-uploads, f.Count(fake.Blocks)-blocks
				if i >= 2 && (waits > 0 || uploads > c.uploads || blocks > 0) {
					t.Errorf("step %d waits %d times, copies %d times from the host, and asks for %d blocks of memory", i, waits, uploads, blocks)
				}
				if w, g := want.Item(), got.Item(); !(math.Abs(w-g) <= c.tolerance*math.Max(1, math.Abs(w))) {
					t.Fatalf("the loss of step %d is %v, on the CPU %v", i, g, w)
				}
			}
		})
	}
}
