// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/remote-module`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 0.6", "step 300: loss 0.0", "accuracy on new points: 9", "the same answers: true"})
}

// inOneProcess trains the model with its body here.
func inOneProcess(t *testing.T) (loss float64) {
	body, err := newBody(t.Context(), width)
	if err != nil {
		t.Fatal(err)
	}
	model := around(body)
	params := nn.Parameters(model)
	opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 0.01})
	data := tensor.NewGenerator(1)
	for range steps {
		points, spiral := spirals(data)
		opt.ZeroGrad()
		loss, err = nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model, points), spiral)
		})
		if err != nil {
			t.Fatal(err)
		}
		_, scale := optim.ClipGradNorm(params, 1)
		opt.Step(scale)
	}
	return loss
}

// onBoth runs use on the trainer while the helper serves.
func onBoth(t *testing.T, use func(ctx context.Context, a *rpc.Agent) error) {
	t.Helper()
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		a, err := start(ctx, g)
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			if err := use(ctx, a); err != nil {
				return err
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLossOfOneProcess: the last loss is that of one process. They differ only by the
// rounding of the gradients' norm, which is summed process by process.
func TestLossOfOneProcess(t *testing.T) {
	want := inOneProcess(t)
	onBoth(t, func(ctx context.Context, a *rpc.Agent) error {
		body, err := remote.New(ctx, a.Peer("helper"), NewBody, width)
		if err != nil {
			return err
		}
		defer body.Release()
		got, err := train(ctx, a, around(body))
		if math.Abs(got-want) > 0.01*want || want > 0.1 {
			t.Errorf("the last loss is %v, in one process %v", got, want)
		}
		return err
	})
}

// TestErrorsNameTheLayer: the error of a remote layer names the layer and its process.
func TestErrorsNameTheLayer(t *testing.T) {
	onBoth(t, func(ctx context.Context, a *rpc.Agent) error {
		for w, want := range map[int][]string{
			width + 1: {"forward of 2 (*remote.Module)", "helper", "linear"},
			0:         {"forward of 2 (*remote.Module)", "helper", "a body of width 0"},
		} {
			body, err := remote.New(ctx, a.Peer("helper"), NewBody, w)
			if err != nil {
				return err
			}
			defer body.Release()
			_, err = answers(ctx, around(body), tensor.Zeros(3, 2))
			for _, part := range want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("width %d: %v, want an error with %q", w, err, part)
				}
			}
		}
		return nil
	})
}
