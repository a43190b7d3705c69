// SPDX-License-Identifier: Apache-2.0

package models

import (
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

func smallMoE() MoEConfig {
	return MoEConfig{
		LlamaConfig: LlamaConfig{Vocab: 13, Context: 8, Width: 8, Hidden: 12, Heads: 2, KeyHeads: 1, Layers: 2},
		Experts:     4, Active: 2, Router: nn.MoEOptions{Balance: 0.01},
	}
}

func TestMoETransformerLearns(t *testing.T) {
	b := &nn.Build{Generator: tensor.NewGenerator(3)}
	m := NewMoETransformer(b, smallMoE())
	opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2})
	ids := tensor.FromInt64([]int64{1, 5, 2, 9, 3, 12, 4, 0, 7, 7, 8, 6, 1, 11, 10, 2}, 2, 8)
	first, last := 0.0, 0.0
	for i := range 60 {
		c := nn.Training(t.Context())
		opt.ZeroGrad()
		loss := tensor.CrossEntropy(c.Call(m, ids.Narrow(1, 0, 7)), ids.Narrow(1, 1, 7)).Keep()
		if err := loss.Add(c.AddedLoss()).Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		opt.Step(nil)
		if last = loss.Item(); i == 0 {
			first = last
		}
		c.Close()
	}
	if first < 2 || last > 0.5 {
		t.Errorf("the loss went from %.2f to %.2f in 60 steps, want from about 2.6 to below 0.5", first, last)
	}
}
