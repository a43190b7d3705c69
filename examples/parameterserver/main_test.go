// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/parameterserver`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"[rank3] step   0: loss 1.", "[rank1] step 300: loss 0.", "[rank0] accuracy 0.9"})
}

// TestBitsOfOneProcess: the server's model is, bit for bit, the one that one process
// makes of the same gradients.
func TestBitsOfOneProcess(t *testing.T) {
	const trainers = 3
	s := newServer(trainers)
	err := dist.Spawn(t.Context(), trainers+1, func(ctx context.Context, g *dist.Group) error {
		name := []string{"server", "a", "b", "c"}[g.Rank()]
		agent, err := rpc.Init(ctx, name, rpc.WithGroup(g), rpc.Serve(Fetch, s.fetch), rpc.ServeAsync(Update, s.update))
		if err != nil {
			return err
		}
		defer agent.Close()
		if g.Rank() > 0 {
			if _, err := train(ctx, agent.Peer("server"), tensor.NewGenerator(int64(g.Rank()))); err != nil {
				return err
			}
		}
		return agent.Shutdown(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}

	model := newModel()
	params := nn.Parameters(model)
	opt := optim.NewSGD(params, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	points := []*tensor.Generator{tensor.NewGenerator(1), tensor.NewGenerator(2), tensor.NewGenerator(3)}
	for range steps {
		sums := make([]*tensor.Tensor, len(params))
		for _, g := range points {
			opt.ZeroGrad()
			x, y := draw(g)
			if _, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(c.Call(model, x), y) }); err != nil {
				t.Fatal(err)
			}
			for i, p := range params {
				if sums[i] == nil {
					sums[i] = p.Grad().Clone()
				} else {
					sums[i].Axpy(1, p.Grad())
				}
			}
		}
		for i, p := range params {
			p.SetGrad(sums[i])
		}
		opt.Step(tensor.Full(1.0 / trainers))
	}
	for i, p := range params {
		if !slices.Equal(p.Data().Float32s(), s.params[i].Data().Float32s()) {
			t.Errorf("%s differs from that of one process", p.Name())
		}
	}
	if got := accuracy(t.Context(), s.model); got < 0.95 {
		t.Errorf("accuracy %.3f, want at least 0.95", got)
	}
}

// TestBatch: no trainer gets its answer before the last gradients have come. Wrong
// gradients are refused and do not count. A repeated call counts once.
func TestBatch(t *testing.T) {
	s := newServer(2)
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		name := []string{"server", "first", "second"}[g.Rank()]
		agent, err := rpc.Init(ctx, name, rpc.WithGroup(g), rpc.Serve(Fetch, s.fetch), rpc.ServeAsync(Update, s.update))
		if err != nil {
			return err
		}
		defer agent.Close()
		server := agent.Peer("server")
		before, err := Fetch.Call(ctx, server, struct{}{})
		if err != nil {
			return err
		}
		if name == "first" {
			_, err := Update.Call(ctx, server, Gradients{0, before[:1]})
			if rpc.KindOf(err) != rpc.KindApplication || !strings.Contains(err.Error(), "1 gradients for 4 parameters") {
				t.Errorf("want an error for gradients that are missing, got %v", err)
			}
			before[0] = tensor.Zeros(1)
			if _, err := Update.Call(ctx, server, Gradients{0, before}); rpc.KindOf(err) != rpc.KindApplication {
				t.Errorf("want an error for a gradient of another shape, got %v", err)
			}
			if _, err := Update.Call(ctx, server, Gradients{1, nil}); rpc.KindOf(err) != rpc.KindApplication {
				t.Errorf("want an error for a step that cannot be yet, got %v", err)
			}
		}
		zeros := make([]*tensor.Tensor, 4)
		for i, p := range s.params {
			zeros[i] = tensor.Zeros(p.Data().Shape()...)
		}
		if name == "first" {
			for range 2 { // a repeated call of one trainer gets no answer
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				if _, err := Update.Call(short, server, Gradients{0, zeros}); rpc.KindOf(err) != rpc.KindTimeout {
					t.Errorf("want a call that waits for the other trainer, got %v", err)
				}
				cancel()
			}
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if name != "server" {
			// Two steps. Each is answered, however often a call was repeated.
			for step := range 2 {
				if _, err := Update.Call(ctx, server, Gradients{step, zeros}); err != nil {
					return err
				}
			}
		}
		return agent.Shutdown(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.steps != 2 {
		t.Errorf("%d steps were taken, want 2", s.steps)
	}
}
