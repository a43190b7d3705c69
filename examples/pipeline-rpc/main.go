// SPDX-License-Identifier: Apache-2.0

// Command pipeline-rpc trains a model whose two halves are in two processes. A batch
// goes through them in parts, so that both compute at the same time. The output of the
// first half goes directly to the second.
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
	steps = 201
	batch = 96
	parts = 4 // of a batch
	arms  = 3 // of the spiral
)

// stages names the processes with a part of the model, in the order of the parts.
var stages = []string{"stage1", "stage2"}

var (
	// Forward runs a stage's part of the model on a value that may be in any process.
	Forward = rpc.NewMethod[*rpc.RRef[*tensor.Tensor], *tensor.Tensor]("stage.Forward")
	// Params returns references to the parameters of that part.
	Params = rpc.NewMethod[struct{}, []*rpc.RRef[*nn.Parameter]]("stage.Params")
)

// half returns one stage's part of the model.
func half(stage string) nn.Module {
	b := &nn.Build{}
	if stage == stages[0] {
		return nn.NewSequential(nn.NewLinear(b, 2, 64), &nn.Tanh{}, nn.NewLinear(b, 64, 64), &nn.Tanh{})
	}
	return nn.NewSequential(nn.NewLinear(b, 64, 64), &nn.Tanh{}, nn.NewLinear(b, 64, arms))
}

// serve lets the trainer call a part of the model. A stage runs one call after the
// other as they arrive, so the parts of a batch have the same order in every stage.
func serve(model nn.Module) rpc.Option {
	params := nn.Parameters(model) // names the parameters before concurrent calls arrive
	return rpc.WithOptions(autograd.WithEngine(),
		rpc.Serve(Forward, func(ctx context.Context, in *rpc.RRef[*tensor.Tensor]) (*tensor.Tensor, error) {
			defer in.Release()
			x, err := in.ToHere(ctx)
			if err != nil {
				return nil, err
			}
			return autograd.Ctx(ctx).Call(model, x), nil
		}, rpc.WithMethodConcurrency(1)),
		rpc.Serve(Params, func(ctx context.Context, _ struct{}) ([]*rpc.RRef[*nn.Parameter], error) {
			return autograd.Refs(rpc.AgentOf(ctx), params), nil
		}))
}

// Pipeline is the model as the trainer sees it.
type Pipeline struct {
	agent  *rpc.Agent
	stages []*rpc.Peer
	opt    *autograd.Optimizer
}

func newPipeline(ctx context.Context, a *rpc.Agent) (*Pipeline, error) {
	p := &Pipeline{agent: a}
	var refs []*rpc.RRef[*nn.Parameter]
	for _, name := range stages {
		stage := a.Peer(name)
		theirs, err := Params.Call(ctx, stage, struct{}{})
		if err != nil {
			return nil, err
		}
		p.stages, refs = append(p.stages, stage), append(refs, theirs...)
	}
	defer func() {
		for _, r := range refs {
			r.Release()
		}
	}()
	var err error
	p.opt, err = autograd.NewOptimizer(ctx, a, autograd.Adam(optim.AdamOptions{LR: 0.01}), refs)
	return p, err
}

// forward runs x through all stages. It starts all parts of the batch before it waits. A
// stage begins with a part when the stage before has finished it.
func (p *Pipeline) forward(c *nn.Ctx, x *tensor.Tensor) (*tensor.Tensor, error) {
	var ends []*rpc.RRef[*tensor.Tensor]
	for _, part := range x.Chunk(parts, 0) {
		h := rpc.NewRRef(p.agent, part)
		defer h.Release()
		for _, stage := range p.stages {
			next, err := Forward.Remote(c, stage, h)
			if err != nil {
				return nil, err
			}
			defer next.Release()
			h = next
		}
		ends = append(ends, h)
	}
	var out []*tensor.Tensor
	for _, h := range ends {
		y, err := h.ToHere(c)
		if err != nil {
			return nil, err
		}
		out = append(out, y)
	}
	return tensor.Cat(0, out...), nil
}

// step makes one training step: forward, backward and an update, in all processes.
func (p *Pipeline) step(ctx context.Context, x, y *tensor.Tensor) (loss float64, err error) {
	return p.opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
		logits, err := p.forward(c, x)
		if err != nil {
			return nil, err
		}
		return tensor.CrossEntropy(logits, y), nil
	})
}

// spiral draws points [batch, 2] and the arm [batch] on which each lies.
func spiral(g *tensor.Generator) (x, y *tensor.Tensor) {
	xs, ys := make([]float32, 0, 2*batch), make([]int64, 0, batch)
	for i := range batch {
		arm, radius := i%arms, g.Float64()
		angle := 4*radius + 2*math.Pi*float64(arm)/arms + 0.2*g.Float64()
		xs = append(xs, float32(radius*math.Cos(angle)), float32(radius*math.Sin(angle)))
		ys = append(ys, int64(arm))
	}
	return tensor.FromFloat32(xs, batch, 2), tensor.FromInt64(ys)
}

// train trains the model and returns the losses of all steps.
func train(ctx context.Context, a *rpc.Agent) ([]float64, error) {
	p, err := newPipeline(ctx, a)
	if err != nil {
		return nil, err
	}
	defer p.opt.Close()
	var losses []float64
	points := tensor.NewGenerator(1)
	for i := range steps {
		x, y := spiral(points)
		loss, err := p.step(ctx, x, y)
		if err != nil {
			return nil, err
		}
		if losses = append(losses, loss); i%50 == 0 {
			fmt.Printf("step %3d: loss %.3f\n", i, loss)
		}
	}
	return losses, nil
}

func run(ctx context.Context, group *dist.Group) error {
	name, part := "trainer", autograd.WithEngine()
	if group.Rank() > 0 {
		name = stages[group.Rank()-1]
		part = serve(half(name))
	}
	a, err := rpc.Init(ctx, name, rpc.WithGroup(group), part)
	if err != nil {
		return err
	}
	defer a.Close()
	if group.Rank() == 0 {
		if _, err := train(ctx, a); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 1+len(stages), dist.Main(run)))
}
