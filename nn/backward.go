// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"

	"github.com/cohort-ml/cohort/tensor"
)

// Backward runs one pass of training: compute returns the loss, a tensor of
// one element, and when Backward returns, the gradients are with the
// parameters and everything else that the pass made is freed. It returns the
// value of the loss. A failure inside the pass is an error; see [Ctx.Recover].
//
//	opt.ZeroGrad()
//	loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
//		return tensor.CrossEntropy(c.Call(model, x), y)
//	})
//	if err != nil {
//		return err
//	}
//	opt.Step(nil)
func Backward(ctx context.Context, compute func(c *Ctx) *tensor.Tensor, opts ...CtxOption) (loss float64, err error) {
	c := Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	for _, o := range opts {
		o(c)
	}
	l := compute(c)
	if l == nil {
		return 0, tensor.NewError("backward", nil, "compute returned nil: it must return the loss")
	}
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	return l.Item(), nil
}
