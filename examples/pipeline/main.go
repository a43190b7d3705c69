// SPDX-License-Identifier: Apache-2.0

// Command pipeline trains a GPT whose layers are split among ranks. It learns to continue
// arithmetic sequences: 3 5 7 9 …
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
	order    = flag.String("schedule", "1f1b", "order in which the stages compute microbatches: gpipe, 1f1b, interleaved, interleaved-zb, zbv or dualpipev")
	numSteps = flag.Int("steps", 200, "number of steps")
)

// The numbers of a sequence are below vocab: 30 is followed by 1 in steps of 2. A step has
// numMicrobatches times batch sequences.
const vocab, length, batch, numMicrobatches = 31, 16, 4, 4

var config = models.GPTConfig{Vocab: vocab, Context: length, Width: 64, Heads: 4, Layers: 4}

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
	m, err := parallel.NewMesh(ctx, group, parallel.Sizes{PP: group.Size()})
	if err != nil {
		return err
	}
	defer m.Close()
	// The model has no memory yet: each rank makes the parameters of its stages and no others.
	gpt := models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(1), Device: tensor.Meta}, config)
	model, err := parallel.Parallelize(ctx, gpt, m, parallel.Config{Pipeline: parallel.PipelineConfig{
		Schedule: *order,
		// The inputs of a microbatch, of which only the shape counts.
		Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, batch, length)},
	}})
	if err != nil {
		return err
	}
	if err := model.Materialize(ctx, tensor.CPU()); err != nil {
		return err
	}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 3e-3})
	held := 0
	for _, p := range nn.Parameters(model) {
		if !model.IsAway(p) {
			held += p.Data().NumElems()
		}
	}
	fmt.Printf("%v: this rank holds %d of %d parameters\n", model, held, nn.NumParams(gpt))
	for step := range *numSteps {
		opt.ZeroGrad()
		microbatches := make([]parallel.Microbatch, numMicrobatches)
		for i := range microbatches {
			// All ranks take the same sequences: the first stage reads the inputs, and the last
			// one the targets.
			inputs, targets := sequences(tensor.NewGenerator(int64(step*numMicrobatches + i)))
			microbatches[i] = parallel.Microbatch{
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
				Loss: func(c *nn.Ctx) *tensor.Tensor {
					loss := c.CallN(&nn.CrossEntropyLoss{}, c.Call(model, inputs), targets)[0]
					return loss.MulScalar(1.0 / numMicrobatches)
				},
			}
		}
		loss, err := model.Step(ctx, microbatches)
		if err != nil {
			return err
		}
		// The norm is that of the whole model: each rank has the gradients of its stages.
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
