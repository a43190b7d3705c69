// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// draw is a model, and a way to split its training among ranks.
type draw struct {
	Seed         uint64 // of the model's first values and the batches
	Model        modelDraw
	Float64      bool `json:",omitempty"`
	BFloat16     bool `json:",omitempty"` // computes in it; parameters are float32
	Strategy     string
	Replicate    int
	Shard        int
	Microbatches int
	EveryPass    bool    `json:",omitempty"` // reduces the gradients of each microbatch, not those of the last one
	MaxNorm      float64 `json:",omitempty"` // of the clipped gradients; 0 for no clipping
	LossScale    float64 `json:",omitempty"` // 0 for 1
	Optimizer    string
	Recompute    bool   `json:",omitempty"`
	Policy       string `json:",omitempty"` // of FSDP: blocks, size or layers
	Never        bool   `json:",omitempty"` // does not reshard after the forward pass
	Near         int    `json:",omitempty"` // reshards within groups of so many ranks
	OneAxis      bool   `json:",omitempty"` // has no axis replicate, which would have one rank
	Mixed        bool   `json:",omitempty"` // gathers and reduces in bfloat16
	Columns      bool   `json:",omitempty"` // cuts matrices along dim 1 where the ranks divide it
	Evaluate     bool   `json:",omitempty"` // runs the model without gradients before each step
	Twice        bool   `json:",omitempty"` // calls the model for two batches in each pass
	Stepped      bool   `json:",omitempty"` // runs the passes by Strategy.Step
	File         bool   `json:",omitempty"` // reloads from a checkpoint on disk
	Static       bool   `json:",omitempty"` // of DDP: WithStaticGraph
	Join         bool   `json:",omitempty"` // of DDP: WithJoin
	Hook         bool   `json:",omitempty"` // of DDP: a hook that does what there is without one

	rounded *int // counts draws that hold only by one rank's rounding; nil for no count
}

// drawSplit draws one way among those of the strategies.
func drawSplit(seed uint64, strategies []string) draw {
	r := rand.New(rand.NewPCG(seed, 17))
	d := draw{
		Seed: seed, Float64: chance(r, 0.3), Strategy: pick(r, strategies...), Microbatches: pick(r, 1, 3),
		EveryPass: chance(r, 0.5), MaxNorm: pick(r, 0, 0.1), Optimizer: pick(r, "sgd", "momentum", "adamw"), Recompute: chance(r, 0.3),
	}
	split := pick(r, factorisations(8)...)
	d.Replicate, d.Shard = split[0], split[1]
	if !d.shards() {
		d.Replicate, d.Shard = d.Replicate*d.Shard, 1
	}
	inOne := d.Strategy == "dp"
	d.Float64 = d.Float64 && d.Strategy != "zero1" // whose steps are package optim's
	if d.Float64 {
		d.Optimizer = "sgd" // the optimizers of package optim take float32
	}
	if d.shards() {
		d.Policy, d.Never, d.OneAxis = pick(r, "blocks", "size", "layers"), chance(r, 0.3), d.Replicate == 1 && chance(r, 0.5)
		d.Columns = chance(r, 0.15)
	}
	d.Evaluate, d.File, d.Twice = chance(r, 0.2), chance(r, 0.2), chance(r, 0.2)
	d.Stepped = !d.EveryPass && chance(r, 0.5)
	d.Model = drawModel(r, d.Optimizer != "adamw" && !d.Float64) // gradients by rows are float32
	if d.Model.Sparse = d.Model.Sparse && !inOne; inOne {        // replicas have whole gradients, and one batch
		for i := range d.Model.Blocks {
			d.Model.Blocks[i].Branch = false
		}
	}
	if d.Model.branches() && d.Policy != "" {
		d.Policy = "blocks" // every rank must run all units
	}
	if sizes := divisors(d.Shard); d.shards() && !d.Never && len(sizes) > 0 && chance(r, 0.9) {
		d.Near = pick(r, sizes...)
	}
	if !d.shards() {
		d.Static, d.Join, d.Hook = !d.Model.branches() && chance(r, 0.3), chance(r, 0.3), chance(r, 0.2)
	}
	return d
}

// factorisations returns the pairs whose product is at most n.
func factorisations(n int) [][2]int {
	var out [][2]int
	for a := 1; a <= n; a++ {
		for b := 1; a*b <= n; b++ {
			out = append(out, [2]int{a, b})
		}
	}
	return out
}

// divisors returns the numbers that divide n, without 1 and n.
func divisors(n int) []int {
	var out []int
	for k := 2; k < n; k++ {
		if n%k == 0 {
			out = append(out, k)
		}
	}
	return out
}

// ddpOptions are the options of a DDP.
func (d draw) ddpOptions() []DDPOption {
	opts := []DDPOption{small}
	if d.Static {
		opts = append(opts, WithStaticGraph())
	}
	if d.Join {
		opts = append(opts, WithJoin())
	}
	if d.Hook {
		opts = append(opts, WithHook(HookFunc(meanHook)))
	}
	return opts
}

// shards says whether the axis fsdp has shards of the parameters.
func (d draw) shards() bool { return d.Strategy == "fsdp" || d.Strategy == "mesh" }

func (d draw) ranks() int { return d.Replicate * d.Shard }

// processes is how many ranks there are: one, which has all replicas, under dp.
func (d draw) processes() int {
	if d.Strategy == "dp" {
		return 1
	}
	return d.ranks()
}

// calls is how often a rank calls the model in a pass.
func (d draw) calls() int {
	if d.Twice {
		return 2
	}
	return 1
}

// batches draws one step's batches, [microbatch][rank · calls]. Each rank draws all.
func (d draw) batches(r *rand.Rand) [][]lawBatch {
	return drawBatches(r, d.Model, d.Microbatches, d.ranks()*d.calls())
}

// ofRank leaves the batches of one rank.
func (d draw) ofRank(batches [][]lawBatch, rank int) [][]lawBatch {
	var own [][]lawBatch
	for _, all := range batches {
		if d.Strategy == "dp" {
			var calls []lawBatch
			for part := range slices.Chunk(all, d.ranks()) {
				calls = append(calls, join(part))
			}
			own = append(own, calls)
			continue
		}
		own = append(own, all[rank*d.calls():(rank+1)*d.calls()])
	}
	return own
}

// String is what the flag -draw takes.
func (d draw) String() string {
	text, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// simpler returns draws that have one thing less each.
func (d draw) simpler() []draw {
	var out []draw
	add := func(change func(d *draw)) {
		e := d
		e.Model.Blocks, e.Model.Order, e.Model.Frozen = slices.Clone(d.Model.Blocks), slices.Clone(d.Model.Order), slices.Clone(d.Model.Frozen)
		change(&e)
		if e.String() != d.String() {
			out = append(out, e)
		}
	}
	add(func(d *draw) { d.Model.Order = nil; d.Model.Blocks = d.Model.Blocks[:1] })
	add(func(d *draw) { d.Microbatches, d.EveryPass = 1, false })
	add(func(d *draw) {
		if d.Policy != "" {
			d.Policy = "blocks"
		}
	})
	add(func(d *draw) { d.Replicate = 1 })
	add(func(d *draw) { d.Never = false })
	add(func(d *draw) { d.Near = 0 })
	add(func(d *draw) { d.Columns = false })
	add(func(d *draw) { d.Evaluate = false })
	add(func(d *draw) { d.File = false })
	add(func(d *draw) { d.Twice = false })
	add(func(d *draw) { d.OneAxis = d.shards() && d.Replicate == 1 })
	add(func(d *draw) { d.Stepped = false })
	add(func(d *draw) { d.Static = false })
	add(func(d *draw) { d.Join = false })
	add(func(d *draw) { d.Hook = false })
	add(func(d *draw) {
		if d.Strategy == "mesh" {
			d.Strategy = "fsdp"
		}
	})
	add(func(d *draw) { d.Shard, d.Near = 1, 0 })
	add(func(d *draw) { d.Replicate = min(d.Replicate, 2) })
	add(func(d *draw) { d.Shard, d.Near = min(d.Shard, 2), min(d.Near, 2) })
	add(func(d *draw) { d.MaxNorm = 0 })
	add(func(d *draw) { d.Recompute = false })
	add(func(d *draw) { d.EveryPass = false })
	add(func(d *draw) { d.Optimizer = "sgd" })
	add(func(d *draw) { d.Model.Frozen = nil })
	add(func(d *draw) { d.Model.Tied = false })
	add(func(d *draw) { d.Model.Sparse = false })
	add(func(d *draw) { d.Model.Shared = false })
	add(func(d *draw) { d.Model.Orphan = 0 })
	add(func(d *draw) { d.Model.Vocabulary = 7 })
	add(func(d *draw) { d.Model.Width = 5 })
	for i := range d.Model.Frozen {
		add(func(d *draw) { d.Model.Frozen = slices.Delete(d.Model.Frozen, i, i+1) })
	}
	for i := range d.Model.Order {
		add(func(d *draw) { d.Model.Order = slices.Delete(d.Model.Order, i, i+1) })
	}
	for i := range d.Model.Blocks {
		add(func(d *draw) { d.Model.Blocks[i].Attention = false })
		add(func(d *draw) { d.Model.Blocks[i].Branch = false })
		add(func(d *draw) { d.Model.Blocks[i].Stats = false })
		add(func(d *draw) { d.Model.Blocks[i].Norm = false })
		add(func(d *draw) { d.Model.Blocks[i].Hidden = 1 })
	}
	return out
}

// numSteps is how long a draw trains.
const numSteps = 3

// outcome is what training gives, by names. Of a rank, tensors are its own parts.
type outcome struct {
	losses, norms, scales []float64 // of each step; scales are what clipping multiplies gradients by
	evaluations           []float64 // the losses of the first microbatch before each step, if the draw evaluates
	grads                 map[string]part
	state                 map[string]part // after the last step
	unused                []string        // of the trained parameters after the first step
}

// part is a tensor's elements.
type part struct {
	shape    []int
	elements []float64
}

func partOf(t *tensor.Tensor) part { return part{slices.Clone(t.Shape()), elements(t)} }

// cut is how a tensor lies: chunk i of some is all that a rank has along a dim. By
// PyTorch's rule, chunks have the size ⌈n/chunks⌉, and the last ones may be short or
// empty.
type cut struct{ dim, chunks int }

// each calls fn with the places, in the whole tensor, of the elements of chunk i,
// in their order, and returns the chunk's shape.
func (c cut) each(shape []int, i int, fn func(at int)) []int {
	own, inner := slices.Clone(shape), 1
	for _, n := range shape[min(c.dim+1, len(shape)):] {
		inner *= n
	}
	start := 0
	if c.chunks > 1 {
		size := (shape[c.dim] + c.chunks - 1) / c.chunks
		start = min(shape[c.dim], size*i)
		own[c.dim] = min(shape[c.dim], size*(i+1)) - start
	}
	n := 1
	for j := range shape {
		n *= own[j]
	}
	for k := range n {
		if c.chunks > 1 {
			outer, rest := k/(own[c.dim]*inner), k%(own[c.dim]*inner)
			k = outer*shape[c.dim]*inner + start*inner + rest
		}
		fn(k)
	}
	return own
}

// chunk is the part of a rank.
func (p part) chunk(c cut, i int) part {
	var own part
	own.shape = c.each(p.shape, i, func(at int) { own.elements = append(own.elements, p.elements[at]) })
	return own
}

// trainer trains one rank's model: all of it, or what a strategy leaves it.
type trainer struct {
	draw     draw
	model    *lawModel
	strategy Strategy
	ranks    int
	opt      optim.Optimizer // nil for float64, which is stepped by hand
	around   []nn.Interceptor
	out      outcome
}

func (d draw) newTrainer(wrap func(m *lawModel) (Strategy, error)) (*trainer, error) {
	dtype := tensor.Float32
	if d.Float64 {
		dtype = tensor.Float64
	}
	t := &trainer{draw: d, model: d.Model.build(int64(d.Seed), dtype), ranks: 1}
	var err error
	if t.strategy, err = wrap(t.model); err != nil {
		return nil, err
	}
	if !d.Float64 {
		t.opt = d.optimizer(nn.Parameters(t.model))
	}
	return t, nil
}

func (d draw) optimizer(params []*nn.Parameter) optim.Optimizer {
	switch d.Optimizer {
	case "adamw":
		return optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.01, Eps: 1e-5})
	case "momentum":
		return optim.NewSGD(params, optim.SGDOptions{LR: 0.02, Momentum: 0.9})
	default:
		return optim.NewSGD(params, optim.SGDOptions{LR: 0.02})
	}
}

// spread makes it one rank of several, which recompute what the draw says.
func (t *trainer) spread(ranks int) {
	t.ranks = ranks
	if t.draw.Recompute {
		t.around = append(t.around, nn.Recompute(func(m any) bool { _, is := m.(*lawBlock); return is }))
	}
}

// alone trains the model of a draw on one rank, with the batches of all ranks. It
// makes one step more than the ranks, whose state after them is not kept. Other
// variants than 0 take the ranks' batches one by one in another order, and scale
// the loss and the gradients so that they round otherwise.
func (d draw) alone(ctx context.Context, variant int) (outcome, error) {
	t, err := d.newTrainer(func(m *lawModel) (Strategy, error) { return NewSingle(m) })
	if err != nil {
		return outcome{}, err
	}
	r, order := rand.New(rand.NewPCG(d.Seed, 18)), rand.New(rand.NewPCG(d.Seed, uint64(variant)))
	for i := range numSteps + 1 {
		if i == numSteps {
			t.keepState()
		}
		batches := d.batches(r)
		for i, ranks := range batches {
			switch {
			case variant > 0:
				order.Shuffle(len(ranks), func(i, j int) { ranks[i], ranks[j] = ranks[j], ranks[i] })
				t.ranks = []int{1, d.ranks(), 3, 7}[variant%4]
				if variant%2 == 0 {
					t.around = []nn.Interceptor{identities{}}
				}
			case !d.Model.branches():
				batches[i] = []lawBatch{join(ranks)}
			}
		}
		if err := t.step(ctx, batches, countValid(batches)); err != nil {
			return outcome{}, err
		}
	}
	return t.out, nil
}

// identities has an operation that changes nothing at the inputs and the results of modules. So
// the gradients of a module's input are added up in another order.
type identities struct{}

func (identities) InterceptCall(c *nn.Ctx, _ any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	return identity(next(c, identity(x)))
}

func (identities) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

func identity(values []*tensor.Tensor) []*tensor.Tensor {
	out := slices.Clone(values)
	for i, t := range values {
		if t != nil && t.NeedsGrad() {
			out[i] = tensor.Record("identity", t.Detach(), []*tensor.Tensor{t}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{g}, nil
			})
		}
	}
	return out
}

// terms returns for each parameter the sum, over the batches of the first step, of
// the largest element of the gradient of a single batch.
func (d draw) terms(ctx context.Context) (map[string]float64, error) {
	t, err := d.newTrainer(func(m *lawModel) (Strategy, error) { return NewSingle(m) })
	if err != nil {
		return nil, err
	}
	batches := d.batches(rand.New(rand.NewPCG(d.Seed, 18)))
	valid, sums := countValid(batches), make(map[string]float64)
	for _, b := range slices.Concat(batches...) {
		if _, err := t.pass(ctx, []lawBatch{b}, valid); err != nil {
			return nil, err
		}
		for _, p := range nn.Parameters(t.model) {
			if g := gradientOf(p); g != nil {
				sums[p.Name()] += g.Abs().AMax().Item()
			}
			p.ZeroGrad()
		}
	}
	return sums, nil
}

// gradientOf returns the whole gradient, of rows too; nil for none.
func gradientOf(p *nn.Parameter) *tensor.Tensor {
	if g := p.RowGrad(); g != nil {
		return g.Dense()
	}
	return p.Grad()
}

// onRank trains the part of one rank. from is nil, or the state with which the last
// step begins, which is the only one then. dir is for a checkpoint.
func (d draw) onRank(ctx context.Context, g *dist.Group, from map[string]part, dir string) (outcome, error) {
	t, err := d.newTrainer(func(m *lawModel) (Strategy, error) { return d.wrap(ctx, g, m) })
	if err != nil {
		return outcome{}, err
	}
	t.spread(g.Size())
	if d.Strategy == "zero1" {
		if t.opt, err = newZero(ctx, g, nn.Parameters(t.model), d.optimizer, func(int) int { return 256 }); err != nil {
			return outcome{}, err
		}
	}
	first, last := 0, numSteps
	if from != nil {
		first, last = numSteps, numSteps+1
		if err := t.load(ctx, g.Rank(), from, dir); err != nil {
			return outcome{}, err
		}
	}
	r := rand.New(rand.NewPCG(d.Seed, 18))
	for i := range last {
		batches := d.batches(r)
		if i < first {
			continue
		}
		valid := countValid(batches)
		if err := t.step(ctx, d.ofRank(batches, g.Rank()), valid); err != nil {
			return outcome{}, err
		}
	}
	t.keepState()
	if d.File && from == nil {
		return t.out, t.save(ctx, g, dir)
	}
	return t.out, nil
}

// parts is what the rank holds of the state, for a checkpoint.
func (t *trainer) parts() []checkpoint.Part {
	layouts := make(map[string]mesh.Layout)
	for _, p := range nn.Parameters(t.model) {
		layouts[p.Name()] = t.strategy.Layout(p)
	}
	var parts []checkpoint.Part
	for _, s := range t.strategy.StateDict() {
		parts = append(parts, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: s.Tensor, Layout: layouts[s.Name]}})
	}
	return parts
}

func (t *trainer) save(ctx context.Context, group *dist.Group, dir string) error {
	state := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: t.parts()}}
	return checkpoint.Save(ctx, group, storage.Dir(dir), numSteps, state, checkpoint.WithShare(1), checkpoint.WithRetention(checkpoint.KeepLast(1)))
}

// load gives a rank's parts of a model the values of a whole state.
func (t *trainer) load(ctx context.Context, rank int, from map[string]part, dir string) error {
	d, m := t.draw, t.model
	if d.File {
		saved, _, err := checkpoint.Latest(ctx, storage.Dir(dir))
		if err != nil {
			return err
		}
		return saved.LoadParts(checkpoint.Model, t.parts())
	}
	into := t.strategy.StateDict()
	cuts := make(map[string]cut)
	for _, p := range nn.Parameters(m) {
		cuts[p.Name()] = d.cutOf(p, from[p.Name()].shape)
	}
	for _, s := range into {
		own, has := from[s.Name]
		if !has {
			return fmt.Errorf("the state has no %s", s.Name)
		}
		if c, is := cuts[s.Name]; is {
			own = own.chunk(c, rank%d.Shard)
		}
		if !slices.Equal(own.shape, s.Tensor.Shape()) {
			return fmt.Errorf("rank %d holds %v of %s, want %v", rank, s.Tensor.Shape(), s.Name, own.shape)
		}
		if len(own.elements) > 0 {
			s.Tensor.CopyFrom(tensor.FromFloat64(own.elements, own.shape...).To(s.Tensor.DType()))
		}
	}
	return nil
}

// step trains on microbatches, of which valid tokens count on all ranks together.
func (t *trainer) step(ctx context.Context, batches [][]lawBatch, valid int) error {
	params := nn.Parameters(t.model)
	for _, p := range params {
		p.ZeroGrad()
	}
	if t.draw.Evaluate {
		if err := t.evaluate(ctx, batches[0]); err != nil {
			return err
		}
	}
	loss := 0.0
	if _, alone := t.strategy.(*Single); t.draw.Stepped && !alone {
		var err error
		if loss, err = t.wholeStep(ctx, batches, valid); err != nil {
			return err
		}
		batches = nil
	}
	for i, ranks := range batches {
		pass := func() error {
			l, err := t.pass(ctx, ranks, valid)
			loss += l
			return err
		}
		run := func(fn func() error) error { return fn() }
		if !t.draw.EveryPass && i < len(batches)-1 {
			run = t.strategy.NoSync
		}
		if err := run(pass); err != nil {
			return err
		}
	}
	t.out.losses = append(t.out.losses, loss)
	if t.out.grads == nil {
		t.out.grads = make(map[string]part)
		for _, p := range params {
			switch g := gradientOf(p); {
			case g != nil:
				t.out.grads[p.Name()] = partOf(g)
			case !p.Frozen:
				t.out.unused = append(t.out.unused, p.Name())
			}
		}
	}
	if named, is := t.strategy.(interface{ Unused() []string }); is && len(t.out.losses) == 1 {
		t.out.unused = named.Unused()
	}
	maxNorm := t.draw.MaxNorm
	if maxNorm == 0 {
		maxNorm = 1e9
	}
	norm, scale, err := t.strategy.ClipGradNorm(ctx, params, maxNorm)
	if err != nil {
		return err
	}
	t.out.norms, t.out.scales = append(t.out.norms, norm.Item()), append(t.out.scales, scale.Item())
	return t.update(ctx, params, scale)
}

// evaluate adds up the losses of some ranks' batches in a pass without gradients.
func (t *trainer) evaluate(ctx context.Context, ranks []lawBatch) (err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	sum := 0.0
	for _, b := range ranks {
		sum += b.loss(c, t.strategy).Item()
	}
	t.out.evaluations = append(t.out.evaluations, sum)
	return nil
}

// pass runs forward and backward on some ranks' batches, and returns the sum of
// their losses divided by the tokens that count.
func (t *trainer) pass(ctx context.Context, ranks []lawBatch, valid int) (loss float64, err error) {
	c := t.carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	sum := t.sum(c, ranks)
	loss = sum.Item() / float64(valid)
	// A strategy takes the mean over the ranks of what is to be a sum.
	if _, one := t.strategy.(*Single); one {
		c.Tape().ScaleGrads(1 / float64(t.ranks))
	}
	return loss, sum.MulScalar(float64(t.ranks) / float64(valid)).Backward(ctx)
}

// carrier is that of a training pass.
func (t *trainer) carrier(ctx context.Context) *nn.Ctx {
	var opts []nn.CtxOption
	if t.draw.BFloat16 {
		opts = append(opts, nn.WithAutocast(tensor.BFloat16))
	}
	c := nn.Training(ctx, opts...)
	for _, i := range t.around {
		c = c.With(i)
	}
	return c
}

// sum is the sum of the losses of some ranks' batches.
func (t *trainer) sum(c *nn.Ctx, ranks []lawBatch) (sum *tensor.Tensor) {
	for _, b := range ranks {
		l := b.loss(c, t.strategy)
		if sum != nil {
			l = sum.Add(l)
		}
		sum = l
	}
	if t.draw.LossScale != 0 {
		sum = sum.MulScalar(t.draw.LossScale)
	}
	return sum
}

// wholeStep runs the passes of a step by Strategy.Step, and returns the loss.
func (t *trainer) wholeStep(ctx context.Context, batches [][]lawBatch, valid int) (float64, error) {
	var microbatches []Microbatch
	for _, ranks := range batches {
		microbatches = append(microbatches, Microbatch{
			Carrier: t.carrier,
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return t.sum(c, ranks).MulScalar(float64(t.ranks) / float64(valid))
			},
		})
	}
	loss, err := t.strategy.Step(ctx, microbatches)
	if err != nil {
		return 0, err
	}
	return loss.Item() / float64(t.ranks), nil
}

// update applies one step of the optimizer.
func (t *trainer) update(ctx context.Context, params []*nn.Parameter, scale *tensor.Tensor) error {
	if t.opt != nil {
		return Update(ctx, t.opt, scale)
	}
	for _, p := range params {
		if g := gradientOf(p); g != nil {
			p.Data().Axpy(-0.02*scale.Item(), g)
		}
	}
	return nil
}

func (t *trainer) keepState() {
	t.out.state = make(map[string]part)
	for _, s := range t.strategy.StateDict() {
		t.out.state[s.Name] = partOf(s.Tensor)
	}
}

// cutOf is how a parameter of some whole shape lies. Sparse parameters are whole on
// every rank, as long as they are trained.
func (d draw) cutOf(p *nn.Parameter, shape []int) cut {
	if !d.shards() || p.Sparse && !p.Frozen {
		return cut{chunks: 1}
	}
	return cut{d.dimOf(shape), d.Shard}
}

func (d draw) dimOf(shape []int) int {
	if d.Columns && len(shape) == 2 && shape[1]%d.Shard == 0 {
		return 1
	}
	return 0
}

// wrap splits a model as the draw says.
func (d draw) wrap(ctx context.Context, g *dist.Group, model any) (Strategy, error) {
	if d.Strategy == "dp" {
		return NewDataParallel(model, threadGroups(d.Replicate))
	}
	if !d.shards() {
		return NewDDP(ctx, model, g, d.ddpOptions()...)
	}
	opts := d.options()
	if d.Strategy == "mesh" {
		m, err := lawSizes{Replicate: d.Replicate, FSDP: d.Shard}.newMesh(ctx, g)
		if err != nil {
			return nil, err
		}
		return Parallelize(ctx, model, m, Config{FSDP: opts, DDP: []DDPOption{small}})
	}
	axes := []mesh.Axis{{Name: "replicate", Size: d.Replicate}, {Name: "fsdp", Size: d.Shard}}
	if d.OneAxis {
		axes = axes[1:]
	}
	m, err := mesh.New(ctx, g, axes...)
	if err != nil {
		return nil, err
	}
	return FullyShard(ctx, model, m, opts...)
}

// options are those of FSDP.
func (d draw) options() (opts []FSDPOption) {
	switch d.Policy {
	case "size":
		opts = append(opts, WithPolicy(BySize(400)))
	case "layers":
		opts = append(opts, WithPolicy(ByFunc(func(_ string, m any) bool { _, is := m.(*lawLinear); return is })))
	}
	if d.Columns {
		opts = append(opts, WithShardDim(func(_ string, shape []int) int { return d.dimOf(shape) }))
	}
	if d.Mixed {
		opts = append(opts, WithMixedPrecision(tensor.BFloat16, tensor.BFloat16))
	}
	if d.Never {
		opts = append(opts, WithReshard(Never))
	}
	if d.Near > 0 && d.Shard%d.Near == 0 { // a state is reloaded on other ranks too
		opts = append(opts, WithReshard(WithinGroupsOf(d.Near)))
	}
	return opts
}
