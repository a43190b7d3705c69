// SPDX-License-Identifier: Apache-2.0

// Command moe trains a mixture of experts whose experts are split among ranks. Each rank takes
// sequences of its own, and sends every token to the ranks that have its experts. It learns to
// continue arithmetic sequences: 3 5 7 9 …
package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numRanks = flag.Int("ranks", 2, "number of ranks")
	numSteps = flag.Int("steps", 200, "number of steps")
)

// The numbers of a sequence are below vocab: 30 is followed by 1 in steps of 2.
const vocab, length, batch = 31, 16, 16

var config = models.MoEConfig{
	LlamaConfig: models.LlamaConfig{Vocab: vocab, Context: length, Width: 32, Hidden: 64, Heads: 4, KeyHeads: 2, Layers: 2, Tied: true},
	Experts:     8, Active: 2, SharedHidden: 32,
	Router: nn.MoEOptions{Balance: 0.02}, // weight of the loss that keeps experts equally busy
}

// sequences draws sequences and returns them [batch, length], and beside each number the
// one that follows it.
func sequences(g *tensor.Generator) (inputs, targets *tensor.Tensor) {
	var in, next []int64
	for range batch {
		at, by := int64(g.Float64()*vocab), int64(g.Float64()*5)+1
		for range length {
			in, next = append(in, at), append(next, (at+by)%vocab)
			at = (at + by) % vocab
		}
	}
	return tensor.FromInt64(in, batch, length), tensor.FromInt64(next, batch, length)
}

// learn runs on every rank.
func learn(ctx context.Context, group *dist.Group) error {
	m, err := parallel.NewMesh(ctx, group, parallel.Sizes{EP: group.Size()})
	if err != nil {
		return err
	}
	defer m.Close()
	moe := models.NewMoETransformer(&nn.Build{Generator: tensor.NewGenerator(1)}, config)
	whole := nn.NumParams(moe)
	model, err := parallel.Parallelize(ctx, moe, m, parallel.Config{})
	if err != nil {
		return err
	}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 3e-3})
	if group.Rank() == 0 {
		fmt.Printf("%v: a rank holds %d of %d parameters\n", model, nn.NumParams(model), whole)
	}
	for step := range *numSteps {
		// Every rank draws other sequences.
		inputs, targets := sequences(tensor.NewGenerator(int64(step*group.Size() + group.Rank())))
		opt.ZeroGrad()
		// Step adds the balance loss of the layers to what is trained. The loss that it returns
		// is without it.
		loss, err := model.Step(ctx, []parallel.Microbatch{{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return c.CallN(&nn.CrossEntropyLoss{}, c.Call(model, inputs), targets)[0]
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
