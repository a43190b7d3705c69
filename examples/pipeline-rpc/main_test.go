// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/pipeline-rpc`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 1.", "step 200: loss 0.0"})
}

// inGoroutines runs part as the trainer, with stages of the models given.
func inGoroutines(t *testing.T, models []nn.Module, part func(ctx context.Context, a *rpc.Agent) error) {
	t.Helper()
	err := dist.Spawn(t.Context(), 1+len(stages), func(ctx context.Context, g *dist.Group) error {
		name, serves := "trainer", autograd.WithEngine()
		if g.Rank() > 0 {
			name, serves = stages[g.Rank()-1], serve(models[g.Rank()-1])
		}
		a, err := rpc.Init(ctx, name, rpc.WithGroup(g), serves)
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			if err := part(ctx, a); err != nil {
				return err
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inOneProcess returns the losses of the same training without processes, with batches
// in so many parts.
func inOneProcess(t *testing.T, parts int) (losses []float64) {
	t.Helper()
	model := nn.NewSequential(half(stages[0]), half(stages[1]))
	opt := optim.NewAdam(nn.Parameters(model), optim.AdamOptions{LR: 0.01})
	points := tensor.NewGenerator(1)
	for range steps {
		x, y := spiral(points)
		opt.ZeroGrad()
		loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			var out []*tensor.Tensor
			for _, part := range x.Chunk(parts, 0) {
				out = append(out, c.Call(model, part))
			}
			return tensor.CrossEntropy(tensor.Cat(0, out...), y)
		})
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
		opt.Step(nil)
	}
	return losses
}

// TestLossesOfOneProcess: all losses are bit for bit those of one process that takes the
// same parts. With whole batches they are the same up to rounding.
func TestLossesOfOneProcess(t *testing.T) {
	inGoroutines(t, []nn.Module{half(stages[0]), half(stages[1])}, func(ctx context.Context, a *rpc.Agent) error {
		got, err := train(ctx, a)
		if err != nil {
			return err
		}
		if want := inOneProcess(t, parts); !slices.Equal(got, want) {
			t.Errorf("the losses are %v, in one process %v", got, want)
		}
		for i, want := range inOneProcess(t, 1)[:20] {
			if math.Abs(got[i]-want) > 1e-4 {
				t.Errorf("step %d: the loss is %v, of the whole batch %v", i, got[i], want)
			}
		}
		return nil
	})
}

// watched is a module that says when it begins.
type watched struct {
	Inner nn.Module
	begin func(ctx context.Context, call int32) error
	calls atomic.Int32
}

func (w *watched) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if err := w.begin(c, w.calls.Add(1)); err != nil {
		c.Fail(err)
	}
	return c.Call(w.Inner, x)
}

// TestStagesWorkAtOnce: in this test the second stage ends its first part only after the
// first stage has begun its last one. The test would hang if the trainer waited between.
func TestStagesWorkAtOnce(t *testing.T) {
	last := make(chan struct{})
	first := &watched{Inner: half(stages[0]), begin: func(ctx context.Context, call int32) error {
		if call == parts {
			close(last)
		}
		return nil
	}}
	second := &watched{Inner: half(stages[1]), begin: func(ctx context.Context, call int32) error {
		select {
		case <-last:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	inGoroutines(t, []nn.Module{first, second}, func(ctx context.Context, a *rpc.Agent) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		p, err := newPipeline(ctx, a)
		if err != nil {
			return err
		}
		defer p.opt.Close()
		x, y := spiral(tensor.NewGenerator(1))
		_, err = p.step(ctx, x, y)
		return err
	})
}
