// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// golden is what testdata/gpt.py computed with PyTorch.
type golden struct{ file *safetensors.File }

func openGolden(t *testing.T) golden {
	t.Helper()
	f, err := safetensors.Open(filepath.Join("testdata", "gpt.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return golden{f}
}

// read returns a tensor of the file.
func (g golden) read(t *testing.T, name string, dtype tensor.DType, shape ...int) *tensor.Tensor {
	t.Helper()
	e, ok := g.file.Lookup(name)
	if !ok {
		t.Fatalf("%s has no %s; run testdata/gpt.py again", g.file.Name(), name)
	}
	if shape == nil {
		for _, s := range e.Shape {
			shape = append(shape, int(s))
		}
	}
	out := tensor.New(tensor.CPU(), dtype, shape...)
	if err := g.file.ReadTensor(name, out.Buffer().Data); err != nil {
		t.Fatal(err)
	}
	return out
}

func (g golden) model(t *testing.T) *GPT {
	t.Helper()
	m := NewGPT(&nn.Build{}, GPTConfig{Vocab: 61, Context: 24, Width: 32, Heads: 4, Layers: 2})
	for _, s := range nn.StateDict(m) {
		s.Tensor.CopyFrom(g.read(t, "weight."+s.Name, tensor.Float32))
	}
	return m
}

// TestGPTWithoutData plans with a model that fits on no machine.
func TestGPTWithoutData(t *testing.T) {
	m := NewGPT(&nn.Build{Device: tensor.Meta}, GPTConfig{Vocab: 50257, Context: 2048, Width: 12288, Heads: 96, Layers: 96})
	if n := nn.NumParams(m); n/1e9 != 174 {
		t.Errorf("GPT-3 has %d parameters, want 174 billion", n)
	}
	ids := tensor.New(tensor.Meta, tensor.Int64, 4, 2048)
	c := nn.Training(t.Context(), nn.WithDevice(tensor.Meta))
	defer c.Close()
	if err := tensor.CrossEntropy(c.Call(m, ids), ids).Backward(c); err != nil {
		t.Error(err)
	}
	if m.Transformer.Tokens.Weight.Grad() == nil {
		t.Error("the embedding has no gradient")
	}
}

func step(t *testing.T, m *GPT, ids, targets *tensor.Tensor, opt optim.Optimizer) float64 {
	t.Helper()
	c := nn.Training(t.Context())
	defer c.Close()
	opt.ZeroGrad()
	loss := tensor.CrossEntropy(c.Call(m, ids), targets)
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	opt.Step(1)
	return loss.Item()
}

func TestGPTTrainsAsInPyTorch(t *testing.T) {
	g := openGolden(t)
	ids, targets := g.read(t, "ids", tensor.Int64), g.read(t, "targets", tensor.Int64)
	for _, c := range []struct {
		name string
		make func(ps []*nn.Parameter) optim.Optimizer
	}{
		{"sgd", func(ps []*nn.Parameter) optim.Optimizer {
			return optim.NewSGD(ps, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
		}},
		{"adamw", func(ps []*nn.Parameter) optim.Optimizer {
			return optim.NewAdamW(ps, optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.1})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := g.model(t)
			opt := c.make(nn.Parameters(m))
			worst := 0.0
			for i, want := range g.read(t, "losses."+c.name, tensor.Float32).Float32s() {
				got := step(t, m, ids, targets, opt)
				diff := math.Abs(got-float64(want)) / float64(want)
				worst = max(worst, diff)
				if diff > 1e-4 {
					t.Fatalf("loss of step %d is %.7f, PyTorch's %.7f", i, got, want)
				}
				if i > 0 || c.name != "sgd" {
					continue
				}
				for _, p := range nn.Parameters(m) {
					compare(t, "gradient of "+p.Name(), p.Grad(), g.read(t, "grad."+p.Name(), tensor.Float32))
				}
			}
			t.Logf("largest relative difference of a loss: %.1e", worst)
		})
	}
}

func compare(t *testing.T, what string, got, want *tensor.Tensor) {
	t.Helper()
	values, ref := got.Float32s(), want.Float32s()
	scale, worst := 0.0, 0.0
	for i := range ref {
		scale = max(scale, math.Abs(float64(ref[i])))
		worst = max(worst, math.Abs(float64(values[i]-ref[i])))
	}
	if !(worst <= 1e-5*scale+1e-7) {
		t.Errorf("%s is off by %.1e, its largest element is %.1e", what, worst, scale)
	}
}

func TestGPTStateMovesThroughACheckpoint(t *testing.T) {
	g := openGolden(t)
	m := g.model(t)
	dir := t.TempDir()
	err := checkpoint.Save(t.Context(), dir, 1, func(w *checkpoint.Writer) error {
		return w.WriteTensors(checkpoint.ModelFile, nn.StateDict(m).All(), nil)
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	other := NewGPT(&nn.Build{}, m.Config)
	if err := ck.LoadTensors(checkpoint.ModelFile, nn.StateDict(other).All()); err != nil {
		t.Fatal(err)
	}
	want := nn.StateDict(m)
	for i, s := range nn.StateDict(other) {
		compare(t, s.Name, s.Tensor, want[i].Tensor)
	}
}

// A cache gives, position by position, the logits of one pass over all.
func TestGPTWithCache(t *testing.T) {
	g := openGolden(t)
	m, ids := g.model(t), g.read(t, "ids", tensor.Int64)
	c := nn.Evaluation(t.Context())
	defer c.Close()
	want := c.Call(m, ids)
	cache := nn.NewKVCache(m.Config.Context)
	for at, n := 0, 5; at < ids.Dim(1); at, n = at+n, 1 {
		c := nn.Evaluation(t.Context(), nn.WithKVCache(cache))
		got := c.Call(m, ids.Narrow(1, at, n)).Float32s()
		c.Close()
		for i, w := range want.Narrow(1, at, n).Float32s() {
			if math.Abs(float64(got[i]-w)) > 1e-4 {
				t.Fatalf("position %d: logit %d is %v, want %v", at, i, got[i], w)
			}
		}
	}
}
