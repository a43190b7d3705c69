// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/rnn-rpc`: the network learns to count.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{"step   0: loss 2.", "step 120: loss 0.0", "[rank0] " + text})
}

// inOneProcess trains the network with all of its parts here, and returns each loss.
func inOneProcess(t *testing.T) []float64 {
	embedding, _ := newEmbedding(t.Context(), Sizes{len(vocabulary), width})
	decoder, _ := newDecoder(t.Context(), Sizes{hidden, len(vocabulary)})
	model := &Writer{embedding, nn.NewLSTM(&nn.Build{}, width, hidden, nn.RNNOptions{}), decoder}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 0.01})
	h, cell := states()
	losses := make([]float64, steps)
	for i := range losses {
		x, next := letters(i)
		opt.ZeroGrad()
		var err error
		losses[i], err = nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			out := c.CallN(model, x, c.Tape().Const(h), c.Tape().Const(cell))
			h, cell = out[1].Detach().Keep(), out[2].Detach().Keep()
			return tensor.CrossEntropy(out[0], next)
		})
		if err != nil {
			t.Fatal(err)
		}
		opt.Step(nil)
	}
	return losses
}

// TestLossOfOneProcess: the first and the last loss are, bit for bit, those of the
// same network in one process.
func TestLossOfOneProcess(t *testing.T) {
	want := inOneProcess(t)
	err := dist.Spawn(t.Context(), len(names), func(ctx context.Context, g *dist.Group) error {
		a, err := start(ctx, g)
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			model, err := newWriter(ctx, a)
			if err != nil {
				return err
			}
			got, err := (&trainer{agent: a, model: model}).train(ctx)
			if err != nil {
				return err
			}
			if got != want[steps-1] {
				t.Errorf("the last loss is %v, in one process %v", got, want[steps-1])
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
	if first := want[0]; first < 2 || want[steps-1] > 0.05 {
		t.Errorf("the loss goes from %v to %v", first, want[steps-1])
	}
}
