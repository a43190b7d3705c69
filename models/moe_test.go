// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

func smallMoE() MoEConfig {
	return MoEConfig{
		LlamaConfig: LlamaConfig{Vocab: 13, Context: 8, Width: 8, Hidden: 12, Heads: 2, KeyHeads: 1, Layers: 2},
		Experts:     4, Active: 2,
	}
}

// denseMoE is the definition: every expert computes every token, and what the
// router did not choose counts nothing.
func denseMoE(c *nn.Ctx, m *MoE, x *tensor.Tensor) *tensor.Tensor {
	probs := c.Call(m.Gate, x).Softmax(-1)
	_, chosen := probs.TopK(m.active, -1, true)
	mask := tensor.Zeros(probs.Shape()...)
	mask.WithFloat32s(func(data []float32) {
		for i, e := range chosen.Int64s() {
			data[i/m.active*len(m.Experts)+int(e)] = 1
		}
	})
	weights := probs.Mul(c.Tape().Const(mask))
	weights = weights.Div(weights.SumKeep(-1))
	var y *tensor.Tensor
	for e, expert := range m.Experts {
		part := c.Call(expert, x).Mul(weights.Narrow(1, e, 1))
		if y == nil {
			y = part
		} else {
			y = y.Add(part)
		}
	}
	return y
}

func TestExpertsComputeTheirTokens(t *testing.T) {
	g := smallMoE()
	b := &nn.Build{Generator: tensor.NewGenerator(2)}
	m := NewMoE(b, g)
	x := tensor.Zeros(10, g.Width)
	b.Generator.Normal(x, 0, 3)
	grads := func(forward func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor) ([]float32, map[string][]float32) {
		c := nn.Training(t.Context())
		defer c.Close()
		for _, p := range nn.Parameters(m) {
			p.ZeroGrad()
		}
		y := forward(c, x).Keep()
		if err := y.Mul(y).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		out := map[string][]float32{}
		for _, p := range nn.Parameters(m) {
			if p.Grad() != nil {
				out[p.Name()] = p.Grad().Float32s()
			}
		}
		return y.Float32s(), out
	}
	want, wantGrads := grads(func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return denseMoE(c, m, x) })
	got, gotGrads := grads(func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return c.CallN(m, x.Reshape(2, 5, -1))[0]
	})
	if d := maxDiff(got, want, 0); !(d <= 1e-5) {
		t.Errorf("the output differs by %.1e of the largest", d)
	}
	for name, w := range wantGrads {
		if gotGrads[name] == nil {
			gotGrads[name] = make([]float32, len(w))
		}
		if d := maxDiff(gotGrads[name], w, 1e-9); !(d <= 1e-4) {
			t.Errorf("the gradient of %s differs by %.1e of its largest element", name, d)
		}
	}
}

func TestBalanceLossIsLeastWhenExpertsAreEquallyBusy(t *testing.T) {
	m := NewMoE(&nn.Build{}, smallMoE())
	m.Gate.Weight.Data().Fill(0) // all experts are equally likely
	c := nn.Evaluation(t.Context())
	defer c.Close()
	out := c.CallN(m, tensor.Full(1, 1, 6, 8))
	if got := out[1].Item(); !(math.Abs(got-2) <= 1e-6) {
		t.Errorf("the loss of an even router is %v, want the number of active experts, 2", got)
	}
	m.Gate.Weight.Data().Narrow(0, 1, 1).Fill(5) // everybody wants expert 1
	if got := c.CallN(m, tensor.Full(1, 1, 6, 8))[1].Item(); got < 3.5 {
		t.Errorf("the loss of a router with one favourite is %v, want about 4", got)
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
		out := c.CallN(m, ids.Narrow(1, 0, 7))
		loss := tensor.CrossEntropy(out[0], ids.Narrow(1, 1, 7)).Keep()
		if err := loss.Add(out[1].MulScalar(0.01)).Backward(t.Context()); err != nil {
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
