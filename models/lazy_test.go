// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// training is a model, an optimizer and a loss, all on one device.
type training struct {
	model any
	opt   optim.Optimizer
	loss  func(c *nn.Ctx) *tensor.Tensor
}

// trainings are models as they are trained on a device, by name.
var trainings = map[string]func(dev tensor.Device) training{
	"gpt": func(dev tensor.Device) training {
		m := NewGPT(&nn.Build{Device: dev}, GPTConfig{Vocab: 17, Context: 8, Width: 16, Heads: 2, Layers: 2})
		ids := tensor.On(dev).FromInt64([]int64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, 2, 6)
		next := tensor.On(dev).FromInt64([]int64{1, 4, 1, 5, 9, 2, 6, 5, 3, tensor.IgnoreIndex, 8, 16}, 2, 6)
		return training{m, optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2, WeightDecay: 0.1}), func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(m, ids), next)
		}}
	},
	"resnet": func(dev tensor.Device) training {
		m := NewResNet(&nn.Build{Device: dev}, ResNetConfig{Blocks: [4]int{1, 1, 1, 1}, Classes: 5})
		x := tensor.New(dev, tensor.Float32, 2, 3, 32, 32)
		tensor.NewGenerator(1).Uniform(x, -1, 1)
		y := tensor.On(dev).FromInt64([]int64{4, 2})
		return training{m, optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.1, Momentum: 0.9}), func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(m, x), y)
		}}
	},
	"moe": func(dev tensor.Device) training {
		m := NewMoETransformer(&nn.Build{Generator: tensor.NewGenerator(2), Device: dev}, MoEConfig{
			LlamaConfig: LlamaConfig{Vocab: 17, Context: 8, Width: 16, Heads: 2, KeyHeads: 1, Layers: 2, Hidden: 24}, Experts: 4, Active: 2,
			SharedHidden: 24, Router: nn.MoEOptions{Balance: 0.01, Capacity: 1.25, BiasStep: 0.1},
		})
		ids := tensor.On(dev).FromInt64([]int64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, 2, 6)
		next := tensor.On(dev).FromInt64([]int64{1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 16}, 2, 6)
		return training{m, optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2}), func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(m, ids), next).Add(c.AddedLoss())
		}}
	},
	"dlrm":        func(dev tensor.Device) training { return dlrmTraining(dev, false) },
	"dlrm sparse": func(dev tensor.Device) training { return dlrmTraining(dev, true) },
}

func dlrmTraining(dev tensor.Device, sparse bool) training {
	m := NewDLRM(&nn.Build{Device: dev}, DLRMConfig{Tables: []int{7, 5}, Width: 4, Bottom: []int{3, 4}, Top: []int{8, 1}, Sparse: sparse})
	on := tensor.On(dev)
	in := []*tensor.Tensor{
		on.FromFloat32([]float32{1, 2, 3, -1, 0, 1}, 2, 3),
		on.FromInt64([]int64{6, 0, 6}), on.FromInt64([]int64{0, 2}),
		on.FromInt64([]int64{1, 4}), on.FromInt64([]int64{0, 1}),
	}
	clicks := on.FromFloat32([]float32{1, 0}, 2, 1)
	return training{m, optim.NewAdagrad(nn.Parameters(m), optim.AdagradOptions{LR: 0.1}), func(c *nn.Ctx) *tensor.Tensor {
		return tensor.BCEWithLogits(c.CallN(m, in...)[0], clicks, tensor.BCEWithLogitsOptions{})
	}}
}

// step does a whole step and returns the loss.
func (tr training) step(t *testing.T, dev tensor.Device, options ...nn.CtxOption) *tensor.Tensor {
	c := nn.Training(t.Context(), append(options, nn.WithDevice(dev))...)
	defer c.Close()
	tr.opt.ZeroGrad()
	loss := tr.loss(c)
	kept := loss.Detach().Clone().Keep()
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, scale := optim.ClipGradNorm(nn.Parameters(tr.model), 0.5)
	tr.opt.Step(scale)
	return kept
}

// reads are how often a step may read: once a table whose gradient comes by rows, once
// a layer of experts, for how much there is depends on the data.
var reads = map[string]int{"dlrm sparse": 2, "moe": 2}

// TestTrainingOnALateDevice: steps of models have the bits of the CPU on a device
// that runs later, and the host reads nothing from the forward pass to the end of
// the optimizer's step; but for what reads lists.
func TestTrainingOnALateDevice(t *testing.T) {
	late := lazy.New(2)
	t.Cleanup(late.Close)
	for name, make := range trainings {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			t.Run(name+"/"+dtype.String(), func(t *testing.T) {
				options := []nn.CtxOption{nn.WithGenerator(tensor.NewGenerator(1))}
				if dtype != tensor.Float32 {
					options = append(options, nn.WithAutocast(dtype))
				}
				here, there := make(tensor.CPU()), make(late)
				for i := range 3 {
					want := here.step(t, tensor.CPU(), options...)
					before := late.NumReads()
					var got *tensor.Tensor
					run := func() { got = there.step(t, late, options...) }
					if most := reads[name]; most > 0 {
						late.Allow(run)
						if n := late.NumReads() - before; n > most {
							t.Errorf("step %d reads %d times, want %d at most", i, n, most)
						}
					} else {
						run()
						if n := late.NumReads() - before; n != 0 {
							t.Errorf("step %d reads %d times", i, n)
						}
					}
					late.Allow(func() {
						if w, g := want.Item(), got.Item(); w != g || math.IsNaN(g) {
							t.Fatalf("the loss of step %d is %v, on the CPU %v", i, g, w)
						}
					})
				}
				theirs := nn.Parameters(there.model)
				late.Allow(func() {
					for i, p := range nn.Parameters(here.model) {
						want, got := p.Data().Float32s(), theirs[i].Data().Float32s()
						for j := range want {
							if want[j] != got[j] {
								t.Fatalf("element %d of %s is %v, on the CPU %v", j, p.Name(), got[j], want[j])
							}
						}
					}
				})
			})
		}
	}
}
