// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"context"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

// Config says how large a decoder is.
type Config struct{ Hidden, Classes int }

// NewDecoder makes a decoder where it is to run.
var NewDecoder = rpc.NewMaker[Config, nn.Module]("decoder")

// A model of which the decoder is in another process, and the loss of one pass.
func Example() {
	step := func(ctx context.Context, g *dist.Group, name string, embedding nn.Module, x, targets *tensor.Tensor) error {
		a, err := rpc.Init(ctx, name, rpc.WithGroup(g), autograd.WithEngine(), remote.Serve(),
			rpc.ServeMaker(NewDecoder, func(_ context.Context, cfg Config) (nn.Module, error) {
				return nn.NewLinear(&nn.Build{}, cfg.Hidden, cfg.Classes), nil
			}))
		if err != nil {
			return err
		}
		decoder, err := remote.New(ctx, a.Peer("decoder"), NewDecoder, Config{64, 10})
		if err != nil {
			return err
		}
		model := nn.NewSequential(embedding, decoder)
		dc, err := autograd.NewContext(a)
		if err != nil {
			return err
		}
		defer dc.Close()
		c, err := dc.Pass(ctx)
		if err != nil {
			return err
		}
		loss := tensor.CrossEntropy(c.Call(model, x), targets)
		return dc.Backward(ctx, loss)
	}
	_ = step
}
