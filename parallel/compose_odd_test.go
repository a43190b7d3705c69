// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// freezing is a model whose parameters with one of the prefixes are frozen.
func freezing(m composedModel, prefixes ...string) composedModel {
	build := m.build
	m.name = "frozen " + m.name
	m.build = func(b *nn.Build) nn.Module {
		model := build(b)
		for _, p := range nn.Parameters(model) {
			for _, prefix := range prefixes {
				if strings.HasPrefix(p.Name(), prefix) {
					p.Frozen = true
				}
			}
		}
		return model
	}
	return m
}

// again recomputes the blocks of a model.
func again(m composedModel) composedModel {
	m.name, m.around = "recomputed "+m.name, recomputed
	return m
}

var (
	untiedGPT = composedModel{name: "untied gpt", build: func(b *nn.Build) nn.Module {
		return models.NewGPT(b, models.GPTConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Heads: 4, Layers: 4, Untied: true})
	}}
	sparseGPT = composedModel{name: "sparse gpt", build: func(b *nn.Build) nn.Module {
		m := untiedGPT.build(b)
		for _, p := range nn.Parameters(m) {
			if strings.Contains(p.Name(), "wte") {
				p.Sparse = true
			}
		}
		return m
	}}
	adaptedGPT = composedModel{name: "adapted gpt", around: recomputed, build: lora(composedGPT.build, nn.LoRAOptions{Rank: 3, Targets: []string{"c_attn", "c_proj", "c_fc"}})}
	busyMoE    = composedModel{name: "balanced moe", around: recomputed, build: func(b *nn.Build) nn.Module {
		return models.NewMoETransformer(b, models.MoEConfig{
			LlamaConfig: models.LlamaConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Hidden: 20, Heads: 4, KeyHeads: 2, Layers: 4},
			Experts:     6, Active: 2, SharedHidden: 12, SharedGate: true,
			Router: nn.MoEOptions{Sigmoid: true, Balance: 0.02, Z: 0.01, BiasStep: 0.02},
		})
	}}
)

// TestOddModelsComposed: adapters, gradients by rows, frozen stages, blocks that are recomputed,
// and experts that are balanced in all ways train as on one rank.
func TestOddModelsComposed(t *testing.T) {
	t.Parallel()
	const n = 2
	for i, c := range []struct {
		model    composedModel
		sizes    Sizes
		schedule string
	}{
		{adaptedGPT, Sizes{PP: n}, "1f1b"},
		{adaptedGPT, Sizes{PP: n, TP: n}, "zbv"},
		{adaptedGPT, Sizes{FSDP: n, TP: n}, ""},
		{adaptedGPT, Sizes{CP: n, TP: n}, ""},
		{adaptedGPT, Sizes{PP: n, FSDP: n}, ""},
		{sparseGPT, Sizes{CP: n}, ""},
		{sparseGPT, Sizes{PP: n}, ""},
		{sparseGPT, Sizes{Replicate: n, CP: n}, ""},
		{sparseGPT, Sizes{FSDP: n, CP: n}, ""},
		{sparseGPT, Sizes{PP: n, Replicate: n}, ""},
		{sparseGPT, Sizes{PP: n, FSDP: n}, ""},
		{freezing(untiedGPT, "transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1"), Sizes{PP: n}, "1f1b"},
		{freezing(untiedGPT, "transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1"), Sizes{PP: n}, "zbv"},
		{freezing(untiedGPT, "transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1"), Sizes{PP: n, FSDP: n}, "gpipe"},
		{freezing(untiedGPT, "transformer.h.2", "transformer.h.3", "transformer.ln_f", "lm_head"), Sizes{PP: n}, "interleaved-zb"},
		{freezing(untiedGPT, "transformer.h.2", "transformer.h.3", "transformer.ln_f", "lm_head"), Sizes{PP: n, Replicate: n}, "1f1b"},
		{freezing(composedGPT, "transformer.wte", "transformer.h.1.ln_1", "transformer.h.2.attn.c_proj.bias"), Sizes{PP: n, TP: n}, "1f1b"},
		{freezing(composedGPT, "transformer.wpe", "transformer.h.1.ln_1", "transformer.h.2.attn.c_proj.bias"), Sizes{FSDP: n, TP: n}, ""},
		{again(composedGPT), Sizes{TP: n}, ""},
		{again(composedLlama), Sizes{PP: n, TP: n}, "zbv"},
		{again(composedLlama), Sizes{FSDP: n, TP: n}, ""},
		{busyMoE, Sizes{Replicate: n}, ""},
		{busyMoE, Sizes{PP: n}, "interleaved"},
		{busyMoE, Sizes{TP: n}, ""},
		{busyMoE, Sizes{CP: n}, ""},
		{busyMoE, Sizes{EP: n}, ""},
		{busyMoE, Sizes{EP: n, CP: n}, ""},
		{busyMoE, Sizes{PP: n, EP: n}, "zbv"},
		{busyMoE, Sizes{EP: n, TP: n}, ""},
		{busyMoE, Sizes{FSDP: n, EP: n}, ""},
		{busyMoE, Sizes{PP: n, CP: n}, "1f1b"},
		{freezing(busyMoE, "model.layers.1", "model.layers.2.mlp.gate"), Sizes{EP: n}, ""},
	} {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s %+v %s", c.model.name, c.sizes, c.schedule), func(t *testing.T) {
			ranks := c.sizes.product()
			samplers := 1
			for _, size := range []int{c.sizes.Replicate, c.sizes.FSDP, c.sizes.EP} {
				samplers *= max(size, 1)
			}
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			want := c.model.alone(t, samplers)
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				run, err := c.model.split(ctx, g, c.sizes, Config{Pipeline: PipelineConfig{Schedule: c.schedule}}, i%2 == 0)
				if err == nil {
					err = run.difference(t, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// halfTied is a model whose head reads the table of the tokens, without a gradient or with one. No
// gradient ever comes to Idle, which both ends read.
type halfTied struct {
	Table  *nn.Embedding
	Idle   *nn.Parameter
	Layers []*nn.Linear
	Head   *halfTiedHead
}

type halfTiedHead struct {
	Weight, Idle *nn.Parameter
	detach       bool
}

func (m *halfTied) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(&halfTiedIdle{m.Idle}, c.Call(m.Table, ids))
	for _, l := range m.Layers {
		x = c.Call(l, x).Tanh()
	}
	return c.Call(m.Head, x)
}

type halfTiedIdle struct{ Idle *nn.Parameter }

func (m *halfTiedIdle) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Add(c.Param(m.Idle).Detach())
}

func (h *halfTiedHead) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	w := c.Param(h.Weight)
	if h.detach {
		w = w.Detach()
	}
	return tensor.Linear(x.Add(c.Param(h.Idle).Detach()), w, nil)
}

// TestTiedWithoutGradient: a parameter that stages share has its gradient where only one of them
// brings any, step after step, and none where none of them does.
func TestTiedWithoutGradient(t *testing.T) {
	for _, detach := range []bool{false, true} {
		m := composedModel{name: "half tied", build: func(b *nn.Build) nn.Module {
			idle := b.Uniform(1, 12)
			h := &halfTied{Table: nn.NewEmbedding(b, composedVocab, 12), Idle: idle}
			for range 4 {
				h.Layers = append(h.Layers, nn.NewLinear(b, 12, 12))
			}
			h.Head = &halfTiedHead{h.Table.Weight, idle, detach}
			return h
		}}
		for _, sizes := range []Sizes{{PP: 2, Replicate: 1, FSDP: 1}, {PP: 2, Replicate: 2, FSDP: 1}, {PP: 2, Replicate: 1, FSDP: 2}} {
			want := m.alone(t, sizes.Replicate*sizes.FSDP)
			err := spawn(t, sizes.product(), func(ctx context.Context, g *dist.Group) error {
				run, err := m.split(ctx, g, sizes, Config{}, false)
				if err != nil {
					return err
				}
				if run.grads["idle"] != nil && want.grads["idle"] == nil {
					return fmt.Errorf("idle has the gradient %v", run.grads["idle"])
				}
				return run.difference(t, want)
			})
			if err != nil {
				t.Errorf("detached %v, %+v: %v", detach, sizes, err)
			}
		}
	}
}

// TestGeneratesComposed: with a cache of keys, the model gives what it gives on one rank, on every mesh.
func TestGeneratesComposed(t *testing.T) {
	const n = 2
	for _, c := range []struct {
		model composedModel
		sizes Sizes
	}{
		{composedGPT, Sizes{TP: n}},
		{composedLlama, Sizes{CP: n, TP: n}},
		{composedLlama, Sizes{PP: n, TP: n}},
		{composedLlama, Sizes{PP: n, CP: n}},
		{composedMoE, Sizes{EP: n, TP: n}},
		{composedMoE, Sizes{PP: n, EP: n}},
		{composedMoE, Sizes{FSDP: n, EP: n}},
	} {
		t.Run(fmt.Sprintf("%s %+v", c.model.name, c.sizes), func(t *testing.T) {
			generate := func(ctx context.Context, s Strategy) (out map[string][]float32, err error) {
				cache := nn.NewKVCache(composedTime)
				ids := []int64{3, 9, 27, 28, 31}
				out = map[string][]float32{}
				for at, part := range [][]int64{ids[:3], ids[3:4], ids[4:]} {
					err := func() (err error) {
						c := nn.Evaluation(ctx, nn.WithKVCache(cache))
						defer c.Close()
						defer c.Recover(&err)
						out[fmt.Sprint(at)] = c.Call(s, tensor.FromInt64(part, 1, len(part))).Float32s()
						return nil
					}()
					if err != nil {
						return nil, fmt.Errorf("part %d: %w", at, err)
					}
				}
				return out, nil
			}
			one, err := NewSingle(c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}))
			if err != nil {
				t.Fatal(err)
			}
			want, err := generate(t.Context(), one)
			if err != nil {
				t.Fatal(err)
			}
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			err = spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
				grid, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				defer grid.Close()
				p, err := Parallelize(ctx, c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}), grid,
					Config{Pipeline: PipelineConfig{Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 1, composedTime)}}})
				if err != nil {
					return err
				}
				defer p.Close()
				got, err := generate(ctx, p)
				if err != nil {
					return err
				}
				if worst, where := difference(t, got, want); !(worst < 1e-4) {
					return fmt.Errorf("part %s is off by %.2g", where, worst)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
