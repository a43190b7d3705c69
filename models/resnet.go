// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// ResNetConfig is the shape of a residual network.
type ResNetConfig struct {
	Blocks     [4]int // in each of the four stages
	Bottleneck bool   // three convolutions a block instead of two
	Classes    int    // 0 is ImageNet's 1000
	// SmallImages begins with a convolution of 3·3 that keeps the size, and without
	// pooling, as is done for images of some 32·32 (§4.2). The stem of 7·7 makes a
	// quarter of each side.
	SmallImages bool
	// ZeroInitResidual starts each block as the identity: the last gamma of its
	// branch is 0 (Goyal et al. 2017, §5.1).
	ZeroInitResidual bool
}

// The configurations of the paper's Table 1.
var (
	ResNet18Config = ResNetConfig{Blocks: [4]int{2, 2, 2, 2}}
	ResNet34Config = ResNetConfig{Blocks: [4]int{3, 4, 6, 3}}
	ResNet50Config = ResNetConfig{Blocks: [4]int{3, 4, 6, 3}, Bottleneck: true}

	ResNet101Config = ResNetConfig{Blocks: [4]int{3, 4, 23, 3}, Bottleneck: true}
	ResNet152Config = ResNetConfig{Blocks: [4]int{3, 8, 36, 3}, Bottleneck: true}
)

// Validate reports a shape that makes no network.
func (r ResNetConfig) Validate() error {
	const most = 1 << 14
	for i, n := range r.Blocks {
		if n < 1 || n > most {
			return fmt.Errorf("models: stage %d of a residual network has %d blocks, want 1 to %d", i+1, n, most)
		}
	}
	if r.Classes < 0 || r.Classes > 1<<24 {
		return fmt.Errorf("models: a residual network for %d classes, want 1 to %d, or 0 for 1000", r.Classes, 1<<24)
	}
	return nil
}

// ResNet is the residual network of He et al. 2016, with the names of
// torchvision's. Its bottlenecks take their stride in the 3·3 convolution, as
// torchvision's do.
type ResNet struct {
	Conv1                          *nn.Conv2d
	BN1                            *nn.BatchNorm2d
	MaxPool                        *nn.MaxPool2d `name:"maxpool"` // nil for small images
	Layer1, Layer2, Layer3, Layer4 *nn.Sequential
	AvgPool                        *nn.AdaptiveAvgPool2d `name:"avgpool"`
	FC                             *nn.Linear
}

// NewResNet returns a network with torchvision's first values: convolutions
// normal with deviation √(2/fan out), norms 1 and 0. It panics when the
// configuration is not valid.
func NewResNet(b *nn.Build, r ResNetConfig) *ResNet {
	if err := r.Validate(); err != nil {
		panic(tensor.NewError("new resnet", nil, "%v", err))
	}
	if r.Classes == 0 {
		r.Classes = 1000
	}
	m := &ResNet{
		Conv1:   newConv(b, 3, 64, 7, 2),
		BN1:     newBatchNorm(b, 64),
		MaxPool: &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), Padding: nn.Square(1)},
		AvgPool: &nn.AdaptiveAvgPool2d{Size: nn.Square(1)},
	}
	if r.SmallImages {
		m.Conv1, m.MaxPool = newConv(b, 3, 64, 3, 1), nil
	}
	width := 64
	for i, stage := range []**nn.Sequential{&m.Layer1, &m.Layer2, &m.Layer3, &m.Layer4} {
		inner, stride := 64<<i, 1
		if i > 0 {
			stride = 2
		}
		*stage = nn.NewSequential()
		for range r.Blocks[i] {
			block, out := newBlock(b, r, width, inner, stride)
			(*stage).Layers = append((*stage).Layers, block)
			width, stride = out, 1
		}
	}
	m.FC = nn.NewLinear(b, width, r.Classes)
	return m
}

// Forward turns images [batch, 3, height, width] into logits [batch, classes].
func (m *ResNet) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = m.BN1.ReLU(c, c.Call(m.Conv1, x))
	if m.MaxPool != nil {
		x = c.Call(m.MaxPool, x)
	}
	for _, stage := range []*nn.Sequential{m.Layer1, m.Layer2, m.Layer3, m.Layer4} {
		x = c.Call(stage, x)
	}
	x = c.Call(m.AvgPool, x).Reshape(x.Dim(0), -1)
	return c.Call(m.FC, x)
}

// BasicBlock is relu(F(x) + x), with F two convolutions of 3·3 (Figure 5, left).
type BasicBlock struct {
	Conv1      *nn.Conv2d
	BN1        *nn.BatchNorm2d
	Conv2      *nn.Conv2d
	BN2        *nn.BatchNorm2d
	Downsample *nn.Sequential // of the shortcut, where the shape changes; else nil
}

// Forward maps [batch, in, height, width] to [batch, out, height/stride,
// width/stride].
func (b *BasicBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := b.BN1.ReLU(c, c.Call(b.Conv1, x))
	return b.BN2.AddReLU(c, c.Call(b.Conv2, y), shortcut(c, b.Downsample, x))
}

// Bottleneck is relu(F(x) + x), with F a convolution of 1·1 that narrows, one of
// 3·3, and one of 1·1 that widens four times (Figure 5, right).
type Bottleneck struct {
	Conv1      *nn.Conv2d
	BN1        *nn.BatchNorm2d
	Conv2      *nn.Conv2d
	BN2        *nn.BatchNorm2d
	Conv3      *nn.Conv2d
	BN3        *nn.BatchNorm2d
	Downsample *nn.Sequential // of the shortcut, where the shape changes; else nil
}

// Forward maps [batch, in, height, width] to [batch, out, height/stride,
// width/stride].
func (b *Bottleneck) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := b.BN1.ReLU(c, c.Call(b.Conv1, x))
	y = b.BN2.ReLU(c, c.Call(b.Conv2, y))
	return b.BN3.AddReLU(c, c.Call(b.Conv3, y), shortcut(c, b.Downsample, x))
}

func shortcut(c *nn.Ctx, downsample *nn.Sequential, x *tensor.Tensor) *tensor.Tensor {
	if downsample == nil {
		return x
	}
	return c.Call(downsample, x)
}

// newBlock returns a block from in channels, and how many come out of it.
func newBlock(b *nn.Build, r ResNetConfig, in, inner, stride int) (block nn.Module, out int) {
	var last *nn.BatchNorm2d
	var downsample **nn.Sequential
	if r.Bottleneck {
		out = 4 * inner
		m := &Bottleneck{
			Conv1: newConv(b, in, inner, 1, 1), BN1: newBatchNorm(b, inner),
			Conv2: newConv(b, inner, inner, 3, stride), BN2: newBatchNorm(b, inner),
			Conv3: newConv(b, inner, out, 1, 1), BN3: newBatchNorm(b, out),
		}
		block, last, downsample = m, m.BN3, &m.Downsample
	} else {
		out = inner
		m := &BasicBlock{
			Conv1: newConv(b, in, out, 3, stride), BN1: newBatchNorm(b, out),
			Conv2: newConv(b, out, out, 3, 1), BN2: newBatchNorm(b, out),
		}
		block, last, downsample = m, m.BN2, &m.Downsample
	}
	if r.ZeroInitResidual {
		last.Weight.Data().Fill(0)
	}
	if stride != 1 || in != out {
		*downsample = nn.NewSequential(newConv(b, in, out, 1, stride), newBatchNorm(b, out))
	}
	return block, out
}

// newConv returns a convolution without bias that keeps the size, but for the
// stride.
func newConv(b *nn.Build, in, out, kernel, stride int) *nn.Conv2d {
	std := math.Sqrt(2 / float64(out*kernel*kernel)) // He et al. 2015, for the backward pass
	o := nn.Conv2dOptions{Stride: nn.Square(stride), Padding: nn.Square(kernel / 2), NoBias: true}
	return &nn.Conv2d{Weight: b.Normal(std, out, in, kernel, kernel), Options: o}
}

func newBatchNorm(b *nn.Build, channels int) *nn.BatchNorm2d {
	return nn.NewBatchNorm2d(b, channels, nn.BatchNormOptions{})
}
