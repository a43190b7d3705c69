// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// optimum finds the fewest elements by trying all sequences of steps over sets of elements. It
// knows nothing of cuts: a step is possible if the ranks that communicate hold what is needed.
type optimum struct {
	shape, meshShape []int
	states           [][]Placement
	held             [][]map[int]bool // by state and rank
}

func newOptimum(t *testing.T, shape, meshShape []int, from, to []Placement) *optimum {
	o := &optimum{shape: shape, meshShape: meshShape}
	placements := make([]Placement, len(meshShape))
	var fill func(a int)
	fill = func(a int) {
		if a == len(meshShape) {
			if Check(shape, meshShape, placements) == nil {
				o.states = append(o.states, slices.Clone(placements))
			}
			return
		}
		choices := []Placement{Replicate(), from[a], to[a]}
		for d := range shape {
			choices = append(choices, Shard(d))
		}
		for i, p := range choices {
			if !slices.Contains(choices[:i], p) {
				placements[a] = p
				fill(a + 1)
			}
		}
	}
	fill(0)
	numbers := make([]float64, product(shape))
	for i := range numbers {
		numbers[i] = float64(i)
	}
	for _, s := range o.states {
		var held []map[int]bool
		for r := range product(meshShape) {
			set := map[int]bool{}
			for _, e := range localOf(t, numbers, shape, meshShape, s, coordinateOf(meshShape, r)) {
				set[int(e)] = true
			}
			held = append(held, set)
		}
		o.held = append(o.held, held)
	}
	return o
}

// step returns how many elements a step from one state to another sends, false if there is no
// such step.
func (o *optimum) step(from, to int) (int, bool) {
	differs := []int{}
	for a := range o.meshShape {
		if o.states[from][a] != o.states[to][a] {
			differs = append(differs, a)
		}
	}
	owed := slices.ContainsFunc(differs, func(a int) bool { return o.states[from][a].kind == partial || o.states[to][a].kind == partial })
	if !owed {
		return o.moved(from, to) // along an axis, or among all ranks, which is always possible
	}
	if len(differs) != 1 {
		return 0, false
	}
	a := differs[0]
	n := o.meshShape[a]
	switch p, q := o.states[from][a], o.states[to][a]; {
	case p.kind == partial && q.kind == partial:
		return 0, false
	case q.kind == partial:
		// Each rank keeps what it has, or forgets it; a shard needs zeros in the other places.
		return 0, p.kind == replicate && o.contains(from, to) || p.kind == shard && q.isMean() && o.together(from, to, a)
	case !o.contains(from, to): // reduced to what no rank of the axis has a part of
		return 0, false
	case q.kind == replicate:
		sum := 0
		for _, held := range o.held[from] {
			sum += len(held)
		}
		return 2 * (n - 1) * sum / n, true
	default:
		// Each rank gets n - 1 parts of each element that it keeps.
		sum := 0
		for _, held := range o.held[to] {
			sum += len(held)
		}
		return (n - 1) * sum, true
	}
}

// moved returns how many elements ranks get that they do not have.
func (o *optimum) moved(from, to int) (int, bool) {
	n := 0
	for r, want := range o.held[to] {
		for e := range want {
			if !o.held[from][r][e] {
				n++
			}
		}
	}
	return n, true
}

// contains reports whether every rank has what it needs.
func (o *optimum) contains(from, to int) bool {
	n, _ := o.moved(from, to)
	return n == 0
}

// together reports whether the ranks of an axis have among them what each of them needs, each
// element once.
func (o *optimum) together(from, to, axis int) bool {
	for r, want := range o.held[to] {
		all := map[int]int{}
		for _, peer := range peersOf(o.meshShape, coordinateOf(o.meshShape, r), axis) {
			for e := range o.held[from][rankOf(o.meshShape, peer)] {
				all[e]++
			}
		}
		for e := range want {
			if all[e] != 1 {
				return false
			}
		}
	}
	return true
}

// fewest returns the number of elements of the best sequence, -1 if there is none.
func (o *optimum) fewest(from, to []Placement) int {
	equal := func(p []Placement) func([]Placement) bool {
		return func(q []Placement) bool { return slices.Equal(p, q) }
	}
	best := make([]int, len(o.states))
	for i := range best {
		best[i] = -1
	}
	best[slices.IndexFunc(o.states, equal(from))] = 0
	for changed := true; changed; {
		changed = false
		for i := range o.states {
			if best[i] < 0 {
				continue
			}
			for j := range o.states {
				if n, ok := o.step(i, j); ok && i != j && (best[j] < 0 || best[i]+n < best[j]) {
					best[j], changed = best[i]+n, true
				}
			}
		}
	}
	return best[slices.IndexFunc(o.states, equal(to))]
}

// TestPlanIsOptimal: no sequence of steps sends fewer elements than the plan.
func TestPlanIsOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	numDraws := 150
	if testing.Short() {
		numDraws = 40
	}
	better := 0
	for range numDraws {
		meshShape := meshShapes[1+r.IntN(len(meshShapes)-1)]
		shape := drawShape(r)
		shape = shape[:min(len(shape), 2)]
		ops := [][]dist.ReduceOp{{dist.Sum}, {dist.Sum, dist.Avg}, {dist.Max}}[r.IntN(3)]
		from, to := drawPlacements(r, shape, meshShape, ops...), drawPlacements(r, shape, meshShape, ops...)
		plan, err := NewPlan(shape, meshShape, from, to, true)
		if err != nil {
			t.Fatal(err)
		}
		o := newOptimum(t, shape, meshShape, from, to)
		fewest := o.fewest(from, to)
		if plan.NumElems() > int64(fewest) {
			t.Errorf("%v of %v over %v to %v: the plan sends %d elements, the best way %d:\n%v", from, shape, meshShape, to, plan.NumElems(), fewest, plan)
		}
		byRank := int64(0)
		for rank := range product(meshShape) {
			byRank += plan.NumElemsOf(rank)
		}
		if byRank != plan.NumElems() {
			t.Errorf("%v of %v over %v to %v: the ranks send %d elements, the plan says %d:\n%v", from, shape, meshShape, to, byRank, plan.NumElems(), plan)
		}
		if naive := naiveElems(shape, meshShape, from, to); naive > plan.NumElems() {
			better++
		}
	}
	t.Logf("%d of %d plans send less than gathering all and cutting", better, numDraws)
}

// naiveElems is what PyTorch's rule sends: to Replicate on all axes that differ, from the last to the
// first, and then local cuts.
func naiveElems(shape, meshShape []int, from, to []Placement) int64 {
	at := slices.Clone(from)
	sum := int64(0)
	for a := len(at) - 1; a >= 0; a-- {
		if at[a] == to[a] {
			continue
		}
		next := slices.Clone(at)
		next[a] = Replicate()
		plan, err := NewPlan(shape, meshShape, at, next, true)
		if err != nil {
			return 0 // a strided shard has lost the axis that makes its pieces
		}
		sum += plan.NumElems()
		at = next
	}
	return sum
}

func TestPlansByHand(t *testing.T) {
	sum := Partial(dist.Sum)
	for _, c := range []struct {
		shape, meshShape []int
		from, to         []Placement
		want             string
	}{
		{[]int{8, 8}, []int{4}, []Placement{Shard(0)}, []Placement{Replicate()}, "all-gather over axis 0: [Shard(0)] to [Replicate], 192 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{sum}, []Placement{Replicate()}, "all-reduce over axis 0: [Partial(sum)] to [Replicate], 384 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{sum}, []Placement{Shard(1)}, "reduce-scatter over axis 0: [Partial(sum)] to [Shard(1)], 192 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{Shard(0)}, []Placement{Shard(1)}, "all-to-all over axis 0: [Shard(0)] to [Shard(1)], 48 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{Replicate()}, []Placement{Shard(1)}, "local over each rank: [Replicate] to [Shard(1)], 0 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{Shard(0)}, []Placement{sum}, "local over each rank: [Shard(0)] to [Partial(sum)], 0 elements\n"},
		{[]int{8, 8}, []int{4}, []Placement{Replicate()}, []Placement{Varying()}, "local over each rank: [Replicate] to [Varying], 0 elements\n"},
		{[]int{1}, []int{4}, []Placement{Shard(0)}, []Placement{Replicate()}, "all-gather over axis 0: [Shard(0)] to [Replicate], 3 elements\n"},
		// The second reduction moves a quarter.
		{[]int{8, 8}, []int{4, 2}, []Placement{sum, sum}, []Placement{Shard(0), Replicate()},
			"reduce-scatter over axis 0: [Partial(sum) Partial(sum)] to [Shard(0) Partial(sum)], 384 elements\n" +
				"all-reduce over axis 1: [Shard(0) Partial(sum)] to [Shard(0) Replicate], 128 elements\n"},
		// FSDP's shard of what tensor parallelism cuts, back to what tensor parallelism holds.
		{[]int{8}, []int{2, 2}, []Placement{StridedShard(0, 2), Shard(0)}, []Placement{Replicate(), Shard(0)},
			"all-gather over axis 0: [StridedShard(0, 2) Shard(0)] to [Replicate Shard(0)], 8 elements\n"},
		// No axis alone leads there.
		{[]int{8}, []int{2, 2}, []Placement{Shard(0), Shard(0)}, []Placement{StridedShard(0, 2), Shard(0)},
			"all-to-all over all ranks: [Shard(0) Shard(0)] to [StridedShard(0, 2) Shard(0)], 4 elements\n"},
		{[]int{8}, []int{2, 2}, []Placement{Shard(0), sum}, []Placement{Shard(0), sum}, ""},
	} {
		plan, err := NewPlan(c.shape, c.meshShape, c.from, c.to, true)
		if err != nil {
			t.Error(err)
		} else if plan.String() != c.want {
			t.Errorf("%v of %v over %v to %v: got\n%vwant\n%s", c.from, c.shape, c.meshShape, c.to, plan, c.want)
		}
	}
}

// TestPlansWithoutWorld: along single axes alone there is a way between any two layouts too.
func TestPlansWithoutWorld(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	for range 200 {
		meshShape := meshShapes[r.IntN(len(meshShapes))]
		shape := drawShape(r)
		from, to := drawPlacements(r, shape, meshShape, dist.Sum), drawPlacements(r, shape, meshShape, dist.Sum)
		plan, err := NewPlan(shape, meshShape, from, to, false)
		if err != nil {
			t.Fatal(err)
		}
		at := from
		for _, s := range plan.Steps {
			if s.Axis < 0 && s.Kind != StepLocal || !slices.Equal(at, s.From) {
				t.Fatalf("%v of %v over %v to %v:\n%v", from, shape, meshShape, to, plan)
			}
			at = s.To
		}
		if !slices.Equal(at, to) {
			t.Fatalf("%v of %v over %v to %v ends at %v", from, shape, meshShape, to, at)
		}
	}
}
