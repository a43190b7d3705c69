// SPDX-License-Identifier: Apache-2.0

// Command tensor trains a model whose matrices are split among ranks, by a plan of a few lines.
// The model learns to continue arithmetic sequences from their last two numbers: 3 5 → 7.
package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numRanks = flag.Int("ranks", 4, "number of ranks")
	tp       = flag.Int("tp", 2, "ranks that share each matrix")
	numSteps = flag.Int("steps", 200, "number of steps")
)

// The numbers of a sequence are below vocab: 30 is followed by 1 in steps of 2.
const vocab, width, hidden, batch = 31, 32, 128, 64

// predictor names the number after two numbers. It knows nothing of ranks.
type predictor struct {
	Numbers  *nn.Embedding
	Up, Down *nn.Linear
	Norm     *nn.LayerNorm
	Head     *nn.Linear
}

func newPredictor(b *nn.Build) *predictor {
	return &predictor{
		Numbers: nn.NewEmbedding(b, vocab, width), Up: nn.NewLinear(b, 2*width, hidden), Down: nn.NewLinear(b, hidden, 2*width),
		Norm: nn.NewLayerNorm(b, 2*width), Head: nn.NewLinear(b, 2*width, vocab),
	}
}

// plan says which matrices are cut, and along which side. Up is cut into columns and Down into
// rows, so that a rank computes a part of the hidden layer, and the sums of Down are added up.
const plan = `
numbers: vocabulary
up:      column
down:    row
head:    column
.:       logits
`

// Forward maps two numbers [batch, 2] to the scores of the next one [batch, vocab].
func (p *predictor) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := c.Call(p.Numbers, x).Reshape(x.Dim(0), -1) // [batch, 2·width]
	h = h.Add(c.Call(p.Down, c.Call(p.Up, h).GELU()))
	return c.Call(p.Head, c.Call(p.Norm, h))
}

// sequences draws pairs of numbers [batch, 2] and the number after each pair [batch].
func sequences(g *tensor.Generator) (pairs, next *tensor.Tensor) {
	var in, out []int64
	for range batch {
		at, by := int64(g.Float64()*vocab), int64(g.Float64()*5)+1
		in, out = append(in, at, (at+by)%vocab), append(out, (at+2*by)%vocab)
	}
	return tensor.FromInt64(in, batch, 2), tensor.FromInt64(out, batch)
}

// learn runs on every rank.
func learn(ctx context.Context, group *dist.Group) error {
	// Ranks that share matrices take the same samples; the others are copies of them.
	m, err := parallel.NewMesh(ctx, group, parallel.Sizes{TP: *tp})
	if err != nil {
		return err
	}
	defer m.Close()
	rules, err := parallel.ParsePlan(plan)
	if err != nil {
		return err
	}
	net := newPredictor(&nn.Build{Generator: tensor.NewGenerator(1)})
	whole := nn.NumParams(net)
	model, err := parallel.Parallelize(ctx, net, m, parallel.Config{Plan: rules})
	if err != nil {
		return err
	}
	// From here on a parameter is this rank's part, and so is the optimizer's state.
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 3e-3})
	if group.Rank() == 0 {
		fmt.Printf("%v: a rank holds %d of %d parameters\n", model, nn.NumParams(model), whole)
	}
	sampler, numSamplers := parallel.Sampler(m)
	for step := range *numSteps {
		pairs, next := sequences(tensor.NewGenerator(int64(step*numSamplers + sampler)))
		opt.ZeroGrad()
		loss, err := model.Step(ctx, []parallel.Microbatch{{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			// Called so, the loss is computed from each rank's part of the scores.
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return c.CallN(&nn.CrossEntropyLoss{}, c.Call(model, pairs), next)[0]
			},
		}})
		if err != nil {
			return err
		}
		_, scale, err := model.ClipGradNorm(ctx, nn.Parameters(model), 1)
		if err != nil {
			return err
		}
		opt.Step(scale)
		if (step%50 == 0 || step == *numSteps-1) && group.Rank() == 0 {
			fmt.Printf("step %3d  loss %.3f\n", step, loss.Item())
		}
	}
	return nil
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), *numRanks, dist.Main(learn)))
}
