// SPDX-License-Identifier: Apache-2.0

package train

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// readCounter tells how often the host has read at the end of each step.
type readCounter struct {
	optim.Optimizer
	late    *lazy.Device
	stepped []int
}

func (o *readCounter) Step(scale *tensor.Tensor) {
	o.Optimizer.Step(scale)
	o.stepped = append(o.stepped, o.late.NumReads())
}

// TestLateDevice: a run on a device that computes behind the program has the losses
// of the CPU, and reads once a step, after the optimizer's step.
func TestLateDevice(t *testing.T) {
	late := lazy.New(2)
	t.Cleanup(late.Close)
	opt := &readCounter{late: late}
	var begun []int // reads when a step's first pass begins
	fit := func(dev tensor.Device) *fitting {
		f := newFitting(t)
		f.set = func(_ int, task *Task[points], o *Options) {
			b := &nn.Build{Generator: tensor.NewGenerator(3), Device: dev}
			m := &line{nn.NewLinear(b, 1, 8), nn.NewLinear(b, 8, 1)}
			task.Model = m
			task.Schedule = optim.WarmupCosine(3, 12, 0.1)
			if build := task.Optimizer; dev == late {
				task.Optimizer = func(params []*nn.Parameter) optim.Optimizer {
					opt.Optimizer = build(params)
					return opt
				}
			}
			o.Accumulate, o.Batch, o.Clip, o.SaveEvery, o.EvalEvery = 2, 48, 0.5, 0, 0
			passes := 0
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
				if passes++; passes%2 == 1 {
					begun = append(begun, late.NumReads())
				}
				on := tensor.On(dev)
				return tensor.MSE(c.Call(model.(nn.Module), on.FromFloat32(p.x.Float32s(), p.x.Shape()...)), on.FromFloat32(p.y.Float32s(), p.y.Shape()...))
			}
		}
		return f
	}
	here, there := fit(tensor.CPU()), fit(late)
	if _, err := here.run(t, 1); err != nil {
		t.Fatal(err)
	}
	begun = nil
	late.Allow(func() {
		if _, err := there.run(t, 1); err != nil {
			t.Fatal(err)
		}
	})
	if len(there.log.losses) != 12 || !maps.Equal(there.log.losses, here.log.losses) {
		t.Errorf("losses %v, on the CPU %v", there.log.losses, here.log.losses)
	}
	for i := range opt.stepped {
		if n := opt.stepped[i] - begun[i]; n != 0 {
			t.Errorf("step %d reads %d times before the end of the optimizer's step", i+1, n)
		}
		if i > 0 && begun[i]-opt.stepped[i-1] != 1 {
			t.Errorf("the host reads %d times between steps %d and %d, want once", begun[i]-opt.stepped[i-1], i, i+1)
		}
	}
	if modelFile(t, there.out, 12) != modelFile(t, here.out, 12) {
		t.Error("the weights are not those of the CPU")
	}
}

// TestFaultOfALateDevice: an index that is out of range ends the run with an error
// that says so, though the device meets it when the step is over, and nothing of
// that step is saved.
func TestFaultOfALateDevice(t *testing.T) {
	late := lazy.New(2)
	t.Cleanup(late.Close)
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], o *Options) {
		m := nn.NewEmbedding(&nn.Build{Device: late}, 5, 1)
		task.Model, task.Optimizer = m, sgd(0.1)
		o.SaveEvery = 1
		steps := int64(0)
		task.Loss = func(c *nn.Ctx, model any, _ points) *tensor.Tensor {
			steps++
			return c.Call(model.(nn.Module), tensor.On(late).FromInt64([]int64{1, steps + 2})).Mean()
		}
	}
	var err error
	late.Allow(func() { _, err = f.run(t, 1) })
	if want := "step 3: tensor: embedding(weight float32[5 1], int64[2]): id 5 at position 1"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "(at train/late_device_test.go:") {
		t.Errorf("%v, want %q", err, want)
	}
	if len(f.log.saved) != 2 {
		t.Errorf("saved at %v, want steps 1 and 2", f.log.saved)
	}
}

// badStep is an optimizer whose n-th step looks up a row that is not there.
type badStep struct {
	optim.Optimizer
	n   int
	bad func()
}

func (o *badStep) Step(scale *tensor.Tensor) {
	o.Optimizer.Step(scale)
	if o.n--; o.n == 0 {
		o.bad()
	}
}

// TestFaultOfOneLateRank: a mistake that the device of one rank finds ends both ranks
// with its words, whether the gradients have been averaged by then or not, and the
// other rank saves nothing of that step.
func TestFaultOfOneLateRank(t *testing.T) {
	for _, when := range []string{"forward", "after the average"} {
		t.Run(when, func(t *testing.T) {
			var lates [2]*lazy.Device
			for i := range lates {
				lates[i] = lazy.New(1)
				lates[i].AllowLending()
				t.Cleanup(lates[i].Close)
			}
			f := newFitting(t)
			f.set = func(rank int, task *Task[points], o *Options) {
				late := lates[rank]
				m := nn.NewEmbedding(&nn.Build{Generator: tensor.NewGenerator(3), Device: late}, 5, 1)
				opt := &badStep{}
				task.Model = m
				task.Optimizer = func(params []*nn.Parameter) optim.Optimizer {
					opt.Optimizer = sgd(0.1)(params)
					return opt
				}
				o.SaveEvery = 1
				bad := tensor.On(late).FromInt64([]int64{1, 7})
				if rank == 1 && when != "forward" {
					opt.n, opt.bad = 3, func() { tensor.Embedding(m.Weight.Data(), bad) }
				}
				passes := 0
				task.Loss = func(c *nn.Ctx, model any, _ points) *tensor.Tensor {
					ids := tensor.On(late).FromInt64([]int64{1, 2})
					if passes++; passes == 3 && rank == 1 && when == "forward" {
						ids = bad
					}
					return c.Call(model.(nn.Module), ids).Mean()
				}
			}
			var told []error
			lates[0].Allow(func() { lates[1].Allow(func() { told, _ = f.run(t, 2) }) })
			if want := "id 7 at position 1"; told[1] == nil || !strings.Contains(told[1].Error(), "step 3: ") || !strings.Contains(told[1].Error(), want) {
				t.Errorf("rank 1 says %v, want %q", told[1], want)
			}
			if told[0] == nil || !strings.Contains(told[0].Error(), "step 3") || !strings.Contains(told[0].Error(), "rank 1") {
				t.Errorf("rank 0 says %v", told[0])
			}
			if !slices.Equal(f.log.saved, []int{1, 2}) {
				t.Errorf("saved at %v, want steps 1 and 2", f.log.saved)
			}
		})
	}
}

// TestLossOnAnotherDevice: a loss may be on another device than the parameters.
func TestLossOnAnotherDevice(t *testing.T) {
	late := lazy.New(1)
	t.Cleanup(late.Close)
	here, there := newFitting(t), newFitting(t)
	if _, err := here.run(t, 1); err != nil {
		t.Fatal(err)
	}
	there.set = func(_ int, task *Task[points], _ *Options) {
		loss := task.Loss
		task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor { return loss(c, model, p).ToDevice(late) }
	}
	late.Allow(func() {
		if _, err := there.run(t, 1); err != nil {
			t.Fatal(err)
		}
	})
	if len(there.log.losses) != 12 || !maps.Equal(there.log.losses, here.log.losses) {
		t.Errorf("losses %v, on one device %v", there.log.losses, here.log.losses)
	}
}
