// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// NewMLP returns a multilayer perceptron: linear layers from one width to the
// next with ReLU between them, [batch…, widths[0]] to [batch…, widths[last]].
// Its names are those of a torch.nn.Sequential: 0.weight, 2.weight, …. It panics
// with fewer than two widths.
func NewMLP(b *nn.Build, widths ...int) *nn.Sequential {
	if len(widths) < 2 {
		panic(&tensor.Error{Op: "new mlp", Msg: fmt.Sprintf("of the widths %v: want at least its input's and its output's", widths)})
	}
	m := nn.NewSequential()
	for i, out := range widths[1:] {
		if i > 0 {
			m.Layers = append(m.Layers, &nn.ReLU{})
		}
		m.Layers = append(m.Layers, nn.NewLinear(b, widths[i], out))
	}
	return m
}
