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

	"github.com/cohort-ml/cohort/dist"
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
	t.Parallel()
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
		n = min(n, 8)
	}
	count, rounded, ties, refused := make(map[string]int), 0, 0, 0
	for i := range n {
		d := drawMesh(seed<<32+uint64(i), axes)
		d.rounded = &rounded
		err := d.check(t)
		for k := uint64(1); errors.Is(err, errTie) || errors.Is(err, errRefused); k++ {
			if errors.Is(err, errTie) {
				ties++
			} else {
				refused++
			}
			d = drawMesh(seed<<32+uint64(i)+k<<24, axes)
			d.rounded = &rounded
			err = d.check(t)
		}
		if err != nil {
			d.rounded = nil
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
	own := &ownRounding{measure: func() (rounding, error) { return d.rounding(t.Context(), want) }, count: d.rounded}
	if err := own.judge(func(own rounding) error { return d.compare(got, want, own) }); err != nil {
		return err
	}
	again, err := d.onRanks(t, d.Reloaded, got.state, dir)
	if err != nil {
		return fmt.Errorf("reloaded: %w", isRefused(err))
	}
	// What one rank makes of the same state: ranks that round otherwise in each step get away from
	// the steps that it took alone.
	if want, err = d.aloneFrom(t.Context(), got.state, want); err != nil {
		return fmt.Errorf("one rank: %w", err)
	}
	return own.judge(func(own rounding) error { return reloadedAs(again, want, own, d.limit()) })
}

// limit is by how much of their size values may be off.
func (d meshDraw) limit() float64 {
	if d.BFloat16 {
		return 3e-2
	}
	return 1e-5
}

// errRefused is in the errors of draws that are refused, though one could split them.
var errRefused = errors.New("refused")

// refusals are words of such errors.
var refusals = []string{"channels on a rank can be a part of", "cannot share the"}

func isRefused(err error) error {
	if err == nil {
		return nil
	}
	if slices.ContainsFunc(refusals, func(words string) bool { return strings.Contains(err.Error(), words) }) {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// compare says what of two outcomes differs.
func (d meshDraw) compare(got, want outcome, own rounding) error {
	limit := d.limit()
	if err := compareSteps(got, want, own, limit); err != nil {
		return err
	}
	if d.Optimizer == "adamw" {
		limit = max(limit, 1e-4)
	}
	return closeParts("", got.state, want.state, limit, own.state)
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
// the gradients so that they round otherwise. Those from numVariants+1 on begin with weights that
// are off by the rounding of bfloat16.
func (d meshDraw) alone(ctx context.Context, variant int) (outcome, error) {
	t := d.newTrainer(d.Net.build(int64(d.Seed)), nil)
	r, order := rand.New(rand.NewPCG(d.Seed, 18)), rand.New(rand.NewPCG(d.Seed, uint64(variant)))
	scale := 1.0
	if variant > numVariants {
		shake(t.model, d.Seed+uint64(variant))
	}
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

// aloneFrom replaces the last step of an outcome by that of one rank that begins with a state.
func (d meshDraw) aloneFrom(ctx context.Context, state map[string]part, all outcome) (outcome, error) {
	t := d.newTrainer(d.Net.build(int64(d.Seed)), nil)
	for _, s := range nn.StateDict(t.model) {
		s.Tensor.CopyFrom(tensor.FromFloat64(state[s.Name].elements, s.Tensor.Shape()...).To(tensor.Float32))
	}
	r := rand.New(rand.NewPCG(d.Seed, 18))
	for range d.numSteps() {
		d.batches(r)
	}
	batches := d.batches(r)
	valid := countTokens(batches)
	if !d.units() {
		for i, units := range batches {
			batches[i] = []netBatch{joinNet(units)}
		}
	}
	if err := t.aloneStep(ctx, batches, valid, 1); err != nil {
		return outcome{}, err
	}
	all.losses, all.norms = slices.Clone(all.losses), slices.Clone(all.norms)
	all.losses[d.numSteps()], all.norms[d.numSteps()] = t.out.losses[0], t.out.norms[0]
	return all, nil
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
