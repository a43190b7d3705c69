// SPDX-License-Identifier: Apache-2.0

// Command pytorch-mixed has ranks of PyTorch and ranks of Cohort in one job:
//
//	go run ./examples/pytorch-mixed          two of each train one model
//	go run ./examples/pytorch-mixed feed     a Go rank makes the batches for two PyTorch ranks
//	go run ./examples/pytorch-mixed store    a Python script uses a store that a Go program serves
//
// It needs a Python with PyTorch 1.13 or 2.2 and later: python3, or the one that
// --python names.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	epochs    = 4
	batchSize = 32 // images of a step of one rank
)

// Net is the Net of train.py. It takes images [batch, 1, 28, 28] and returns a score
// for each of the ten digits [batch, 10].
type Net struct {
	Conv1 *nn.Conv2d
	Norm  *nn.BatchNorm2d
	Conv2 *nn.Conv2d
	Out   *nn.Linear
}

func newNet(b *nn.Build) *Net {
	same := nn.Conv2dOptions{Padding: nn.Square(1)}
	return &Net{
		Conv1: nn.NewConv2d(b, 1, 16, nn.Square(3), same),
		Norm:  nn.NewBatchNorm2d(b, 16, nn.BatchNormOptions{}),
		Conv2: nn.NewConv2d(b, 16, 32, nn.Square(3), same),
		Out:   nn.NewLinear(b, 32*7*7, 10),
	}
}

// Forward halves the size of the image twice.
func (m *Net) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	half := tensor.Pool2dOptions{Kernel: nn.Square(2)}
	x = tensor.MaxPool2d(m.Norm.ReLU(c, c.Call(m.Conv1, x)), half)
	x = tensor.MaxPool2d(c.Call(m.Conv2, x).ReLU(), half)
	return c.Call(m.Out, x.Flatten(1, 3))
}

// collate makes batches and scales pixels to about -1 … 1.
var collate = vision.Collate(1, vision.Normalize{Mean: []float64{0.3}, Std: []float64{0.4}})

// tensors returns a batch in the form that the network takes.
func tensors(b vision.Batch) (images, labels *tensor.Tensor) {
	return tensor.FromFloat32(b.Images, b.N, b.Channels, b.Height, b.Width), tensor.FromInt64(b.Labels)
}

// rank runs a Go rank, a member of the process group that PyTorch's ranks call
// "gloo".
func rank(ctx context.Context, what, dir string) (err error) {
	group, err := dist.Init(ctx, dist.WithBackend("gloo"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	if what == "feed" {
		// In PyTorch all ranks call new_group, also those that are not members.
		if _, err := group.NewGroup(ctx, []int{0, 1}); err != nil {
			return err
		}
		return feed(ctx, group, dir)
	}
	return train(ctx, group, dir)
}

// train runs on a Go rank while PyTorch's ranks run train.py.
func train(ctx context.Context, group *dist.Group, dir string) error {
	training, test, err := vision.OpenMNIST(dir)
	if err != nil {
		return err
	}
	sampler, err := data.NewDistributedSampler(data.DistributedConfig{
		Len: training.Len(), NumReplicas: group.Size(), Rank: group.Rank(), Shuffle: true, Batch: batchSize,
	})
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(ctx, training, sampler, collate, data.LoaderConfig{Workers: 1}, data.LoaderState{})
	if err != nil {
		return err
	}
	defer loader.Close()

	net := newNet(&nn.Build{})
	model, err := parallel.NewDDP(ctx, net, group, parallel.WithPyTorch(parallel.PyTorchOptions{}))
	if err != nil {
		return err
	}
	opt := optim.NewSGD(nn.Parameters(net), optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-4})
	steps := (sampler.NumSamples() + batchSize - 1) / batchSize // of an epoch
	for range epochs {
		sum := 0.0
		for range steps {
			batch, err := loader.Next(ctx)
			if err != nil {
				return err
			}
			images, labels := tensors(batch)
			opt.ZeroGrad()
			loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
				return tensor.CrossEntropy(c.Call(model, images), labels)
			})
			if err != nil {
				return err
			}
			opt.Step(nil)
			sum += loss
		}
		right, err := countRight(ctx, net, test, group)
		if err != nil {
			return err
		}
		// The loss and accuracy of all ranks. train.py adds and prints them.
		all := tensor.FromFloat32([]float32{float32(sum) / float32(steps), float32(right)}, 2)
		if err := group.AllReduce(ctx, all, dist.Sum); err != nil {
			return err
		}
	}
	return compare(ctx, net, group)
}

// countRight counts the right answers in this rank's share of the test images.
func countRight(ctx context.Context, net *Net, test *vision.Set, group *dist.Group) (right int, err error) {
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
	defer c.Recover(&err)
	for i, digit := range c.Call(net, images).ArgMax(1).Int64s() {
		if digit == labels.Int64s()[i] {
			right++
		}
	}
	return right, nil
}

// compare reports whether all ranks have the same parameters, bit for bit.
func compare(ctx context.Context, net *Net, group *dist.Group) error {
	sum, n := int64(0), int64(0)
	for _, p := range nn.Parameters(net) {
		for _, v := range p.Data().Float32s() {
			n++
			sum += n * int64(int32(math.Float32bits(v))) // wraps around, as in train.py
		}
	}
	most, least := tensor.FromInt64([]int64{sum}), tensor.FromInt64([]int64{sum})
	if err := group.AllReduce(ctx, most, dist.Max); err != nil {
		return err
	}
	if err := group.AllReduce(ctx, least, dist.Min); err != nil {
		return err
	}
	verdict := "the same as everywhere"
	if most.Int64s()[0] != least.Int64s()[0] {
		verdict = "not those of other ranks"
	}
	fmt.Printf("Go: %d parameters, sum %016x, %s\n", n, uint64(sum), verdict)
	return nil
}

// feed runs on the Go rank while PyTorch's ranks run feed.py. It makes their
// batches.
func feed(ctx context.Context, group *dist.Group, dir string) error {
	training, _, err := vision.OpenMNIST(dir)
	if err != nil {
		return err
	}
	trainers := group.Size() - 1 // the last rank is this one
	order, err := data.NewStream(data.StreamConfig{Len: training.Len(), Total: trainers * batchSize, World: 1, Shuffle: true})
	if err != nil {
		return err
	}
	moved := vision.Apply(training, 1, vision.RandomCrop{Width: 28, Height: 28, Pad: 2})
	loader, err := data.NewLoader(ctx, moved, order, collate, data.LoaderConfig{Workers: 2}, data.LoaderState{})
	if err != nil {
		return err
	}
	defer loader.Close()
	steps := 2 * training.Len() / (trainers * batchSize)
	// The first message says how many batches there will be.
	for rank := range trainers {
		if err := group.Send(ctx, tensor.FromInt64([]int64{int64(steps), batchSize}), rank); err != nil {
			return err
		}
	}
	for range steps {
		batch, err := loader.Next(ctx)
		if err != nil {
			return err
		}
		images, labels := tensors(batch)
		for rank := range trainers {
			if err := group.Send(ctx, images.Narrow(0, rank*batchSize, batchSize), rank); err != nil {
				return err
			}
			if err := group.Send(ctx, labels.Narrow(0, rank*batchSize, batchSize), rank); err != nil {
				return err
			}
		}
	}
	result := tensor.Zeros(2)
	if err := group.Recv(ctx, result, 0); err != nil {
		return err
	}
	r := result.Float32s()
	fmt.Printf("fed %d batches of %d images to %d PyTorch ranks; their loss went from %.2f to %.2f\n", steps, batchSize, trainers, r[0], r[1])
	return nil
}

// useStore serves a store and lets a Python script use it.
func useStore(ctx context.Context, python string) error {
	server, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer server.Close()
	s := server.Store()
	if err := s.Set(ctx, "answer", []byte("hello from Go")); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, "-", server.Addr())
	cmd.Stdin, cmd.Stdout = strings.NewReader(storeScript), os.Stdout
	out := new(bytes.Buffer)
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the script: %w\n%s", err, out)
	}
	said, err := s.Get(ctx, "greeting")
	if err != nil {
		return err
	}
	visits, err := s.Add(ctx, "visits", 1)
	if err != nil {
		return err
	}
	fmt.Printf("Python says: %s\nvisits: %d\n", said, visits)
	return nil
}
