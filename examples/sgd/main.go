// SPDX-License-Identifier: Apache-2.0

// Command sgd is synchronous stochastic gradient descent on two ranks, with
// what a distributed trainer does written out by hand: a network learns a wave.
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
	batchSize = 60 // points in a step, of all ranks together
	rate      = 0.1
)

// share draws the points of a step and returns those of one rank: x and
// sin(3x), both [points, 1]. Every rank draws the same points from equal
// generators and keeps every size-th of them.
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

// train is what every rank does. It returns the trained parameters.
func train(ctx context.Context, group *dist.Group) ([]*nn.Parameter, error) {
	b := &nn.Build{Generator: tensor.NewGenerator(int64(group.Rank()))}
	net := nn.NewSequential(nn.NewLinear(b, 1, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 1))
	params := nn.Parameters(net)

	// The ranks have drawn different first weights: all take those of rank 0.
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

		// The gradient of a rank's part of the sum over the batch …
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return c.Call(net, x).Sub(y).Square().Sum().MulScalar(1.0 / batchSize)
		})
		if err != nil {
			return nil, err
		}

		// … and the parts of all ranks added up: now every rank has the gradient of
		// the whole batch.
		for _, p := range params {
			if err := group.AllReduce(ctx, p.Grad(), dist.Sum); err != nil {
				return nil, err
			}
		}

		// Equal weights, moved by equal gradients, stay equal. Nobody needs to send
		// them again.
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
