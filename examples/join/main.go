// SPDX-License-Identifier: Apache-2.0

// Command join trains on three ranks whose data end at different steps. It fits a line through points
// that lie on one, of which each rank has another number.
package main

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

const batch = 8

// points returns the points [n, 1] of a rank, and their heights [n, 1].
func points(rank int) (x, y *tensor.Tensor) {
	n := []int{40, 100, 13}[rank]
	g := tensor.NewGenerator(int64(rank))
	at, height := make([]float32, n), make([]float32, n)
	for i := range at {
		at[i] = float32(g.Float64())
		height[i] = 3*at[i] - 1
	}
	return tensor.FromFloat32(at, n, 1), tensor.FromFloat32(height, n, 1)
}

// train runs on every rank.
func train(ctx context.Context, group *dist.Group) error {
	line := nn.NewLinear(&nn.Build{}, 1, 1)
	model, err := parallel.NewDDP(ctx, line, group, parallel.WithJoin())
	if err != nil {
		return err
	}
	opt := optim.NewSGD(nn.Parameters(line), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	x, y := points(group.Rank())
	others := 0 // steps of the other ranks after the last one of this rank
	step := func(context.Context) error {
		opt.Step(nil)
		others++
		return nil
	}
	for range 20 {
		others = 0
		// All ranks take every step of the optimizer. So they have the same state.
		err := model.Join(ctx, func() error { return epoch(ctx, model, opt, x, y) }, parallel.WithJoinedStep(step))
		if err != nil {
			return err
		}
	}
	fmt.Printf("rank %d: %d steps of its own and %d of the others; height = %.2f·x %+.2f\n",
		group.Rank(), (x.Dim(0)+batch-1)/batch, others, line.Weight.Data().Item(), line.Bias.Data().Item())
	return nil
}

// epoch trains on all points of a rank once. The last batch may be smaller.
func epoch(ctx context.Context, model *parallel.DDP, opt optim.Optimizer, x, y *tensor.Tensor) error {
	for first := 0; first < x.Dim(0); first += batch {
		n := min(batch, x.Dim(0)-first)
		if err := model.Weigh(float64(n)); err != nil { // so that each point of all ranks counts the same
			return err
		}
		opt.ZeroGrad()
		_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			off := c.Call(model, x.Narrow(0, first, n)).Sub(y.Narrow(0, first, n))
			return off.Mul(off).Mean()
		})
		if err != nil {
			return err
		}
		opt.Step(nil)
	}
	return nil
}

func main() { launch.Exit(launch.Spawn(context.Background(), 3, dist.Main(train))) }
