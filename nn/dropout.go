// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// Dropout sets elements to zero with probability P in training and does
// nothing in evaluation; see tensor.Dropout. A training pass needs a generator:
// [WithGenerator].
type Dropout struct {
	P float64
}

// NewDropout returns the module; p is in [0, 1].
func NewDropout(p float64) *Dropout {
	c := checks{op: "new dropout"}
	c.share("p", p)
	c.end()
	return &Dropout{P: p}
}

// Forward drops elements of x.
func (d *Dropout) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	if !c.Training() {
		return x
	}
	return tensor.Dropout(x, d.P, c.Generator())
}
