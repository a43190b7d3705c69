// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Users of other libraries have reported wrong gradients of models that are split
// among ranks. Each test in this file is named after such a fault and has the
// reports. Most check draws of TestLaw that have what the fault needs.

// splitsOf are the splits that each report is tested on: replicate by shard.
var splitsOf = map[string][][2]int{
	"ddp":  {{1, 1}, {2, 1}, {3, 1}},
	"fsdp": {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {1, 8}},
	"mesh": {{1, 3}, {2, 1}, {2, 2}},
}

// usual is a model with a block, a norm and an embedding.
func usual() draw {
	return draw{
		Seed: 3, Microbatches: 1, Optimizer: "sgd",
		Model: modelDraw{Vocabulary: 11, Width: 6, Blocks: []blockDraw{{Hidden: 7, Norm: true}, {Hidden: 4}}, Order: []int{0, 1}},
	}
}

// everySplit checks draws on all splits of all strategies; with -short on one of each.
func everySplit(t *testing.T, draws ...draw) {
	t.Helper()
	for _, strategy := range lawStrategies {
		splits := splitsOf[strategy]
		if testing.Short() {
			splits = [][2]int{{2, 2}}
			if strategy == "ddp" {
				splits = [][2]int{{3, 1}}
			}
		}
		for _, split := range splits {
			for _, d := range draws {
				d.Strategy, d.Replicate, d.Shard = strategy, split[0], split[1]
				if err := d.check(t); err != nil {
					t.Errorf("%s %d × %d: %v\n\trepeat it by -run TestLaw -draw '%v'", strategy, split[0], split[1], err, d)
				}
			}
		}
	}
}

// TestGroupOfOneRankDoublesGradients: NVIDIA/Megatron-LM#6660. Every microbatch
// doubled the gradients if the group of a buffer had one rank.
func TestGroupOfOneRankDoublesGradients(t *testing.T) {
	t.Parallel()
	last, every := usual(), usual()
	last.Microbatches, every.Microbatches, every.EveryPass = 3, 3, true
	everySplit(t, last, every)
}

// TestClipSplitAndWholeTogether: huggingface/accelerate#4219,
// pytorch/pytorch#180346, #180501. Clipping refused gradients of which some are split
// and some are whole. Here the sparse embedding is whole on every rank.
func TestClipSplitAndWholeTogether(t *testing.T) {
	t.Parallel()
	d := usual()
	d.Model.Sparse, d.MaxNorm = true, 0.1
	everySplit(t, d)
}

// TestNormSmallerByRootOfShards: radixark/miles_diffusion#35. The norm was too
// small by the root of the number of shards.
func TestNormSmallerByRootOfShards(t *testing.T) {
	t.Parallel()
	plain, clipped := usual(), usual()
	clipped.MaxNorm = 0.1
	everySplit(t, plain, clipped)
}

// TestEpsilonOnceARank: pytorch/pytorch#149768. The small number that keeps
// clipping from a division by zero was added once a rank. With a norm of its size,
// the factor tells how often it was added.
func TestEpsilonOnceARank(t *testing.T) {
	d := usual()
	d.LossScale, d.MaxNorm = 1e-6, 1e-7
	everySplit(t, d)
}

// TestOnlyOneMicrobatchCounts: deepspeedai/DeepSpeed#7967, #7718,
// huggingface/accelerate#3877. Gradients were those of the first microbatch, or
// their norm was a third of what it had to be.
func TestOnlyOneMicrobatchCounts(t *testing.T) {
	t.Parallel()
	last := usual()
	last.Microbatches, last.MaxNorm = 3, 0.1
	every := last
	every.EveryPass, every.Optimizer = true, "momentum"
	everySplit(t, last, every)
}

// TestMeanOfLocalMeans: modelscope/ms-swift#10165, vllm-project/speculators#942,
// ml-explore/mlx-lm#1544, verl-project/verl#5641, pytorch/torchtitan#2206,
// huggingface/transformers#37474. The loss was the mean of the means of ranks or
// microbatches with unequal numbers of tokens.
func TestMeanOfLocalMeans(t *testing.T) {
	t.Parallel()
	d := usual()
	d.Microbatches = 3
	batches := drawBatches(rand.New(rand.NewPCG(d.Seed, 18)), d.Model, d.Microbatches, 3)
	var counts []int
	for _, ranks := range batches {
		for _, b := range ranks {
			counts = append(counts, b.valid)
		}
	}
	if slices.Min(counts) > 0 || slices.Max(counts) < 4 {
		t.Fatalf("the ranks and microbatches have %v tokens, which are not uneven enough to show anything", counts)
	}
	everySplit(t, d)
}

// TestParameterFirstUsedLate: pytorch/pytorch#196996. A parameter that a
// microbatch after the first one used, or none, came into the reduction as
// another dtype than the others. Whether the branch runs depends on the batch.
func TestParameterFirstUsedLate(t *testing.T) {
	t.Parallel()
	var draws []draw
	for seed := range uint64(6) {
		d := usual()
		d.Seed, d.Microbatches, d.EveryPass = seed, 3, seed%2 == 1
		d.Model.Blocks[0].Branch, d.Model.Orphan = true, 3
		draws = append(draws, d)
	}
	everySplit(t, draws...)
	for _, d := range draws {
		d.Strategy, d.Replicate, d.Shard, d.BFloat16, d.Mixed = "fsdp", 1, 3, true, true
		if err := d.check(t); err != nil {
			t.Errorf("in bfloat16: %v\n\trepeat it by -run TestLaw -draw '%v'", err, d)
		}
	}
}

// TestMasterWeightsLoseSmallSteps: huggingface/accelerate#3979. Weights were to be
// float32 for the optimizer and were not, so that steps below the rounding of bfloat16
// were lost.
func TestMasterWeightsLoseSmallSteps(t *testing.T) {
	d := usual()
	d.Strategy, d.Replicate, d.Shard, d.BFloat16, d.Mixed = "fsdp", 1, 2, true, true
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := d.Model.build(1, tensor.Float32)
		s, err := d.wrap(ctx, g, m)
		if err != nil {
			return err
		}
		tr := &trainer{draw: d, model: m, strategy: s, ranks: 2, opt: optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 1e-5})}
		before := partOf(m.Head.Data())
		batches := d.batches(rand.New(rand.NewPCG(1, 1)))
		if err := tr.step(ctx, d.ofRank(batches, g.Rank()), countValid(batches)); err != nil {
			return err
		}
		after, moved := partOf(m.Head.Data()), 0
		for i, e := range before.elements {
			if off := math.Abs(after.elements[i] - e); off > 0 && off < math.Abs(e)/1024 {
				moved++
			}
		}
		if m.Head.Data().DType() != tensor.Float32 || moved < len(before.elements)/2 {
			return fmt.Errorf("rank %d: weights of %v, of which %d of %d have made a small step", g.Rank(), m.Head.Data().DType(), moved, len(before.elements))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTiedWeightGetsHalfItsGradient: verl-project/verl#7834,
// huggingface/accelerate#4171, NVIDIA-NeMo/Automodel#2213,
// pytorch/torchtitan#1524. A weight that two modules share was no longer shared,
// the first forward pass of the model failed, or such models were refused.
func TestTiedWeightGetsHalfItsGradient(t *testing.T) {
	t.Parallel()
	d := usual()
	d.Model.Tied = true
	again := d
	again.Model.Shared, again.Recompute, again.Microbatches = true, true, 3
	everySplit(t, d, again)
}

// TestOneElementGetsNoGradient: pytorch/pytorch#144045. The gradient of a tensor
// with one element was 0.
func TestOneElementGetsNoGradient(t *testing.T) {
	d := usual()
	d.Model.Blocks = []blockDraw{{Hidden: 1}} // beside it, each gate is one element
	d.Model.Order = []int{0, 0}
	everySplit(t, d)
}

// TestShardsOfUnequalSize: deepspeedai/DeepSpeed#8158, #8280, #8210. Gradients of
// parameters whose size the number of ranks does not divide, of tiny ones and of
// ranks that hold nothing were wrong.
func TestShardsOfUnequalSize(t *testing.T) {
	t.Parallel()
	d := usual()
	d.Model = modelDraw{Vocabulary: 1009, Width: 5, Blocks: []blockDraw{{Hidden: 33, Norm: true, Attention: true}}, Order: []int{0}, Orphan: 1}
	adam := d
	adam.Optimizer = "adamw"
	everySplit(t, d, adam)
}

// TestFrozenPartsOfABlock: pytorch/torchtitan#3456. Blocks of which a part is
// frozen lost gradients.
func TestFrozenPartsOfABlock(t *testing.T) {
	t.Parallel()
	below, between, norms := usual(), usual(), usual()
	below.Model.Frozen = []string{"tokens", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"}
	between.Model.Frozen = []string{"blocks.1.up.weight", "blocks.1.up.bias", "blocks.1.down.weight", "blocks.1.down.bias", "blocks.1.gate"}
	norms.Model.Frozen = []string{"blocks.0.norm.weight", "blocks.0.norm.bias"}
	norms.Recompute, norms.Microbatches = true, 3
	everySplit(t, below, between, norms)
}

// TestUnfrozenAfterThePass: pytorch/pytorch#186998. A parameter that was frozen
// in the first pass and trained later was reduced in another dtype, without a word.
// Here it is refused by name on every rank.
func TestUnfrozenAfterThePass(t *testing.T) {
	for _, strategy := range lawStrategies {
		d := usual()
		d.Strategy, d.Replicate, d.Shard = strategy, 2, 1
		if d.shards() {
			d.Replicate, d.Shard = 1, 2
		}
		d.Model.Frozen = []string{"blocks.0.up.weight"}
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			tr, err := d.newTrainer(func(m *lawModel) (Strategy, error) { return d.wrap(ctx, g, m) })
			if err != nil {
				return err
			}
			batches := drawBatches(rand.New(rand.NewPCG(1, 1)), d.Model, 1, 1)
			if err := tr.step(ctx, batches, countValid(batches)); err != nil {
				return err
			}
			tr.model.Blocks[0].Up.Weight.Frozen = false
			err = tr.step(ctx, batches, countValid(batches))
			if err == nil || !strings.Contains(err.Error(), "blocks.0.up.weight") {
				return fmt.Errorf("rank %d: the pass after unfreezing gives %v", g.Rank(), err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", strategy, err)
		}
	}
}

// TestTiedWeightSavedTwice: pytorch/torchtitan#3764. A tied weight made a file of
// weights that no reader took. The state has it once, under its first name.
func TestTiedWeightSavedTwice(t *testing.T) {
	for _, strategy := range lawStrategies {
		for _, split := range splitsOf[strategy] {
			d := usual()
			d.Model.Tied, d.Strategy, d.Replicate, d.Shard = true, strategy, split[0], split[1]
			err := spawn(t, d.ranks(), func(ctx context.Context, g *dist.Group) error {
				m := d.Model.build(1, tensor.Float32)
				s, err := d.wrap(ctx, g, m)
				if err != nil {
					return err
				}
				var names []string
				for _, st := range s.StateDict() {
					names = append(names, st.Name)
				}
				var want []string
				for _, st := range nn.StateDict(m) {
					want = append(want, st.Name)
				}
				if !slices.Equal(names, want) || slices.Contains(names, "head") || !slices.Contains(names, "tokens") {
					return fmt.Errorf("the state has %v, want %v", names, want)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", strategy, err)
			}
		}
	}
}

// adapted is a model whose projections a LoRA can adapt.
type adapted struct {
	Embed  *nn.Embedding
	Layers []*adaptedLayer
	Head   *nn.Linear
}

type adaptedLayer struct {
	Norm *nn.LayerNorm
	Proj *nn.Linear
}

func (l *adaptedLayer) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Add(c.Call(l.Proj, c.Call(l.Norm, x)).Tanh())
}

func (m *adapted) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Embed, ids)
	for _, l := range m.Layers {
		x = c.Call(l, x)
	}
	return c.Call(m.Head, x)
}

// newAdapted returns the model and the LoRA around it, of which nothing is zero.
func newAdapted() (*nn.LoRA, error) {
	b := &nn.Build{Generator: tensor.NewGenerator(5)}
	m := &adapted{Embed: nn.NewEmbedding(b, 9, 6), Head: nn.NewLinear(b, 6, 9)}
	for range 2 {
		m.Layers = append(m.Layers, &adaptedLayer{nn.NewLayerNorm(b, 6), nn.NewLinear(b, 6, 6)})
	}
	l, err := nn.NewLoRA(b, m, nn.LoRAOptions{Rank: 3, Targets: []string{"proj", "head"}})
	if err != nil {
		return nil, err
	}
	for _, a := range l.Added {
		nn.InitNormal(b.Generator, a.Parameter, 0, 0.5)
	}
	return l, nil
}

// TestAdaptersBesideFrozenWeights: huggingface/peft#2834,
// axolotl-ai-cloud/axolotl#3779. Adapters of a frozen model that is split among
// ranks did not train.
func TestAdaptersBesideFrozenWeights(t *testing.T) {
	const rows, steps, limit = 12, 3, 1e-5
	ids, targets := make([]int64, rows), make([]int64, rows)
	for i := range ids {
		ids[i], targets[i] = int64(i*5%9), int64(i*7%9)
	}
	train := func(ctx context.Context, l *nn.LoRA, s Strategy, rank, ranks int) error {
		opt := optim.NewSGD(nn.Parameters(l), optim.SGDOptions{LR: 0.1})
		from, n := rank*rows/ranks, rows/ranks
		for range steps {
			opt.ZeroGrad()
			_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
				return tensor.CrossEntropy(c.Call(s, tensor.FromInt64(ids[from:from+n])), tensor.FromInt64(targets[from:from+n]))
			})
			if err != nil {
				return err
			}
			opt.Step(nil)
		}
		return nil
	}
	alone, err := newAdapted()
	if err != nil {
		t.Fatal(err)
	}
	one, err := NewSingle(alone)
	if err != nil {
		t.Fatal(err)
	}
	before := partOf(alone.Added[0].Parameter.Data())
	if err := train(t.Context(), alone, one, 0, 1); err != nil {
		t.Fatal(err)
	}
	want := make(map[string]part)
	for _, p := range nn.Parameters(alone) {
		want[p.Name()] = partOf(p.Data())
	}
	if moved := want[alone.Added[0].Parameter.Name()].elements; math.Abs(moved[0]-before.elements[0]) < 1e-4 {
		t.Fatalf("an adapter's first element goes from %v to %v: nothing is trained", before.elements[0], moved[0])
	}
	for _, strategy := range lawStrategies {
		for _, split := range [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 3}} {
			d := draw{Strategy: strategy, Replicate: split[0], Shard: split[1]}
			if strategy == "ddp" {
				d.Replicate, d.Shard = d.ranks(), 1
			}
			err := spawn(t, d.ranks(), func(ctx context.Context, g *dist.Group) error {
				l, err := newAdapted()
				if err != nil {
					return err
				}
				s, err := d.wrap(ctx, g, l)
				if err != nil {
					return err
				}
				if err := train(ctx, l, s, g.Rank(), d.ranks()); err != nil {
					return err
				}
				return d.closeToWhole(l, g.Rank(), want, limit)
			})
			if err != nil {
				t.Errorf("%s %v: %v", strategy, split, err)
			}
		}
	}
}

// closeToWhole compares a rank's parameters with those of a whole model.
func (d draw) closeToWhole(model any, rank int, want map[string]part, limit float64) error {
	got, own := make(map[string]part), make(map[string]part)
	for _, p := range nn.Parameters(model) {
		got[p.Name()] = partOf(p.Data())
		w := want[p.Name()]
		own[p.Name()] = w.chunk(d.cutOf(p, w.shape), rank%d.Shard)
	}
	return closeParts("", got, own, limit, nil)
}
