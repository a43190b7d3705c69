// SPDX-License-Identifier: Apache-2.0

// Command resnet trains a ResNet-50 on two ranks. It generates its images: stripes,
// whose direction is the class. torchvision opens its checkpoint.
//
//	go run ./examples/resnet
//
// With -data it trains on photographs, in one directory for each class.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

var (
	source  = flag.String("data", "", "directory of images; default is generated ones")
	out     = flag.String("out", "out/resnet", "directory of the run")
	numRank = flag.Int("ranks", 2, "number of ranks")
	steps   = flag.Int("steps", 60, "training steps")
	batch   = flag.Int("batch", 16, "images of all ranks in a step")
	side    = flag.Int("size", 48, "pixels of a side that the network sees")
	dtype   = flag.String("dtype", "float32", "float32, or bfloat16")
	workers = flag.Int("workers", 1, "goroutines a rank that make batches")
)

const (
	numStripes = 4   // classes of generated images
	numTest    = 64  // generated images for testing
	numTrain   = 512 // generated images for training
)

// stripes is the data set of generated images. Sample i has class i % 4. The rest of
// its look is random, from a generator whose seed depends on i.
func stripes(seed uint64, n int) data.Dataset[vision.Sample] {
	return data.FromFunc(n, func(_ context.Context, key data.Key) (vision.Sample, error) {
		const size = 64
		class, r := key.Index%numStripes, rand.New(rand.NewPCG(seed, uint64(key.Index)))
		angle := (float64(class) + 0.4*(r.Float64()-0.5)) * math.Pi / numStripes
		width, phase := 3+5*r.Float64(), 2*math.Pi*r.Float64()
		img := vision.Image{Width: size, Height: size, Channels: 3, Pix: make([]byte, size*size*3)}
		for i := range size * size {
			x, y := float64(i%size), float64(i/size)
			wave := math.Sin((x*math.Cos(angle)+y*math.Sin(angle))/width*math.Pi + phase)
			for c := range 3 {
				img.Pix[3*i+c] = byte(128 + 60*wave + 60*(r.Float64()-0.5))
			}
		}
		return vision.Sample{Image: img, Label: class}, nil
	})
}

// open returns the training images, the test images, and the number of their
// classes.
func open() (training, test data.Dataset[vision.Sample], classes int, err error) {
	if *source == "" {
		return stripes(1, numTrain), stripes(2, numTest), numStripes, nil
	}
	a, b, err := vision.Open(*source)
	if err != nil {
		return nil, nil, 0, err
	}
	return a, b, len(a.Classes()), nil
}

// collate makes batches, with pixels scaled as torchvision's models expect them.
var collate = vision.Collate(3, vision.ImageNet)

// tensors returns a batch in the form that the network takes.
func tensors(b vision.Batch) (images, labels *tensor.Tensor) {
	return tensor.FromFloat32(b.Images, b.N, b.Channels, b.Height, b.Width), tensor.FromInt64(b.Labels)
}

// learn runs on every rank.
func learn(ctx context.Context, group *dist.Group, report train.Reporter) error {
	training, test, classes, err := open()
	if err != nil {
		return err
	}
	// Training takes another random crop of an image each time, as for ImageNet.
	parts := vision.Apply(training, 1, vision.RandomResizedCrop{Width: *side, Height: *side, MinArea: 0.25})
	middle := vision.Apply(test, 1, vision.Resize{Short: *side * 8 / 7}, vision.CenterCrop{Width: *side, Height: *side})

	config := models.ResNet50Config
	config.Classes = classes
	config.ZeroInitResidual = true
	net := models.NewResNet(&nn.Build{Generator: tensor.NewGenerator(1)}, config)

	task := train.Task[vision.Batch]{
		Name:  "resnet",
		About: train.About{Model: "ResNet-50", Data: fmt.Sprintf("%d images to train on, %d to test, %d classes", training.Len(), test.Len(), classes)},
		Model: net,
		Loss: func(c *nn.Ctx, model any, b vision.Batch) *tensor.Tensor {
			images, labels := tensors(b)
			return tensor.CrossEntropy(c.Call(model.(nn.Module), images), labels)
		},
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return optim.NewSGD(params, optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-4})
		},
		Schedule: optim.WarmupCosine(*steps/10, *steps, 0),
		Feed: func(ctx context.Context, from data.LoaderState) (train.Feed[vision.Batch], error) {
			order, err := data.NewStream(data.StreamConfig{
				Len: training.Len(), Total: *batch, Rank: group.Rank(), World: group.Size(), Shuffle: true, Seed: 1,
			})
			if err != nil {
				return nil, err
			}
			return data.NewLoader(ctx, parts, order, collate, data.LoaderConfig{Workers: *workers, OnError: data.SkipSample}, from)
		},
		Samples: training.Len(),
		Size:    func(b vision.Batch) int { return b.N }, Unit: "images",
		Evaluate: func(ctx context.Context, model any) (train.Metrics, error) {
			return evaluate(ctx, group, net, model.(nn.Module), middle)
		},
	}
	return train.Run(ctx, group, task, train.Options{
		Out: *out, Steps: *steps, Batch: *batch, DType: *dtype, EvalEvery: max(1, *steps/4), Keep: 1,
	}, report)
}

// evaluate returns the fraction of the test images that the network classifies right.
// Each rank tests its share of them, with the running statistics of rank 0.
func evaluate(ctx context.Context, group *dist.Group, net *models.ResNet, model nn.Module, test data.Dataset[vision.Sample]) (train.Metrics, error) {
	for _, b := range nn.Buffers(net) {
		if err := group.Broadcast(ctx, b.Data, 0); err != nil {
			return nil, err
		}
	}
	numRight := 0.0
	var samples []vision.Sample
	for i := group.Rank(); i < test.Len(); i += group.Size() {
		s, err := test.Get(ctx, data.Key{Index: i})
		if err != nil {
			return nil, err
		}
		samples = append(samples, s)
		if len(samples) < *batch && i+group.Size() < test.Len() {
			continue
		}
		b, err := collate(samples)
		if err != nil {
			return nil, err
		}
		images, labels := tensors(b)
		c := nn.Evaluation(ctx)
		numRight += nn.Accuracy(c.Call(model, images), labels) * float64(b.N)
		c.Close()
		b.Release()
		samples = samples[:0]
	}
	right := tensor.Full(numRight, 1)
	if err := group.AllReduce(ctx, right, dist.Sum); err != nil {
		return nil, err
	}
	return train.Metrics{{Name: "accuracy", Value: right.Item() / float64(test.Len()), Higher: true, Unit: "%"}}, nil
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), *numRank, dist.Main(func(ctx context.Context, group *dist.Group) error {
		return learn(ctx, group, train.NewConsole(os.Stdout, false, "go run ./cmd/cohort"))
	}), launch.WithPassRank0()))
}
