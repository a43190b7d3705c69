// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

// numSamples is how many sequences all ranks together take in a step. The numbers of ranks
// that are drawn divide it.
const numSamples = 24

// modelDraw is a language model, and how it is trained.
type modelDraw struct {
	seed      uint64
	kind      string
	llama     models.LlamaConfig // the sizes of all kinds
	experts   int
	router    nn.MoEOptions
	shared    int
	time      int
	optimizer string
	schedule  string
	method    string // of context parallelism
	frozen    bool   // the embedding of the tokens is not trained
	before    int    // steps up to the checkpoint
	after     int
	whole     bool // of sequences: tensor parallelism does not cut them
}

// drawModel draws a model that meshes can split.
func drawModel(seed uint64) modelDraw {
	r := rand.New(rand.NewPCG(seed, 2))
	d := modelDraw{
		seed: seed, kind: pick(r, "gpt", "gpt", "llama", "llama", "moe"), time: pick(r, 8, 8, 12),
		optimizer: pick(r, "adamw", "adamw", "amsgrad", "adam", "momentum", "sgd", "adagrad", "rmsprop"),
		schedule:  pick(r, "1f1b", "gpipe", "interleaved", "zbv"), method: pick(r, "ring", "heads"),
		frozen: chance(r, 0.2), before: 1 + r.IntN(2), after: 1 + r.IntN(2), whole: chance(r, 0.3),
	}
	heads := pick(r, 2, 4, 4, 6)
	d.llama = models.LlamaConfig{
		Vocab: pick(r, 33, 50, 64, 101, 1009), Context: d.time, Width: heads * pick(r, 2, 4), Hidden: pick(r, 12, 24, 36), Heads: heads, KeyHeads: heads,
		Layers: pick(r, 1, 2, 3, 4), Tied: chance(r, 0.4), AttentionBias: chance(r, 0.3), MLPBias: chance(r, 0.3), Epsilon: 1e-3,
	}
	if chance(r, 0.3) {
		d.llama.KeyHeads /= 2
	}
	if d.kind == "moe" {
		d.llama.MLPBias = false
		d.experts = pick(r, 2, 4, 8)
		d.router = nn.MoEOptions{Sigmoid: chance(r, 0.4), Scale: pick(r, 0, 1.5), BiasStep: pick(r, 0, 0, 0.05)}
		d.shared = pick(r, 0, 0, 12)
	}
	return d
}

func (d modelDraw) String() string {
	return fmt.Sprintf("%s %+v experts %d, time %d, %s, schedule %s, %s, frozen %v, %d+%d steps", d.kind, d.llama, d.experts, d.time, d.optimizer, d.schedule, d.method, d.frozen, d.before, d.after)
}

// build makes the model.
func (d modelDraw) build(seed int64) models.CausalLM {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	switch d.kind {
	case "gpt":
		return models.NewGPT(b, models.GPTConfig{Vocab: d.llama.Vocab, Context: d.time, Width: d.llama.Width, Heads: d.llama.Heads, Layers: d.llama.Layers, Hidden: d.llama.Hidden, Untied: !d.llama.Tied, Epsilon: d.llama.Epsilon})
	case "llama":
		return models.NewLlama(b, d.llama)
	}
	return models.NewMoETransformer(b, models.MoEConfig{LlamaConfig: d.llama, Experts: d.experts, Active: 1 + int(d.seed%2), SharedHidden: d.shared, Router: d.router})
}

// samplers is how many ranks have samples of their own.
func samplers(z parallel.Sizes) int { return z.Replicate * z.FSDP * z.EP }

func ranksOf(z parallel.Sizes) int { return samplers(z) * z.PP * z.CP * z.TP }

// microbatches returns how many passes a rank of a mesh makes in a step, 0 if the schedule
// takes none.
func (d modelDraw) microbatches(z parallel.Sizes) int {
	each := numSamples / samplers(z)
	if z.PP == 1 {
		return 1 + (1-each%2)*int(d.seed/7%2)
	}
	for n := min(each, 4*z.PP); n > 0; n-- {
		s, err := schedule.New(d.schedule, z.PP, 0, n)
		if each%n == 0 && err == nil && s.NumStages <= d.llama.Layers {
			return n
		}
	}
	return 0
}

// splits says whether a mesh can split the model without padding.
func (d modelDraw) splits(z parallel.Sizes) bool {
	if numSamples%samplers(z) != 0 || d.microbatches(z) == 0 || z.EP > 1 && (d.kind != "moe" || d.experts%z.EP != 0) {
		return false
	}
	heads := d.llama.KeyHeads
	if d.kind == "gpt" {
		heads = d.llama.Heads
	}
	if heads%z.TP != 0 || d.llama.Hidden%z.TP != 0 || d.shared%z.TP != 0 || d.time%(2*z.CP) != 0 || d.method == "heads" && heads%(z.TP*z.CP) != 0 {
		return false
	}
	// The types of tensor parallelism want two tokens a rank.
	return z.TP == 1 || d.time/z.CP >= 2*z.TP && d.llama.Vocab >= z.TP*z.TP
}

// drawSizes draws a mesh that splits the model.
func (d modelDraw) drawSizes(r *rand.Rand) parallel.Sizes {
	for {
		n := pick(r, 1, 2, 2, 3, 4, 4, 6, 8, 8)
		var z parallel.Sizes
		at := []*int{&z.PP, &z.Replicate, &z.FSDP, &z.EP, &z.CP, &z.TP}
		r.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
		for i, p := range at {
			*p = n
			if i < len(at)-1 {
				*p = pick(r, slices.DeleteFunc([]int{1, 1, 2, 2, 3, 4, 8}, func(k int) bool { return n%k != 0 })...)
			}
			n /= *p
		}
		if d.splits(z) {
			return z
		}
	}
}

// trainer is one rank of a training run.
type trainer struct {
	draw      modelDraw
	sizes     parallel.Sizes
	group     *dist.Group
	mesh      *mesh.Mesh
	parallel  *parallel.Parallel
	opt       optim.Optimizer
	loader    *data.Loader[[]int64, [][]int64]
	generator *tensor.Generator // the run's own, that nothing reads
	losses    []float64
}

// start splits a model over the ranks of a group.
func (d modelDraw) start(ctx context.Context, g *dist.Group, z parallel.Sizes, seed int64) (t *trainer, err error) {
	t = &trainer{draw: d, sizes: z, group: g, generator: tensor.NewGenerator(seed + int64(g.Rank()))}
	if t.mesh, err = parallel.NewMesh(ctx, g, z); err != nil {
		return nil, err
	}
	model := d.build(seed)
	for _, p := range nn.Parameters(model) {
		p.Frozen = d.frozen && strings.Contains(p.Name(), "layers.0") || d.frozen && strings.Contains(p.Name(), "h.0.ln")
	}
	c := parallel.Config{Context: parallel.ContextConfig{Attention: d.method}, TP: parallel.TPConfig{WholeSequence: d.whole}}
	if z.PP > 1 {
		rows := numSamples / samplers(z) / d.microbatches(z)
		c.Pipeline = parallel.PipelineConfig{Schedule: d.schedule, Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, rows, d.time)}}
	}
	if t.parallel, err = parallel.Parallelize(ctx, model, t.mesh, c); err != nil {
		return nil, err
	}
	t.opt = d.newOptimizer(nn.Parameters(model))
	return t, t.load(ctx, data.LoaderState{})
}

func (d modelDraw) newOptimizer(params []*nn.Parameter) optim.Optimizer {
	switch d.optimizer {
	case "adamw":
		return optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.01, Eps: 1e-4})
	case "amsgrad":
		return optim.NewAdam(params, optim.AdamOptions{LR: 1e-3, AMSGrad: true, Eps: 1e-4})
	case "adam":
		return optim.NewAdam(params, optim.AdamOptions{LR: 1e-3, Eps: 1e-4})
	case "momentum":
		return optim.NewSGD(params, optim.SGDOptions{LR: 0.02, Momentum: 0.9})
	case "adagrad":
		return optim.NewAdagrad(params, optim.AdagradOptions{LR: 1e-3, Eps: 1e-4})
	case "rmsprop":
		return optim.NewRMSprop(params, optim.RMSpropOptions{LR: 1e-4, Eps: 1e-3})
	}
	return optim.NewSGD(params, optim.SGDOptions{LR: 0.02})
}

// place is this rank's number among those that have samples of their own.
func (t *trainer) place() int {
	place := 0
	for _, axis := range []string{"replicate", "fsdp", "ep"} {
		if i, err := t.mesh.Index(axis); err == nil {
			place = place*t.mesh.Shape()[i] + t.mesh.Coordinate()[i]
		}
	}
	return place
}

// load begins to read samples at a loader's state.
func (t *trainer) load(ctx context.Context, from data.LoaderState) error {
	set := data.FromFunc(1000, func(_ context.Context, k data.Key) ([]int64, error) {
		r := rand.New(rand.NewPCG(t.draw.seed, uint64(k.Epoch)<<32+uint64(k.Index)))
		ids := make([]int64, t.draw.time+1)
		for i := range ids {
			ids[i] = int64(r.IntN(t.draw.llama.Vocab))
		}
		return ids, nil
	})
	s, err := data.NewStream(data.StreamConfig{Len: 1000, Total: numSamples, Rank: t.place(), World: samplers(t.sizes), Shuffle: true, Seed: int64(t.draw.seed)})
	if err != nil {
		return err
	}
	t.loader, err = data.NewLoader(ctx, set, s, func(s [][]int64) ([][]int64, error) { return slices.Clone(s), nil }, data.LoaderConfig{}, from)
	return err
}

// step trains on the samples of a step.
func (t *trainer) step(ctx context.Context) error {
	samples, err := t.loader.Next(ctx)
	if err != nil {
		return err
	}
	t.opt.ZeroGrad()
	n := t.draw.microbatches(t.sizes)
	var passes []parallel.Microbatch
	for rows := range slices.Chunk(samples, len(samples)/n) {
		var ids, targets []int64
		for _, row := range rows {
			ids, targets = append(ids, row[:t.draw.time]...), append(targets, row[1:]...)
		}
		passes = append(passes, parallel.Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				logits := c.Call(t.parallel, tensor.FromInt64(ids, len(rows), t.draw.time))
				return c.CallN(&nn.CrossEntropyLoss{}, logits, tensor.FromInt64(targets, len(rows), t.draw.time))[0].MulScalar(1 / float64(n))
			},
		})
	}
	loss, err := t.parallel.Step(ctx, passes)
	if err != nil {
		return err
	}
	norm, scale, err := t.parallel.ClipGradNorm(ctx, nn.Parameters(t.parallel), 1)
	if err != nil {
		return err
	}
	mean := tensor.FromFloat64([]float64{loss.Item()}, 1) // of this rank's samples
	if err := t.group.AllReduce(ctx, mean, dist.Avg); err != nil {
		return err
	}
	t.losses = append(t.losses, mean.Item())
	t.opt.Step(scale)
	t.generator.Float64()
	norm.Free()
	return nil
}

// parts is what this rank holds.
func (t *trainer) parts() map[string][]checkpoint.Part {
	return map[string][]checkpoint.Part{checkpoint.Model: train.ModelParts(t.parallel), checkpoint.Optimizer: train.OptimizerParts(t.parallel, t.opt)}
}

// progress is what a checkpoint has of the loop.
type progress struct {
	Step   int
	Loader data.LoaderState
}

// state is what a checkpoint has of this rank.
func (t *trainer) state() checkpoint.State {
	return checkpoint.State{
		Sections:   t.parts(),
		Values:     map[string]any{"progress": progress{len(t.losses), t.loader.State()}},
		RankValues: map[string]any{"random": t.generator.State()},
	}
}

// collected are whole tensors that ranks have put together, by section and name.
type collected struct {
	mu sync.Mutex
	of map[string]wholeTensor
}

type wholeTensor struct {
	dtype tensor.DType
	shape []int
	data  []byte
}

// add puts this rank's parts into their places.
func (c *collected) add(sections map[string][]checkpoint.Part) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]wholeTensor)
	}
	for section, parts := range sections {
		for _, p := range parts {
			if p.Away {
				continue
			}
			shape := p.Local.Shape()
			if p.Mesh != nil {
				shape = p.Shape
			}
			name, size := section+" "+p.Name, p.Local.DType().Size()
			w, ok := c.of[name]
			if !ok {
				w = wholeTensor{p.Local.DType(), slices.Clone(shape), make([]byte, numElems(shape)*size)}
				c.of[name] = w
			}
			boxes, err := mesh.Layout{Mesh: p.Mesh, Shape: shape, Placements: p.Placements}.Boxes()
			if err != nil {
				return err
			}
			local := p.Local.Contiguous().Buffer().Data
			for _, b := range boxes {
				eachElement(b, shape, p.Local.Shape(), func(at, own int) { copy(w.data[at*size:][:size], local[own*size:]) })
			}
		}
	}
	return nil
}
