// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

// gatedMLP is a shared expert.
type gatedMLP struct {
	Gate *Linear `name:"gate_proj"`
	Up   *Linear `name:"up_proj"`
	Down *Linear `name:"down_proj"`
}

func newGatedMLP(b *Build, width, hidden int) *gatedMLP {
	dense := func(in, out int) *Linear { return &Linear{Weight: b.Empty(out, in)} }
	return &gatedMLP{dense(width, hidden), dense(width, hidden), dense(hidden, width)}
}

func (m *gatedMLP) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Down, tensor.SwiGLU(c.Call(m.Gate, x), c.Call(m.Up, x)))
}

// TestMoEAgreesWithTransformers compares with the sparse blocks of Mixtral, Qwen2-MoE and
// DeepSeek-V3 (testdata/moe.py): results, the balance loss, and all gradients.
func TestMoEAgreesWithTransformers(t *testing.T) {
	const width, hidden, shared, experts, active = 12, 20, 28, 6, 2
	file, err := safetensors.Open(filepath.Join("testdata", "moe.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, build := range map[string]func(b *Build) *MoE{
		"mixtral": func(b *Build) *MoE { return NewMoE(b, width, hidden, experts, active, MoEOptions{Balance: 3}) },
		"qwen": func(b *Build) *MoE {
			m := NewMoE(b, width, hidden, experts, active, MoEOptions{Unnormalized: true})
			m.Shared, m.SharedGate = newGatedMLP(b, width, shared), &Linear{Weight: b.Empty(1, width)}
			return m
		},
		"deepseek": func(b *Build) *MoE {
			m := NewMoE(b, width, hidden/2, experts, active, MoEOptions{Sigmoid: true, Scale: 2.5, BiasStep: 1})
			m.Shared = newGatedMLP(b, width, hidden)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			golden := transformerGolden{t, file, name}
			m := build(&Build{})
			for _, p := range Parameters(m) {
				value := golden.read("param/" + p.Name())
				if value == nil {
					t.Fatalf("transformers has no %s", p.Name())
				}
				p.Data().CopyFrom(value)
			}
			if m.ChoiceBias != nil {
				m.ChoiceBias.Data.CopyFrom(golden.read("bias"))
			}
			for _, again := range []bool{false, true} {
				c := Training(t.Context())
				defer c.Close()
				if again {
					c = c.With(Recompute(func(module any) bool { return module == m }))
				}
				x := c.Leaf(golden.read("in"))
				y := c.Call(m, x)
				golden.compare("the result", y, golden.read("out"), 1e-5)
				loss := y.Mul(golden.read("weights")).Sum()
				if added := c.AddedLoss(); added != nil {
					golden.compare("the balance loss", added.MulScalar(1.0/3), golden.read("balance"), 1e-6)
					loss = loss.Add(added)
				}
				x.OnGrad(func(g *tensor.Tensor) *tensor.Tensor {
					golden.compare("the gradient of the input", g, golden.read("ingrad"), 1e-5)
					return g
				})
				if err := loss.Backward(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, p := range Parameters(m) {
					golden.compare("the gradient of "+p.Name(), p.Grad(), golden.read("grad/"+p.Name()), 1e-5)
					p.ZeroGrad()
				}
			}
		})
	}
}

// smallMoE is a layer with drawn weights, and tokens for it.
func smallMoE(t *testing.T, tokens int, o MoEOptions) (*MoE, *tensor.Tensor) {
	t.Helper()
	b := &Build{Generator: tensor.NewGenerator(5)}
	m := NewMoE(b, 8, 12, 4, 2, o)
	x := tensor.Zeros(tokens, 8)
	b.Generator.Normal(x, 0, 2)
	return m, x
}

// TestMoECapacity: what is beyond the limit is dropped, second choices first.
func TestMoECapacity(t *testing.T) {
	m, x := smallMoE(t, 10, MoEOptions{Capacity: 1})
	m.Gate.Weight.Data().Fill(0) // all experts are alike, so that each token takes 0 and 1
	c := Evaluation(t.Context())
	defer c.Close()
	got := c.Call(m, x)
	// 10·2/4 = 5 tokens for each of experts 0 and 1.
	want := c.CallN(m.Experts, x, tensor.Full(0.5, 10, 2), tensor.FromInt64([]int64{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, 10, 2))[0]
	if !slices.Equal(got.Float32s(), want.Float32s()) {
		t.Error("other tokens than the last five were dropped")
	}
	if rest := got.Narrow(0, 5, 5).Abs().Sum().Item(); rest != 0 {
		t.Errorf("tokens without an expert are not 0 but %v in all", rest)
	}
	m.Options.Capacity = 4
	if all := c.Call(m, x).Narrow(0, 9, 1).Abs().Sum().Item(); all == 0 {
		t.Error("a token was dropped though every expert has room for all")
	}
}

// TestBalanceLoss: it is least, the number of active experts, when experts are equally busy.
func TestBalanceLoss(t *testing.T) {
	m, _ := smallMoE(t, 1, MoEOptions{Balance: 1})
	loss := func(x *tensor.Tensor) float64 {
		c := Training(t.Context())
		defer c.Close()
		c.Call(m, x)
		return c.AddedLoss().Item()
	}
	m.Gate.Weight.Data().Fill(0)
	ones := tensor.Full(1, 6, 8)
	if got := loss(ones); math.Abs(got-2) > 1e-6 {
		t.Errorf("the loss of an even router is %v, want the number of active experts, 2", got)
	}
	m.Gate.Weight.Data().Narrow(0, 1, 1).Fill(5) // everybody wants expert 1
	if got := loss(ones); got < 3.5 {
		t.Errorf("the loss of a router with one favourite is %v, want about 4", got)
	}
	m.Options = MoEOptions{Z: 0.5}
	m.Gate.Weight.Data().Fill(0)
	if got, want := loss(ones), 0.5*math.Log(4)*math.Log(4); math.Abs(got-want) > 1e-6 {
		t.Errorf("the z-loss of logits of 0 is %v, want half of ln(4)², %v", got, want)
	}
}

// TestBalanceExperts: the bias moves once a step, against the load, whether or not the
// passes are recomputed, and keeps the weights as they are.
func TestBalanceExperts(t *testing.T) {
	for _, again := range []bool{false, true} {
		m, x := smallMoE(t, 9, MoEOptions{BiasStep: 0.25, Sigmoid: true})
		var load []float32
		for range 2 {
			c := Training(t.Context())
			if again {
				c = c.With(Recompute(func(module any) bool { return module == m }))
			}
			y := c.Call(m, x)
			if err := y.Sum().Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if got := m.ChoiceBias.Data.Abs().Sum().Item(); got != 0 {
				t.Fatalf("a pass moved the bias by %v", got)
			}
		}
		err := BalanceExperts(struct{ Layer *MoE }{m}, func(counts *tensor.Tensor) error {
			load = counts.Float32s()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		sum := float32(0)
		for _, n := range load {
			sum += n
		}
		if sum != 2*9*2 {
			t.Errorf("recomputed %v: %v choices were counted, want 2 passes of 9 tokens with 2 each", again, sum)
		}
		for e, b := range m.ChoiceBias.Data.Float32s() {
			want := float32(0)
			if mean := sum / 4; load[e] < mean {
				want = 0.25
			} else if load[e] > mean {
				want = -0.25
			}
			if b != want {
				t.Errorf("the bias of expert %d with %v tokens is %v, want %v", e, load[e], b, want)
			}
		}
		before := m.ChoiceBias.Data.Clone().Float32s()
		if err := BalanceExperts(m, nil); err != nil {
			t.Fatal(err)
		}
		if got := m.ChoiceBias.Data.Float32s(); !slices.Equal(got, before) {
			t.Errorf("a step without passes moved the bias from %v to %v", before, got)
		}
	}
}

// TestMoEOnMeta: a layer has shapes without data, forward and backward.
func TestMoEOnMeta(t *testing.T) {
	b := &Build{Device: tensor.Meta}
	m := NewMoE(b, 8, 12, 4, 2, MoEOptions{Balance: 1, Z: 1, BiasStep: 1, Capacity: 1.5})
	c := Training(t.Context(), WithDevice(tensor.Meta), WithAutocast(tensor.BFloat16))
	defer c.Close()
	y := c.Call(m, tensor.New(tensor.Meta, tensor.Float32, 2, 5, 8))
	if !slices.Equal(y.Shape(), []int{2, 5, 8}) {
		t.Fatalf("the result has the shape %v", y.Shape())
	}
	if err := y.To(tensor.Float32).Sum().Add(c.AddedLoss()).Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range Parameters(m) {
		if p.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name())
		}
	}
	if err := BalanceExperts(m, nil); err != nil {
		t.Error(err)
	}
}

// TestMoERefuses: one error tells all that is wrong.
func TestMoERefuses(t *testing.T) {
	defer func() {
		err, _ := recover().(error)
		if err == nil || !strings.Contains(err.Error(), "5 of 4 experts are active") || !strings.Contains(err.Error(), "the capacity is -1") {
			t.Errorf("got %v", err)
		}
	}()
	NewMoE(&Build{}, 8, 12, 4, 5, MoEOptions{Capacity: -1})
}
