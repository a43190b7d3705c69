// SPDX-License-Identifier: Apache-2.0

// Command longcontext trains a Llama on sequences that no rank has alone. Each sequence begins
// with a name, and asks for it at places far behind it.
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
	numRanks  = flag.Int("ranks", 4, "number of ranks that share each sequence")
	numTokens = flag.Int("tokens", 256, "tokens of a sequence")
	numSteps  = flag.Int("steps", 101, "number of steps")
	attention = flag.String("attention", "ring", "how tokens of different ranks attend to each other: ring or heads")
)

// Tokens are numNames names, a question, and as many other words.
const numNames, question, vocab, batch = 8, 8, 17, 16

// sequences draws sequences and returns them [batch, tokens], and beside each question its answer.
// Other tokens have no target.
func sequences(g *tensor.Generator) (inputs, targets *tensor.Tensor) {
	var in, out []int64
	for range batch {
		name := int64(g.Float64() * numNames)
		in, out = append(in, name), append(out, tensor.IgnoreIndex)
		for range *numTokens - 1 {
			if g.Float64() < 0.1 {
				in, out = append(in, question), append(out, name)
			} else {
				in, out = append(in, question+1+int64(g.Float64()*numNames)), append(out, tensor.IgnoreIndex)
			}
		}
	}
	return tensor.FromInt64(in, batch, *numTokens), tensor.FromInt64(out, batch, *numTokens)
}

// learn runs on every rank.
func learn(ctx context.Context, group *dist.Group) error {
	m, err := parallel.NewMesh(ctx, group, parallel.Sizes{CP: group.Size()})
	if err != nil {
		return err
	}
	defer m.Close()
	llama := models.NewLlama(&nn.Build{Generator: tensor.NewGenerator(1)}, models.LlamaConfig{
		Vocab: vocab, Context: *numTokens, Width: 32, Hidden: 64, Heads: 4, KeyHeads: 4, Layers: 2,
	})
	model, err := parallel.Parallelize(ctx, llama, m, parallel.Config{Context: parallel.ContextConfig{Attention: *attention}})
	if err != nil {
		return err
	}
	if group.Rank() == 0 {
		fmt.Println(model)
	}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 1e-2})
	var peak int64 // bytes of a rank's activations
	for step := range *numSteps {
		// All ranks are given the same whole sequences, and the model takes its part.
		inputs, targets := sequences(tensor.NewGenerator(int64(step)))
		opt.ZeroGrad()
		loss, err := model.Step(ctx, []parallel.Microbatch{{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				c.Tape().AfterBackward(func(context.Context) error { peak = c.Tape().PeakBytes(); return nil })
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
		if step%25 == 0 && group.Rank() == 0 {
			fmt.Printf("step %3d  loss %.3f  activations %.1f MB a rank\n", step, loss.Item(), float64(peak)/1e6)
		}
	}
	right, err := answers(ctx, model)
	if err != nil || group.Rank() != 0 {
		return err
	}
	fmt.Printf("right answers: %.0f %%\n", 100*right)
	return nil
}

// answers returns the share of questions that the model answers right. In an evaluation the result
// is that of the whole sequences, on every rank.
func answers(ctx context.Context, model nn.Module) (share float64, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	inputs, targets := sequences(tensor.NewGenerator(1 << 20))
	best := c.Call(model, inputs).ArgMax(-1).Int64s()
	asked, right := 0, 0
	for i, want := range targets.Int64s() {
		if want != tensor.IgnoreIndex {
			asked++
			if best[i] == want {
				right++
			}
		}
	}
	return float64(right) / float64(asked), nil
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), *numRanks, dist.Main(learn)))
}
