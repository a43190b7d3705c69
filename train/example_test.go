// SPDX-License-Identifier: Apache-2.0

package train_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
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
			Optimizer: func(params []*nn.Parameter) optim.Optimizer {
				return optim.NewSGD(params, optim.SGDOptions{LR: 0.5})
			},
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
			Finish: func(context.Context, any) (train.Ending, error) {
				if group.Rank() == 0 {
					fmt.Printf("y = %.2f x + %.2f\n", line.Weight.Data().Item(), line.Bias.Data().Item())
				}
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

// A loss logs the accuracy of its batch, and a histogram of the logits: rank 0 keeps them in the history
// and in the TensorBoard file of the run.
func ExampleLog() {
	loss := func(c *nn.Ctx, model any, batch [2]*tensor.Tensor) *tensor.Tensor {
		logits := c.Call(model.(nn.Module), batch[0])
		right, classes := 0.0, logits.ArgMax(1).Int64s()
		for i, class := range batch[1].Int64s() {
			if classes[i] == class {
				right++
			}
		}
		accuracy := right / float64(len(classes))
		train.Log(c).Scalar("accuracy", accuracy)
		train.Log(c).Histogram("logits", logits.Float32s())
		return tensor.CrossEntropy(logits, batch[1])
	}
	model := nn.NewLinear(&nn.Build{}, 2, 2)
	batch := [2]*tensor.Tensor{tensor.FromFloat32([]float32{1, 2, 3, 4}, 2, 2), tensor.FromInt64([]int64{0, 1}, 2)}
	c := nn.Evaluation(context.Background())
	defer c.Close()
	fmt.Println(loss(c, model, batch).Shape()) // outside of a run nothing is logged
	// Output: []
}

// A program with a loop of its own goes on where it was, whatever the number of
// ranks was then: with its weights, what the optimizer remembers, and the samples
// that would have come.
func ExampleResume() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	samples := data.FromSlice([]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	collate := func(of []float32) ([]float32, error) { return of, nil }
	run := func(ctx context.Context, group *dist.Group) error {
		net := nn.NewLinear(&nn.Build{}, 1, 1)
		opt := optim.NewAdamW(nn.Parameters(net), optim.AdamWOptions{LR: 0.01})
		var state data.LoaderState // where the samples begin
		step, err := train.Resume(ctx, group, dir, func(ck *checkpoint.Checkpoint) error {
			opt.SetNumSteps(ck.Step)
			return errors.Join(
				ck.LoadTensors(checkpoint.Model, nn.StateDict(net).All()),
				ck.LoadTensors(checkpoint.Optimizer, opt.State().All()),
				ck.Value("loader", &state),
			)
		})
		if err != nil {
			return err
		}
		order, err := data.NewStream(data.StreamConfig{Len: 16, Total: 6, Rank: group.Rank(), World: group.Size(), Seed: 1})
		if err != nil {
			return err
		}
		loader, err := data.NewLoader(ctx, samples, order, collate, data.LoaderConfig{}, state)
		if err != nil {
			return err
		}
		defer loader.Close()
		if group.Rank() == 0 {
			fmt.Printf("%d ranks begin after step %d and %d samples\n", group.Size(), step, state.Position)
		}
		for range 2 { // as many steps as there was time for
			if _, err := loader.Next(ctx); err != nil {
				return err
			}
			opt.Step(nil) // after a backward pass, which is left out here
			step++
			if group.Rank() == 0 {
				err := checkpoint.Save(ctx, nil, storage.Dir(dir), step, checkpoint.State{
					Sections: map[string][]checkpoint.Part{
						checkpoint.Model:     checkpoint.Whole(nn.StateDict(net).All()),
						checkpoint.Optimizer: checkpoint.Whole(opt.State().All()),
					},
					Values: map[string]any{"loader": loader.State()},
				}, checkpoint.WithRetention(checkpoint.KeepLast(2)))
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, ranks := range []int{2, 3} {
		if err := dist.Spawn(context.Background(), ranks, run); err != nil {
			panic(err)
		}
	}
	// Output:
	// 2 ranks begin after step 0 and 0 samples
	// 3 ranks begin after step 2 and 12 samples
}

// A program tells the classes of texts with a folder of Hugging Face's, or with a run of
// `cohort train classify`: the tokenizer and the names of the classes are in the folder.
func ExampleLoad() {
	ctx := context.Background()
	m, err := train.Load(ctx, storage.Dir("testdata/classifier"), nil)
	if err != nil {
		panic(err)
	}
	p, err := m.Predict(ctx, []train.Input{{Text: "tea in the kitchen, warm and lovely"}}, 0)
	if err != nil {
		panic(err)
	}
	fmt.Println(m.Classes(), len(p[0].Probabilities), p[0].Probability > 1./3)
	// Output: [calm glad sad] 3 true
}
