// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/tensor"
)

// The initialisers overwrite a parameter, as torch.nn.init's do. Those that
// draw uniform numbers give PyTorch's bits for the same seed and order of
// calls; normal numbers have the same distribution but come from another generator.

// InitConstant sets every element to value.
func InitConstant(p *Parameter, value float64) { p.data.Fill(value) }

// InitUniform draws from [lo, hi).
func InitUniform(g *tensor.Generator, p *Parameter, lo, hi float64) { g.Uniform(p.data, lo, hi) }

// InitNormal draws from a normal distribution.
func InitNormal(g *tensor.Generator, p *Parameter, mean, std float64) { g.Normal(p.data, mean, std) }

// InitXavierUniform draws uniformly within gain·√(6/(fanIn+fanOut)) (Glorot and
// Bengio 2010); see [Gain].
func InitXavierUniform(g *tensor.Generator, p *Parameter, gain float64) {
	bound := math.Sqrt(3) * xavierStd(p, gain)
	g.Uniform(p.data, -bound, bound)
}

// InitXavierNormal draws from a normal distribution of deviation
// gain·√(2/(fanIn+fanOut)).
func InitXavierNormal(g *tensor.Generator, p *Parameter, gain float64) {
	g.Normal(p.data, 0, xavierStd(p, gain))
}

func xavierStd(p *Parameter, gain float64) float64 {
	in, out := fans(p)
	return gain * math.Sqrt(2/float64(in+out))
}

// KaimingOptions are those of PyTorch's kaiming initialisers. The zero value is
// theirs: mode fan_in, and leaky_relu with a slope of 0, which is ReLU.
type KaimingOptions struct {
	Nonlinearity string  // as for Gain; "" means leaky_relu
	A            float64 // the negative slope of leaky_relu
	FanOut       bool    // keeps the size of gradients instead of that of outputs
}

// InitKaimingUniform draws uniformly within gain·√(3/fan) (He et al. 2015).
func InitKaimingUniform(g *tensor.Generator, p *Parameter, o KaimingOptions) {
	bound := math.Sqrt(3) * o.std(p)
	g.Uniform(p.data, -bound, bound)
}

// InitKaimingNormal draws from a normal distribution of deviation gain/√fan.
func InitKaimingNormal(g *tensor.Generator, p *Parameter, o KaimingOptions) {
	g.Normal(p.data, 0, o.std(p))
}

func (o KaimingOptions) std(p *Parameter) float64 {
	fan, out := fans(p)
	if o.FanOut {
		fan = out
	}
	if o.Nonlinearity == "" {
		o.Nonlinearity = "leaky_relu"
	}
	return Gain(o.Nonlinearity, o.A) / math.Sqrt(float64(fan))
}

// Gain returns the factor by which weights before a nonlinearity are larger
// than before none: torch.nn.init.calculate_gain. It knows linear, conv1d to
// conv3d and their transposed forms, sigmoid, tanh, relu, leaky_relu, whose slope is
// param (PyTorch's default is 0.01), and selu. Another name panics.
func Gain(nonlinearity string, param float64) float64 {
	switch nonlinearity {
	case "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid":
		return 1
	case "tanh":
		return 5.0 / 3
	case "relu":
		return math.Sqrt2
	case "leaky_relu":
		return math.Sqrt(2 / (1 + param*param))
	case "selu":
		return 3.0 / 4
	}
	panic(&tensor.Error{Op: "gain", Msg: fmt.Sprintf("no gain is known of the nonlinearity %q", nonlinearity)})
}

// fans returns how many inputs an element of a layer's result has, and how many
// results an input: of a weight [out, in, kernel…].
func fans(p *Parameter) (in, out int) {
	shape := p.data.Shape()
	if len(shape) < 2 {
		panic(&tensor.Error{
			Op: "initialise", Names: []string{p.name}, Shapes: [][]int{shape}, DTypes: []tensor.DType{p.data.DType()},
			Msg: "a weight of fewer than two dims has no inputs and outputs to count",
		})
	}
	field := 1
	for _, s := range shape[2:] {
		field *= s
	}
	return shape[1] * field, shape[0] * field
}
