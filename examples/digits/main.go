// SPDX-License-Identifier: Apache-2.0

// Command digits trains a small convolutional network on two ranks to read
// handwritten digits, and tests it on images that it has not seen.
package main

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	epochs    = 20
	batchSize = 64 // images of a step, all ranks together
)

// Net takes images [batch, 1, 8, 8] and returns a score for each of the ten digits [batch, 10].
type Net struct {
	Conv1, Conv2 *nn.Conv2d
	Out          *nn.Linear
}

// Forward halves the size of the image twice.
func (m *Net) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	half := tensor.Pool2dOptions{Kernel: nn.Square(2)}
	x = tensor.MaxPool2d(c.Call(m.Conv1, x).ReLU(), half)
	x = tensor.MaxPool2d(c.Call(m.Conv2, x).ReLU(), half)
	return c.Call(m.Out, x.Flatten(1, 3))
}

// collate makes batches and scales pixels to about -1 … 1.
var collate = vision.Collate(1, vision.Normalize{Mean: []float64{0.3}, Std: []float64{0.4}})

// tensors returns a batch in the form that the network takes.
func tensors(b vision.Batch) (images, labels *tensor.Tensor) {
	return tensor.FromFloat32(b.Images, b.N, b.Channels, b.Height, b.Width), tensor.FromInt64(b.Labels)
}

// train runs on every rank. It returns the accuracy on the test images.
func train(ctx context.Context, group *dist.Group) (accuracy float64, err error) {
	training, test, err := vision.Digits()
	if err != nil {
		return 0, err
	}

	// Every epoch has the images in another order, each shifted a little.
	order, err := data.NewStream(data.StreamConfig{
		Len: training.Len(), Total: batchSize, Rank: group.Rank(), World: group.Size(), Shuffle: true, Seed: 1,
	})
	if err != nil {
		return 0, err
	}
	moved := vision.Apply(training, 1, vision.RandomCrop{Width: 8, Height: 8, Pad: 1})
	loader, err := data.NewLoader(ctx, moved, order, collate, data.LoaderConfig{Workers: 1}, data.LoaderState{})
	if err != nil {
		return 0, err
	}
	defer loader.Close()

	b := &nn.Build{}
	same := nn.Conv2dOptions{Padding: nn.Square(1)}
	net := &Net{nn.NewConv2d(b, 1, 32, nn.Square(3), same), nn.NewConv2d(b, 32, 64, nn.Square(3), same), nn.NewLinear(b, 256, 10)}
	model, err := parallel.NewDDP(ctx, net, group)
	if err != nil {
		return 0, err
	}
	opt := optim.NewAdamW(nn.Parameters(net), optim.AdamWOptions{LR: 3e-3})
	steps := epochs * training.Len() / batchSize
	schedule := optim.WarmupCosine(steps/20, steps, 0.01)
	for step := range steps {
		batch, err := loader.Next(ctx)
		if err != nil {
			return 0, err
		}
		images, labels := tensors(batch)
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, images), labels)
		})
		if err != nil {
			return 0, err
		}
		schedule.Apply(opt, step)
		opt.Step(nil)
		if (step+1)%(steps/5) == 0 {
			if accuracy, err = evaluate(ctx, group, net, test); err != nil {
				return 0, err
			}
			if group.Rank() == 0 {
				fmt.Printf("step %3d  loss %.3f  test accuracy %.1f %%\n", step+1, loss, 100*accuracy)
			}
		}
	}
	return accuracy, nil
}

// evaluate returns the fraction of the test images that the network reads right.
// Each rank tests its share of them.
func evaluate(ctx context.Context, group *dist.Group, net *Net, test *vision.Set) (float64, error) {
	var samples []vision.Sample
	for i := group.Rank(); i < test.Len(); i += group.Size() {
		s, err := test.Get(ctx, data.Key{Index: i})
		if err != nil {
			return 0, err
		}
		samples = append(samples, s)
	}
	batch, err := collate(samples)
	if err != nil {
		return 0, err
	}
	images, labels := tensors(batch)
	c := nn.Evaluation(ctx)
	defer c.Close()
	right := tensor.Full(nn.Accuracy(c.Call(net, images), labels)*float64(batch.N), 1)
	if err := group.AllReduce(ctx, right, dist.Sum); err != nil {
		return 0, err
	}
	return right.Item() / float64(test.Len()), nil
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(func(ctx context.Context, group *dist.Group) error {
		_, err := train(ctx, group)
		return err
	})))
}
