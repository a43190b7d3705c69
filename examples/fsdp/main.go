// SPDX-License-Identifier: Apache-2.0

// Command fsdp trains a Llama whose parameters are split among ranks. It learns to continue
// arithmetic sequences: 3 5 7 9 …
package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

var (
	numRanks = flag.Int("ranks", 4, "number of ranks")
	replicas = flag.Int("replicate", 2, "number of copies of the model")
	numSteps = flag.Int("steps", 200, "number of steps, with those of earlier calls")
	out      = flag.String("out", "out/fsdp", "directory of the checkpoints")
)

// The numbers of a sequence are below vocab: 30 is followed by 1 in steps of 2.
const vocab, length, batch = 31, 16, 16

var config = models.LlamaConfig{
	Vocab: vocab, Context: length, Width: 64, Hidden: 160, Heads: 4, KeyHeads: 2, Layers: 4, Tied: true,
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
	// The ranks of a row of the mesh hold one copy of the model together.
	m, err := mesh.New(ctx, group, mesh.Axis{Name: "replicate", Size: *replicas}, mesh.Axis{Name: "fsdp"})
	if err != nil {
		return err
	}
	defer m.Close()
	// The model has no memory yet: each rank makes its shards and nothing else.
	llama := models.NewLlama(&nn.Build{Generator: tensor.NewGenerator(1), Device: tensor.Meta}, config)
	whole := nn.NumParams(llama)
	model, err := parallel.FullyShard(ctx, llama, m)
	if err != nil {
		return err
	}
	if err := model.Materialize(ctx, tensor.CPU()); err != nil {
		return err
	}
	// From here on a parameter is this rank's shard, and so is the optimizer's state.
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 3e-3})
	if group.Rank() == 0 {
		fmt.Printf("%v%v: a rank holds %d of %d parameters\n", m, model, nn.NumParams(model), whole)
	}
	first, err := train.Resume(ctx, group, *out, func(ck *checkpoint.Checkpoint) error {
		opt.SetNumSteps(ck.Step)
		if err := ck.LoadParts(checkpoint.Model, train.ModelParts(model)); err != nil {
			return err
		}
		return ck.LoadParts(checkpoint.Optimizer, train.OptimizerParts(model, opt))
	})
	if err != nil {
		return err
	}
	for step := first; step < *numSteps; step++ {
		// Every rank draws other sequences in every step.
		inputs, targets := sequences(tensor.NewGenerator(int64(step*group.Size() + group.Rank())))
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, inputs), targets)
		})
		if err != nil {
			return err
		}
		// The norm is that of the whole model: each rank has a part of it.
		_, scale, err := model.ClipGradNorm(ctx, nn.Parameters(model), 1)
		if err != nil {
			return err
		}
		opt.Step(scale)
		if step%50 == 0 && group.Rank() == 0 {
			fmt.Printf("step %3d  loss %.3f\n", step, loss)
		}
	}
	if first >= *numSteps {
		return nil // all steps were done by earlier calls
	}
	return save(ctx, group, *numSteps, model, opt)
}

// save writes a checkpoint: each rank its own shards.
func save(ctx context.Context, group *dist.Group, step int, model *parallel.FSDP, opt optim.Optimizer) error {
	state := checkpoint.State{Sections: map[string][]checkpoint.Part{
		checkpoint.Model: train.ModelParts(model), checkpoint.Optimizer: train.OptimizerParts(model, opt),
	}}
	if err := checkpoint.Save(ctx, group, storage.Dir(*out), step, state, checkpoint.WithRetention(checkpoint.KeepLast(1))); err != nil {
		return err
	}
	if group.Rank() == 0 {
		fmt.Println("saved", checkpoint.Path(*out, step))
	}
	return nil
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), *numRanks, dist.Main(learn)))
}
