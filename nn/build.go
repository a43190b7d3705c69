// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/cohort-ml/cohort/tensor"
)

// Build says where the parameters of new modules live and what their first
// values are drawn from. The zero value is the CPU with seed 0.
type Build struct {
	// Generator draws the first values. Modules built from one generator in
	// the same order get the same values. Nil means one with seed 0.
	Generator *tensor.Generator
	// Device is where parameters live; nil is the CPU. On [tensor.Meta] a
	// model of any size can be built, to plan with, or to get its values later by
	// [Materialize].
	Device tensor.Device
}

// Empty returns a parameter of zeros.
func (b *Build) Empty(shape ...int) *Parameter {
	dev := b.Device
	if dev == nil {
		dev = tensor.CPU()
	}
	return NewParameter(tensor.New(dev, tensor.Float32, shape...))
}

// Full returns a parameter with every element set to value.
func (b *Build) Full(value float64, shape ...int) *Parameter {
	p := b.Empty(shape...)
	p.data.Fill(value)
	return p
}

// Uniform returns a parameter drawn from [-bound, bound).
func (b *Build) Uniform(bound float64, shape ...int) *Parameter {
	p := b.Empty(shape...)
	b.generator().Uniform(p.data, -bound, bound)
	return p
}

// Normal returns a parameter drawn from a normal distribution around 0.
func (b *Build) Normal(std float64, shape ...int) *Parameter {
	p := b.Empty(shape...)
	b.generator().Normal(p.data, 0, std)
	return p
}

func (b *Build) generator() *tensor.Generator {
	if b.Generator == nil {
		b.Generator = tensor.NewGenerator(0)
	}
	return b.Generator
}

// fanInBound is PyTorch's default for weights and biases: 1/√fanIn, which is
// Kaiming's uniform bound with a = √5 (He et al. 2015).
func fanInBound(fanIn int) float64 {
	if fanIn == 0 {
		return 0
	}
	return 1 / math.Sqrt(float64(fanIn))
}
