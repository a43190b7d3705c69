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
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/ddp-rpc`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 0.7", "step 300: loss 0.0", "the trainers have the same 610 parameters"})
}

// inOneProcess trains the whole model on the batches of all trainers, and returns the
// last loss of each.
func inOneProcess(t *testing.T) []float64 {
	table, dense := newTable(), newDense()
	model := nn.NewSequential(table, dense)
	opts := []optim.Optimizer{
		optim.NewSGD(nn.Parameters(table), optim.SGDOptions{LR: tableLR}),
		optim.NewSGD(nn.Parameters(dense), optim.SGDOptions{LR: denseLR}),
	}
	data := []*tensor.Generator{tensor.NewGenerator(0), tensor.NewGenerator(1)}
	losses := make([]float64, trainers)
	for range steps {
		for _, opt := range opts {
			opt.ZeroGrad()
		}
		_, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			sum := tensor.Zeros()
			for i, g := range data {
				ids, labels := people(g)
				l := tensor.CrossEntropy(c.Call(model, ids), labels)
				losses[i] = l.Item()
				sum = sum.Add(l)
			}
			return sum.DivScalar(trainers)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, opt := range opts {
			opt.Step(nil)
		}
	}
	return losses
}

// TestLossOfOneProcess: up to rounding, both trainers end with the losses of one process
// that has the whole model and all of the data. Their copies have the same bits. The
// test also checks that a changed bit is found.
func TestLossOfOneProcess(t *testing.T) {
	want := inOneProcess(t)
	err := dist.Spawn(t.Context(), trainers+1, func(ctx context.Context, world *dist.Group) error {
		a, group, err := start(ctx, world)
		if err != nil {
			return err
		}
		defer a.Close()
		if group != nil {
			tr, err := newTrainer(ctx, a, group)
			if err != nil {
				return err
			}
			got, err := tr.train(ctx)
			if err != nil {
				return err
			}
			if w := want[group.Rank()]; math.Abs(got-w) > 1e-3*w || w > 0.05 {
				t.Errorf("trainer %d ends with loss %v, one process with %v", group.Rank(), got, w)
			}
			if err := tr.same(ctx); err != nil {
				t.Error(err)
			}
			if p := tr.dense[1].Data(); group.Rank() == 1 {
				p.CopyFrom(p.MulScalar(1 + 1e-6))
			}
			if err := tr.same(ctx); err == nil || !strings.Contains(err.Error(), tr.dense[1].Name()) {
				t.Errorf("the check does not find that a parameter differs: %v", err)
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
