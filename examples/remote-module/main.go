// SPDX-License-Identifier: Apache-2.0

// Command remote-module trains an ordinary nn.Sequential. One of its layers runs in
// another process, which could be on another machine. At the end the program fetches
// the parameters of that layer.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	steps = 301
	batch = 128
	width = 32
)

var (
	// NewBody makes a body of the given width in the called process.
	NewBody = rpc.NewMaker[int, nn.Module]("body.New")
	// State is a method on a remote module. It returns parameters and buffers by name.
	State = rpc.NewOn[nn.Module, struct{}, map[string]*tensor.Tensor]("module.State")
)

func newBody(_ context.Context, width int) (nn.Module, error) {
	if width < 1 || width > 1<<14 {
		return nil, fmt.Errorf("a body of width %d", width)
	}
	b := &nn.Build{}
	return nn.NewSequential(nn.NewLinear(b, width, width), &nn.Tanh{}, nn.NewLinear(b, width, width), &nn.Tanh{}), nil
}

func state(_ context.Context, m nn.Module, _ struct{}) (map[string]*tensor.Tensor, error) {
	all := make(map[string]*tensor.Tensor)
	for _, s := range nn.StateDict(m) {
		all[s.Name] = s.Tensor
	}
	return all, nil
}

// around puts a body, local or remote, between two layers of this process.
func around(body nn.Module) *nn.Sequential {
	b := &nn.Build{}
	return nn.NewSequential(nn.NewLinear(b, 2, width), &nn.Tanh{}, body, nn.NewLinear(b, width, 2))
}

// spirals draws points of two spirals, and returns the number of each point's spiral.
func spirals(g *tensor.Generator) (points, spiral *tensor.Tensor) {
	xy, of := make([]float32, 0, 2*batch), make([]int64, batch)
	for i := range of {
		of[i] = int64(i % 2)
		radius := g.Float64()
		y, x := math.Sincos(8*radius + math.Pi*float64(i%2))
		xy = append(xy, float32(radius*x), float32(radius*y))
	}
	return tensor.FromFloat32(xy, batch, 2), tensor.FromInt64(of)
}

// step trains the model on a batch. It clips the norm of the gradients to one.
func step(ctx context.Context, a *rpc.Agent, opt *autograd.Optimizer, model nn.Module, points, spiral *tensor.Tensor) (loss float64, err error) {
	dc, err := autograd.NewContext(a)
	if err != nil {
		return 0, err
	}
	defer dc.Close()
	c, err := dc.Pass(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Recover(&err)
	l := tensor.CrossEntropy(c.Call(model, points), spiral)
	if err := dc.Backward(ctx, l); err != nil {
		return 0, err
	}
	_, scale, err := opt.ClipGradNorm(ctx, dc, 1)
	if err != nil {
		return 0, err
	}
	return l.Item(), opt.Step(ctx, dc, scale)
}

// train trains the model and returns the last loss.
func train(ctx context.Context, a *rpc.Agent, model nn.Module) (loss float64, err error) {
	params, err := remote.Parameters(ctx, a, model) // those of the body included
	if err != nil {
		return 0, err
	}
	opt, err := autograd.NewOptimizer(ctx, a, autograd.AdamW(optim.AdamWOptions{LR: 0.01}), params)
	if err != nil {
		return 0, err
	}
	defer opt.Close()
	data := tensor.NewGenerator(1)
	for i := range steps {
		points, spiral := spirals(data)
		if loss, err = step(ctx, a, opt, model, points, spiral); err != nil {
			return 0, err
		}
		if i%100 == 0 {
			fmt.Printf("step %3d: loss %.3f\n", i, loss)
		}
	}
	return loss, nil
}

// answers runs a model without gradients, also in the remote layer.
func answers(ctx context.Context, model nn.Module, points *tensor.Tensor) (scores *tensor.Tensor, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	return c.Call(model, points).Keep(), nil
}

// home returns the model with all of its layers in this process.
func home(ctx context.Context, model *nn.Sequential, body *remote.Module) (*nn.Sequential, error) {
	learned, err := State.Call(ctx, body.Ref(), struct{}{})
	if err != nil {
		return nil, err
	}
	here, err := newBody(ctx, width)
	if err != nil {
		return nil, err
	}
	for _, s := range nn.StateDict(here) {
		t := learned[s.Name]
		if t == nil {
			return nil, errors.New("the body has no " + s.Name)
		}
		s.Tensor.CopyFrom(t)
	}
	layers := slices.Clone(model.Layers)
	layers[slices.Index(layers, nn.Module(body))] = here
	return nn.NewSequential(layers...), nil
}

// use runs in the trainer.
func use(ctx context.Context, a *rpc.Agent) error {
	body, err := remote.New(ctx, a.Peer("helper"), NewBody, width)
	if err != nil {
		return err
	}
	defer body.Release()
	model := around(body)
	if _, err := train(ctx, a, model); err != nil {
		return err
	}

	points, spiral := spirals(tensor.NewGenerator(2))
	scores, err := answers(ctx, model, points)
	if err != nil {
		return err
	}
	fmt.Printf("accuracy on new points: %.0f %%\n", 100*nn.Accuracy(scores, spiral))

	whole, err := home(ctx, model, body)
	if err != nil {
		return err
	}
	again, err := answers(ctx, whole, points)
	if err != nil {
		return err
	}
	fmt.Println("the model at home gives the same answers:", slices.Equal(again.Float32s(), scores.Float32s()))
	return nil
}

// start makes the agent of a process.
func start(ctx context.Context, group *dist.Group) (*rpc.Agent, error) {
	return rpc.Init(ctx, []string{"trainer", "helper"}[group.Rank()], rpc.WithGroup(group), autograd.WithEngine(), remote.Serve(),
		rpc.ServeMaker(NewBody, newBody), rpc.ServeOn(State, state))
}

func run(ctx context.Context, group *dist.Group) error {
	a, err := start(ctx, group)
	if err != nil {
		return err
	}
	defer a.Close()
	if a.Name() == "trainer" {
		if err := use(ctx, a); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() { launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(run))) }
