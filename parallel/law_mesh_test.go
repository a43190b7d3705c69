// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestLawOfMeshes is TestLaw for the models of netDraw, split over all axes that a mesh
// has by Parallelize. Tests of some axes:
//
//	go test ./parallel -run TestLawOfMeshes -draws 1000 -axes fsdp,tp -v
func TestLawOfMeshes(t *testing.T) {
	if *oneDraw != "" {
		var d meshDraw
		if err := json.Unmarshal([]byte(*oneDraw), &d); err != nil {
			t.Fatal(err)
		}
		if err := d.check(t); err != nil {
			t.Fatal(err)
		}
		return
	}
	axes := meshAxes
	if *drawnAxes != "" {
		axes = strings.Split(*drawnAxes, ",")
	}
	seed, n := seeded.Of(t), *numDraws
	if testing.Short() {
		n = min(n, 15)
	}
	count, before, ties, refused := make(map[string]int), numRounded, 0, 0
	for i := range n {
		d := drawMesh(seed<<32+uint64(i), axes)
		err := d.check(t)
		for k := uint64(1); errors.Is(err, errTie) || errors.Is(err, errRefused); k++ {
			if errors.Is(err, errTie) {
				ties++
			} else {
				refused++
			}
			d = drawMesh(seed<<32+uint64(i)+k<<24, axes)
			err = d.check(t)
		}
		if err != nil {
			d, err = simplify(t, d, err)
			t.Errorf("draw %d: %v\n\trepeat it by -run TestLawOfMeshes -draw '%v'", i, err, d)
			if n <= 200 {
				return
			}
		}
		for _, axis := range axes {
			count[fmt.Sprint(axis, " ", *axisSize(&d.Sizes, axis))]++
		}
	}
	t.Logf("%d draws had ties in routing, and %d were refused: they were drawn again", ties, refused)
	rounded := numRounded - before
	if t.Logf("%d of %d draws differ by more than the limit, but not by more than one rank's own rounding", rounded, n); n >= 100 && rounded*10 > n {
		t.Errorf("these are too many for a test: make the models better conditioned")
	}
	for _, kind := range slices.Sorted(mapKeys(count)) {
		t.Logf("%5d draws of %s", count[kind], kind)
	}
}

// check trains as a draw says, alone and on ranks, and compares.
func (d meshDraw) check(t *testing.T) error {
	want, err := d.alone(t.Context(), 0)
	if err != nil {
		return fmt.Errorf("one rank: %w", err)
	}
	dir := ""
	if d.File {
		dir = t.TempDir()
	}
	got, err := d.onRanks(t, d.Sizes, nil, dir)
	if err != nil {
		return isRefused(err)
	}
	own := rounding{}
	if err := d.compare(got, want, own); err != nil {
		if own, err = d.rounding(t.Context(), want); err != nil {
			return fmt.Errorf("one rank: %w", err)
		}
		if err := d.compare(got, want, own); err != nil {
			return err
		}
		numRounded++
	}
	again, err := d.onRanks(t, d.Reloaded, got.state, dir)
	if err != nil {
		return fmt.Errorf("reloaded: %w", isRefused(err))
	}
	limit := 1e-4
	if d.BFloat16 {
		limit = 3e-2
	}
	return reloadedAs(again, want, own, limit)
}

// errRefused is in the errors of draws that are refused, though one could split them.
var errRefused = errors.New("refused")

// refusals are words of such errors.
var refusals = []string{"channels on a rank can be a part of", "cannot share the"}

func isRefused(err error) error {
	if slices.ContainsFunc(refusals, func(words string) bool { return strings.Contains(err.Error(), words) }) {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// compare says what of two outcomes differs.
func (d meshDraw) compare(got, want outcome, own rounding) error {
	limit := 1e-5
	if d.BFloat16 {
		limit = 3e-2
	}
	if err := compareSteps(got, want, own, limit); err != nil {
		return err
	}
	if d.Optimizer == "adamw" {
		limit = max(limit, 1e-4)
	}
	return closeParts("", got.state, want.state, limit, own.state)
}

// rounding trains variants of one rank.
func (d meshDraw) rounding(ctx context.Context, want outcome) (rounding, error) {
	share := 1e-6
	if d.BFloat16 {
		share = 1e-2
	}
	return roundingOf(want, share, func() (map[string]float64, error) { return d.terms(ctx) },
		func(variant int) (outcome, error) { return d.alone(ctx, variant) })
}

// meshTrainer trains one rank's part of a model: all of it without a strategy.
type meshTrainer struct {
	draw     meshDraw
	model    *lawNet
	strategy *Parallel   // nil for the model itself
	samples  int         // how many ranks have samples of their own
	group    *dist.Group // all ranks; nil for one
	opt      optim.Optimizer
	around   []nn.Interceptor
	out      outcome
}

// newTrainer makes one for a model.
func (d meshDraw) newTrainer(model *lawNet, s *Parallel) *meshTrainer {
	t := &meshTrainer{draw: d, model: model, strategy: s, samples: 1}
	params := slices.DeleteFunc(nn.Parameters(model), func(p *nn.Parameter) bool { return p.Data().Device() == tensor.Meta })
	switch d.Optimizer {
	case "adamw":
		t.opt = optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.01, Eps: 1e-5})
	case "momentum":
		t.opt = optim.NewSGD(params, optim.SGDOptions{LR: 0.02, Momentum: 0.9})
	default:
		t.opt = optim.NewSGD(params, optim.SGDOptions{LR: 0.02})
	}
	return t
}

// alone trains the model of a draw on one rank, with the batches of all ranks, and without a
// strategy. It makes one step more than the ranks, whose state after them is not kept. Other
// variants than 0 take the ranks' batches one by one in another order, and scale the loss and
// the gradients so that they round otherwise.
func (d meshDraw) alone(ctx context.Context, variant int) (outcome, error) {
	t := d.newTrainer(d.Net.build(int64(d.Seed)), nil)
	r, order := rand.New(rand.NewPCG(d.Seed, 18)), rand.New(rand.NewPCG(d.Seed, uint64(variant)))
	scale := 1.0
	if variant > 0 {
		scale = []float64{1, 8, 3, 7}[variant%4]
		if variant%2 == 0 {
			t.around = []nn.Interceptor{identities{}}
		}
	}
	near := closestOf(t.model)
	if variant == 0 && len(near.routers) > 0 {
		t.around = []nn.Interceptor{near}
	}
	for i := range d.numSteps() + 1 {
		if i == d.numSteps() {
			t.out.state = make(map[string]part)
			for _, s := range nn.StateDict(t.model) {
				t.out.state[s.Name] = partOf(s.Tensor)
			}
		}
		batches := d.batches(r)
		valid := countTokens(batches)
		for i, units := range batches {
			switch {
			case variant > 0:
				order.Shuffle(len(units), func(i, j int) { units[i], units[j] = units[j], units[i] })
			case !d.units():
				batches[i] = []netBatch{joinNet(units)}
			}
		}
		if err := t.aloneStep(ctx, batches, valid, scale); err != nil {
			return outcome{}, err
		}
	}
	if near.gap < d.closest() {
		return t.out, errTie
	}
	return t.out, nil
}

// errTie says that a router was about to choose otherwise.
var errTie = errors.New("a tie in routing")

// closest is how near to each other the scores of experts may be, where one is chosen and the other not.
func (d meshDraw) closest() float64 {
	if d.BFloat16 {
		return 2e-2
	}
	return 1e-5
}

// aloneStep trains on all batches one after the other.
func (t *meshTrainer) aloneStep(ctx context.Context, batches [][]netBatch, valid int, scale float64) error {
	if err := t.begin(ctx, batches[0], valid); err != nil {
		return err
	}
	sum := 0.0
	for _, b := range slices.Concat(batches...) {
		l, err := t.pass(ctx, b, valid, scale)
		if err != nil {
			return err
		}
		sum += l
	}
	t.out.losses = append(t.out.losses, sum)
	params := nn.Parameters(t.model)
	if t.out.grads == nil {
		t.out.grads = make(map[string]part)
		for _, p := range params {
			if p.Grad() != nil {
				t.out.grads[p.Name()] = partOf(p.Grad())
			}
		}
	}
	norm, factor := optim.ClipGradNorm(params, t.draw.maxNorm())
	t.end(norm, factor)
	return nn.BalanceExperts(t.model, nil)
}

// pass runs forward and backward on a batch, without a strategy.
func (t *meshTrainer) pass(ctx context.Context, b netBatch, valid int, scale float64) (loss float64, err error) {
	c := t.carrier(ctx, b)
	defer c.Close()
	defer c.Recover(&err)
	l := b.share(c, t.draw, t.model, valid)
	loss = l.Item()
	if added := c.AddedLoss(); added != nil { // its mean over all batches of all ranks is trained
		l = l.Add(added.MulScalar(1 / float64(t.draw.Microbatches*numSamples(t.draw.Sizes))))
	}
	c.Tape().ScaleGrads(1 / scale)
	return loss, l.MulScalar(scale).Backward(c)
}

// carrier is that of a batch.
func (t *meshTrainer) carrier(ctx context.Context, b netBatch) *nn.Ctx {
	opts := []nn.CtxOption{nn.WithGenerator(tensor.NewGenerator(b.seed))}
	if t.draw.BFloat16 {
		opts = append(opts, nn.WithAutocast(tensor.BFloat16))
	}
	c := nn.Training(ctx, opts...)
	for _, i := range t.around {
		c = c.With(i)
	}
	return c
}

// begin drops the gradients, and evaluates some batches.
func (t *meshTrainer) begin(ctx context.Context, batches []netBatch, valid int) error {
	for _, p := range nn.Parameters(t.model) {
		p.ZeroGrad()
	}
	if !t.draw.Evaluate {
		return nil
	}
	sum := 0.0
	for _, b := range batches {
		l, err := t.evaluate(ctx, b, valid)
		if err != nil {
			return err
		}
		sum += l
	}
	t.out.evaluations = append(t.out.evaluations, sum)
	return nil
}

// evaluate returns the loss of a batch in a pass without gradients.
func (t *meshTrainer) evaluate(ctx context.Context, b netBatch, valid int) (loss float64, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	var m nn.Module = t.model
	if t.strategy != nil {
		m = t.strategy
	}
	return b.share(c, t.draw, m, valid).Item(), nil
}

// end takes what clipping gave, and steps.
func (t *meshTrainer) end(norm, scale *tensor.Tensor) {
	t.out.norms, t.out.scales = append(t.out.norms, norm.Item()), append(t.out.scales, scale.Item())
	t.opt.Step(scale)
}

// maxNorm is what gradients are clipped to.
func (d meshDraw) maxNorm() float64 {
	if d.MaxNorm == 0 {
		return 1e9
	}
	return d.MaxNorm
}

// countTokens returns the tokens that count in all batches.
func countTokens(batches [][]netBatch) int {
	n := 0
	for _, b := range slices.Concat(batches...) {
		n += b.valid
	}
	return n
}

// terms returns for each parameter the sum, over the batches of the first step, of the largest
// element of the gradient of a single batch.
func (d meshDraw) terms(ctx context.Context) (map[string]float64, error) {
	t := d.newTrainer(d.Net.build(int64(d.Seed)), nil)
	batches := d.batches(rand.New(rand.NewPCG(d.Seed, 18)))
	valid, sums := countTokens(batches), make(map[string]float64)
	for _, b := range slices.Concat(batches...) {
		if _, err := t.pass(ctx, b, valid, 1); err != nil {
			return nil, err
		}
		for _, p := range nn.Parameters(t.model) {
			if p.Grad() != nil {
				sums[p.Name()] += p.Grad().Abs().AMax().Item()
			}
			p.ZeroGrad()
		}
	}
	return sums, nil
}

// meshOutcome is what training gives one rank.
type meshOutcome struct {
	outcome
	samples int // which of the samples it takes
	lies    map[string][]mesh.Box
}

// onRanks trains on a mesh. from is nil, or the state with which the last step begins.
func (d meshDraw) onRanks(t *testing.T, z lawSizes, from map[string]part, dir string) (outcome, error) {
	ranks := make([]meshOutcome, numRanks(z))
	err := spawn(t, len(ranks), func(ctx context.Context, g *dist.Group) (err error) {
		ranks[g.Rank()], err = d.onRank(ctx, g, z, from, dir)
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	return d.assemble(ranks, numSamples(z))
}

// split makes the strategy of a draw.
func (d meshDraw) split(ctx context.Context, g *dist.Group, z lawSizes, model *lawNet) (*Parallel, *mesh.Mesh, error) {
	m, err := z.newMesh(ctx, g)
	if err != nil {
		return nil, nil, err
	}
	c, err := d.config(z)
	if err != nil {
		return nil, nil, err
	}
	p, err := Parallelize(ctx, model, m, c)
	return p, m, err
}

// config is what Parallelize is told.
func (d meshDraw) config(z lawSizes) (c Config, err error) {
	if z.TP > 1 {
		c.Plan, err = ParsePlan(d.plan())
		c.TP = TPConfig{WholeSequence: !d.Sequence, WholeLogits: d.WholeLogits, Pieces: d.Pieces}
	}
	c.Context.Attention = d.Method
	if z.PP > 1 {
		c.Pipeline = PipelineConfig{
			Schedule: d.Schedule, NumStages: d.Stages,
			Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 2, d.Time)},
		}
	}
	return c, err
}

// onRank trains the part of one rank.
func (d meshDraw) onRank(ctx context.Context, g *dist.Group, z lawSizes, from map[string]part, dir string) (out meshOutcome, err error) {
	model := d.Net.build(int64(d.Seed))
	if d.disturb {
		for _, p := range nn.Parameters(model) {
			p.Data().CopyFrom(p.Data().AddScalar(float64(g.Rank())))
		}
	}
	s, m, err := d.split(ctx, g, z, model)
	if err != nil {
		return out, err
	}
	t := d.newTrainer(model, s)
	t.samples, t.group = numSamples(z), g
	if d.Recompute {
		t.around = append(t.around, nn.Recompute(func(m any) bool { _, is := m.(*netBlock); return is }))
	}
	if out.lies, err = t.lies(); err != nil {
		return out, err
	}
	for _, axis := range []string{"replicate", "fsdp", "ep"} {
		if i, err := m.Index(axis); err == nil {
			out.samples = out.samples*m.Shape()[i] + m.Coordinate()[i]
		}
	}
	first, last := 0, d.numSteps()
	r := rand.New(rand.NewPCG(d.Seed, 18))
	if from != nil {
		first, last = last, last+1
		if err := t.load(ctx, from, out.lies, dir); err != nil {
			return out, err
		}
	}
	for i := range last {
		batches := d.batches(r)
		if i < first {
			continue
		}
		if err := t.step(ctx, regroup(batches, t.samples), out.samples); err != nil {
			return out, err
		}
	}
	t.out.state = make(map[string]part)
	for _, p := range nn.Parameters(model) {
		if _, here := out.lies[p.Name()]; here {
			t.out.state[p.Name()] = partOf(p.Data())
		}
	}
	for _, b := range nn.Buffers(model) {
		if b.Data.Device() != tensor.Meta {
			t.out.state[b.Name()] = partOf(b.Data)
		}
	}
	out.outcome = t.out
	if d.File && from == nil {
		return out, t.save(ctx, g.Rank(), dir)
	}
	return out, nil
}

// regroup makes more microbatches of those of fewer ranks. Their number divides that of the ranks there were.
func regroup(batches [][]netBatch, ranks int) [][]netBatch {
	var out [][]netBatch
	for _, all := range batches {
		out = slices.AppendSeq(out, slices.Chunk(all, ranks))
	}
	return out
}

// lies says which parts of the parameters the rank holds. A stage of a pipeline has not all
// parameters.
func (t *meshTrainer) lies() (map[string][]mesh.Box, error) {
	out := make(map[string][]mesh.Box)
	for _, p := range nn.Parameters(t.model) {
		if p.Data().Device() == tensor.Meta {
			continue
		}
		l := t.strategy.Layout(p)
		shape, err := l.LocalShape()
		if err != nil {
			return nil, err
		}
		if !slices.Equal(shape, p.Data().Shape()) {
			return nil, fmt.Errorf("%s has the shape %v, and %v in its layout %v", p.Name(), p.Data().Shape(), shape, l)
		}
		if out[p.Name()], err = l.Boxes(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// step trains on the rank's samples by the strategy.
func (t *meshTrainer) step(ctx context.Context, batches [][]netBatch, samples int) error {
	valid := countTokens(batches)
	if err := t.begin(ctx, batches[0][samples:samples+1], valid); err != nil {
		return err
	}
	var microbatches []Microbatch
	for _, all := range batches {
		b := all[samples]
		microbatches = append(microbatches, Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return t.carrier(ctx, b) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return b.share(c, t.draw, t.strategy, valid).MulScalar(float64(t.samples))
			},
		})
	}
	loss, err := 0.0, error(nil)
	if t.draw.Passes {
		loss, err = t.passes(ctx, microbatches)
	} else {
		var sum *tensor.Tensor
		if sum, err = t.strategy.Step(ctx, microbatches); err == nil {
			loss = sum.Item()
		}
	}
	if err != nil {
		return err
	}
	t.out.losses = append(t.out.losses, loss/float64(t.samples))
	params := nn.Parameters(t.model)
	if t.out.grads == nil {
		t.out.grads = make(map[string]part)
		for _, p := range params {
			if p.Grad() != nil {
				t.out.grads[p.Name()] = partOf(p.Grad())
			}
		}
	}
	norm, scale, err := t.strategy.ClipGradNorm(ctx, params, t.draw.maxNorm())
	if err != nil {
		return err
	}
	t.end(norm, scale)
	return nil
}

// passes runs what Step does, by the methods that a loop of its own calls.
func (t *meshTrainer) passes(ctx context.Context, microbatches []Microbatch) (sum float64, err error) {
	for i, b := range microbatches {
		pass := func() (err error) {
			c := b.Carrier(ctx)
			defer c.Close()
			defer c.Recover(&err)
			l := b.Loss(c)
			sum += l.Item()
			if added := c.AddedLoss(); added != nil {
				l = l.Add(added.MulScalar(1 / float64(len(microbatches))))
			}
			return l.Backward(c)
		}
		if i < len(microbatches)-1 {
			err = t.strategy.NoSync(pass)
		} else {
			err = pass()
		}
		if err != nil {
			return 0, err
		}
	}
	return sum, nn.BalanceExperts(t.model, func(counts *tensor.Tensor) error { return t.group.AllReduce(ctx, counts, dist.Sum) })
}

// parts is what the rank holds of the state, for a checkpoint.
func (t *meshTrainer) parts() []checkpoint.Part {
	layouts, away := make(map[string]mesh.Layout), make(map[string]bool)
	for _, p := range nn.Parameters(t.model) {
		l := t.strategy.Layout(p)
		if m := t.strategy.Mesh(); m.Has(pipelineAxis) { // other ranks may lack it
			all := mesh.Layout{Mesh: m, Shape: l.Shape, Placements: make([]mesh.Placement, len(m.Axes()))}
			for i, a := range m.Axes() {
				if l.Mesh != nil && l.Mesh.Has(a.Name) {
					j, _ := l.Mesh.Index(a.Name)
					all.Placements[i] = l.Placements[j]
				}
			}
			l = all
		}
		layouts[p.Name()], away[p.Name()] = l, t.strategy.IsAway(p)
	}
	var parts []checkpoint.Part
	for _, s := range t.strategy.StateDict() {
		parts = append(parts, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: s.Tensor, Layout: layouts[s.Name]}, Away: away[s.Name]})
	}
	return parts
}

func (t *meshTrainer) save(ctx context.Context, rank int, dir string) error {
	write := func(w *checkpoint.Writer) error {
		return checkpoint.WriteParts(ctx, w, checkpoint.ModelFile, t.parts(), nil)
	}
	if rank > 0 {
		return write(nil)
	}
	return checkpoint.Save(ctx, dir, t.draw.numSteps(), write, 1)
}

// load gives a rank's parts of a model the values of a whole state.
func (t *meshTrainer) load(ctx context.Context, from map[string]part, lies map[string][]mesh.Box, dir string) error {
	if t.draw.File {
		saved, _, err := checkpoint.Latest(ctx, dir)
		if err != nil {
			return err
		}
		return saved.LoadParts(checkpoint.ModelFile, t.parts())
	}
	for _, p := range nn.Parameters(t.model) {
		boxes, here := lies[p.Name()]
		if !here || p.Data().NumElems() == 0 {
			continue
		}
		whole, shape := from[p.Name()], p.Data().Shape()
		own := make([]float64, numElemsOf(shape))
		for _, b := range boxes {
			eachElement(b, whole.shape, shape, func(at, local int) { own[local] = whole.elements[at] })
		}
		p.Data().CopyFrom(tensor.FromFloat64(own, shape...).To(tensor.Float32))
	}
	for _, b := range nn.Buffers(t.model) {
		if b.Data.Device() != tensor.Meta {
			b.Data.CopyFrom(tensor.FromFloat64(from[b.Name()].elements, b.Data.Shape()...).To(tensor.Float32))
		}
	}
	return nil
}

// eachElement calls fn with the places of a box's elements in the whole and in the local
// tensor.
func eachElement(b mesh.Box, whole, local []int, fn func(at, local int)) {
	offset := make([]int, len(b.Shape))
	for range numElemsOf(b.Shape) {
		at, own := 0, 0
		for d := range offset {
			at, own = at*whole[d]+b.Start[d]+offset[d], own*local[d]+b.LocalStart[d]+offset[d]
		}
		fn(at, own)
		for d := len(offset) - 1; d >= 0; d-- {
			if offset[d]++; offset[d] < b.Shape[d] {
				break
			}
			offset[d] = 0
		}
	}
}

// assemble makes one outcome of those of the ranks. What several ranks have must be the same bits.
func (d meshDraw) assemble(ranks []meshOutcome, samples int) (outcome, error) {
	all := outcome{
		norms: ranks[0].norms, scales: ranks[0].scales, losses: make([]float64, len(ranks[0].losses)),
		evaluations: make([]float64, len(ranks[0].evaluations)), grads: make(map[string]part), state: make(map[string]part),
	}
	first := make(map[int]int) // the rank that takes samples
	for i, r := range ranks {
		if !slices.Equal(r.norms, all.norms) || !slices.Equal(r.scales, all.scales) {
			return all, fmt.Errorf("rank %d has the norms %v, rank 0 %v", i, r.norms, all.norms)
		}
		if j, has := first[r.samples]; has {
			if !slices.Equal(r.losses, ranks[j].losses) || !slices.Equal(r.evaluations, ranks[j].evaluations) {
				return all, fmt.Errorf("ranks %d and %d take the same samples and have the losses %v and %v", j, i, ranks[j].losses, r.losses)
			}
			continue
		}
		first[r.samples] = i
		for step, loss := range r.losses {
			all.losses[step] += loss
		}
		for step, loss := range r.evaluations {
			all.evaluations[step] += loss
		}
	}
	if len(first) != samples {
		return all, fmt.Errorf("%d ranks have samples of their own, want %d", len(first), samples)
	}
	whole := d.Net.build(int64(d.Seed))
	for _, b := range nn.Buffers(whole) {
		for i, r := range ranks {
			own, here := r.state[b.Name()]
			if !here {
				continue
			}
			if first, has := all.state[b.Name()]; has && !slices.Equal(first.elements, own.elements) {
				return all, fmt.Errorf("%s is %v on rank %d and %v on another", b.Name(), own.elements, i, first.elements)
			}
			all.state[b.Name()] = own
		}
	}
	for _, p := range nn.Parameters(whole) {
		state, err := joinBoxes(ranks, p, func(r *meshOutcome) (part, bool) { s, has := r.state[p.Name()]; return s, has })
		if err != nil {
			return all, fmt.Errorf("%s: %w", p.Name(), err)
		}
		all.state[p.Name()] = state
		grad, err := joinBoxes(ranks, p, func(r *meshOutcome) (part, bool) { g, has := r.grads[p.Name()]; return g, has })
		switch {
		case err == nil:
			all.grads[p.Name()] = grad
		case !errors.Is(err, errNone):
			return all, fmt.Errorf("gradient of %s: %w", p.Name(), err)
		}
	}
	return all, nil
}

var errNone = errors.New("no rank has a part of it")

// joinBoxes puts the parts of a parameter together.
func joinBoxes(ranks []meshOutcome, p *nn.Parameter, of func(r *meshOutcome) (part, bool)) (part, error) {
	all := part{p.Data().Shape(), make([]float64, p.Data().NumElems())}
	from := make([]int, len(all.elements)) // 1 + the rank that an element is from
	some, differ := false, error(nil)
	for i := range ranks {
		own, has := of(&ranks[i])
		boxes, here := ranks[i].lies[p.Name()]
		if has && !here {
			return all, fmt.Errorf("rank %d has a value and no part of the parameter", i)
		}
		if !has {
			continue
		}
		some = true
		for _, b := range boxes {
			eachElement(b, all.shape, own.shape, func(at, local int) {
				switch {
				case from[at] == 0:
					all.elements[at], from[at] = own.elements[local], i+1
				case all.elements[at] != own.elements[local] && differ == nil:
					differ = fmt.Errorf("element %d is %v on rank %d and %v on rank %d", at, all.elements[at], from[at]-1, own.elements[local], i)
				}
			})
		}
	}
	if !some {
		return all, errNone
	}
	if at := slices.Index(from, 0); at >= 0 {
		return all, fmt.Errorf("no rank has element %d of %v", at, all.shape)
	}
	return all, differ
}
