// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// withContext runs main on ranks of axis cp, each with a model of the same values.
func withContext(t *testing.T, n int, build func(b *nn.Build) any, config ContextConfig, main func(ctx context.Context, g *dist.Group, p *contextParallel) error) error {
	t.Helper()
	return spawn(t, n, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: contextAxis})
		if err != nil {
			return err
		}
		p, err := newContextParallel(build(&nn.Build{Generator: tensor.NewGenerator(1)}), m, config)
		if err != nil {
			return err
		}
		if err := p.lay(); err != nil {
			return err
		}
		return main(ctx, g, p)
	})
}

// TestContextEvaluation: in an evaluation each rank gets the results for all tokens in their
// order, and with a cache nothing is cut.
func TestContextEvaluation(t *testing.T) {
	cc := contextCase{build: contextLlama(7, 2), time: 23, documents: [][]int{{9, 14}, {23}}}
	b := cc.batch(rand.New(rand.NewPCG(3, 3)))
	logits := func(ctx context.Context, model any, p *contextParallel, packed bool, cache *nn.KVCache, ids *tensor.Tensor) (out []float32, err error) {
		var opts []nn.CtxOption
		if cache != nil {
			opts = append(opts, nn.WithKVCache(cache))
		}
		c := nn.Evaluation(ctx, opts...)
		defer c.Close()
		defer c.Recover(&err)
		inner := c
		if p != nil {
			inner = inner.With(p)
		}
		if packed {
			inner = inner.WithDocuments(b.documents)
		}
		return inner.Call(model.(nn.Module), ids).Float32s(), nil
	}
	model := cc.build(&nn.Build{Generator: tensor.NewGenerator(1)})
	want := map[bool][]float32{}
	for _, packed := range []bool{false, true} {
		var err error
		if want[packed], err = logits(t.Context(), model, nil, packed, nil, b.ids); err != nil {
			t.Fatal(err)
		}
	}
	token := tensor.FromInt64([]int64{4, 5}, 2, 1)
	for _, form := range []string{ringAttention, headsAttention} {
		err := withContext(t, 3, cc.build, ContextConfig{Attention: form}, func(ctx context.Context, g *dist.Group, p *contextParallel) error {
			for _, packed := range []bool{false, true} {
				got, err := logits(ctx, p.model, p, packed, nil, b.ids)
				if err != nil {
					return err
				}
				if d := apart(got, want[packed]) / length(want[packed]); d > 1e-5 {
					return fmt.Errorf("%s, packed %t: the logits differ by %.2g", form, packed, d)
				}
			}
			// A short sequence is not cut.
			got, err := logits(ctx, p.model, p, false, nil, token)
			if err != nil {
				return err
			}
			alone, err := logits(ctx, p.model, nil, false, nil, token)
			if err != nil || !slices.Equal(got, alone) {
				return fmt.Errorf("a token alone has other logits: %w", err)
			}
			// The cache has the whole sequence on each rank, and one token more is one token.
			cache, other := nn.NewKVCache(32), nn.NewKVCache(32)
			for _, ids := range []*tensor.Tensor{b.ids, token} {
				got, err := logits(ctx, p.model, p, false, cache, ids)
				if err != nil {
					return err
				}
				want, err := logits(ctx, p.model, nil, false, other, ids)
				if err != nil {
					return err
				}
				if !slices.Equal(got, want) {
					return errors.New("with a cache the logits differ")
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestContextOutsideOfStep: a training pass of its own, outside of Strategy.Step, returns whole
// results, for any loss. The gradients of the ranks add up to those of one.
func TestContextOutsideOfStep(t *testing.T) {
	cc := contextCase{build: contextBERT(0), time: 14}
	b := cc.batch(rand.New(rand.NewPCG(4, 3)))
	square := func(ctx context.Context, model any, p *contextParallel) (loss float64, err error) {
		c := nn.Training(ctx)
		defer c.Close()
		defer c.Recover(&err)
		inner := c
		if p != nil {
			p.inStep = func(*nn.Ctx) bool { return false }
			inner = inner.With(p)
		}
		l := inner.Call(model.(nn.Module), b.ids).Square().Mean()
		return l.Item(), l.Backward(ctx)
	}
	model := cc.build(&nn.Build{Generator: tensor.NewGenerator(1)})
	want, err := square(t.Context(), model, nil)
	if err != nil {
		t.Fatal(err)
	}
	params := nn.Parameters(model)
	err = withContext(t, 3, cc.build, ContextConfig{}, func(ctx context.Context, g *dist.Group, p *contextParallel) error {
		got, err := square(ctx, p.model, p)
		if err != nil {
			return err
		}
		if d := got/want - 1; d > 1e-6 || d < -1e-6 {
			return fmt.Errorf("the loss is %v, want %v", got, want)
		}
		for i, q := range nn.Parameters(p.model) {
			if err := g.AllReduce(ctx, q.Grad(), dist.Sum); err != nil {
				return err
			}
			w := params[i].Grad().Float32s()
			if d := apart(q.Grad().Float32s(), w) / (length(w) + 1e-6); d > 1e-5 {
				return fmt.Errorf("the gradient of %s differs by %.2g", q.Name(), d)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestContextBytes: what a rank sends is what the pure functions say, to the byte.
func TestContextBytes(t *testing.T) {
	const layers, rows, heads, keyHeads, dim = 2, 2, 24, 12, 4
	for _, low := range []bool{false, true} {
		for _, form := range []string{ringAttention, headsAttention} {
			for _, n := range []int{2, 3, 4} {
				cc := contextCase{build: contextGrouped, time: 27, low: low}
				b := cc.batch(rand.New(rand.NewPCG(3, 3)))
				err := withContext(t, n, cc.build, ContextConfig{Attention: form}, func(ctx context.Context, g *dist.Group, p *contextParallel) error {
					if _, err := cc.pass(ctx, p.model, p, b); err != nil { // which compares the samples too
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					before, counted := g.Traffic(), p.sentBytes()
					if _, err := cc.pass(ctx, p.model, p, b); err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					z, size := zigzag{cc.time, n}, 4
					if low {
						size = 2
					}
					forward, backward := z.ringBytes(g.Rank(), 2*rows*keyHeads*dim, size)
					if form == headsAttention {
						forward, backward = z.headsBytes(g.Rank(), rows*(heads+2*keyHeads)*dim, rows*heads*dim, size)
					}
					if got, want := g.Traffic().Since(before).SentBytes, layers*(forward+backward); got != want {
						return fmt.Errorf("%s, bfloat16 %t, rank %d of %d: sent %d bytes, want %d", form, low, g.Rank(), n, got, want)
					}
					if got, want := p.sentBytes()-counted, layers*(forward+backward); got != want {
						return fmt.Errorf("%s: counted %d bytes, want %d", form, got, want)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestContextMemory: the activations of a pass fall with the number of ranks.
func TestContextMemory(t *testing.T) {
	build := func(b *nn.Build) any {
		return models.NewLlama(b, models.LlamaConfig{Vocab: contextVocabulary, Context: 256, Width: 64, Hidden: 176, Heads: 8, KeyHeads: 4, Layers: 4})
	}
	cc := contextCase{build: build, time: 256}
	one := cc.onOneRank(t, 1)
	for _, form := range []string{ringAttention, headsAttention} {
		for _, n := range []int{2, 4} {
			got := cc.onRanks(t, 1, n, ContextConfig{Attention: form})
			share := float64(got.peak) / float64(one.peak)
			t.Logf("%s: peak of %d ranks is %d bytes, of one rank %d: %.3f", form, n, got.peak, one.peak, share)
			if share > 1.2/float64(n) {
				t.Errorf("%s: on %d ranks the activations take %.3f of those of one rank", form, n, share)
			}
		}
	}
}

// TestContextTypes: the sharding types accept a pass whose gradients are summed over axis cp, and
// refuse one whose gradients are not.
func TestContextTypes(t *testing.T) {
	for _, form := range []string{ringAttention, headsAttention} {
		for _, owed := range []bool{true, false} {
			cc := contextCase{build: contextGPT, time: 16}
			b := cc.batch(rand.New(rand.NewPCG(3, 3)))
			err := withContext(t, 2, cc.build, ContextConfig{Attention: form}, func(ctx context.Context, _ *dist.Group, p *contextParallel) (err error) {
				c := nn.Training(ctx)
				defer c.Close()
				defer c.Recover(&err)
				pass := sharding.Begin(c.Tape(), sharding.Axis{Name: contextAxis, Data: true})
				for _, q := range nn.Parameters(p.model) {
					use := sharding.Parameter{Name: q.Name(), Value: sharding.Type{mesh.Replicate()}, Gradient: sharding.Type{mesh.Partial(dist.Sum)}}
					if !owed {
						use.Gradient = sharding.Type{mesh.Replicate()}
					}
					pass.Param(q.Data(), use)
				}
				inner := c.With(p)
				l := inner.CallN(&nn.CrossEntropyLoss{}, inner.Call(p.model.(nn.Module), b.ids), b.targets)[0]
				return l.Backward(ctx)
			})
			if owed && err != nil {
				t.Error(err)
			}
			if !owed && (err == nil || !strings.Contains(err.Error(), `Partial(sum) over axis "cp"`)) {
				t.Errorf("%s: gradients that are not summed: %v", form, err)
			}
		}
	}
}

// TestContextExperts: experts count the tokens of all ranks, and so the balance loss is that of
// one rank.
func TestContextExperts(t *testing.T) {
	build := func(b *nn.Build) any {
		return models.NewMoETransformer(b, models.MoEConfig{
			LlamaConfig: models.LlamaConfig{Vocab: contextVocabulary, Context: 64, Width: 24, Hidden: 24, Heads: 4, KeyHeads: 2, Layers: 2},
			Experts:     4, Active: 2, Router: nn.MoEOptions{Balance: 0.5, Z: 0.1},
		})
	}
	cc := contextCase{build: build, time: 19, added: true}
	want := cc.onOneRank(t, 5)
	for _, n := range []int{2, 3} {
		got := cc.onRanks(t, 5, n, ContextConfig{})
		cc.compare(t, got, want, 1e-5)
	}
}

// TestContextRefused: what cannot be done is an error before anything is trained, on every rank.
func TestContextRefused(t *testing.T) {
	plain := contextCase{build: contextLlama(0, 1), time: 12}
	b := plain.batch(rand.New(rand.NewPCG(3, 3)))
	row := func(ids *tensor.Tensor, from, n int) *tensor.Tensor { return ids.Narrow(1, from, n).Clone() }
	loss := func(c *nn.Ctx, logits, targets *tensor.Tensor) *tensor.Tensor {
		return c.CallN(&nn.CrossEntropyLoss{}, logits, targets)[0]
	}
	type refusal struct {
		name, want string
		build      func(b *nn.Build) any
		config     ContextConfig
		run        func(c *nn.Ctx, rank int, model any) *tensor.Tensor
	}
	call := func(c *nn.Ctx, model any, ids *tensor.Tensor) *tensor.Tensor { return c.Call(model.(nn.Module), ids) }
	for _, r := range []refusal{
		{name: "short sequence", want: "a sequence of 5 tokens has fewer than the 2·cp = 2·3 = 6 chunks",
			run: func(c *nn.Ctx, _ int, m any) *tensor.Tensor {
				return loss(c, call(c, m, row(b.ids, 0, 5)), row(b.targets, 0, 5))
			}},
		{name: "other samples", want: "has other samples than rank 0",
			run: func(c *nn.Ctx, rank int, m any) *tensor.Tensor {
				return loss(c, call(c, m, row(b.ids, rank, 9)), row(b.targets, rank, 9))
			}},
		{name: "another loss", want: "the loss was not computed by an nn.CrossEntropyLoss that was called by Ctx.CallN",
			run: func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return call(c, m, b.ids).Square().Mean() }},
		{name: "losses of tokens", want: "take the mean or the sum",
			run: func(c *nn.Ctx, _ int, m any) *tensor.Tensor {
				return c.CallN(&nn.CrossEntropyLoss{Reduction: tensor.ReduceNone}, call(c, m, b.ids), b.targets)[0].Sum()
			}},
		{name: "targets of a part", want: "must be those of the whole sequences of 12 tokens",
			run: func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return loss(c, call(c, m, b.ids), row(b.targets, 0, 4)) }},
		{name: "heads", want: "the 2 heads of the keys cannot be shared by 3 ranks of axis \"cp\": 2 % 3 = 2",
			build: func(b *nn.Build) any {
				return models.NewLlama(b, models.LlamaConfig{Vocab: contextVocabulary, Context: 64, Width: 24, Hidden: 24, Heads: 6, KeyHeads: 2, Layers: 1})
			},
			config: ContextConfig{Attention: headsAttention},
			run:    func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return loss(c, call(c, m, b.ids), b.targets) }},
		{name: "form", want: `there is no attention "rings": there is "ring" and "heads"`, config: ContextConfig{Attention: "rings"}},
		{name: "recurrent", want: "module rnn is a *nn.LSTM, which would see only a rank's part of each sequence",
			build: func(b *nn.Build) any {
				return &struct{ RNN *nn.LSTM }{nn.NewLSTM(b, 4, 4, nn.RNNOptions{})}
			}},
		{name: "capacity", want: "have a capacity of 1.5, which counts the tokens of whole sequences",
			build: func(b *nn.Build) any {
				return models.NewMoETransformer(b, models.MoEConfig{
					LlamaConfig: models.LlamaConfig{Vocab: contextVocabulary, Context: 64, Width: 24, Hidden: 24, Heads: 4, KeyHeads: 2, Layers: 1},
					Experts:     4, Active: 2, Router: nn.MoEOptions{Capacity: 1.5},
				})
			}},
		{name: "trained mask", want: "needs a gradient, which would be that of this rank's tokens alone",
			build: maskedModel(func(c *nn.Ctx, time int) *tensor.Tensor { return c.Leaf(tensor.Zeros(1, 1, 1, time)) }),
			run:   func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return loss(c, call(c, m, b.ids), b.targets) }},
		{name: "mask of a part", want: "is for this rank's queries and this rank's keys: a mask by pairs must have all 12 keys",
			build: maskedModel(func(c *nn.Ctx, time int) *tensor.Tensor { return c.Tape().Const(tensor.Zeros(time, time)) }),
			run:   func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return loss(c, call(c, m, b.ids), b.targets) }},
		{name: "result", want: "a model that is split over axis \"cp\" returns something for each token",
			build: func(b *nn.Build) any { return &averaging{contextGPT(b).(nn.Module)} },
			run:   func(c *nn.Ctx, _ int, m any) *tensor.Tensor { return loss(c, call(c, m, b.ids), b.targets) }},
	} {
		t.Run(r.name, func(t *testing.T) {
			if r.build == nil {
				r.build = plain.build
			}
			const n = 3
			var errs [n]error
			_ = withContext(t, n, r.build, r.config, func(ctx context.Context, g *dist.Group, p *contextParallel) (err error) {
				defer func() { errs[g.Rank()] = err }()
				c := nn.Training(ctx)
				defer c.Close()
				defer c.Recover(&err)
				return r.run(c.With(p), g.Rank(), p.model).Backward(ctx)
			})
			if r.run == nil { // refused before the model runs, where errs is not written
				err := withContext(t, n, r.build, r.config, func(context.Context, *dist.Group, *contextParallel) error { return nil })
				for i := range errs {
					errs[i] = err
				}
			}
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), r.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("rank %d: %v, want %q", rank, err, r.want)
				}
			}
		})
	}
}

// TestContextOfLoRA: what an adapter drops is what one rank drops.
func TestContextOfLoRA(t *testing.T) {
	build := func(b *nn.Build) any {
		l, err := nn.NewLoRA(b, contextGPT(b).(nn.Module), nn.LoRAOptions{Rank: 3, Dropout: 0.4, Targets: []string{"c_attn", "c_fc"}})
		if err != nil {
			panic(err)
		}
		for i, a := range l.Added {
			b.Generator.Normal(a.Parameter.Data(), 0, 0.1+float64(i%2))
		}
		return l
	}
	cc := contextCase{build: build, time: 19, recompute: true}
	want := cc.onOneRank(t, 5)
	for _, n := range []int{2, 3} {
		cc.compare(t, cc.onRanks(t, 5, n, ContextConfig{}), want, 1e-5)
	}
}

// alone attends by itself.
type alone struct{ Table *nn.Embedding }

func (m *alone) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Table, ids)
	return x.Add(tensor.SelfAttention(tensor.Cat(-1, x, x, x), 1, tensor.AttentionOptions{Causal: true}))
}

// TestContextOwnAttention: attention that is no module would see the tokens of a rank alone. The
// first training pass refuses it.
func TestContextOwnAttention(t *testing.T) {
	const n = 2
	var errs [n]error
	cc := contextCase{build: func(b *nn.Build) any { return &alone{nn.NewEmbedding(b, contextVocabulary, contextVocabulary)} }, time: 12}
	_ = spawn(t, n, func(ctx context.Context, g *dist.Group) error {
		m, err := NewMesh(ctx, g, Sizes{CP: n})
		if err != nil {
			return err
		}
		defer m.Close()
		p, err := Parallelize(ctx, cc.build(&nn.Build{Generator: tensor.NewGenerator(1)}), m, Config{})
		if err == nil {
			_, err = cc.steps(ctx, p, 1, 0, 1)
		}
		errs[g.Rank()] = err
		return err
	})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "call attention as an nn.DotProductAttention") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// averaging is a model with one result for a sequence.
type averaging struct{ Model nn.Module }

func (m *averaging) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Model, ids).Mean(1)
}

// masked is attention with a mask of the model's own.
type masked struct {
	Table     *nn.Embedding
	Attention *nn.DotProductAttention
	Head      *nn.Linear
	mask      func(c *nn.Ctx, time int) *tensor.Tensor
}

func maskedModel(mask func(c *nn.Ctx, time int) *tensor.Tensor) func(b *nn.Build) any {
	return func(b *nn.Build) any {
		return &masked{nn.NewEmbedding(b, contextVocabulary, 6*4), &nn.DotProductAttention{HeadDim: 4}, nn.NewLinear(b, 6*4, contextVocabulary), mask}
	}
}

func (m *masked) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Table, ids)
	h := x.Reshape(x.Dim(0), x.Dim(1), 6, 4)
	return c.Call(m.Head, c.CallN(m.Attention, h, h, h, m.mask(c, x.Dim(1)))[0].Reshape(x.Shape()...))
}

// TestContextWholeMasks: masks of the whole sequence, by keys and by pairs, are honoured.
func TestContextWholeMasks(t *testing.T) {
	pairs := tensor.Zeros(20, 20)
	tensor.NewGenerator(8).Normal(pairs, 0, 2)
	byHead := tensor.Cat(0, pairs, pairs.T(), pairs.MulScalar(2), pairs.Neg(), pairs.Square(), pairs).Reshape(1, 6, 20, 20)
	for name, mask := range map[string]*tensor.Tensor{"pairs": pairs, "keys": pairs.Narrow(0, 3, 1).Clone(), "bool": pairs.GtScalar(0), "heads": byHead} {
		cc := contextCase{time: 20, build: maskedModel(func(c *nn.Ctx, _ int) *tensor.Tensor { return c.Tape().Const(mask) })}
		want := cc.onOneRank(t, 5)
		for _, form := range []string{ringAttention, headsAttention} {
			for _, n := range []int{2, 3} {
				t.Run(fmt.Sprint(name, form, n), func(t *testing.T) {
					cc.compare(t, cc.onRanks(t, 5, n, ContextConfig{Attention: form}), want, 1e-5)
				})
			}
		}
	}
}

// TestContextLostRank: a rank that dies in the ring is named on the others.
func TestContextLostRank(t *testing.T) {
	cc := contextCase{build: contextLlama(0, 1), time: 12}
	b := cc.batch(rand.New(rand.NewPCG(3, 3)))
	for _, phase := range []string{"forward", "backward"} {
		const n, dies = 3, 1
		var errs [n]error
		gone := errors.New("gone")
		_ = withContext(t, n, cc.build, ContextConfig{}, func(ctx context.Context, g *dist.Group, p *contextParallel) (err error) {
			defer func() { errs[g.Rank()] = err }()
			if g.Rank() == dies {
				c := nn.Training(ctx)
				defer c.Close()
				if phase == "backward" {
					inner := c.With(p)
					inner.CallN(&nn.CrossEntropyLoss{}, inner.Call(p.model.(nn.Module), b.ids), b.targets)
				} else if err := p.sameSamples(c, &contextPass{contextParallel: p}, []*tensor.Tensor{b.ids}); err != nil {
					return err
				}
				return gone
			}
			_, err = cc.pass(ctx, p.model, p, b)
			return err
		})
		for rank, err := range errs {
			var lost *dist.RankError
			if rank != dies && (!errors.As(err, &lost) || lost.Rank != dies) {
				t.Errorf("%s: rank %d: %v", phase, rank, err)
			}
		}
	}
}
