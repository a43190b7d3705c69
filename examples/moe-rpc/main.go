// SPDX-License-Identifier: Apache-2.0

// Command moe-rpc trains a mixture of experts. The trainer has a gate, which chooses an
// expert for each token. The experts are in other processes. Each gets its tokens, and
// is trained in its own process.
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
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	steps   = 301
	batch   = 128
	width   = 16
	experts = 3
	balance = 0.01 // weight of the loss term that gives all experts work
)

// NewExpert makes an expert from a seed. The expert stays in the process that makes it.
var NewExpert = rpc.NewMaker[int64, nn.Module]("expert.New")

func newExpert(seed int64) nn.Module {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	return nn.NewSequential(nn.NewLinear(b, width, 4), &nn.ReLU{}, nn.NewLinear(b, 4, width))
}

// Expert is a module that computes in another process, such as a remote.Module.
type Expert interface {
	Async(c *nn.Ctx, x *tensor.Tensor) *rpc.Future[*tensor.Tensor]
}

// Model is the part of the model in the trainer.
type Model struct {
	Embed   nn.Module
	Gate    nn.Module
	Head    nn.Module
	Experts []Expert
}

func newModel(experts []Expert) *Model {
	b := &nn.Build{}
	return &Model{
		Embed:   nn.NewSequential(nn.NewLinear(b, 2, width), &nn.Tanh{}),
		Gate:    nn.NewLinear(b, width, len(experts)),
		Head:    nn.NewLinear(b, width, 1),
		Experts: experts,
	}
}

// mix sends every token of h [n, width] to the expert with the highest weight of the
// gate. It returns the answers, multiplied by these weights. uneven is smallest when all
// experts have equal work. shares has the fraction of the tokens of each expert.
func (m *Model) mix(c *nn.Ctx, h *tensor.Tensor) (out, uneven *tensor.Tensor, shares []float32, err error) {
	n := h.Dim(0)
	probs := c.Call(m.Gate, h).Softmax(1)
	best := probs.ArgMax(1)
	weight := probs.Gather(1, best.Unsqueeze(1))

	// All experts compute at the same time.
	tokens := make([]*tensor.Tensor, len(m.Experts))
	answers := make([]*rpc.Future[*tensor.Tensor], len(m.Experts))
	shares = make([]float32, len(m.Experts))
	for e, expert := range m.Experts {
		tokens[e] = best.EqScalar(float64(e)).NonZero().Select(1, 0)
		shares[e] = float32(tokens[e].NumElems()) / float32(n)
		if shares[e] > 0 {
			answers[e] = expert.Async(c, h.IndexSelect(0, tokens[e]))
		}
	}
	out = tensor.Zeros(h.Shape()...)
	for e, answer := range answers {
		if answer == nil {
			continue
		}
		y, err := answer.Wait(c)
		if err != nil {
			return nil, nil, nil, err
		}
		out = out.IndexAdd(0, tokens[e], y.Mul(weight.IndexSelect(0, tokens[e])))
	}
	uneven = probs.Mean(0).Dot(tensor.FromFloat32(shares)).MulScalar(float64(len(shares)))
	return out, uneven, shares, nil
}

// forward returns the model's answers to x and the loss against y.
func (m *Model) forward(c *nn.Ctx, x, y *tensor.Tensor) (loss *tensor.Tensor, shares []float32, err error) {
	h := c.Call(m.Embed, x)
	mixed, uneven, shares, err := m.mix(c, h)
	if err != nil {
		return nil, nil, err
	}
	loss = tensor.MSE(c.Call(m.Head, h.Add(mixed)), y)
	return loss.Add(uneven.MulScalar(balance)), shares, nil
}

// sectors draws points [batch, 2] and values [batch, 1]. The values follow another law
// in each of three sectors of the plane.
func sectors(g *tensor.Generator) (x, y *tensor.Tensor) {
	xs, ys := make([]float32, 0, 2*batch), make([]float32, 0, batch)
	for range batch {
		angle, radius := 2*math.Pi*g.Float64(), 0.5+g.Float64()
		a, b := radius*math.Cos(angle), radius*math.Sin(angle)
		law := []float64{a + b, 1 - 2*b, a*b - 1}
		xs = append(xs, float32(a), float32(b))
		ys = append(ys, float32(law[int(3*angle/(2*math.Pi))]))
	}
	return tensor.FromFloat32(xs, batch, 2), tensor.FromFloat32(ys, batch, 1)
}

// train trains the model and returns the losses of all steps.
func train(ctx context.Context, a *rpc.Agent) (losses []float64, err error) {
	var all []Expert
	for e := range experts {
		expert, err := remote.New(ctx, a.PeerRank(1+e), NewExpert, int64(1+e))
		if err != nil {
			return nil, err
		}
		defer expert.Release()
		all = append(all, expert)
	}
	m := newModel(all)
	refs, err := remote.Parameters(ctx, a, m)
	if err != nil {
		return nil, err
	}
	opt, err := autograd.NewOptimizer(ctx, a, autograd.Adam(optim.AdamOptions{LR: 0.01}), refs)
	for _, r := range refs {
		r.Release()
	}
	if err != nil {
		return nil, err
	}
	defer opt.Close()
	points := tensor.NewGenerator(1)
	for i := range steps {
		x, y := sectors(points)
		var shares []float32
		loss, err := opt.Train(ctx, func(c *nn.Ctx) (loss *tensor.Tensor, err error) {
			loss, shares, err = m.forward(c, x, y)
			return loss, err
		})
		if err != nil {
			return nil, err
		}
		if losses = append(losses, loss); i%100 == 0 {
			fmt.Printf("step %3d: loss %.3f, tokens of the experts %.2f\n", i, loss, shares)
		}
	}
	return losses, nil
}

func run(ctx context.Context, group *dist.Group) error {
	name := "trainer"
	if group.Rank() > 0 {
		name = fmt.Sprintf("expert%d", group.Rank())
	}
	a, err := rpc.Init(ctx, name, rpc.WithGroup(group), autograd.WithEngine(), remote.Serve(),
		rpc.ServeMaker(NewExpert, func(ctx context.Context, seed int64) (nn.Module, error) { return newExpert(seed), nil }))
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
	launch.Exit(launch.Spawn(context.Background(), 1+experts, dist.Main(run)))
}
