// SPDX-License-Identifier: Apache-2.0

// Command ddp trains a small network on two ranks. It learns on which of two spirals a point lies.
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// Net takes points [batch, 2] and returns a score for each of the two spirals [batch, 2].
type Net struct{ In, Hidden, Out *nn.Linear }

func (m *Net) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = c.Call(m.In, x).Tanh()
	return c.Call(m.Out, c.Call(m.Hidden, x).Tanh())
}

// spirals draws n points [n, 2] and returns with them the number of each point's spiral [n].
func spirals(g *tensor.Generator, n int) (points, labels *tensor.Tensor) {
	xy, spiral := make([]float32, 0, 2*n), make([]int64, n)
	for i := range spiral {
		spiral[i] = int64(i % 2)
		radius := g.Float64()
		y, x := math.Sincos(10*radius + math.Pi*float64(i%2))
		xy = append(xy, float32(radius*x), float32(radius*y))
	}
	return tensor.FromFloat32(xy, n, 2), tensor.FromInt64(spiral)
}

// train runs on every rank.
func train(ctx context.Context, group *dist.Group) error {
	b := &nn.Build{}
	net := &Net{nn.NewLinear(b, 2, 64), nn.NewLinear(b, 64, 64), nn.NewLinear(b, 64, 2)}
	model, err := parallel.NewDDP(ctx, net, group)
	if err != nil {
		return err
	}
	opt := optim.NewAdamW(nn.Parameters(net), optim.AdamWOptions{LR: 0.01})
	data := tensor.NewGenerator(int64(group.Rank())) // every rank draws other points
	for step := range 501 {
		points, labels := spirals(data, 128)
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, points), labels)
		})
		if err != nil {
			return err
		}
		opt.Step(nil) // with gradients that are averaged over all ranks
		if step%100 == 0 && group.Rank() == 0 {
			fmt.Printf("step %3d  loss %.3f\n", step, loss)
		}
	}
	return nil
}

func main() { launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(train))) }
