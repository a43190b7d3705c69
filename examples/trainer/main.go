// SPDX-License-Identifier: Apache-2.0

// Command trainer trains a model with train.Run: on which of two spirals does a
// point lie? It evaluates, keeps the best weights, and stops on Ctrl-C. It continues
// where it stopped, on any number of ranks.
package main

import (
	"context"
	"flag"
	"math"
	"os"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

// Net takes points [batch, 2] and returns a score for each spiral [batch, 2].
type Net struct{ In, Hidden, Out *nn.Linear }

func (m *Net) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = c.Call(m.In, x).Tanh()
	return c.Call(m.Out, c.Call(m.Hidden, x).Tanh())
}

// sample is a point and the number of its spiral.
type sample struct {
	x, y   float32
	spiral int64
}

// spirals draws n samples.
func spirals(n int) []sample {
	g, samples := tensor.NewGenerator(1), make([]sample, n)
	for i := range samples {
		radius := g.Float64()
		y, x := math.Sincos(10*radius + math.Pi*float64(i%2))
		samples[i] = sample{float32(radius * x), float32(radius * y), int64(i % 2)}
	}
	return samples
}

// batch is the input of the model: points [n, 2] and labels [n].
type batch struct{ points, labels *tensor.Tensor }

func collate(samples []sample) (batch, error) {
	xy, labels := make([]float32, 0, 2*len(samples)), make([]int64, len(samples))
	for i, s := range samples {
		xy, labels[i] = append(xy, s.x, s.y), s.spiral
	}
	return batch{tensor.FromFloat32(xy, len(samples), 2), tensor.FromInt64(labels)}, nil
}

// numRight counts the samples for which the model predicts the right spiral.
func numRight(ctx context.Context, net nn.Module, samples []sample) (n float64, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	b, err := collate(samples)
	if err != nil {
		return 0, err
	}
	scores := c.Call(net, b.points).Float32s()
	for i, s := range samples {
		if (scores[2*i+1] > scores[2*i]) == (s.spiral == 1) {
			n++
		}
	}
	return n, nil
}

// run runs on every rank.
func run(ctx context.Context, group *dist.Group, out string, report train.Reporter) error {
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	net := &Net{nn.NewLinear(b, 2, 64), nn.NewLinear(b, 64, 64), nn.NewLinear(b, 64, 2)}
	samples := spirals(4000)
	training, validation := data.FromSlice(samples[:3000]), samples[3000:]

	const batchSize = 120 // all ranks together
	task := train.Task[batch]{
		Name:  "spirals",
		About: train.About{Model: "three layers", Data: "3000 points to train on, 1000 to validate"},
		Model: net,
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return optim.NewAdamW(params, optim.AdamWOptions{LR: 0.01})
		},
		Loss: func(c *nn.Ctx, model any, b batch) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model.(nn.Module), b.points), b.labels)
		},
		Feed: func(ctx context.Context, from data.LoaderState) (train.Feed[batch], error) {
			order, err := data.NewStream(data.StreamConfig{
				Len: training.Len(), Total: batchSize, Rank: group.Rank(), World: group.Size(), Shuffle: true, Seed: 1,
			})
			if err != nil {
				return nil, err
			}
			return data.NewLoader(ctx, training, order, collate, data.LoaderConfig{Workers: 1}, from)
		},
		Samples: training.Len(),
		Size:    func(b batch) int { return b.labels.NumElems() },
		Unit:    "points",
		Evaluate: func(ctx context.Context, model any) (train.Metrics, error) {
			// Every rank tests its share, and an all-reduce adds the results.
			n, rank, size := len(validation), group.Rank(), group.Size()
			right, err := numRight(ctx, model.(nn.Module), validation[n*rank/size:n*(rank+1)/size])
			if err != nil {
				return nil, err
			}
			sum := tensor.Full(right, 1)
			if err := group.AllReduce(ctx, sum, dist.Sum); err != nil {
				return nil, err
			}
			return train.Metrics{{Name: "accuracy", Value: sum.Item() / float64(n), Higher: true, Unit: "%"}}, nil
		},
	}
	return train.Run(ctx, group, task, train.Options{
		Out: out, Epochs: 40, Batch: batchSize, Clip: 1, EvalEvery: 100, Best: true, Patience: 5, SaveEvery: 500,
	}, report)
}

func main() {
	out := flag.String("out", "out/spirals", "directory of the run")
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(func(ctx context.Context, group *dist.Group) error {
		return run(ctx, group, *out, train.NewConsole(os.Stdout, false, "cohort"))
	})))
}
