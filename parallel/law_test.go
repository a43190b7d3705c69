// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numDraws = flag.Int("draws", 200, "how many models and splits TestLaw draws")
	oneDraw  = flag.String("draw", "", "the only draw of TestLaw, as it prints one that fails")
)

// lawStrategies are those that the law is tested for.
var lawStrategies = []string{"ddp"}

// TestLaw: any way to split a model's training among ranks equals one rank's.
// Models and splits are drawn at random; see draw and modelDraw. Loss, norm,
// every gradient, the weights after three steps, and a model that the ranks'
// states were loaded into, are compared. A draw that fails is made simpler as
// long as it fails.
//
//	go test ./parallel -run TestLaw -draws 10000 -seed 2 -timeout 60m -v
func TestLaw(t *testing.T) {
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
		n = min(n, 40)
	}
	count := make(map[string]int)
	for i := range n {
		d := drawSplit(seed<<32+uint64(i), lawStrategies)
		if err := d.check(t); err != nil {
			d, err = simplify(t, d, err)
			t.Errorf("draw %d: %v\n\trepeat it by -run TestLaw -draw '%v'", i, err, d)
			if t.Failed() && n <= 200 {
				return
			}
		}
		count[d.kind()]++
	}
	if t.Logf("%d of %d draws differ by more than the limit, but not by more than one rank's own rounding", numRounded, n); numRounded*50 > n {
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
	return fmt.Sprintf("%s %d × %d, %s", d.Strategy, d.Replicate, d.Shard, dtype)
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

// simplify returns a draw that fails and of which nothing can be left out, as far
// as a hundred trials go.
func simplify(t *testing.T, d draw, err error) (draw, error) {
	trials := 0
again:
	for _, e := range d.simpler() {
		if trials++; trials > 100 {
			break
		}
		if now := e.check(t); now != nil {
			d, err = e, now
			goto again
		}
	}
	return d, err
}

// check trains as a draw says, alone and on ranks, and compares.
func (d draw) check(t *testing.T) error {
	want, err := d.alone(t.Context(), false)
	if err != nil {
		return fmt.Errorf("one rank: %w", err)
	}
	got, err := d.onRanks(t, nil)
	if err != nil {
		return err
	}
	rounding := want
	if err := d.compare(got, want, rounding); err != nil {
		// Sums that nearly cancel differ by more between two orders of one rank too.
		if rounding, err = d.alone(t.Context(), true); err != nil {
			return fmt.Errorf("one rank, batches apart: %w", err)
		}
		if err := d.compare(got, want, rounding); err != nil {
			return err
		}
		numRounded++
	}
	return d.reload(t, got, want, rounding)
}

// numRounded is how many draws needed more than the plain limits.
var numRounded int

// onRanks trains on ranks; see onRank.
func (d draw) onRanks(t *testing.T, from map[string]part) (outcome, error) {
	ranks := make([]outcome, d.ranks())
	err := spawn(t, d.ranks(), func(ctx context.Context, g *dist.Group) (err error) {
		ranks[g.Rank()], err = d.onRank(ctx, g, from)
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
	all := outcome{norms: ranks[0].norms, losses: make([]float64, len(ranks[0].losses)), grads: make(map[string]part), state: make(map[string]part)}
	for i, r := range ranks {
		if !slices.Equal(r.norms, all.norms) {
			return all, fmt.Errorf("rank %d has the norms %v, rank 0 %v", i, r.norms, all.norms)
		}
		for step, loss := range r.losses {
			all.losses[step] += loss
		}
	}
	for _, p := range nn.Parameters(whole) {
		name, shape := p.Name(), p.Data().Shape()
		shards := 1
		if d.Strategy == "fsdp" && !p.Sparse {
			shards = d.Shard
		}
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
		if all.state[name], err = joinParts(states, shape, shards); err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		if some {
			if all.grads[name], err = joinParts(grads, shape, shards); err != nil {
				return all, fmt.Errorf("gradient of %s: %w", name, err)
			}
		}
	}
	for _, b := range nn.Buffers(whole) {
		all.state[b.Name()] = ranks[0].state[b.Name()]
	}
	return all, nil
}

// joinParts puts the parts of a tensor of some shape together, of which rank
// i has chunk i % shards along dim 0: PyTorch's rule, whose chunks have the size
// ⌈n/shards⌉ and of which the last ones may be short or empty.
func joinParts(parts []part, shape []int, shards int) (part, error) {
	all := part{shape: shape}
	for i, p := range parts {
		want := slices.Clone(shape)
		if shards > 1 {
			size := (shape[0] + shards - 1) / shards
			want[0] = min(size, max(0, shape[0]-size*(i%shards)))
		}
		if !slices.Equal(p.shape, want) {
			return all, fmt.Errorf("rank %d has %v, want %v", i, p.shape, want)
		}
		if i < shards {
			all.elements = append(all.elements, p.elements...)
		} else if !slices.Equal(p.elements, parts[i%shards].elements) {
			return all, fmt.Errorf("ranks %d and %d have different elements", i%shards, i)
		}
	}
	return all, nil
}

// compare says what of two outcomes differs by more than rounding: by a limit, or
// by four times what one rank differs from itself when it adds in another order.
func (d draw) compare(got, want, rounding outcome) error {
	limit := 1e-5
	if d.Float64 {
		limit = 1e-10
	}
	for i := range got.losses {
		if !near(got.losses[i], want.losses[i], rounding.losses[i], limit) {
			return fmt.Errorf("step %d: the loss is %v, want %v", i, got.losses[i], want.losses[i])
		}
		if i == 0 {
			if err := closeParts("gradient of ", got.grads, want.grads, rounding.grads, limit); err != nil {
				return err
			}
		}
		if !near(got.norms[i], want.norms[i], rounding.norms[i], limit) {
			return fmt.Errorf("step %d: the norm of the gradients is %v, want %v", i, got.norms[i], want.norms[i])
		}
	}
	if d.Optimizer == "adamw" {
		limit = 1e-4
	}
	passes := float64(numSteps * d.Microbatches)
	if seen := got.state["seen"].elements; !slices.Equal(seen, []float64{passes}) {
		return fmt.Errorf("the buffer seen is %v after %v passes", seen, passes)
	}
	got.state["seen"], rounding.state["seen"] = want.state["seen"], want.state["seen"] // counts the passes of all ranks
	return closeParts("", got.state, want.state, rounding.state, limit)
}

// near compares numbers.
func near(got, want, rounding, limit float64) bool {
	return math.Abs(got-want) <= max(limit*math.Abs(want), 4*math.Abs(rounding-want))
}

// closeParts compares tensors by name, ‖Δ‖∞ relative to ‖want‖∞.
// rounding is want, or what it could be as well.
func closeParts(what string, got, want, rounding map[string]part, limit float64) error {
	for _, name := range slices.Sorted(mapKeys(want)) {
		w := want[name]
		g, has := got[name]
		if !has {
			return fmt.Errorf("there is no %s%s", what, name)
		}
		if !slices.Equal(g.shape, w.shape) {
			return fmt.Errorf("%s%s has the shape %v, want %v", what, name, g.shape, w.shape)
		}
		most, off, own, at := 0.0, 0.0, 0.0, 0
		for i := range w.elements {
			most = max(most, math.Abs(w.elements[i]))
			own = max(own, math.Abs(rounding[name].elements[i]-w.elements[i]))
			if delta := math.Abs(g.elements[i] - w.elements[i]); !(delta <= off) {
				off, at = delta, i
			}
		}
		if !(off <= max(limit*most, 4*own)) {
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

// reload loads the state of the ranks into a new model that is split in another
// way, and compares what its next step begins with.
func (d draw) reload(t *testing.T, got, want, rounding outcome) error {
	other := d
	other.Replicate, other.Shard = d.Shard, d.Replicate
	if d.Strategy == "ddp" {
		other.Replicate, other.Shard = d.Replicate, d.Shard
	}
	again, err := other.onRanks(t, got.state)
	if err != nil {
		return fmt.Errorf("reloaded: %w", err)
	}
	limit := 1e-4
	if d.Float64 {
		limit = 1e-9
	}
	if got, want, rounding := again.losses[0], want.losses[numSteps], rounding.losses[numSteps]; !near(got, want, rounding, limit) {
		return fmt.Errorf("reloaded: the loss is %v, want %v", got, want)
	}
	if got, want, rounding := again.norms[0], want.norms[numSteps], rounding.norms[numSteps]; !near(got, want, rounding, limit) {
		return fmt.Errorf("reloaded: the norm of the gradients is %v, want %v", got, want)
	}
	return nil
}
