// SPDX-License-Identifier: Apache-2.0

// Command autograd trains a model whose parts are in three processes. The trainer
// calls the other processes. The backward pass takes the same way back, and the
// optimizer updates each part in its own process.
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	steps = 401
	batch = 60
)

// names has the name of each process, by rank.
var names = []string{"trainer", "encoder", "decoder"}

var (
	// Forward runs the part of the model in the called process.
	Forward = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("part.Forward")
	// Params returns references to the parameters of that part.
	Params = rpc.NewMethod[struct{}, []*rpc.RRef[*nn.Parameter]]("part.Params")
)

// part returns the part of the model that a process has.
func part(name string) nn.Module {
	switch b := (&nn.Build{}); name {
	case "encoder":
		return nn.NewSequential(nn.NewLinear(b, 1, 32), &nn.Tanh{})
	case "decoder":
		return nn.NewSequential(nn.NewLinear(b, 32, 32), &nn.Tanh{})
	default:
		return nn.NewLinear(b, 32, 1)
	}
}

// serve lets other processes call a part.
func serve(model nn.Module) rpc.Option {
	params := nn.Parameters(model) // names the parameters before concurrent calls arrive
	return rpc.WithOptions(autograd.WithEngine(),
		rpc.Serve(Forward, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return autograd.Ctx(ctx).Call(model, x), nil
		}),
		rpc.Serve(Params, func(ctx context.Context, _ struct{}) ([]*rpc.RRef[*nn.Parameter], error) {
			return autograd.Refs(rpc.AgentOf(ctx), params), nil
		}))
}

// wave draws points: x and sin(3x), both [batch, 1].
func wave(g *tensor.Generator) (x, y *tensor.Tensor) {
	xs, ys := make([]float32, batch), make([]float32, batch)
	for i := range xs {
		v := 4*g.Float64() - 2
		xs[i], ys[i] = float32(v), float32(math.Sin(3*v))
	}
	return tensor.FromFloat32(xs, batch, 1), tensor.FromFloat32(ys, batch, 1)
}

// step is one training step: forward through all processes, backward through all
// of them, and an update on each.
func step(ctx context.Context, a *rpc.Agent, opt *autograd.Optimizer, head nn.Module, x, y *tensor.Tensor) (loss float64, err error) {
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

	h := x
	for _, name := range names[1:] {
		if h, err = Forward.Call(c, a.Peer(name), h); err != nil {
			return 0, err
		}
	}
	l := c.Call(head, h).Sub(y).Square().Mean()

	if err := dc.Backward(ctx, l); err != nil {
		return 0, err
	}
	return l.Item(), opt.Step(ctx, dc, 1)
}

// train runs in the trainer. It returns the last loss.
func train(ctx context.Context, a *rpc.Agent, head nn.Module) (loss float64, err error) {
	refs := autograd.Refs(a, nn.Parameters(head))
	for _, name := range names[1:] {
		theirs, err := Params.Call(ctx, a.Peer(name), struct{}{})
		if err != nil {
			return 0, err
		}
		refs = append(refs, theirs...)
	}
	opt, err := autograd.NewOptimizer(ctx, a, autograd.AdamW(optim.AdamWOptions{LR: 0.01}), refs)
	if err != nil {
		return 0, err
	}
	defer opt.Close()
	points := tensor.NewGenerator(1)
	for i := range steps {
		x, y := wave(points)
		if loss, err = step(ctx, a, opt, head, x, y); err != nil {
			return 0, err
		}
		if i%200 == 0 {
			fmt.Printf("step %3d: loss %.3f\n", i, loss)
		}
	}
	for _, r := range refs {
		r.Release()
	}
	return loss, nil
}

func run(ctx context.Context, group *dist.Group) error {
	name := names[group.Rank()]
	model := part(name)
	a, err := rpc.Init(ctx, name, rpc.WithGroup(group), serve(model))
	if err != nil {
		return err
	}
	defer a.Close()
	if name == "trainer" {
		if _, err := train(ctx, a, model); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), len(names), dist.Main(run)))
}
