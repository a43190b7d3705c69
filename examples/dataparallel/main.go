// SPDX-License-Identifier: Apache-2.0

// Command dataparallel trains a network in one process on several groups of threads. It learns
// on which of two spirals a point lies.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	groups  = flag.Int("groups", 2, "groups of threads, each of which runs a replica of the model")
	threads = flag.Int("threads", 1, "threads of a group")
	steps   = flag.Int("steps", 201, "training steps")
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

// devices returns the CPU with the threads of the first group, and a device for each further group.
func devices() ([]tensor.Device, error) {
	if err := tensor.SetNumThreads(*threads); err != nil {
		return nil, err
	}
	list := []tensor.Device{tensor.CPU()}
	for len(list) < *groups {
		dev, err := tensor.NewThreadGroup(fmt.Sprintf("cpu:%d", len(list)), *threads)
		if err != nil {
			return nil, err
		}
		list = append(list, dev)
	}
	return list, nil
}

func train(ctx context.Context) error {
	list, err := devices()
	if err != nil {
		return err
	}
	b := &nn.Build{}
	net := &Net{nn.NewLinear(b, 2, 128), nn.NewLinear(b, 128, 128), nn.NewLinear(b, 128, 2)}
	model, err := parallel.NewDataParallel(net, list)
	if err != nil {
		return err
	}
	fmt.Println(model)
	opt := optim.NewAdamW(nn.Parameters(net), optim.AdamWOptions{LR: 0.01})
	data, start := tensor.NewGenerator(1), time.Now()
	for step := range *steps {
		points, labels := spirals(data, 2048)
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, points), labels) // a part of the points on each group
		})
		if err != nil {
			return err
		}
		opt.Step(nil) // with the gradients of all points
		if step%50 == 0 {
			fmt.Printf("step %3d  loss %.3f\n", step, loss)
		}
	}
	fmt.Printf("%.1f ms a step\n", time.Since(start).Seconds()*1e3/float64(*steps))
	return nil
}

func main() {
	flag.Parse()
	if err := train(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
