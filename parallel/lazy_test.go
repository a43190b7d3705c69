// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestTrainingOnALateDevice: steps of two ranks whose models are on a device that
// runs later have the bits of steps on the CPU. The buckets are lent to the
// collectives, which is the one thing that waits for the device.
func TestTrainingOnALateDevice(t *testing.T) {
	train := func(deviceOf func() tensor.Device) []string {
		var after []string
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			dev := deviceOf()
			m := nn.NewSequential(nn.NewLinear(&nn.Build{Device: dev}, 6, 9), &nn.ReLU{}, nn.NewLinear(&nn.Build{Device: dev}, 9, 3))
			ddp, err := NewDDP(ctx, m, g, small)
			if err != nil {
				return err
			}
			opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2})
			x := tensor.New(dev, tensor.Float32, 4, 6)
			tensor.NewGenerator(int64(g.Rank())).Uniform(x, -1, 1)
			y := tensor.On(dev).FromInt64([]int64{0, 1, 2, 1})
			for range 3 {
				opt.ZeroGrad()
				c := nn.Training(ctx, nn.WithDevice(dev))
				err := tensor.CrossEntropy(c.Call(ddp, x), y).Backward(ctx)
				if err == nil {
					_, scale := optim.ClipGradNorm(nn.Parameters(m), 0.1)
					opt.Step(scale)
				}
				c.Close()
				if err != nil {
					return err
				}
			}
			if g.Rank() == 0 {
				for _, p := range nn.Parameters(m) {
					loan, err := p.Data().Lend()
					if err != nil {
						return err
					}
					after = append(after, string(loan.Data))
				}
			}
			return tensor.Synchronize(dev)
		})
		if err != nil {
			t.Fatal(err)
		}
		return after
	}
	want := train(tensor.CPU)
	got := train(func() tensor.Device {
		late := lazy.New(1)
		late.AllowLending()
		t.Cleanup(late.Close)
		return late
	})
	if !slices.Equal(want, got) {
		t.Error("after three steps the parameters differ from those on the CPU")
	}
}

// TestRowsOnALateDevice: gradients by rows are added up over the ranks as on the CPU,
// though the ranks exchange them there.
func TestRowsOnALateDevice(t *testing.T) {
	train := func(devices [2]tensor.Device) (after []float32) {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			dev := devices[g.Rank()]
			m := nn.NewEmbedding(&nn.Build{Generator: tensor.NewGenerator(3), Device: dev}, 7, 3)
			m.Weight.Sparse = true
			ddp, err := NewDDP(ctx, m, g)
			if err != nil {
				return err
			}
			opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.5})
			ids := tensor.On(dev).FromInt64([]int64{int64(g.Rank()), 2, 2})
			for range 2 {
				opt.ZeroGrad()
				c := nn.Training(ctx, nn.WithDevice(dev))
				y := c.Call(ddp, ids)
				err := y.Mul(y).Sum().Backward(ctx)
				if err == nil {
					_, scale := optim.ClipGradNorm(nn.Parameters(m), 1)
					opt.Step(scale)
				}
				c.Close()
				if err != nil {
					return err
				}
			}
			if rows := m.Weight.RowGrad(); rows == nil || rows.Rows.Device() != dev || rows.IDs.NumElems() != 3 {
				t.Errorf("rank %d: the gradient by rows is %v", g.Rank(), rows)
			}
			if g.Rank() == 0 {
				after = m.Weight.Data().Float32s()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return after
	}
	want := train([2]tensor.Device{tensor.CPU(), tensor.CPU()})
	if want[0] == want[3] {
		t.Fatalf("the table does not tell its rows apart: %v", want)
	}
	var lates [2]*lazy.Device
	for i := range lates {
		lates[i] = lazy.New(1)
		lates[i].AllowLending()
		t.Cleanup(lates[i].Close)
	}
	lates[0].Allow(func() {
		lates[1].Allow(func() {
			if got := train([2]tensor.Device{lates[0], lates[1]}); !slices.Equal(want, got) {
				t.Errorf("the table is %v, on the CPU %v", got, want)
			}
		})
	})
}
