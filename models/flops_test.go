// SPDX-License-Identifier: Apache-2.0

package models

import (
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestFLOPs: what the device counts in a step of a GPT is what the formula for transformers says (Kaplan
// et al. 2020; Narayanan et al. 2021): 6 operations a token and weight of the layers, and 12 a pair of a
// query and a key that it sees, channel and layer. Recomputed blocks are counted apart: 2 and 4 of them.
func TestFLOPs(t *testing.T) {
	g := GPTConfig{Vocab: 61, Context: 24, Width: 32, Heads: 4, Layers: 3}
	const batch, time = 2, 20
	blocks := int64(g.Layers * 12 * g.Width * g.Width)
	tokens, pairs := int64(batch*time), int64(batch*time*(time+1)/2)
	width, layers := int64(g.Width), int64(g.Layers)
	model := 6*tokens*(blocks+int64(g.Vocab)*width) + 12*pairs*width*layers
	for _, recompute := range []bool{false, true} {
		m := NewGPT(&nn.Build{}, g)
		ids := tensor.New(tensor.CPU(), tensor.Int64, batch, time)
		c := nn.Training(t.Context())
		if recompute {
			c = c.With(nn.Recompute(func(m any) bool { _, ok := m.(*GPTBlock); return ok }))
		}
		doneBefore, againBefore := tensor.FLOPs()
		if err := tensor.CrossEntropy(c.Call(m, ids), ids).Backward(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
		done, again := tensor.FLOPs()
		done, again = done-doneBefore, again-againBefore
		wantAgain := int64(0)
		if recompute {
			wantAgain = 2*tokens*blocks + 4*pairs*width*layers
		}
		if done-again != model || again != wantAgain {
			t.Errorf("recompute %v: %d operations of the model and %d again, want %d and %d", recompute, done-again, again, model, wantAgain)
		}
	}
}
