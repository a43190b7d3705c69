// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// Activation is the function between the layers of a feed-forward network, by
// the name that Hugging Face's config.json has for it: "gelu", "gelu_new",
// "relu", "silu" and others. The empty one is the model's own.
type Activation string

// activations are the functions by their names. Some names differ in how the
// reference computes one formula, which is within rounding.
var activations = map[Activation]func(*tensor.Tensor) *tensor.Tensor{
	"gelu": (*tensor.Tensor).GELU, "gelu_python": (*tensor.Tensor).GELU,
	"gelu_new": (*tensor.Tensor).GELUTanh, "gelu_fast": (*tensor.Tensor).GELUTanh, "gelu_accurate": (*tensor.Tensor).GELUTanh,
	"gelu_pytorch_tanh": (*tensor.Tensor).GELUTanh, "gelu_python_tanh": (*tensor.Tensor).GELUTanh,
	"gelu_10":    func(x *tensor.Tensor) *tensor.Tensor { return x.GELU().Hardtanh(-10, 10) },
	"quick_gelu": func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(x.MulScalar(1.702).Sigmoid()) },
	"silu":       (*tensor.Tensor).SiLU, "swish": (*tensor.Tensor).SiLU,
	"relu": (*tensor.Tensor).ReLU, "relu6": (*tensor.Tensor).ReLU6,
	"relu2":      func(x *tensor.Tensor) *tensor.Tensor { y := x.ReLU(); return y.Mul(y) },
	"leaky_relu": func(x *tensor.Tensor) *tensor.Tensor { return x.LeakyReLU(0.01) },
	"hardswish":  (*tensor.Tensor).Hardswish, "mish": (*tensor.Tensor).Mish,
	"sigmoid": (*tensor.Tensor).Sigmoid, "tanh": (*tensor.Tensor).Tanh,
	"linear": func(x *tensor.Tensor) *tensor.Tensor { return x },
}

// validate reports a name that stands for no function.
func (a Activation) validate(model string) error {
	if _, ok := activations[a]; !ok && a != "" {
		var names []string
		for _, name := range slices.Sorted(maps.Keys(activations)) {
			names = append(names, string(name))
		}
		return fmt.Errorf("models: the activation of a %s is %q; there are %s", model, a, strings.Join(names, ", "))
	}
	return nil
}

// or returns the function, that of another name where this one is empty.
func (a Activation) or(own Activation) func(*tensor.Tensor) *tensor.Tensor {
	if a == "" {
		a = own
	}
	return activations[a]
}
