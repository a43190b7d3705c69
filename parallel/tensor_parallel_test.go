// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// sharedModel is a model whose modules the ranks of a group share, without an engine: the axis
// tp alone.
type sharedModel struct {
	model  any
	t      *tensorParallel
	params []*nn.Parameter
	check  bool // the sharding types of the next pass
	around []nn.Interceptor
}

func shareModel(ctx context.Context, g *dist.Group, model any, plan Plan, config TPConfig) (*sharedModel, error) {
	m, err := mesh.New(ctx, g, mesh.Axis{Name: tensorAxis, Size: g.Size()})
	if err != nil {
		return nil, err
	}
	s := &sharedModel{model: model, params: nn.Parameters(model), check: true}
	lays := map[*nn.Parameter]*lay{}
	for _, p := range s.params {
		lays[p] = &lay{shape: p.Data().Shape()}
	}
	if s.t, err = newTensorParallel(model, m, plan, config, lays); err != nil {
		return nil, err
	}
	if err := s.t.lay(); err != nil {
		return nil, err
	}
	for _, p := range s.params {
		p.SetData(s.t.partOfParameter(p, p.Data()))
	}
	return s, nil
}

// partOfParameter returns what this rank has of a whole parameter, or of its gradient.
func (t *tensorParallel) partOfParameter(p *nn.Parameter, whole *tensor.Tensor) *tensor.Tensor {
	l := t.lays[p]
	at := []mesh.Placement{l.at[tensorAxis]}
	shape, err := mesh.LocalShape(l.shape, []int{t.size}, at, []int{t.rank})
	if err != nil {
		panic(err)
	}
	boxes, _ := mesh.Boxes(l.shape, []int{t.size}, at, []int{t.rank})
	local := tensor.New(whole.Device(), whole.DType(), shape...)
	for _, b := range boxes {
		to, from := local, whole
		for d := range b.Shape {
			to, from = to.Narrow(d, b.LocalStart[d], b.Shape[d]), from.Narrow(d, b.Start[d], b.Shape[d])
		}
		to.CopyFrom(from)
	}
	return local
}

// pass runs a training pass: loss calls the model by run.
func (s *sharedModel) pass(ctx context.Context, loss func(c *nn.Ctx) *tensor.Tensor, opts ...nn.CtxOption) (value float64, err error) {
	c := nn.Training(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	if s.check {
		pass := sharding.Begin(c.Tape(), sharding.Axis{Name: tensorAxis})
		for _, p := range s.params {
			at, owes := s.t.lays[p].at[tensorAxis], mesh.Replicate()
			if s.t.lays[p].owes[tensorAxis] {
				owes = mesh.Partial(dist.Sum)
			} else if _, cut := at.IsShard(); cut {
				owes = at
			}
			pass.Param(p.Data(), sharding.Parameter{Name: p.Name(), Value: sharding.Type{at}, Gradient: sharding.Type{owes}})
		}
		s.check = false
	}
	for _, i := range s.around {
		c = c.With(i)
	}
	l := loss(c.With(s.t))
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	g, _ := s.t.mesh.Group(tensorAxis)
	for _, p := range s.params {
		if s.t.lays[p].owes[tensorAxis] && p.Grad() != nil {
			if err := g.AllReduce(ctx, p.Grad(), dist.Sum); err != nil {
				return 0, err
			}
		}
	}
	return l.Item(), nil
}

// sharedCase is a model of which the ranks of tp share the modules.
type sharedCase struct {
	name   string
	build  func(b *nn.Build) nn.Module
	plan   string // "" is the model's own
	config TPConfig
	ranks  []int
	batch  int // 0 is 3
	time   int
	vocab  int
	loss   *nn.CrossEntropyLoss
	target int64 // that does not count; 0 is the usual
	lost   bool  // the loss is computed of the logits that each rank has
	around []nn.Interceptor
	opts   []nn.CtxOption
	off    float64 // largest relative difference of gradients; 0 is 2e-5
}

func (s *sharedCase) inputs() (ids, targets *tensor.Tensor) {
	batch := s.batch
	if batch == 0 {
		batch = 3
	}
	in, out := make([]int64, batch*s.time), make([]int64, batch*s.time)
	for i := range in {
		in[i], out[i] = int64(i*i*7+i*3)%int64(s.vocab), int64(i*11+5)%int64(s.vocab)
	}
	if out[1] = s.target; s.target == 0 {
		out[1] = tensor.IgnoreIndex
	}
	return tensor.FromInt64(in, batch, s.time), tensor.FromInt64(out, batch, s.time)
}

func (s *sharedCase) compute(c *nn.Ctx, m nn.Module) *tensor.Tensor {
	ids, targets := s.inputs()
	loss := s.loss
	if loss == nil {
		loss = &nn.CrossEntropyLoss{}
	}
	l := c.CallN(loss, c.Call(m, ids), targets)[0]
	if l.NumDims() > 0 { // no reduction
		l = l.Mul(l.Tape().Const(tensor.Arange(tensor.CPU(), l.NumElems()).To(tensor.Float32).Reshape(l.Shape()...))).Sum()
	}
	if added := c.AddedLoss(); added != nil {
		l = l.Add(added)
	}
	return l
}

func (s *sharedCase) test(t *testing.T) {
	newModel := func() nn.Module { return s.build(&nn.Build{Generator: tensor.NewGenerator(7)}) }
	alone := newModel()
	want, err := func() (value float64, err error) {
		c := nn.Training(t.Context(), s.generator()...)
		defer c.Close()
		defer c.Recover(&err)
		for _, i := range s.around {
			c = c.With(i)
		}
		l := s.compute(c, alone)
		if err := l.Backward(t.Context()); err != nil {
			return 0, err
		}
		return l.Item(), nil
	}()
	if err != nil {
		t.Fatal(err)
	}
	wantGrads := map[string]*tensor.Tensor{}
	for _, p := range nn.Parameters(alone) {
		wantGrads[p.Name()] = p.Grad()
	}
	limit := s.off
	if limit == 0 {
		limit = 2e-5
	}
	for _, n := range s.ranks {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
				var plan Plan
				if s.plan != "" {
					var err error
					if plan, err = ParsePlan(s.plan); err != nil {
						return err
					}
				}
				m := newModel()
				shared, err := shareModel(ctx, g, m, plan, s.config)
				if err != nil {
					return err
				}
				shared.around = s.around
				shared.t.lossFollows = func(*tensor.Tape) bool { return s.lost }
				for step := range 2 { // with types, and without
					for _, p := range shared.params {
						p.ZeroGrad()
					}
					got, err := shared.pass(ctx, func(c *nn.Ctx) *tensor.Tensor { return s.compute(c, m) }, s.generator()...)
					if err != nil {
						return fmt.Errorf("pass %d: %w", step, err)
					}
					if !(math.Abs(got-want) <= limit/2*math.Abs(want)) {
						return fmt.Errorf("pass %d: the loss is %v, one rank's is %v", step, got, want)
					}
					for _, p := range shared.params {
						if err := sameGradient(shared.t, p, wantGrads[p.Name()], limit); err != nil {
							return fmt.Errorf("pass %d: %w", step, err)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func (s *sharedCase) generator() []nn.CtxOption {
	return append(slices.Clone(s.opts), nn.WithGenerator(tensor.NewGenerator(3)))
}

// sameGradient compares the gradient of a parameter with one rank's.
func sameGradient(t *tensorParallel, p *nn.Parameter, want *tensor.Tensor, limit float64) error {
	if want == nil || p.Grad() == nil {
		if (want == nil) != (p.Grad() == nil) {
			return fmt.Errorf("%s has a gradient: %t, on one rank: %t", p.Name(), p.Grad() != nil, want != nil)
		}
		return nil
	}
	scale := max(want.Abs().AMax().Item(), 1e-6)
	part := t.partOfParameter(p, want)
	if part.NumElems() == 0 {
		return nil
	}
	if off := p.Grad().Sub(part).Abs().AMax().Item(); !(off <= limit*scale) {
		return fmt.Errorf("the gradient of %s on rank %d is off by %.2g of %.2g", p.Name(), t.rank, off, scale)
	}
	return nil
}

func tinyGPT(c models.GPTConfig) func(b *nn.Build) nn.Module {
	c.Context, c.Width, c.Heads, c.Layers = 16, 16, 4, 2
	return func(b *nn.Build) nn.Module { return models.NewGPT(b, c) }
}

func tinyLlama(c models.LlamaConfig) func(b *nn.Build) nn.Module {
	c.Context, c.Width, c.Hidden, c.Heads, c.KeyHeads, c.Layers = 16, 16, 33, 8, 4, 2
	return func(b *nn.Build) nn.Module { return models.NewLlama(b, c) }
}

// tinyDecoder returns what builds a decoder of one of the families.
func tinyDecoder[G any, M nn.Module](build func(*nn.Build, G) M, g G) func(b *nn.Build) nn.Module {
	return func(b *nn.Build) nn.Module { return build(b, g) }
}

// mixedWindows are sizes of a decoder whose second layer has a window.
func mixedWindows(tied bool) models.LlamaConfig {
	return models.LlamaConfig{
		Vocab: 33, Context: 16, Width: 16, Hidden: 33, Heads: 8, KeyHeads: 4, HeadDim: 6, Layers: 2, Tied: tied, Window: 3, Windowed: []bool{false, true},
	}
}

var wholeSequence = TPConfig{WholeSequence: true}

func tinyBERT(c models.BERTConfig) func(b *nn.Build) nn.Module {
	c.Vocab, c.Context, c.Width, c.Heads, c.Layers = 31, 16, 16, 4, 2
	return func(b *nn.Build) nn.Module { return models.NewBERT(b, c) }
}

func tinyMoE(c models.MoEConfig) func(b *nn.Build) nn.Module {
	c.LlamaConfig = models.LlamaConfig{Vocab: 33, Context: 16, Width: 16, Hidden: 33, Heads: 8, KeyHeads: 4, Layers: 2}
	c.Experts, c.Active = 4, 2
	return func(b *nn.Build) nn.Module {
		m := models.NewMoETransformer(b, c)
		for _, l := range m.Model.Layers {
			l.(*models.MoEBlock).Experts.Gate.Weight.Data().Scale(50) // so that no two experts are close
		}
		return m
	}
}

// tinyQwenMoE returns what builds a Qwen with experts, of which no two are close.
func tinyQwenMoE[M nn.Module](build func(*nn.Build, models.QwenMoEConfig) M, c models.QwenMoEConfig) func(b *nn.Build) nn.Module {
	c.LlamaConfig = models.LlamaConfig{Vocab: 33, Context: 16, Width: 16, Hidden: 33, Heads: 8, KeyHeads: 4, Layers: 2}
	c.Experts, c.Active, c.DenseHidden = 4, 2, 20
	return func(b *nn.Build) nn.Module {
		m := build(b, c)
		for _, p := range nn.Parameters(m) {
			if strings.HasSuffix(p.Name(), "mlp.gate.weight") {
				p.Data().Scale(50)
			}
		}
		return m
	}
}

// encoder is a stack of PyTorch's layers with an output layer.
type encoder struct {
	Tokens *nn.Embedding
	Layers *nn.TransformerEncoder
	Head   *nn.Linear
}

func newEncoder(o nn.TransformerOptions) func(b *nn.Build) nn.Module {
	o.Width, o.NumHeads, o.Hidden = 16, 4, cmp.Or(o.Hidden, 36)
	return func(b *nn.Build) nn.Module {
		return &encoder{nn.NewEmbedding(b, 31, 16), nn.NewTransformerEncoder(b, 2, o), nn.NewLinear(b, 16, 31)}
	}
}

func (m *encoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Head, c.Call(m.Layers, c.Call(m.Tokens, ids)))
}

const encoderPlan = `
tokens: width
layers.layers.*.self_attn: heads
layers.layers.*.self_attn.out_proj: row
layers.layers.*.linear1: column
layers.layers.*.linear2: row
layers.layers.*.norm?: sequence
layers.layers.*.dropout: cut
layers.layers.*.dropout[12]: sequence
head: column to replicate
`

// crossed attends from its tokens to other values of them.
type crossed struct {
	Tokens *nn.Embedding
	Norm   *nn.LayerNorm
	Cross  *nn.MultiheadAttention
	Head   *nn.Linear
}

func newCrossed(b *nn.Build) nn.Module {
	return &crossed{nn.NewEmbedding(b, 31, 16), nn.NewLayerNorm(b, 16), nn.NewMultiheadAttention(b, 16, 4), nn.NewLinear(b, 16, 31)}
}

func (m *crossed) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	seen := c.Call(m.Norm, x)
	return c.Call(m.Head, x.Add(c.CallN(m.Cross, x, seen, seen)[0]))
}

const crossedPlan = `
tokens: vocabulary
norm: sequence
cross: heads
cross.out_proj: row
head: column to replicate
`

func lora(build func(b *nn.Build) nn.Module, o nn.LoRAOptions) func(b *nn.Build) nn.Module {
	return func(b *nn.Build) nn.Module {
		l, err := nn.NewLoRA(b, build(b), o)
		if err != nil {
			panic(err)
		}
		for i, p := range l.Added {
			if i%2 == 1 { // B is zero at first, and A then has no gradient
				b.Generator.Normal(p.Parameter.Data(), 0, 0.1)
			}
		}
		return l
	}
}

var recomputed = []nn.Interceptor{nn.Recompute(func(m any) bool {
	return ofType[*models.GPTBlock](m) || ofType[*models.LlamaBlock](m) || ofType[*models.GemmaBlock](m) || ofType[*models.BERTLayer](m) || ofType[*models.MoEBlock](m) || ofType[*nn.TransformerEncoderLayer](m)
})}

var autocast = []nn.CtxOption{nn.WithAutocast(tensor.BFloat16)}

var sharedCases = []sharedCase{
	{name: "gpt", build: tinyGPT(models.GPTConfig{Vocab: 31}), config: wholeSequence, ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "gpt, sequence", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "gpt, gathered once", build: tinyGPT(models.GPTConfig{Vocab: 31}), config: TPConfig{KeepGathered: true}, ranks: []int{2}, time: 8, vocab: 31},
	{name: "gpt, pieces", build: tinyGPT(models.GPTConfig{Vocab: 31}), config: TPConfig{Pieces: 2}, ranks: []int{2, 4}, time: 8, vocab: 31, lost: true},
	{name: "gpt, uneven pieces, recomputed", build: tinyGPT(models.GPTConfig{Vocab: 31, Untied: true}), config: TPConfig{Pieces: 3}, ranks: []int{2}, time: 16, vocab: 31, lost: true, around: recomputed},
	{name: "llama, pieces", build: tinyLlama(models.LlamaConfig{Vocab: 33, AttentionBias: true, MLPBias: true}), config: TPConfig{Pieces: 4}, ranks: []int{2}, time: 14, vocab: 33},
	{name: "bert, pieces, bfloat16", build: tinyBERT(models.BERTConfig{Dropout: 0.1}), config: TPConfig{Pieces: 2}, ranks: []int{2}, time: 8, vocab: 31, lost: true, opts: autocast, off: 6e-2},
	{name: "gpt, uneven sequence", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2, 4}, time: 7, vocab: 31},
	{name: "gpt, untied", build: tinyGPT(models.GPTConfig{Vocab: 31, Untied: true}), ranks: []int{2}, time: 8, vocab: 31},
	{name: "gpt, shared loss", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2, 4}, time: 8, vocab: 31, lost: true},
	{name: "gpt, untied, shared loss", build: tinyGPT(models.GPTConfig{Vocab: 33, Untied: true, Hidden: 33}), config: wholeSequence, ranks: []int{4}, time: 8, vocab: 33, lost: true},
	{name: "gpt, recomputed", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2}, time: 8, vocab: 31, lost: true, around: recomputed},
	{name: "gpt, untied, recomputed", build: tinyGPT(models.GPTConfig{Vocab: 31, Untied: true}), ranks: []int{2}, time: 8, vocab: 31, lost: true, around: recomputed},
	{name: "gpt, bfloat16", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2}, time: 8, vocab: 31, lost: true, opts: autocast, off: 6e-2},
	{name: "gpt, adapted", build: lora(tinyGPT(models.GPTConfig{Vocab: 31}), nn.LoRAOptions{Rank: 2, Targets: []string{"c_attn", "c_proj"}}), ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "gpt, adapted with dropout", build: lora(tinyGPT(models.GPTConfig{Vocab: 31}), nn.LoRAOptions{Rank: 2, Dropout: 0.1, Targets: []string{"c_attn"}}), ranks: []int{2}, time: 8, vocab: 31},
	{name: "llama", build: tinyLlama(models.LlamaConfig{Vocab: 33}), config: wholeSequence, ranks: []int{2, 4}, time: 8, vocab: 33},
	{name: "llama, sequence", build: tinyLlama(models.LlamaConfig{Vocab: 33}), ranks: []int{2, 4}, time: 8, vocab: 33, lost: true},
	{name: "llama, tied, biases, window", build: tinyLlama(models.LlamaConfig{Vocab: 33, Tied: true, AttentionBias: true, MLPBias: true, Window: 3}), ranks: []int{2}, time: 9, vocab: 33, lost: true, around: recomputed},
	{name: "qwen2, windows", build: tinyDecoder(models.NewQwen2, models.Qwen2Config{LlamaConfig: mixedWindows(true)}), ranks: []int{2}, time: 9, vocab: 33, lost: true},
	{name: "qwen3", build: tinyDecoder(models.NewQwen3, models.Qwen3Config{LlamaConfig: mixedWindows(false)}), ranks: []int{2, 4}, time: 8, vocab: 33, lost: true},
	{name: "gemma3", build: tinyDecoder(models.NewGemma3, models.Gemma3Config{GemmaConfig: models.GemmaConfig{LlamaConfig: mixedWindows(true), LogitCap: 3}}), ranks: []int{2}, time: 9, vocab: 33, lost: true, around: recomputed},
	{name: "gemma2, whole sequence", build: tinyDecoder(models.NewGemma2, models.Gemma2Config{GemmaConfig: models.GemmaConfig{LlamaConfig: mixedWindows(false)}, ScoreCap: 2}), config: wholeSequence, ranks: []int{2}, time: 8, vocab: 33},
	{name: "bert", build: tinyBERT(models.BERTConfig{}), ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "bert, dropout", build: tinyBERT(models.BERTConfig{Dropout: 0.2}), ranks: []int{2, 4}, time: 7, vocab: 31, lost: true},
	{name: "bert, dropout, whole sequence", build: tinyBERT(models.BERTConfig{Dropout: 0.2, Untied: true, Padding: new(int)}), config: wholeSequence, ranks: []int{2}, time: 8, vocab: 31, lost: true},
	{name: "bert, dropout, recomputed", build: tinyBERT(models.BERTConfig{Dropout: 0.2}), ranks: []int{2}, time: 8, vocab: 31, around: recomputed},
	{name: "bert, headless", build: tinyBERT(models.BERTConfig{Headless: true}), ranks: []int{2}, time: 8, vocab: 16},
	// A rank's part of one size is as large as that of another.
	{name: "gpt, vocabulary beside hidden", build: tinyGPT(models.GPTConfig{Vocab: 33, Untied: true, Hidden: 32}), ranks: []int{2}, time: 8, vocab: 33},
	{name: "gpt, vocabulary beside hidden, shared loss", build: tinyGPT(models.GPTConfig{Vocab: 11, Hidden: 8}), ranks: []int{2, 4}, time: 8, vocab: 11, lost: true, around: recomputed},
	{name: "encoder, vocabulary beside hidden", build: newEncoder(nn.TransformerOptions{Dropout: 0.2, Hidden: 32}), plan: encoderPlan, ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "gpt, one sample", build: tinyGPT(models.GPTConfig{Vocab: 31}), ranks: []int{2, 4}, batch: 1, time: 8, vocab: 31, lost: true},
	{name: "llama, a token a rank", build: tinyLlama(models.LlamaConfig{Vocab: 31}), ranks: []int{2, 4}, batch: 2, time: 4, vocab: 31, lost: true},
	{name: "bert, one sample, a token a rank", build: tinyBERT(models.BERTConfig{Dropout: 0.1}), ranks: []int{4}, batch: 1, time: 4, vocab: 31, lost: true},
	{name: "qwen2 moe", build: tinyQwenMoE(models.NewQwen2MoE, models.QwenMoEConfig{
		MoEConfig: models.MoEConfig{SharedHidden: 12, SharedGate: true, Router: nn.MoEOptions{Unnormalized: true}}, InputBias: true,
	}), ranks: []int{2}, time: 8, vocab: 33, lost: true},
	{name: "qwen3 moe", build: tinyQwenMoE(models.NewQwen3MoE, models.QwenMoEConfig{Dense: []bool{false, true}}), ranks: []int{2, 4}, time: 8, vocab: 33, lost: true},
	{name: "moe, one sample", build: tinyMoE(models.MoEConfig{SharedHidden: 12}), ranks: []int{2}, batch: 1, time: 8, vocab: 33, lost: true},
	{name: "encoder, one sample", build: newEncoder(nn.TransformerOptions{Dropout: 0.2}), plan: encoderPlan, ranks: []int{4}, batch: 1, time: 8, vocab: 31},
	{name: "moe", build: tinyMoE(models.MoEConfig{Router: nn.MoEOptions{Balance: 0.1, Z: 0.01}}), config: wholeSequence, ranks: []int{2, 4}, time: 8, vocab: 33, lost: true},
	{name: "moe, sequence", build: tinyMoE(models.MoEConfig{SharedHidden: 12, SharedGate: true, Router: nn.MoEOptions{Sigmoid: true, Scale: 2, Balance: 0.1}}), ranks: []int{2, 4}, time: 8, vocab: 33, lost: true},
	{name: "moe, capacity, recomputed", build: tinyMoE(models.MoEConfig{SharedHidden: 12, Router: nn.MoEOptions{Capacity: 1, Balance: 0.1}}), ranks: []int{2}, time: 7, vocab: 33, around: recomputed},
	{name: "encoder", build: newEncoder(nn.TransformerOptions{Dropout: 0.2}), plan: encoderPlan, ranks: []int{2, 4}, time: 8, vocab: 31},
	{name: "attention to other values", build: newCrossed, plan: crossedPlan, ranks: []int{2, 4}, time: 7, vocab: 31},
	{name: "encoder, norms first", build: newEncoder(nn.TransformerOptions{Dropout: 0.2, NormFirst: true, Causal: true}), plan: encoderPlan, ranks: []int{2}, time: 7, vocab: 31, around: recomputed},
}

// TestSharedModels: ranks that share the modules of a model have the loss and the gradients of
// one rank.
func TestSharedModels(t *testing.T) {
	t.Parallel()
	for _, s := range sharedCases {
		t.Run(s.name, func(t *testing.T) { s.test(t) })
	}
}
