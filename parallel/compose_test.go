// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// composedModel is a language model that all axes can split.
type composedModel struct {
	name   string
	build  func(b *nn.Build) nn.Module
	around []nn.Interceptor // of the passes
}

// with has what the model says step in on the passes.
func (m composedModel) with(passes []Microbatch) []Microbatch {
	for i := range passes {
		carrier := passes[i].Carrier
		passes[i].Carrier = func(ctx context.Context) *nn.Ctx {
			c := carrier(ctx)
			for _, a := range m.around {
				c = c.With(a)
			}
			return c
		}
	}
	return passes
}

const (
	composedVocab = 53
	composedTime  = 16
)

var (
	composedGPT = composedModel{name: "gpt", build: func(b *nn.Build) nn.Module {
		return models.NewGPT(b, models.GPTConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Heads: 4, Layers: 4})
	}}
	composedLlama = composedModel{name: "llama", build: func(b *nn.Build) nn.Module {
		return models.NewLlama(b, models.LlamaConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Hidden: 33, Heads: 4, KeyHeads: 2, Layers: 4})
	}}
	composedMoE = composedModel{name: "moe", build: func(b *nn.Build) nn.Module {
		return models.NewMoETransformer(b, models.MoEConfig{
			LlamaConfig: models.LlamaConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Hidden: 20, Heads: 4, KeyHeads: 2, Layers: 4},
			Experts:     6, Active: 2, SharedHidden: 12, Router: nn.MoEOptions{Balance: 0.01},
		})
	}}
)

const (
	composedRows         = 4 // of all samplers, in a microbatch of each
	composedMicrobatches = 2 // of a step of a sampler
	composedSteps        = 3
)

// composedPasses are the microbatches of a step of a sampler, one of so many. Each counts by share.
func composedPasses(s Strategy, step, sampler, samplers int, share float64) []Microbatch {
	var passes []Microbatch
	for micro := range composedMicrobatches {
		per := composedRows / samplers
		var in, out []int64
		for row := sampler * per; row < (sampler+1)*per; row++ {
			for t := range composedTime {
				x := step*131 + row*17 + micro*29 + t*t*7 + t*3
				in, out = append(in, int64(x%composedVocab)), append(out, int64((x*5+t)%composedVocab))
			}
		}
		ids, targets := tensor.FromInt64(in, per, composedTime), tensor.FromInt64(out, per, composedTime)
		passes = append(passes, Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return c.CallN(&nn.CrossEntropyLoss{}, c.Call(s, ids), targets)[0].MulScalar(share)
			},
		})
	}
	return passes
}

// composedRun is what training has come to.
type composedRun struct {
	losses, norms []float64
	grads, values map[string][]float32 // gradients of the first step, values after the last
	logits        []float32            // of an evaluation
}

// train takes steps of passes with a model. mean returns the mean of a number over the samplers,
// and whole the gradients or the values of the whole model.
func (run *composedRun) train(ctx context.Context, s Strategy, passes func(step int) []Microbatch, mean func(x float64) (float64, error),
	whole func(of func(q *nn.Parameter) *tensor.Tensor) (map[string][]float32, error),
) error {
	params := slices.DeleteFunc(nn.Parameters(s), func(q *nn.Parameter) bool { return q.Data().Device() == tensor.Meta })
	opt := optim.NewSGD(params, optim.SGDOptions{LR: 0.3, Momentum: 0.9})
	for step := range composedSteps {
		opt.ZeroGrad()
		sum, err := s.Step(ctx, passes(step))
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if step == 0 {
			if run.grads, err = whole(gradOf); err != nil {
				return err
			}
		}
		norm, scale, err := s.ClipGradNorm(ctx, params, 0.5)
		if err != nil {
			return err
		}
		opt.Step(scale)
		loss, err := mean(sum.Item())
		if err != nil {
			return err
		}
		run.losses, run.norms = append(run.losses, loss), append(run.norms, norm.Item())
	}
	var err error
	if run.values, err = whole(dataOf); err != nil {
		return err
	}
	run.logits, err = evaluated(ctx, s)
	return err
}

// evaluated returns what a strategy gives in an evaluation.
func evaluated(ctx context.Context, s Strategy) (logits []float32, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	ids := make([]int64, composedTime)
	for i := range ids {
		ids[i] = int64(i * i % composedVocab)
	}
	return c.Call(s, tensor.FromInt64(ids, 1, composedTime)).Float32s(), nil
}

// alone trains on one rank, which does the work of so many samplers.
func (m composedModel) alone(t *testing.T, samplers int) *composedRun {
	t.Helper()
	model := m.build(&nn.Build{Generator: tensor.NewGenerator(7)})
	s, err := NewSingle(model)
	if err != nil {
		t.Fatal(err)
	}
	run := &composedRun{}
	passes := func(step int) (all []Microbatch) {
		for sampler := range samplers {
			all = append(all, composedPasses(s, step, sampler, samplers, 1/float64(samplers*composedMicrobatches))...)
		}
		return m.with(all)
	}
	whole := func(of func(q *nn.Parameter) *tensor.Tensor) (map[string][]float32, error) {
		out := map[string][]float32{}
		for _, q := range nn.Parameters(model) {
			if t := of(q); t != nil {
				out[q.Name()] = t.Float32s()
			}
		}
		return out, nil
	}
	if err := run.train(t.Context(), s, passes, func(x float64) (float64, error) { return x, nil }, whole); err != nil {
		t.Fatal(err)
	}
	return run
}

// split trains on the ranks of a mesh.
func (m composedModel) split(ctx context.Context, g *dist.Group, sizes Sizes, c Config, onMeta bool) (*composedRun, error) {
	grid, err := NewMesh(ctx, g, sizes)
	if err != nil {
		return nil, err
	}
	defer grid.Close()
	sampler, samplers := Sampler(grid)
	example := tensor.New(tensor.Meta, tensor.Int64, composedRows/samplers, composedTime)
	c.Pipeline.Example = []*tensor.Tensor{example}
	b := &nn.Build{Generator: tensor.NewGenerator(7)}
	if onMeta {
		b.Device = tensor.Meta
	}
	p, err := Parallelize(ctx, m.build(b), grid, c)
	if err == nil && onMeta {
		err = p.Materialize(ctx, tensor.CPU())
	}
	if err != nil {
		return nil, err
	}
	defer p.Close()
	run := &composedRun{}
	passes := func(step int) []Microbatch {
		return m.with(composedPasses(p, step, sampler, samplers, 1.0/composedMicrobatches))
	}
	mean := func(x float64) (float64, error) { // each sampler is as many ranks
		t := tensor.New(tensor.CPU(), tensor.Float64)
		t.Fill(x)
		err := g.AllReduce(ctx, t, dist.Avg)
		return t.Item(), err
	}
	whole := func(of func(q *nn.Parameter) *tensor.Tensor) (map[string][]float32, error) {
		return wholeValues(ctx, p, of)
	}
	return run, run.train(ctx, p, passes, mean, whole)
}

// difference returns how far two runs are from each other.
func (run *composedRun) difference(t *testing.T, want *composedRun) error {
	t.Helper()
	for i := range want.losses {
		if !(math.Abs(run.losses[i]/want.losses[i]-1) < 1e-5) {
			return fmt.Errorf("the losses are %v, of one rank %v", run.losses, want.losses)
		}
		if !(math.Abs(run.norms[i]/want.norms[i]-1) < 2e-5) {
			return fmt.Errorf("the norms are %v, of one rank %v", run.norms, want.norms)
		}
	}
	if len(run.grads) > 0 { // a stage may be frozen
		if worst, where := difference(t, run.grads, those(want.grads, run.grads)); !(worst < 1e-4) {
			return fmt.Errorf("the gradient of %s is off by %.2g", where, worst)
		}
	}
	if worst, where := difference(t, run.values, those(want.values, run.values)); !(worst < 1e-4) {
		return fmt.Errorf("the values of %s are off by %.2g", where, worst)
	}
	if worst, _ := difference(t, map[string][]float32{"logits": run.logits}, map[string][]float32{"logits": want.logits}); !(worst < 1e-4) {
		return fmt.Errorf("the logits of an evaluation are off by %.2g", worst)
	}
	return nil
}

// those returns what of values the other list has too: a rank has the parameters of its stages.
func those(values, other map[string][]float32) map[string][]float32 {
	out := map[string][]float32{}
	for name := range other {
		out[name] = values[name]
	}
	return out
}

// TestAxesTogether: every pair of axes, two ranks each, and some threes, train as one rank does.
func TestAxesTogether(t *testing.T) {
	t.Parallel()
	const n = 2
	for i, c := range []struct {
		model composedModel
		sizes Sizes
	}{
		{composedGPT, Sizes{Replicate: n, FSDP: n}},
		{composedGPT, Sizes{Replicate: n, TP: n}},
		{composedGPT, Sizes{FSDP: n, TP: n}},
		{composedLlama, Sizes{FSDP: n, TP: n}},
		{composedGPT, Sizes{Replicate: n, CP: n}},
		{composedLlama, Sizes{FSDP: n, CP: n}},
		{composedLlama, Sizes{CP: n, TP: n}},
		{composedMoE, Sizes{Replicate: n, EP: n}},
		{composedMoE, Sizes{FSDP: n, EP: n}},
		{composedMoE, Sizes{EP: n, CP: n}},
		{composedMoE, Sizes{EP: n, TP: n}},
		{composedGPT, Sizes{PP: n, Replicate: n}},
		{composedGPT, Sizes{PP: n, FSDP: n}},
		{composedLlama, Sizes{PP: n, CP: n}},
		{composedGPT, Sizes{PP: n, TP: n}},
		{composedMoE, Sizes{PP: n, EP: n}},
		{composedGPT, Sizes{PP: n, FSDP: n, TP: n}},
		{composedMoE, Sizes{FSDP: n, EP: n, CP: n}},
	} {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s %+v", c.model.name, c.sizes), func(t *testing.T) {
			ranks := c.sizes.product()
			samplers := 1
			for _, size := range []int{c.sizes.Replicate, c.sizes.FSDP, c.sizes.EP} {
				samplers *= max(size, 1)
			}
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			want := c.model.alone(t, samplers)
			for _, onMeta := range []bool{false, true} {
				err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
					run, err := c.model.split(ctx, g, c.sizes, Config{}, onMeta)
					if err == nil {
						err = run.difference(t, want)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// stagedNorms is a model with buffers in several stages: [batch, 6] to [batch, 5].
type stagedNorms struct {
	Layers []*stagedNorm
	Head   *nn.Linear
}

type stagedNorm struct {
	Norm *nn.BatchNorm1d
	Up   *nn.Linear
}

func newStagedNorms() *stagedNorms {
	b := &nn.Build{Generator: tensor.NewGenerator(5)}
	m := &stagedNorms{Head: nn.NewLinear(b, 6, 5)}
	for range 4 {
		m.Layers = append(m.Layers, &stagedNorm{nn.NewBatchNorm1d(b, 6, nn.BatchNormOptions{}), nn.NewLinear(b, 6, 6)})
	}
	return m
}

func (m *stagedNorms) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	for _, l := range m.Layers {
		x = c.Call(l, x)
	}
	return c.Call(m.Head, x)
}

func (l *stagedNorm) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(l.Up, c.Call(l.Norm, x)).Tanh()
}

// TestBuffersOfStages: SyncBuffers gives all ranks the running statistics that one rank has, which
// each stage has moved for its own layers.
func TestBuffersOfStages(t *testing.T) {
	passes := func(s Strategy, step int) (all []Microbatch) {
		for micro := range 2 {
			x := make([]float32, 4*6)
			for i := range x {
				x[i] = float32((i*i+7*i+3*micro+5*step)%11) - 5
			}
			all = append(all, Microbatch{
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
				Loss: func(c *nn.Ctx) *tensor.Tensor {
					return c.Call(s, tensor.FromFloat32(x, 4, 6)).Square().Mean().MulScalar(0.5)
				},
			})
		}
		return all
	}
	steps := func(ctx context.Context, s Strategy) (map[string][]float32, error) {
		for step := range 2 {
			if _, err := s.Step(ctx, passes(s, step)); err != nil {
				return nil, err
			}
		}
		if err := s.SyncBuffers(ctx); err != nil {
			return nil, err
		}
		out := map[string][]float32{}
		for _, b := range nn.Buffers(s) {
			out[b.Name()] = b.Data.To(tensor.Float32).Float32s()
		}
		return out, nil
	}
	alone, err := NewSingle(newStagedNorms())
	if err != nil {
		t.Fatal(err)
	}
	want, err := steps(t.Context(), alone)
	if err != nil {
		t.Fatal(err)
	}
	for _, sizes := range []Sizes{{PP: 2, Replicate: 1, FSDP: 1}, {PP: 2, Replicate: 2, FSDP: 1}, {PP: 2, FSDP: 2, Replicate: 1}} {
		err := spawn(t, sizes.product(), func(ctx context.Context, g *dist.Group) error {
			grid, err := NewMesh(ctx, g, sizes)
			if err != nil {
				return err
			}
			p, err := Parallelize(ctx, newStagedNorms(), grid, Config{Pipeline: PipelineConfig{Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Float32, 4, 6)}}})
			if err != nil {
				return err
			}
			got, err := steps(ctx, p)
			if err != nil {
				return err
			}
			if worst, where := difference(t, got, want); worst > 1e-5 {
				return fmt.Errorf("%s of rank %d is off by %.2g", where, g.Rank(), worst)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%+v: %v", sizes, err)
		}
	}
}

// TestMaterializeComposed: what the ranks of a mesh make on their own has the bits of a model that
// was built on one rank, and the ranks say what they share.
func TestMaterializeComposed(t *testing.T) {
	for _, c := range []struct {
		model composedModel
		sizes Sizes
		says  string
	}{
		{composedGPT, Sizes{PP: 2, FSDP: 2, Replicate: 1, TP: 2}, "pp 2 (2 stages by 1f1b, cut at transformer.h.2) × fsdp 2 (samples and parameters, in 3 units) × tp 2 (heads, "},
		{composedMoE, Sizes{FSDP: 2, Replicate: 1, EP: 2, TP: 2}, "fsdp 2 (samples and parameters, in 5 units) × ep 2 (6 experts, up to 3 a rank, in 4 layers) × tp 2 (heads, "},
	} {
		alone := c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)})
		err := spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
			grid, err := NewMesh(ctx, g, c.sizes)
			if err != nil {
				return err
			}
			model := c.model.build(&nn.Build{Generator: tensor.NewGenerator(7), Device: tensor.Meta})
			p, err := Parallelize(ctx, model, grid, Config{Pipeline: PipelineConfig{Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 2, composedTime)}}})
			if err != nil {
				return err
			}
			if s := p.String(); !strings.HasPrefix(s, c.says) {
				return fmt.Errorf("it says %q, want %q", s, c.says)
			}
			if _, err := evaluated(ctx, p); err == nil || !strings.Contains(err.Error(), "call Parallel.Materialize before the first pass") {
				return fmt.Errorf("a pass without values: %v", err)
			}
			if err := p.Materialize(ctx, tensor.CPU()); err != nil {
				return err
			}
			got, err := wholeValues(ctx, p, dataOf)
			if err != nil {
				return err
			}
			for _, q := range nn.Parameters(alone) {
				if values, here := got[q.Name()]; here && !slices.Equal(values, q.Data().Float32s()) {
					return fmt.Errorf("%s has other bits than on one rank", q.Name())
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%+v: %v", c.sizes, err)
		}
	}
}
