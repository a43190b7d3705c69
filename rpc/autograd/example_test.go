// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"context"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/tensor"
)

// Embed is served by the process that has the embedding.
var Embed = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("embed")

// A step of training, of which one part runs in another process.
func Example() {
	step := func(ctx context.Context, agent *rpc.Agent, decoder nn.Module, opt *autograd.Optimizer, tokens, targets *tensor.Tensor) error {
		dc, err := autograd.NewContext(agent)
		if err != nil {
			return err
		}
		defer dc.Close()
		c, err := dc.Pass(ctx)
		if err != nil {
			return err
		}
		h, err := Embed.Call(c, agent.Peer("embedding"), tokens)
		if err != nil {
			return err
		}
		loss := tensor.CrossEntropy(c.Call(decoder, h), targets)
		if err := dc.Backward(ctx, loss); err != nil {
			return err
		}
		return opt.Step(ctx, dc, 1)
	}
	_ = step
}
