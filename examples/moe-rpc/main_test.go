// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/moe-rpc`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 1.", "step 300: loss 0.0"})
}

// here is an expert in this process.
type here struct{ Module nn.Module }

func (h here) Async(c *nn.Ctx, x *tensor.Tensor) *rpc.Future[*tensor.Tensor] {
	return rpc.Resolved(c.Call(h.Module, x), nil)
}

// silent is an expert that never answers.
type silent struct{}

func (silent) Async(c *nn.Ctx, x *tensor.Tensor) *rpc.Future[*tensor.Tensor] {
	return rpc.Resolved(tensor.Zeros(x.Shape()...), nil)
}

// inOneProcess trains with experts in this process. It returns the losses, and the
// shares of the last step.
func inOneProcess(t *testing.T, experts []Expert) (losses []float64, shares []float32) {
	t.Helper()
	m := newModel(experts)
	opt := optim.NewAdam(nn.Parameters(m), optim.AdamOptions{LR: 0.01})
	points := tensor.NewGenerator(1)
	for range steps {
		x, y := sectors(points)
		opt.ZeroGrad()
		loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			loss, s, err := m.forward(c, x, y)
			if err != nil {
				c.Fail(err)
			}
			shares = s
			return loss
		})
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
		opt.Step(nil)
	}
	return losses, shares
}

// TestLossesOfOneProcess: all losses are bit for bit those of one process, also when an
// expert has no token.
func TestLossesOfOneProcess(t *testing.T) {
	want, shares := inOneProcess(t, []Expert{here{newExpert(1)}, here{newExpert(2)}, here{newExpert(3)}})
	if slices.Min(shares) < 0.1 {
		t.Errorf("the experts have shares %.2f of the tokens, want some for each", shares)
	}
	dumb, _ := inOneProcess(t, []Expert{silent{}, silent{}, silent{}})
	mean := func(losses []float64) (sum float64) {
		for _, l := range losses[steps-50:] {
			sum += l / 50
		}
		return sum
	}
	if mean(want) > 0.2 || mean(want) > mean(dumb)/2 {
		t.Errorf("the loss is %.3f, without experts %.3f", mean(want), mean(dumb))
	}
	t.Logf("the loss is %.3f, without experts %.3f", mean(want), mean(dumb))
	err := dist.Spawn(t.Context(), 1+experts, func(ctx context.Context, g *dist.Group) error {
		name := []string{"trainer", "a", "b", "c"}[g.Rank()]
		a, err := rpc.Init(ctx, name, rpc.WithGroup(g), autograd.WithEngine(), remote.Serve(),
			rpc.ServeMaker(NewExpert, func(ctx context.Context, seed int64) (nn.Module, error) { return newExpert(seed), nil }))
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			got, err := train(ctx, a)
			if err != nil {
				return err
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("step %d: the loss is %v, in one process %v", i, got[i], want[i])
					break
				}
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}
