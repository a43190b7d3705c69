// SPDX-License-Identifier: Apache-2.0

package parallel_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// tagger names a class for each token. It knows nothing of ranks.
type tagger struct {
	Words    *nn.Embedding
	Norm     *nn.LayerNorm
	Up, Down *nn.Linear
	Head     *nn.Linear
}

func newTagger() *tagger {
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	return &tagger{
		Words: nn.NewEmbedding(b, 100, 16), Norm: nn.NewLayerNorm(b, 16),
		Up: nn.NewLinear(b, 16, 64), Down: nn.NewLinear(b, 64, 16), Head: nn.NewLinear(b, 16, 10),
	}
}

// Forward turns int64 ids [batch, time] into logits [batch, time, 10].
func (m *tagger) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Words, ids)
	x = x.Add(c.Call(m.Down, c.Call(m.Up, c.Call(m.Norm, x)).GELU()))
	return c.Call(m.Head, x)
}

// A plan says, in a line for each module, how two ranks share a model of the user's own.
func ExampleParallelize() {
	plan, err := parallel.ParsePlan(`
words: vocabulary   # each rank has half of the rows
norm:  sequence     # and half of the tokens, between the other modules
up:    column       # and half of the hidden channels
down:  row
head:  column       # and half of the classes
.:     logits
`)
	if err != nil {
		log.Fatal(err)
	}
	err = dist.Spawn(context.Background(), 2, func(ctx context.Context, group *dist.Group) error {
		mesh, err := parallel.NewMesh(ctx, group, parallel.Sizes{TP: 2})
		if err != nil {
			return err
		}
		defer mesh.Close()
		net := newTagger()
		whole := nn.NumParams(net)
		model, err := parallel.Parallelize(ctx, net, mesh, parallel.Config{Plan: plan})
		if err != nil {
			return err
		}
		opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 1e-2})
		ids := tensor.FromInt64([]int64{3, 14, 15, 92, 65, 35}, 1, 6)
		tags := tensor.FromInt64([]int64{1, 2, 3, 4, 5, 6}, 1, 6)
		for range 50 {
			opt.ZeroGrad()
			loss, err := model.Step(ctx, []parallel.Microbatch{{
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
				Loss: func(c *nn.Ctx) *tensor.Tensor {
					return c.CallN(&nn.CrossEntropyLoss{}, c.Call(model, ids), tags)[0]
				},
			}})
			if err != nil {
				return err
			}
			opt.Step(nil)
			if !(loss.Item() < 10) {
				return fmt.Errorf("the loss is %v", loss.Item())
			}
		}
		if group.Rank() == 0 {
			fmt.Println(model)
			fmt.Printf("a rank holds %d of %d parameters\n", nn.NumParams(model), whole)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// tp 2 (layers, vocabulary, loss, sequence between layers)
	// a rank holds 1989 of 3930 parameters
}

// microbatches of [rows, time] tokens, which a sampler trains on in each step.
const microbatches, rows, time = 2, 2, 16

// tokens returns the inputs and the targets of a microbatch.
func tokens(step, sampler, microbatch int) (inputs, targets *tensor.Tensor) {
	var in, out []int64
	for i := range int64(rows * time) {
		x := i + int64(7*step+3*sampler+microbatch)
		in, out = append(in, x%19), append(out, (x+1)%19)
	}
	return tensor.FromInt64(in, rows, time), tensor.FromInt64(out, rows, time)
}

// Eight ranks train a GPT in two stages. Each stage is shared by two ranks of fsdp, which have
// samples of their own, and each layer by two ranks of tp.
func ExampleParallelize_axes() {
	err := dist.Spawn(context.Background(), 8, func(ctx context.Context, g *dist.Group) error {
		m, err := parallel.NewMesh(ctx, g, parallel.Sizes{PP: 2, Replicate: 1, FSDP: 2, TP: 2})
		if err != nil {
			return err
		}
		defer m.Close()
		gpt := models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(1), Device: tensor.Meta},
			models.GPTConfig{Vocab: 19, Context: time, Width: 32, Heads: 4, Layers: 4})
		model, err := parallel.Parallelize(ctx, gpt, m, parallel.Config{
			Pipeline: parallel.PipelineConfig{Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, rows, time)}},
		})
		if err != nil {
			return err
		}
		defer model.Close()
		if err := model.Materialize(ctx, tensor.CPU()); err != nil {
			return err
		}
		var params []*nn.Parameter // that this rank has a part of
		for _, p := range nn.Parameters(model) {
			if !model.IsAway(p) {
				params = append(params, p)
			}
		}
		opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 0.01})
		sampler, _ := parallel.Sampler(m)
		for step := range 31 {
			var passes []parallel.Microbatch
			for i := range microbatches {
				inputs, targets := tokens(step, sampler, i)
				passes = append(passes, parallel.Microbatch{
					Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
					Loss: func(c *nn.Ctx) *tensor.Tensor {
						loss := c.CallN(&nn.CrossEntropyLoss{}, c.Call(model, inputs), targets)[0]
						return loss.MulScalar(1.0 / microbatches)
					},
				})
			}
			opt.ZeroGrad()
			loss, err := model.Step(ctx, passes)
			if err != nil {
				return err
			}
			_, scale, err := model.ClipGradNorm(ctx, params, 1)
			if err != nil {
				return err
			}
			opt.Step(scale)
			if step%10 == 0 && g.Rank() == 0 {
				fmt.Printf("step %2d  loss %.1f\n", step, loss.Item())
			}
		}
		if g.Rank() == 0 {
			fmt.Println(model)
			fmt.Println(model.Layout(gpt.Transformer.Blocks[0].MLP.In.Weight).Placements)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// step  0  loss 3.0
	// step 10  loss 1.5
	// step 20  loss 0.5
	// step 30  loss 0.1
	// pp 2 (2 stages by 1f1b, cut at transformer.h.2) × fsdp 2 (samples and parameters, in 3 units) × tp 2 (heads, layers, vocabulary, loss, sequence between layers)
	// [Shard(0) Shard(1)]
}
