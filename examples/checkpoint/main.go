// SPDX-License-Identifier: Apache-2.0

// Command checkpoint has a loop of its own, trains on ranks that share out a model, and saves
// checkpoints beside the training. When a rank fails, the next call goes on from the last
// checkpoint, on any number of ranks.
//
//	go run ./examples/checkpoint -kill 70
//	go run ./examples/checkpoint -ranks 3
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

var (
	numRanks = flag.Int("ranks", 4, "number of ranks")
	numSteps = flag.Int("steps", 200, "number of steps, with those of earlier calls")
	kill     = flag.Int("kill", 0, "rank 2 ends without a word after this step, as on a machine that fails; 0: it does not")
	out      = flag.String("out", "out/checkpoint", "directory of the checkpoints")
)

// batch is the number of points of all ranks in a step.
const batch, width = 96, 64

// points draws this rank's share of the points of a step, and returns them and the values of
// the function that is learned, both [points, 1].
func points(step, rank, size int) (x, y *tensor.Tensor) {
	g, first, end := tensor.NewGenerator(int64(step)), batch*rank/size, batch*(rank+1)/size
	in := make([]float32, batch)
	for i := range in {
		in[i] = float32(4*g.Float64() - 2)
	}
	x = tensor.FromFloat32(in[first:end], end-first, 1)
	return x, x.Mul(x).Mul(x).Sub(x.MulScalar(2))
}

// learn runs on every rank.
func learn(ctx context.Context, group *dist.Group) error {
	m, err := mesh.New(ctx, group, mesh.Axis{Name: "fsdp"})
	if err != nil {
		return err
	}
	defer m.Close()
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	net := nn.NewSequential(nn.NewLinear(b, 1, width), &nn.Tanh{}, nn.NewLinear(b, width, width), &nn.Tanh{}, nn.NewLinear(b, width, 1))
	model, err := parallel.FullyShard(ctx, net, m)
	if err != nil {
		return err
	}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 5e-3})

	// What this rank holds of the model and of the optimizer, and a value of the program.
	var seen int
	state, to := train.StateOf(model, opt), storage.Dir(*out)
	state.Values = map[string]any{"points_seen": &seen}
	first, err := checkpoint.Load(ctx, group, to, state) // 0 where there is no checkpoint
	if err != nil {
		return err
	}
	opt.SetNumSteps(first)
	say := func(format string, args ...any) {
		if group.Rank() == 0 {
			fmt.Printf(format+"\n", args...)
		}
	}
	say("%v: begins after step %d, %d points seen", model, first, seen)

	saver, err := checkpoint.NewSaver(ctx, group, to, checkpoint.SaverOptions{Async: true, Keep: checkpoint.Retention{Last: 2}})
	if err != nil {
		return err
	}
	defer saver.Close(ctx)
	for step := first + 1; step <= *numSteps; step++ {
		x, y := points(step, group.Rank(), group.Size())
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor { return tensor.MSE(c.Call(model, x), y) })
		if err != nil {
			return err
		}
		opt.Step(nil)
		seen += batch
		if step%50 == 0 {
			say("step %3d  loss %.4f", step, loss)
		}
		if step%20 == 0 { // returns when the state is copied, and writes beside the next steps
			if _, err := saver.Save(ctx, step, state); err != nil {
				return err
			}
		}
		if step == *kill && group.Rank() == 2 {
			os.Exit(3)
		}
	}
	return saver.Close(ctx) // waits for the last save
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), *numRanks, dist.Main(learn)))
}
