// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAnEvaluationInAHandler that closes its carrier returns what Keep took out of it;
// else the caller reads that Keep is missing.
func TestAnEvaluationInAHandler(t *testing.T) {
	s := newStage(1)
	evaluate := rpc.NewMethod[bool, *tensor.Tensor]("test.evaluate")
	all, _ := agents(t, "pipe", 2)
	err := all[1].Offer(rpc.Serve(evaluate, func(ctx context.Context, keep bool) (*tensor.Tensor, error) {
		c := nn.Evaluation(ctx)
		defer c.Close()
		y := c.Call(s.model, tensor.Full(1, 2, 4))
		if keep {
			y = y.Keep()
		}
		return y, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if y, err := evaluate.Call(t.Context(), all[0].PeerRank(1), true); err != nil || y.NumElems() == 0 {
		t.Errorf("with Keep: %v, %v", y, err)
	}
	if _, err := evaluate.Call(t.Context(), all[0].PeerRank(1), false); err == nil || !strings.Contains(err.Error(), "tensor 0 has been freed") || !strings.Contains(err.Error(), "call Keep on it before") {
		t.Errorf("without Keep: %v; want one that says what is missing", err)
	}
}
