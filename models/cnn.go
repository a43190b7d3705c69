// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// CNNConfig is the size of a [CNN].
type CNNConfig struct {
	Channels int   // of the images
	Widths   []int // channels after each stage
	Classes  int
}

// Validate reports a size that makes no network.
func (g CNNConfig) Validate() error {
	sizes := []size{{"number of channels", g.Channels, 1 << 16}, {"number of classes", g.Classes, 1 << 24}, {"number of stages", len(g.Widths), 64}}
	for _, w := range g.Widths {
		sizes = append(sizes, size{"width", w, 1 << 16})
	}
	return checkSizes("CNN", sizes)
}

// CNN is a small network of convolutions for small images: each stage is two
// convolutions of 3·3, each with batch norm and ReLU, and between stages the
// sides are halved (the plain networks of Simonyan and Zisserman 2015, with
// batch norm). What is left is averaged over the image.
type CNN struct {
	Stages []*CNNStage
	Pool   *nn.MaxPool2d
	Head   *nn.Linear
}

// CNNStage is two convolutions.
type CNNStage struct {
	Conv1 *nn.Conv2d
	BN1   *nn.BatchNorm2d
	Conv2 *nn.Conv2d
	BN2   *nn.BatchNorm2d
}

// NewCNN returns a network. It panics when the configuration is not valid.
func NewCNN(b *nn.Build, g CNNConfig) *CNN {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new cnn", nil, "%v", err))
	}
	m := &CNN{Pool: &nn.MaxPool2d{Kernel: nn.Square(2), Stride: nn.Square(2)}}
	in := g.Channels
	for _, w := range g.Widths {
		m.Stages = append(m.Stages, &CNNStage{
			Conv1: newConv(b, in, w, 3, 1), BN1: newBatchNorm(b, w), Conv2: newConv(b, w, w, 3, 1), BN2: newBatchNorm(b, w),
		})
		in = w
	}
	m.Head = nn.NewLinear(b, in, g.Classes)
	return m
}

// Forward turns images [batch, channels, height, width] into logits [batch,
// classes]. It panics where the images are too small for the stages: each but
// the first needs two pixels a side of what the one before leaves.
func (m *CNN) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	for i, s := range m.Stages {
		if i > 0 {
			x = c.Call(m.Pool, x)
		}
		x = c.Call(s, x)
	}
	return c.Call(m.Head, x.Mean(2, 3))
}

// Forward maps [batch, in, height, width] to [batch, width, height, width].
func (s *CNNStage) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = s.BN1.ReLU(c, c.Call(s.Conv1, x))
	return s.BN2.ReLU(c, c.Call(s.Conv2, x))
}

// MinSide returns the smallest side of images that the stages have room for.
func (g CNNConfig) MinSide() int { return 1 << (len(g.Widths) - 1) }

// String describes the network.
func (g CNNConfig) String() string {
	return fmt.Sprintf("convolutions of %v channels", g.Widths)
}
