// SPDX-License-Identifier: Apache-2.0

// Command sgd trains a network on two ranks with synchronous stochastic gradient
// descent. It writes out by hand what a distributed trainer does.
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	steps     = 1001
	batchSize = 60 // points of a step, all ranks together
	rate      = 0.1
)

// share draws the points of a step and returns those of one rank: x and
// sin(3x), both [points, 1]. All ranks have equal generators, so every rank draws
// the same points. Each keeps its share of them.
func share(g *tensor.Generator, rank, size int) (x, y *tensor.Tensor) {
	var xs, ys []float32
	for i := range batchSize {
		v := 4*g.Float64() - 2
		if i%size == rank {
			xs, ys = append(xs, float32(v)), append(ys, float32(math.Sin(3*v)))
		}
	}
	return tensor.FromFloat32(xs, len(xs), 1), tensor.FromFloat32(ys, len(ys), 1)
}

// train runs on every rank. It returns the trained parameters.
func train(ctx context.Context, group *dist.Group) ([]*nn.Parameter, error) {
	b := &nn.Build{Generator: tensor.NewGenerator(int64(group.Rank()))}
	net := nn.NewSequential(nn.NewLinear(b, 1, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 1))
	params := nn.Parameters(net)

	// Each rank has drawn other initial weights. All take those of rank 0.
	for _, p := range params {
		if err := group.Broadcast(ctx, p.Data(), 0); err != nil {
			return nil, err
		}
	}

	points := tensor.NewGenerator(1)
	for step := range steps {
		x, y := share(points, group.Rank(), group.Size())
		for _, p := range params {
			p.ZeroGrad()
		}

		// The loss is a sum over the batch. This is the gradient of the rank's part.
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return c.Call(net, x).Sub(y).Square().Sum().MulScalar(1.0 / batchSize)
		})
		if err != nil {
			return nil, err
		}

		// The sum of the parts of all ranks is the gradient of the whole batch. Every
		// rank has it now.
		for _, p := range params {
			if err := group.AllReduce(ctx, p.Grad(), dist.Sum); err != nil {
				return nil, err
			}
		}

		// Equal weights that are updated with equal gradients stay equal, so no rank
		// sends weights again.
		for _, p := range params {
			p.Data().Axpy(-rate, p.Grad())
		}

		if step%200 == 0 {
			whole := tensor.Full(loss, 1)
			if err := group.AllReduce(ctx, whole, dist.Sum); err != nil {
				return nil, err
			}
			if group.Rank() == 0 {
				fmt.Printf("step %4d  loss %.4f\n", step, whole.Item())
			}
		}
	}
	return params, nil
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(func(ctx context.Context, group *dist.Group) error {
		_, err := train(ctx, group)
		return err
	})))
}
