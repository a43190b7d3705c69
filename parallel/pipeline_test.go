// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// pipeTask is a model with batches, of which a step takes several microbatches.
type pipeTask struct {
	model   func() any
	example []*tensor.Tensor
	// inputs and targets of a microbatch.
	batch func(step, number int) (in []*tensor.Tensor, targets *tensor.Tensor)
	opts  []nn.CtxOption
	// around steps in on the passes; nil for nothing.
	around nn.Interceptor
	// loss of the outputs; nil for the cross-entropy of the targets.
	loss func(y *tensor.Tensor) *tensor.Tensor
}

func gptTask(layers int, untied bool) pipeTask {
	g := models.GPTConfig{Vocab: 17, Context: 6, Width: 8, Heads: 2, Layers: layers, Untied: untied}
	return pipeTask{
		model:   func() any { return models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(3)}, g) },
		example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 2, 6)},
		batch: func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
			ids, targets := make([]int64, 12), make([]int64, 12)
			for i := range ids {
				ids[i] = int64((7*i + 5*number + 3*step + i*i*number) % 17)
				targets[i] = (ids[i]*ids[i] + 1) % 17
			}
			return []*tensor.Tensor{tensor.FromInt64(ids, 2, 6)}, tensor.FromInt64(targets, 12)
		},
	}
}

// microbatches are those of a step of a strategy.
func (k pipeTask) microbatches(s Strategy, step, n int) []Microbatch {
	var out []Microbatch
	for i := range n {
		out = append(out, Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx {
				opts := append([]nn.CtxOption{nn.WithGenerator(tensor.NewGenerator(int64(100*step + i)))}, k.opts...)
				c := nn.Training(ctx, opts...)
				if k.around != nil {
					c = c.With(k.around)
				}
				return c
			},
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				in, targets := k.batch(step, i)
				var logits *tensor.Tensor
				if len(in) == 1 {
					logits = s.Forward(c, in[0])
				} else {
					logits = s.ForwardN(c, in...)[0]
				}
				if k.loss != nil {
					return k.loss(logits)
				}
				return tensor.CrossEntropy(logits.Reshape(-1, logits.Dim(-1)), targets).MulScalar(1 / float64(n))
			},
		})
	}
	return out
}

// train runs steps, and returns the losses, and the gradients of the first step by name.
func (k pipeTask) train(ctx context.Context, s Strategy, model any, numSteps, n int) (losses []float64, grads map[string][]float32, err error) {
	var ps []*nn.Parameter
	for _, p := range nn.Parameters(model) {
		if p.Data().Device() != tensor.Meta {
			ps = append(ps, p)
		}
	}
	opt := optim.NewSGD(ps, optim.SGDOptions{LR: 0.3, Momentum: 0.9})
	grads = map[string][]float32{}
	for step := range numSteps {
		opt.ZeroGrad()
		loss, err := s.Step(ctx, k.microbatches(s, step, n))
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, loss.Item())
		for _, p := range ps {
			if step == 0 && p.Grad() != nil {
				grads[p.Name()] = slices.Clone(p.Grad().Float32s())
			}
		}
		opt.Step(nil)
	}
	return losses, grads, nil
}

// alone trains on one rank.
func (k pipeTask) alone(t *testing.T, numSteps, n int) (losses []float64, grads map[string][]float32) {
	t.Helper()
	model := k.model()
	s, err := NewSingle(model)
	if err == nil {
		losses, grads, err = k.train(t.Context(), s, model, numSteps, n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return losses, grads
}

// pipeCase is a pipeline that is compared with one rank.
type pipeCase struct {
	schedule string
	ranks    int
	number   int // of microbatches
	task     string
}

func pipeTasks() map[string]pipeTask {
	dropped := encoderTask(8)
	low := gptTask(8, true)
	low.opts = []nn.CtxOption{nn.WithAutocast(tensor.BFloat16)}
	lora := gptTask(8, false)
	model := lora.model
	lora.model = func() any {
		l, err := nn.NewLoRA(&nn.Build{Generator: tensor.NewGenerator(9)}, model().(nn.Module), nn.LoRAOptions{Rank: 2, Targets: []string{"c_attn"}})
		if err != nil {
			panic(err)
		}
		return l
	}
	frozen := gptTask(8, true)
	frozen.model = func() any {
		m := model().(*models.GPT)
		for _, p := range nn.Parameters(m)[:60] { // of the first stages
			p.Frozen = true
		}
		return m
	}
	return map[string]pipeTask{
		"gpt": gptTask(8, true), "tied gpt": gptTask(8, false), "llama": llamaTask(8), "dropout": dropped, "bfloat16": low,
		"lora": lora, "frozen": frozen, "scaled": scaledTask(8),
	}
}

func llamaTask(layers int) pipeTask {
	k := gptTask(layers, true)
	g := models.LlamaConfig{Vocab: 17, Context: 6, Width: 8, Hidden: 12, Heads: 2, KeyHeads: 1, Layers: layers, Window: 4}
	k.model = func() any { return models.NewLlama(&nn.Build{Generator: tensor.NewGenerator(3)}, g) }
	return k
}

// maskedEncoder is an encoder of PyTorch's layers, with dropout and a mask for all layers, which is made
// between calls.
type maskedEncoder struct {
	Embedding *nn.Embedding
	Layers    []*nn.TransformerEncoderLayer
	Head      *nn.Linear
}

func (m *maskedEncoder) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	mask := in[1].Reshape(in[1].Dim(0), 1, 1, -1).GtScalar(0)
	x := c.Call(m.Embedding, in[0])
	for _, l := range m.Layers {
		x = c.CallN(l, x, mask)[0]
	}
	return []*tensor.Tensor{c.Call(m.Head, x)}
}

func encoderTask(layers int) pipeTask {
	k := gptTask(layers, true)
	ids := k.batch
	k.model = func() any {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		m := &maskedEncoder{Embedding: nn.NewEmbedding(b, 17, 8), Head: nn.NewLinear(b, 8, 17)}
		for range layers {
			m.Layers = append(m.Layers, nn.NewTransformerEncoderLayer(b, nn.TransformerOptions{Width: 8, NumHeads: 2, Hidden: 12, Dropout: 0.2}))
		}
		return m
	}
	k.example = []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 2, 6), tensor.New(tensor.Meta, tensor.Int64, 2, 6)}
	k.batch = func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
		in, targets := ids(step, number)
		mask := tensor.FromInt64([]int64{1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0}, 2, 6)
		return []*tensor.Tensor{in[0], mask}, targets
	}
	return k
}

// scaledBlocks computes between the calls of its modules: at the end of each stage and inside of it.
type scaledBlocks struct {
	Embedding *nn.Embedding
	Layers    []*nn.Linear
	Head      *nn.Linear
}

func (m *scaledBlocks) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Embedding, ids)
	for _, l := range m.Layers {
		x = c.Call(l, x).Tanh().MulScalar(1.5)
	}
	return c.Call(m.Head, x)
}

func scaledTask(layers int) pipeTask {
	k := gptTask(layers, true)
	k.model = func() any {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		m := &scaledBlocks{Embedding: nn.NewEmbedding(b, 17, 8), Head: nn.NewLinear(b, 8, 17)}
		for range layers {
			m.Layers = append(m.Layers, nn.NewLinear(b, 8, 8))
		}
		return m
	}
	return k
}

// onPipeline runs fn on the ranks of a pipeline.
func onPipeline(t *testing.T, k pipeTask, ranks int, config PipelineConfig, fn func(ctx context.Context, p *Parallel) error) error {
	t.Helper()
	if config.Example == nil {
		config.Example = k.example
	}
	return spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: pipelineAxis})
		if err != nil {
			return err
		}
		p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: config})
		if err != nil {
			return err
		}
		return fn(ctx, p)
	})
}

// TestPipelineIsOneRank: a pipeline gives the bits of one rank where the order of the sums is that
// of one rank: everywhere but in tied parameters.
func TestPipelineIsOneRank(t *testing.T) {
	t.Parallel()
	var cases []pipeCase
	for _, name := range schedule.Names() {
		for _, ranks := range []int{2, 4} {
			numbers := []int{2 * ranks, 2*ranks + 1}
			if name == "interleaved" || name == "interleaved-zb" {
				numbers = []int{ranks, 2 * ranks}
			}
			for i, task := range []string{"gpt", "llama"} {
				cases = append(cases, pipeCase{name, ranks, numbers[(i+ranks/2)%2], task})
			}
		}
		for _, task := range []string{"tied gpt", "dropout", "bfloat16"} {
			cases = append(cases, pipeCase{name, 2, 4, task})
		}
	}
	for _, name := range []string{"1f1b", "zbv"} {
		cases = append(cases, pipeCase{name, 2, 4, "lora"}, pipeCase{name, 4, 8, "frozen"}, pipeCase{name, 2, 4, "scaled"})
	}
	tasks := pipeTasks()
	type outcome struct {
		losses []float64
		grads  map[string][]float32
	}
	one := map[string]outcome{}
	for i, c := range cases {
		if testing.Short() && i%4 != 0 {
			continue
		}
		k := tasks[c.task]
		key := fmt.Sprint(c.task, c.number)
		steps := 3
		if c.task == "tied gpt" { // whose sums have another order
			steps = 30
		}
		if _, has := one[key]; !has {
			losses, grads := k.alone(t, steps, c.number)
			one[key] = outcome{losses, grads}
		}
		want := one[key]
		t.Run(fmt.Sprintf("%s/%d/%d/%s", c.schedule, c.ranks, c.number, c.task), func(t *testing.T) {
			within := 0.0
			if c.task == "tied gpt" {
				within = 1e-5
			}
			err := onPipeline(t, k, c.ranks, PipelineConfig{Schedule: c.schedule}, func(ctx context.Context, p *Parallel) error {
				losses, grads, err := k.train(ctx, p, p.Model, steps, c.number)
				if err != nil {
					return err
				}
				for i := range losses {
					if !closeTo(losses[i], want.losses[i], within) {
						t.Errorf("rank %d: losses %v, want %v", p.pipe.rank, losses, want.losses)
						break
					}
				}
				for name, got := range grads {
					w := want.grads[name]
					for i := range got {
						if d := math.Abs(float64(got[i] - w[i])); !(d <= within) {
							t.Errorf("rank %d: element %d of the gradient of %s is %v, want %v", p.pipe.rank, i, name, got[i], w[i])
							break
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// resultsOf runs a model without gradients, and returns its results.
func resultsOf(ctx context.Context, s Strategy, opts []nn.CtxOption, x ...*tensor.Tensor) (out []float32, err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	if len(x) == 1 {
		return slices.Clone(s.Forward(c, x[0]).Float32s()), nil
	}
	return slices.Clone(s.ForwardN(c, x...)[0].Float32s()), nil
}

// TestPipelineEvaluates: every rank gets the results of one rank, also token by token with a cache of
// keys, where a stage has no attention.
func TestPipelineEvaluates(t *testing.T) {
	for _, c := range []struct {
		task   string
		ranks  int
		config PipelineConfig
	}{
		{"gpt", 2, PipelineConfig{}},
		{"tied gpt", 2, PipelineConfig{Schedule: "interleaved"}},
		{"llama", 4, PipelineConfig{Schedule: "zbv"}},
		{"llama", 3, PipelineConfig{Starts: []string{"model.layers.0", "model.norm"}}},
		{"tied gpt", 3, PipelineConfig{Starts: []string{"transformer.h.0", "transformer.ln_f"}}},
		{"dropout", 2, PipelineConfig{Layers: []int{3, 5}}},
	} {
		t.Run(fmt.Sprint(c.task, c.ranks, c.config.Schedule, c.config.Starts), func(t *testing.T) {
			k := pipeTasks()[c.task]
			one, err := NewSingle(k.model())
			if err != nil {
				t.Fatal(err)
			}
			in, _ := k.batch(1, 1)
			run := func(ctx context.Context, s Strategy) (all [][]float32, err error) {
				out, err := resultsOf(ctx, s, nil, in...)
				if all = append(all, out); err != nil || len(in) > 1 {
					return all, err
				}
				cache := nn.NewKVCache(6)
				for _, part := range [][2]int{{0, 3}, {3, 1}, {4, 2}} {
					out, err := resultsOf(ctx, s, []nn.CtxOption{nn.WithKVCache(cache)}, in[0].Narrow(1, part[0], part[1]).Contiguous())
					if all = append(all, out); err != nil {
						return all, err
					}
				}
				if cache.Len() != 6 {
					t.Errorf("the cache holds %d tokens, want 6", cache.Len())
				}
				return all, nil
			}
			want, err := run(t.Context(), one)
			if err != nil {
				t.Fatal(err)
			}
			err = onPipeline(t, k, c.ranks, c.config, func(ctx context.Context, p *Parallel) error {
				got, err := run(ctx, p)
				for i := range got {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("rank %d: result %d is %v, want %v", p.pipe.rank, i, got[i], want[i])
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPipelineRecomputes: what is recomputed in the backward pass gets what has come from other
// stages, and gives the same bits.
func TestPipelineRecomputes(t *testing.T) {
	k := pipeTasks()["dropout"]
	want, wantGrads := k.alone(t, 2, 4)
	k.around = nn.Recompute(func(m any) bool { _, ok := m.(*nn.TransformerEncoderLayer); return ok })
	for _, name := range []string{"1f1b", "zbv"} {
		err := onPipeline(t, k, 2, PipelineConfig{Schedule: name}, func(ctx context.Context, p *Parallel) error {
			losses, grads, err := k.train(ctx, p, p.Model, 2, 4)
			if !slices.Equal(losses, want) {
				t.Errorf("%s: losses %v, want %v", name, losses, want)
			}
			for name, got := range grads {
				if !slices.Equal(got, wantGrads[name]) {
					t.Errorf("the gradient of %s is %v, want %v", name, got, wantGrads[name])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestPipelineAccumulates: gradients that nobody has dropped are added to, once, also those of tied
// parameters; and steps under NoSync count as well.
func TestPipelineAccumulates(t *testing.T) {
	k := gptTask(4, false)
	err := onPipeline(t, k, 2, PipelineConfig{}, func(ctx context.Context, p *Parallel) error {
		tied := nn.Parameters(p.Model)[0]
		step := func() error {
			_, err := p.Step(ctx, k.microbatches(p, 0, 4))
			return err
		}
		if err := step(); err != nil {
			return err
		}
		once := slices.Clone(tied.Grad().Float32s())
		for i, run := range []func() error{step, func() error { return p.NoSync(step) }, step} {
			if err := run(); err != nil {
				return err
			}
			if i == 1 {
				continue // the ranks have shares of their own
			}
			for j, g := range tied.Grad().Float32s() {
				if want := float64(once[j]) * float64(i+2); math.Abs(float64(g)-want) > 1e-5 {
					t.Errorf("rank %d: element %d of the gradient of %s is %v after %d steps, want %v", p.pipe.rank, j, tied.Name(), g, i+2, want)
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
