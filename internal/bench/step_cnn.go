// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// convUnit is a convolution of 3·3, a batch norm and a ReLU.
type convUnit struct {
	Conv *nn.Conv2d      `name:"0"`
	Norm *nn.BatchNorm2d `name:"1"`
}

func newConvUnit(b *nn.Build, in, out, stride int) *convUnit {
	o := nn.Conv2dOptions{Stride: nn.Square(stride), Padding: nn.Square(1), NoBias: true}
	return &convUnit{nn.NewConv2d(b, in, out, nn.Square(3), o), nn.NewBatchNorm2d(b, out, nn.BatchNormOptions{})}
}

func (u *convUnit) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return u.Norm.ReLU(c, c.Call(u.Conv, x))
}

// newCNN is four convolutions over images of 32·32 with SGD.
func newCNN(b *nn.Build, batch int) *workload {
	m := nn.NewSequential(
		newConvUnit(b, 3, 32, 1), newConvUnit(b, 32, 64, 2), newConvUnit(b, 64, 128, 2), newConvUnit(b, 128, 128, 1),
		&nn.AdaptiveAvgPool2d{Size: nn.Square(1)}, &nn.Flatten{}, nn.NewLinear(b, 128, 10))
	// The input needs no gradient: the first layer has two products, the others three.
	perImage := 2.0 * 9 * (2*32*32*3*32 + 3*16*16*32*64 + 3*8*8*64*128 + 3*8*8*128*128)
	return newImages(b, m, batch, 32, 10, perImage)
}

// newResNet50 is ResNet-50 over images of 224·224 with SGD.
func newResNet50(b *nn.Build, batch int) *workload {
	// A forward pass multiplies and adds 4.089 billion times an image, 118 million
	// of them in the first convolution, whose input needs no gradient.
	const perImage = 2 * (3*4.089e9 - 0.118e9)
	return newImages(b, models.NewResNet(b, models.ResNet50Config), batch, 224, 1000, perImage)
}

func newImages(b *nn.Build, m nn.Module, batch, size, classes int, flopsPerImage float64) *workload {
	x := tensor.Zeros(batch, 3, size, size)
	b.Generator.Normal(x, 0, 1)
	return &workload{model: m, batch: batch, optimize: sgd, x: x, y: randomIDs(b.Generator, classes, batch), flops: float64(batch) * flopsPerImage}
}
