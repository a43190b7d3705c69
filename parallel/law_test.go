// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numDraws = flag.Int("draws", 200, "how many models and splits TestLaw draws")
	oneDraw  = flag.String("draw", "", "the only draw of TestLaw, as it prints one that fails")

	drawnAxes = flag.String("axes", "", "the axes of the meshes that TestLawOfMeshes draws, all by default")
)

// lawStrategies are those over ranks that the law is tested for. dp is one process.
var lawStrategies = []string{"ddp", "fsdp", "mesh", "zero1"}

// TestLaw: any way to split a model's training among ranks equals one rank's.
// Models and splits are drawn at random; see draw and modelDraw. Loss, norm,
// every gradient, the weights after three steps, and a model that the ranks'
// states were loaded into, are compared. A draw that fails is made simpler as
// long as it fails.
//
//	go test ./parallel -run TestLaw -draws 10000 -seed 2 -timeout 60m -v
func TestLaw(t *testing.T) {
	t.Parallel()
	if *oneDraw != "" {
		var d draw
		if err := json.Unmarshal([]byte(*oneDraw), &d); err != nil {
			t.Fatal(err)
		}
		if err := d.check(t); err != nil {
			t.Fatal(err)
		}
		return
	}
	seed, n := seeded.Of(t), *numDraws
	if testing.Short() {
		n = min(n, 15)
	}
	count, rounded := make(map[string]int), 0
	for i := range n {
		d := drawSplit(seed<<32+uint64(i), append([]string{"dp"}, lawStrategies...))
		d.rounded = &rounded
		if err := d.check(t); err != nil {
			d.rounded = nil
			d, err = simplify(t, d, err)
			t.Errorf("draw %d: %v\n\trepeat it by -run TestLaw -draw '%v'", i, err, d)
			if t.Failed() && n <= 200 {
				return
			}
		}
		count[d.kind()]++
	}
	if t.Logf("%d of %d draws differ by more than the limit, but not by more than one rank's own rounding", rounded, n); rounded*50 > n {
		t.Errorf("these are too many for a test: make the models better conditioned")
	}
	for _, kind := range slices.Sorted(mapKeys(count)) {
		t.Logf("%5d draws of %s", count[kind], kind)
	}
}

// kind is how a draw is counted.
func (d draw) kind() string {
	dtype := "float32"
	if d.Float64 {
		dtype = "float64"
	}
	with := ""
	for _, o := range []struct {
		name string
		on   bool
	}{{" static", d.Static}, {" join", d.Join}, {" hook", d.Hook}} {
		if o.on {
			with += o.name
		}
	}
	return fmt.Sprintf("%s%s %d × %d, %s", d.Strategy, with, d.Replicate, d.Shard, dtype)
}

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// simplifiable is a draw that can be checked and made simpler.
type simplifiable[D any] interface {
	check(t *testing.T) error
	simpler() []D
}

// simplify returns a draw that fails and of which nothing can be left out, as far
// as a hundred trials go.
func simplify[D simplifiable[D]](t *testing.T, d D, err error) (D, error) {
	trials, start := 0, time.Now()
again:
	for _, e := range d.simpler() {
		if trials++; trials > 100 || time.Since(start) > 30*time.Second {
			break
		}
		if now := e.check(t); now != nil && !errors.Is(now, errTie) && !errors.Is(now, errRefused) {
			d, err = e, now
			goto again
		}
	}
	return d, err
}

// check trains as a draw says, alone and on ranks, and compares.
func (d draw) check(t *testing.T) error {
	want, err := d.alone(t.Context(), 0)
	if err != nil {
		return fmt.Errorf("one rank: %w", err)
	}
	dir := ""
	if d.File {
		dir = t.TempDir()
	}
	got, err := d.onRanks(t, nil, dir)
	if err != nil {
		return err
	}
	own := &ownRounding{measure: func() (rounding, error) { return d.rounding(t.Context(), want) }, count: d.rounded}
	if err := own.judge(func(own rounding) error { return d.compare(got, want, own) }); err != nil {
		return err
	}
	return d.reload(t, got, want, own, dir)
}

// onRanks trains on ranks; see onRank.
func (d draw) onRanks(t *testing.T, from map[string]part, dir string) (outcome, error) {
	ranks := make([]outcome, d.processes())
	err := spawn(t, d.processes(), func(ctx context.Context, g *dist.Group) (err error) {
		ranks[g.Rank()], err = d.onRank(ctx, g, from, dir)
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	return d.assemble(ranks)
}

// assemble makes one outcome of those of the ranks. What several ranks have must
// be the same bits.
func (d draw) assemble(ranks []outcome) (outcome, error) {
	whole := d.Model.build(int64(d.Seed), tensor.Float32)
	all := outcome{norms: ranks[0].norms, scales: ranks[0].scales, unused: ranks[0].unused, losses: make([]float64, len(ranks[0].losses)), evaluations: make([]float64, len(ranks[0].evaluations)), grads: make(map[string]part), state: make(map[string]part)}
	for i, r := range ranks {
		if !slices.Equal(r.unused, all.unused) {
			return all, fmt.Errorf("rank %d finds %v unused, rank 0 %v", i, r.unused, all.unused)
		}
		if !slices.Equal(r.norms, all.norms) || !slices.Equal(r.scales, all.scales) {
			return all, fmt.Errorf("rank %d has the norms %v, rank 0 %v", i, r.norms, all.norms)
		}
		for step, loss := range r.losses {
			all.losses[step] += loss
		}
		for step, loss := range r.evaluations {
			all.evaluations[step] += loss
		}
	}
	for _, p := range nn.Parameters(whole) {
		name, shape := p.Name(), p.Data().Shape()
		lies := d.cutOf(p, shape)
		states := make([]part, len(ranks))
		grads, some := make([]part, len(ranks)), false
		for i, r := range ranks {
			states[i] = r.state[name]
			_, has := r.grads[name]
			some = some || has
		}
		for i, r := range ranks {
			g, has := r.grads[name]
			if some && !has && len(states[i].elements) > 0 {
				return all, fmt.Errorf("rank %d has no gradient of %s, and another rank has one", i, name)
			}
			if grads[i] = g; !has {
				grads[i] = part{shape: states[i].shape}
			}
		}
		var err error
		if all.state[name], err = joinParts(states, shape, lies); err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		if some {
			if all.grads[name], err = joinParts(grads, shape, lies); err != nil {
				return all, fmt.Errorf("gradient of %s: %w", name, err)
			}
		}
	}
	for _, b := range nn.Buffers(whole) {
		all.state[b.Name()] = ranks[0].state[b.Name()]
	}
	return all, nil
}

// joinParts puts the parts of a tensor of some shape together. Ranks that have the
// same chunk must have the same bits.
func joinParts(parts []part, shape []int, c cut) (part, error) {
	all := part{shape, make([]float64, numElemsOf(shape))}
	for i, p := range parts {
		k, same := 0, true
		want := c.each(shape, i%c.chunks, func(at int) {
			if k < len(p.elements) {
				if i < c.chunks {
					all.elements[at] = p.elements[k]
				}
				same = same && all.elements[at] == p.elements[k]
			}
			k++
		})
		if !slices.Equal(p.shape, want) || k != len(p.elements) {
			return all, fmt.Errorf("rank %d has %v, want %v", i, p.shape, want)
		}
		if !same {
			return all, fmt.Errorf("ranks %d and %d have different elements", i%c.chunks, i)
		}
	}
	return all, nil
}

// rounding trains variants of one rank.
func (d draw) rounding(ctx context.Context, want outcome) (rounding, error) {
	share := 1e-6
	if d.Mixed {
		share = 1e-2
	}
	return roundingOf(want, share, func() (map[string]float64, error) { return d.terms(ctx) },
		func(variant int) (outcome, error) { return d.alone(ctx, variant) })
}

// compare says what of two outcomes differs by more than a limit and by more than
// one rank's own rounding.
func (d draw) compare(got, want outcome, own rounding) error {
	limit := 1e-5
	switch {
	case d.Float64:
		limit = 1e-10
	case d.Mixed: // gradients are rounded to 8 bits, and sums of them too
		limit = 3e-2
	}
	if err := compareSteps(got, want, own, limit); err != nil {
		return err
	}
	if d.Optimizer == "adamw" {
		limit = 1e-4
	}
	if !d.EveryPass && !slices.Equal(got.unused, want.unused) { // else they are those of the last microbatch
		return fmt.Errorf("unused parameters are %v, want %v", got.unused, want.unused)
	}
	passes := float64(numSteps * d.Microbatches * d.calls())
	if seen := got.state["seen"].elements; !slices.Equal(seen, []float64{passes}) {
		return fmt.Errorf("the buffer seen is %v after %v passes", seen, passes)
	}
	want.state["seen"] = got.state["seen"] // of one rank, it counts the passes of all
	return closeParts("", got.state, want.state, limit, own.state)
}

// least is by how much a loss may be off in any case: a difference of logits of about 10 rounds so.
const least = 1e-6

// compareSteps compares what the steps gave: losses, norms, and the first gradients.
func compareSteps(got, want outcome, own rounding, limit float64) error {
	for i := range got.losses {
		if !isNear(got.losses[i], want.losses[i], limit, max(nth(own.losses, i), least)) {
			return fmt.Errorf("step %d: the loss is %v, want %v", i, got.losses[i], want.losses[i])
		}
		if len(want.evaluations) > 0 && !isNear(got.evaluations[i], want.evaluations[i], limit, nth(own.evaluations, i)) {
			return fmt.Errorf("step %d: the loss without gradients is %v, want %v", i, got.evaluations[i], want.evaluations[i])
		}
		if i == 0 {
			if err := closeParts("gradient of ", got.grads, want.grads, limit, own.grads); err != nil {
				return err
			}
		}
		if !isNear(got.norms[i], want.norms[i], limit, nth(own.norms, i)) {
			return fmt.Errorf("step %d: the norm of the gradients is %v, want %v", i, got.norms[i], want.norms[i])
		}
		if !isNear(got.scales[i], want.scales[i], limit, nth(own.scales, i)) {
			return fmt.Errorf("step %d: gradients are clipped by %v, want %v", i, got.scales[i], want.scales[i])
		}
	}
	return nil
}

// isNear compares numbers.
func isNear(got, want, limit, own float64) bool {
	return math.Abs(got-want) <= max(limit*math.Abs(want), own)
}

// closeParts compares tensors by name: ‖Δ‖∞ may be as large as limit times
// ‖want‖∞, or as one rank's own rounding.
func closeParts(what string, got, want map[string]part, limit float64, own map[string]float64) error {
	for _, name := range slices.Sorted(mapKeys(want)) {
		w := want[name]
		g, has := got[name]
		if !has {
			return fmt.Errorf("there is no %s%s", what, name)
		}
		if !slices.Equal(g.shape, w.shape) {
			return fmt.Errorf("%s%s has the shape %v, want %v", what, name, g.shape, w.shape)
		}
		most, off, at := 0.0, 0.0, 0
		for i := range w.elements {
			most = max(most, math.Abs(w.elements[i]))
			if delta := math.Abs(g.elements[i] - w.elements[i]); !(delta <= off) {
				off, at = delta, i
			}
		}
		if !(off <= max(limit*most, own[name])) {
			return fmt.Errorf("%s%s is off by %.1e of its largest element: element %d is %v, want %v",
				what, name, off/most, at, g.elements[at], w.elements[at])
		}
	}
	for _, name := range slices.Sorted(mapKeys(got)) {
		if _, has := want[name]; !has {
			return fmt.Errorf("there is a %s%s, which one rank has not", what, name)
		}
	}
	return nil
}

// reload loads the state of the ranks, or the checkpoint that they have saved, into
// a new model that is split in another way, and compares what its next step begins with.
func (d draw) reload(t *testing.T, got, want outcome, own *ownRounding, dir string) error {
	other := d
	if d.shards() {
		other.Replicate, other.Shard, other.OneAxis = d.Shard, d.Replicate, false
	}
	again, err := other.onRanks(t, got.state, dir)
	if err != nil {
		return fmt.Errorf("reloaded: %w", err)
	}
	limit := 1e-4
	switch {
	case d.Float64:
		limit = 1e-9
	case d.Mixed:
		limit = 3e-2
	}
	return own.judge(func(own rounding) error { return reloadedAs(again, want, own, limit) })
}

// reloadedAs compares the step after a reload with the one that follows on one rank.
func reloadedAs(again, want outcome, own rounding, limit float64) error {
	last := len(want.losses) - 1
	if got, want := again.losses[0], want.losses[last]; !isNear(got, want, limit, max(nth(own.losses, last), least)) {
		return fmt.Errorf("reloaded: the loss is %v, want %v", got, want)
	}
	if got, want := again.norms[0], want.norms[last]; !isNear(got, want, limit, nth(own.norms, last)) {
		return fmt.Errorf("reloaded: the norm of the gradients is %v, want %v", got, want)
	}
	return nil
}
