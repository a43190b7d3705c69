// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Train is one step of training: compute returns the loss, a tensor of one element,
// under the carrier of a pass; its gradients go to all processes, every parameter of
// the optimizer steps by its own, and what the step made is released. It returns the
// value of the loss. A failure inside the pass is an error; see [nn.Ctx.Recover].
//
//	loss, err := opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
//		h, err := Embed.Call(c, agent.Peer("embedding"), tokens)
//		if err != nil {
//			return nil, err
//		}
//		return tensor.CrossEntropy(c.Call(decoder, h), targets), nil
//	})
//
// What needs the gradients in between, such as [Optimizer.ClipGradNorm], makes the
// [Context] itself.
func (o *Optimizer) Train(ctx context.Context, compute func(c *nn.Ctx) (*tensor.Tensor, error), opts ...nn.CtxOption) (loss float64, err error) {
	dc, err := NewContext(o.agent)
	if err != nil {
		return 0, err
	}
	defer dc.Close()
	c, err := dc.Pass(ctx, opts...)
	if err != nil {
		return 0, err
	}
	defer c.Recover(&err)
	l, err := compute(c)
	if err != nil {
		return 0, err
	}
	if err := dc.Backward(ctx, l); err != nil {
		return 0, err
	}
	return l.Item(), o.Step(ctx, dc, 1)
}
