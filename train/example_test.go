// SPDX-License-Identifier: Apache-2.0

package train_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

// Two ranks fit a line to points. Run again, the same program would find its
// directory complete; stopped, it would go on.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	points := make([][2]float32, 64)
	for i := range points {
		x := float32(i)/32 - 1
		points[i] = [2]float32{x, 3*x + 1}
	}
	collate := func(ps [][2]float32) (batch [2]*tensor.Tensor, err error) {
		x, y := make([]float32, len(ps)), make([]float32, len(ps))
		for i, p := range ps {
			x[i], y[i] = p[0], p[1]
		}
		return [2]*tensor.Tensor{tensor.FromFloat32(x, len(x), 1), tensor.FromFloat32(y, len(y), 1)}, nil
	}

	err = dist.Spawn(context.Background(), 2, func(ctx context.Context, group *dist.Group) error {
		line := nn.NewLinear(&nn.Build{}, 1, 1)
		task := train.Task[[2]*tensor.Tensor]{
			Name: "line", Model: line, Samples: len(points),
			Optimizer: optim.NewSGD(nn.Parameters(line), optim.SGDOptions{LR: 0.5}),
			Loss: func(c *nn.Ctx, model any, batch [2]*tensor.Tensor) *tensor.Tensor {
				return tensor.MSE(c.Call(model.(nn.Module), batch[0]), batch[1])
			},
			Feed: func(ctx context.Context, from data.LoaderState) (train.Feed[[2]*tensor.Tensor], error) {
				order, err := data.NewStream(data.StreamConfig{
					Len: len(points), Batch: 8, Rank: group.Rank(), World: group.Size(), Shuffle: true, Seed: 1,
				})
				if err != nil {
					return nil, err
				}
				return data.NewLoader(ctx, data.FromSlice(points), order, collate, data.LoaderConfig{}, from)
			},
			Finish: func(context.Context) (train.Ending, error) {
				fmt.Printf("y = %.2f x + %.2f\n", line.Weight.Data().Item(), line.Bias.Data().Item())
				return train.Ending{}, nil
			},
		}
		return train.Run(ctx, group, task, train.Options{Out: filepath.Join(dir, "run"), Epochs: 10, Batch: 16}, train.Discard)
	})
	fmt.Println(err)
	// Output:
	// y = 3.00 x + 1.00
	// <nil>
}

// A program with a loop of its own goes on where it was, whatever the number of
// ranks was then.
func ExampleResume() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	run := func(ctx context.Context, group *dist.Group) error {
		net := nn.NewLinear(&nn.Build{}, 3, 2)
		step, err := train.Resume(ctx, group, dir, func(ck *checkpoint.Checkpoint) error {
			return ck.LoadTensors(checkpoint.ModelFile, nn.StateDict(net).All())
		})
		if err != nil {
			return err
		}
		if group.Rank() == 0 {
			fmt.Printf("%d ranks begin after step %d\n", group.Size(), step)
		}
		for range 2 { // as many steps as there was time for
			if step++; group.Rank() == 0 {
				err = checkpoint.Save(ctx, dir, step, func(w *checkpoint.Writer) error {
					return w.WriteTensors(checkpoint.ModelFile, nn.StateDict(net).All(), nil)
				}, 2)
			}
		}
		return err
	}
	for _, ranks := range []int{2, 3} {
		if err := dist.Spawn(context.Background(), ranks, run); err != nil {
			panic(err)
		}
	}
	// Output:
	// 2 ranks begin after step 0
	// 3 ranks begin after step 2
}
