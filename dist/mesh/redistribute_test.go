// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// meshShapes are the meshes of the random tests.
var meshShapes = [][]int{{1}, {2}, {3}, {4}, {2, 2}, {1, 3}, {3, 2}, {2, 1, 2}, {2, 2, 2}}

func axesOfShape(meshShape []int) []Axis {
	var axes []Axis
	for i, n := range meshShape {
		axes = append(axes, Axis{string(rune('a' + i)), n})
	}
	return axes
}

func product(sizes []int) int {
	n := 1
	for _, s := range sizes {
		n *= s
	}
	return n
}

func drawShape(r *rand.Rand) []int {
	shape := make([]int, r.IntN(4))
	for d := range shape {
		shape[d] = []int{0, 1, 2, 3, 4, 5, 6, 7, 8}[r.IntN(9)]
		if shape[d] == 0 && r.IntN(4) > 0 {
			shape[d] = 4
		}
	}
	return shape
}

// drawPlacements draws placements that are valid for the shape. They owe only the reductions given.
func drawPlacements(r *rand.Rand, shape, meshShape []int, ops ...dist.ReduceOp) []Placement {
	for {
		placements := make([]Placement, len(meshShape))
		for a := range placements {
			switch k := r.IntN(6); {
			case k == 0 && len(ops) > 0:
				placements[a] = Partial(ops[r.IntN(len(ops))])
			case k < 4 && len(shape) > 0:
				placements[a] = Shard(r.IntN(len(shape)))
			case k == 4 && len(shape) > 0:
				placements[a] = StridedShard(r.IntN(len(shape)), 1+r.IntN(4))
			}
		}
		if Check(shape, meshShape, placements) == nil {
			return placements
		}
	}
}

// localOf returns what a rank holds of a tensor, in its local order.
func localOf(t *testing.T, values []float64, shape, meshShape []int, placements []Placement, at []int) []float64 {
	t.Helper()
	boxes, err := Boxes(shape, meshShape, placements, at)
	if err != nil {
		t.Fatal(err)
	}
	local, err := LocalShape(shape, meshShape, placements, at)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, product(local))
	for _, b := range boxes {
		for i := range product(b.Shape) {
			from, to := coordinateOf(b.Shape, i), coordinateOf(b.Shape, i)
			for d := range from {
				from[d] += b.Start[d]
				to[d] += b.LocalStart[d]
			}
			out[rankOf(local, to)] = values[rankOf(shape, from)]
		}
	}
	return out
}

// partsOf takes values apart along the axes that owe a reduction: by coordinate on these axes.
func partsOf(r *rand.Rand, values []float64, meshShape []int, placements []Placement) map[string][]float64 {
	parts := map[string][]float64{"": values}
	for a, p := range placements {
		op, ok := p.IsPartial()
		if !ok {
			continue
		}
		next := map[string][]float64{}
		var keys []string
		for k := range parts {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			n := meshShape[a]
			rows := make([][]float64, n)
			for i := range rows {
				rows[i] = make([]float64, len(values))
			}
			for e, v := range parts[k] {
				last := v
				if op == dist.Avg {
					last *= float64(n)
				}
				holder := r.IntN(n)
				for i := range rows {
					if i == holder {
						continue
					}
					x := float64(r.IntN(5) - 2)
					switch op {
					case dist.Sum, dist.Avg:
						last -= x
					case dist.Product:
						x = float64(1 - 2*r.IntN(2))
						last *= x
					case dist.Max:
						x = v - float64(r.IntN(3))
					case dist.Min:
						x = v + float64(r.IntN(3))
					}
					rows[i][e] = x
				}
				rows[holder][e] = last
			}
			for i := range rows {
				next[fmt.Sprint(k, "/", i)] = rows[i]
			}
		}
		parts = next
	}
	return parts
}

// partialKey is the key of a rank in partsOf.
func partialKey(placements []Placement, at []int) string {
	key := ""
	for a, p := range placements {
		if _, ok := p.IsPartial(); ok {
			key = fmt.Sprint(key, "/", at[a])
		}
	}
	return key
}

// combined reduces what the ranks that owe a reduction hold; locals is by rank.
func combined(locals [][]float64, meshShape []int, placements []Placement, at []int) []float64 {
	for a, p := range placements {
		op, ok := p.IsPartial()
		if !ok {
			continue
		}
		done := slices.Clone(placements)
		done[a] = Replicate()
		var out []float64
		for i := range meshShape[a] {
			peer := slices.Clone(at)
			peer[a] = i
			for e, x := range combined(locals, meshShape, done, peer) {
				if i == 0 {
					out = append(out, x)
					continue
				}
				switch op {
				case dist.Sum, dist.Avg:
					out[e] += x
				case dist.Product:
					out[e] *= x
				case dist.Max:
					out[e] = max(out[e], x)
				case dist.Min:
					out[e] = min(out[e], x)
				}
			}
		}
		if op == dist.Avg {
			for e := range out {
				out[e] /= float64(meshShape[a])
			}
		}
		return out
	}
	return locals[rankOf(meshShape, at)]
}

// redistribution is one draw.
type redistribution struct {
	shape    []int
	from, to []Placement
	values   []float64
	parts    map[string][]float64
	results  [][]float64 // by rank
}

func drawRedistribution(r *rand.Rand, meshShape []int) *redistribution {
	ops := [][]dist.ReduceOp{{dist.Sum}, {dist.Sum, dist.Avg}, {dist.Max}, {dist.Min}, {dist.Product}}[r.IntN(5)]
	d := &redistribution{shape: drawShape(r)}
	d.from, d.to = drawPlacements(r, d.shape, meshShape, ops...), drawPlacements(r, d.shape, meshShape, ops...)
	d.values = make([]float64, product(d.shape))
	for i := range d.values {
		d.values[i] = float64(r.IntN(19) - 9)
	}
	d.parts = partsOf(r, d.values, meshShape, d.from)
	d.results = make([][]float64, product(meshShape))
	return d
}

// local returns the rank's part before the redistribution.
func (d *redistribution) local(t *testing.T, m *Mesh, meshShape []int) Tensor {
	at := m.Coordinate()
	values := localOf(t, d.parts[partialKey(d.from, at)], d.shape, meshShape, d.from, at)
	layout := Layout{m, d.shape, d.from}
	shape, err := layout.LocalShape()
	if err != nil {
		t.Error(err)
	}
	return Tensor{tensor.FromFloat64(values, len(values)).Reshape(shape...), layout}
}

// check compares what the ranks hold afterwards.
func (d *redistribution) check(t *testing.T, meshShape []int) {
	for rank := range d.results {
		at := coordinateOf(meshShape, rank)
		want := localOf(t, d.values, d.shape, meshShape, d.to, at)
		if got := combined(d.results, meshShape, d.to, at); !slices.Equal(got, want) {
			plan, _ := NewPlan(d.shape, meshShape, d.from, d.to, true)
			t.Errorf("%v of %v over %v to %v: rank %d holds %v, want %v; plan\n%v", d.from, d.shape, meshShape, d.to, rank, got, want, plan)
			return
		}
	}
}

// TestRedistribute draws tensors, meshes and pairs of placements, and compares what every rank
// holds with Boxes.
func TestRedistribute(t *testing.T) {
	seed := seeded.Of(t)
	numDraws := 60
	if testing.Short() {
		numDraws = 15
	}
	for i, meshShape := range meshShapes {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		var draws []*redistribution
		for range numDraws {
			draws = append(draws, drawRedistribution(r, meshShape))
		}
		err := dist.Spawn(t.Context(), product(meshShape), func(ctx context.Context, g *dist.Group) error {
			m, err := New(ctx, g, axesOfShape(meshShape)...)
			if err != nil {
				return err
			}
			defer m.Close()
			for _, d := range draws {
				out, err := d.local(t, m, meshShape).Redistribute(ctx, d.to...)
				if err != nil {
					return err
				}
				if err := out.checkLocal(); err != nil {
					return err
				}
				d.results[g.Rank()] = float64s(out.Local)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("mesh %v: %v", meshShape, err)
		}
		for _, d := range draws {
			d.check(t, meshShape)
		}
	}
}

func TestRedistributeErrors(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"fsdp", 2})
		if err != nil {
			return err
		}
		for _, c := range []struct {
			local *tensor.Tensor
			from  Placement
			to    Placement
			want  string
		}{
			{tensor.Zeros(2), Shard(0), Shard(1), "Shard(1) on axis 0: the tensor has 1 dims"},
			{tensor.Zeros(3), Shard(0), Replicate(), "at [" + fmt.Sprint(g.Rank()) + "] holds [2] of [4] as Shard(0) over fsdp 2: the local tensor has the shape [3]"},
			{nil, Shard(0), Replicate(), "the local tensor is missing"},
			{tensor.Zeros(4), Varying(), Replicate(), "from Varying to Replicate on axis 0: the value of each rank"},
			{tensor.Zeros(2), Shard(0), Varying(), "from Shard(0) to Varying on axis 0"},
		} {
			x := Tensor{c.local, Layout{m, []int{4}, []Placement{c.from}}}
			if _, err := x.Redistribute(ctx, c.to); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("%v to %v: %v, want %q", c.from, c.to, err, c.want)
			}
		}
		if _, err := (Tensor{Local: tensor.Zeros(1)}).Redistribute(ctx, Replicate()); err == nil || !strings.Contains(err.Error(), "has no mesh") {
			return fmt.Errorf("no mesh: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRedistributeWithoutOne: a rank that does not come is named, and nobody waits for ever.
func TestRedistributeWithoutOne(t *testing.T) {
	var errs [3]error
	_ = dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"fsdp", 3})
		if err != nil {
			return err
		}
		if g.Rank() == 1 {
			return errors.New("rank 1 gives up")
		}
		_, errs[g.Rank()] = Tensor{tensor.Zeros(2), Layout{m, []int{6}, []Placement{Shard(0)}}}.Full(ctx)
		return errs[g.Rank()]
	})
	for _, r := range []int{0, 2} {
		var lost *dist.RankError
		if !errors.As(errs[r], &lost) || lost.Rank != 1 || !strings.Contains(errs[r].Error(), "all-gather over axis fsdp of fsdp 3, from [Shard(0)] to [Replicate]") {
			t.Errorf("rank %d: %v, want an error that names rank 1 and the axis", r, errs[r])
		}
	}
}

// float64s copies the elements of a tensor.
func float64s(t *tensor.Tensor) []float64 {
	var out []float64
	t.Contiguous().WithFloat64s(func(data []float64) { out = slices.Clone(data) })
	return out
}

// TestRanksDisagree: ranks that want different placements all get the error of package dist that says
// who called what.
func TestRanksDisagree(t *testing.T) {
	errs := make([]error, 4)
	_ = dist.Spawn(t.Context(), len(errs), func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"dp", 4})
		if err != nil {
			return err
		}
		to := Replicate()
		if g.Rank() == 2 {
			to = Shard(0)
		}
		x := Tensor{tensor.Full(1, 8), Layout{m, []int{8}, []Placement{Partial(dist.Sum)}}}
		_, errs[g.Rank()] = x.Redistribute(ctx, to)
		return errs[g.Rank()]
	})
	for r, err := range errs {
		var mismatch *dist.MismatchError
		if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "over axis dp of dp 4") {
			t.Errorf("rank %d: %v, want a MismatchError that names the axis", r, err)
		}
	}
}

// TestSixtyFourRanks goes through a cube of ranks.
func TestSixtyFourRanks(t *testing.T) {
	meshShape := []int{4, 4, 4}
	r := rand.New(rand.NewPCG(seeded.Of(t), 64))
	d := &redistribution{
		shape: []int{9, 10}, from: []Placement{Partial(dist.Sum), Shard(0), StridedShard(1, 2)}, to: []Placement{Shard(1), Replicate(), Shard(1)},
		values: make([]float64, 90), results: make([][]float64, 64),
	}
	for i := range d.values {
		d.values[i] = float64(r.IntN(100))
	}
	d.parts = partsOf(r, d.values, meshShape, d.from)
	err := dist.Spawn(t.Context(), 64, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, axesOfShape(meshShape)...)
		if err != nil {
			return err
		}
		defer m.Close()
		out, err := d.local(t, m, meshShape).Redistribute(ctx, d.to...)
		if err != nil {
			return err
		}
		d.results[g.Rank()] = float64s(out.Local)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d.check(t, meshShape)
}
