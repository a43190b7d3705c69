// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
)

// adamW makes the optimizer of parameters that are trained. Matrices alone decay:
// pulling norms and biases to zero helps nothing.
func adamW(params []*nn.Parameter, o optim.AdamWOptions) *optim.AdamW {
	var matrices, vectors []*nn.Parameter
	for _, p := range params {
		switch {
		case p.Frozen:
		case p.Data().NumDims() >= 2:
			matrices = append(matrices, p)
		default:
			vectors = append(vectors, p)
		}
	}
	opt := optim.NewAdamW(matrices, o)
	if len(vectors) > 0 {
		o.WeightDecay = 0
		opt.AddGroup(vectors, o)
	}
	return opt
}
