// SPDX-License-Identifier: Apache-2.0

// Command diloco trains a network on islands that exchange what they have learned every few steps
// only, as a slow link between them demands. It learns on which of two spirals a point lies.
//
// By default all islands are in this process. With -at each island is a process of its own, on any
// machine: start a store by "cohort store --wire cohort", and one process for each number of -island.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/islands"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	number = flag.Int("islands", 2, "number of islands")
	at     = flag.String("at", "", "address of a store in which islands meet that are processes")
	island = flag.Int("island", 0, "number of this island, with -at")
	every  = flag.Int("every", 10, "steps between exchanges")
	steps  = flag.Int("steps", 300, "training steps, a multiple of -every")
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

// train trains island i, which meets the others in s.
func train(ctx context.Context, g *dist.Group, s store.Store, i int) error {
	b := &nn.Build{Generator: tensor.NewGenerator(0)} // all islands begin with the same values
	net := &Net{nn.NewLinear(b, 2, 64), nn.NewLinear(b, 64, 64), nn.NewLinear(b, 64, 2)}
	inner, err := parallel.NewSingle(net) // of several ranks: NewDDP or FullyShard
	if err != nil {
		return err
	}
	model, err := parallel.NewDiLoCo(inner, g, parallel.DiLoCoOptions{
		Every:   *every,
		NoDelay: *at == "", // within a process nothing is slow; over a link an exchange goes on beside the next steps
		Islands: islands.Config{Store: s, Island: i, Islands: *number},
	})
	if err != nil {
		return err
	}
	defer model.Close()
	opt := optim.NewAdamW(nn.Parameters(net), optim.AdamWOptions{LR: 0.01})
	data := tensor.NewGenerator(int64(i) + 1) // each island has samples of its own
	var loss *tensor.Tensor
	for range *steps {
		points, labels := spirals(data, 1024)
		opt.ZeroGrad()
		loss, err = model.Step(ctx, []parallel.Microbatch{{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss:    func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(c.Call(model, points), labels) },
		}})
		if err != nil {
			return err
		}
		opt.Step(nil)                              // the inner step of this island
		if err := model.Updated(ctx); err != nil { // every so many steps an exchange begins
			return err
		}
	}
	if err := model.Finish(ctx); err != nil { // with the last exchange all islands are alike
		return err
	}
	fmt.Printf("island %d  loss %.3f  %d exchanges  first weight %v\n", i, loss.Item(), model.Stats().Exchanges, net.In.Weight.Data().Float32s()[0])
	return nil
}

func run(ctx context.Context) error {
	first, last, s := 0, *number, store.Store(store.NewMemory())
	if *at != "" {
		c, err := store.Dial(ctx, *at, "")
		if err != nil {
			return err
		}
		defer c.Close()
		first, last, s = *island, *island+1, c
	}
	errs := make([]error, last)
	var all sync.WaitGroup
	for i := first; i < last; i++ {
		all.Go(func() { // an island is a job of its own, here of one rank
			errs[i] = dist.Spawn(ctx, 1, func(ctx context.Context, g *dist.Group) error { return train(ctx, g, s, i) })
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
