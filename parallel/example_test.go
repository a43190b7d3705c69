// SPDX-License-Identifier: Apache-2.0

package parallel_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-ml/cohort/dist"
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
	// tp 2: layers, vocabulary, loss, sequence between layers over tp
	// a rank holds 1989 of 3930 parameters
}
