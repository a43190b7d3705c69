// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/autograd`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 0.", "step 400: loss 0.0"})
}

// TestLossOfOneProcess: the last loss is, bit for bit, that of the same model in one
// process.
func TestLossOfOneProcess(t *testing.T) {
	model := nn.NewSequential(part("encoder"), part("decoder"), part("trainer"))
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 0.01})
	points := tensor.NewGenerator(1)
	var want float64
	for range steps {
		x, y := wave(points)
		opt.ZeroGrad()
		loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor { return c.Call(model, x).Sub(y).Square().Mean() })
		if err != nil {
			t.Fatal(err)
		}
		want = loss
		opt.Step(nil)
	}
	err := dist.Spawn(t.Context(), len(names), func(ctx context.Context, g *dist.Group) error {
		mine := part(names[g.Rank()])
		a, err := rpc.Init(ctx, names[g.Rank()], rpc.WithGroup(g), serve(mine))
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			got, err := train(ctx, a, mine)
			if err != nil {
				return err
			}
			if got != want {
				t.Errorf("the last loss is %v, in one process %v", got, want)
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
