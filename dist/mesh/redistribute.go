// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Redistribute returns the tensor with other placements, one for each axis of its mesh. All
// ranks of the mesh call it with the same placements. It sends the fewest bytes that steps along
// single axes, or among all ranks of the mesh, need ([NewPlan] lists the steps). If nothing
// changes, the result is t itself. Otherwise its memory is new. On a rank outside the mesh the
// result has no values.
//
// Gradients go through it. The gradient of a value has the type that is dual to the value's:
//
//	value             gradient
//	Replicate         Partial(sum)   each rank's use of its copy adds a part
//	Partial(sum)      Replicate      each part counts as much as the whole
//	Partial(avg)      Replicate      divided by the number of ranks
//	Shard, Varying    the same
//
// So the gradient of a gather is a reduce-scatter, and that of an all-reduce is an all-reduce.
// What is differentiated is the sum of what the ranks call Backward on. There is no gradient
// through a reduction by min, max or product: such a call panics with a *tensor.Error.
//
// A varying value stays varying. Replicate may become varying, without communication.
func (t Tensor) Redistribute(ctx context.Context, to ...Placement) (Tensor, error) {
	if t.Mesh == nil {
		return t, fmt.Errorf("mesh: redistribute of a tensor of shape %v, which has no mesh: give it a layout first", t.Shape)
	}
	out := Tensor{Layout: Layout{t.Mesh, t.Shape, slices.Clone(to)}}
	plan, err := t.Mesh.plan(t.Shape, t.Placements, out.Placements)
	if err != nil {
		return t, err
	}
	if !t.Mesh.IsMember() {
		return out, nil
	}
	if err := t.checkLocal(); err != nil {
		return t, err
	}
	if slices.Equal(t.Placements, out.Placements) {
		return t, nil
	}
	if t.Local.NeedsGrad() {
		wantGradient(t.Local, t.Placements, to)
	}
	if out.Local, err = t.Mesh.follow(ctx, plan, t.Shape, t.Local.Detach(), t.Placements); err != nil {
		return t, err
	}
	out.Local = tensor.Record("redistribute", out.Local, []*tensor.Tensor{t.Local}, nil,
		func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			back, err := t.Mesh.backward(ctx, g, t.Shape, t.Placements, out.Placements)
			return []*tensor.Tensor{back}, err
		})
	return out, nil
}

// Full returns the whole tensor on every rank of the mesh. All ranks of the mesh call it. It is
// nil on a rank outside the mesh.
func (t Tensor) Full(ctx context.Context) (*tensor.Tensor, error) {
	full, err := t.Redistribute(ctx, make([]Placement, len(t.Placements))...)
	return full.Local, err
}

// checkLocal says what is wrong with the local tensor.
func (t Tensor) checkLocal() error {
	want, err := t.LocalShape()
	if err != nil {
		return err
	}
	if t.Local == nil || !slices.Equal(t.Local.Shape(), want) {
		have := "is missing"
		if t.Local != nil {
			have = fmt.Sprintf("has the shape %v", t.Local.Shape())
		}
		return fmt.Errorf("mesh: rank %d at %v holds %v of %v: the local tensor %s", t.Mesh.rank, t.Mesh.coordinate, want, t.Layout, have)
	}
	return nil
}

// plans are the ways between layouts that a mesh remembers.
type plans struct {
	mu     sync.Mutex
	byWhat map[string]*Plan
}

// maxPlans is how many ways a mesh remembers. A program has a few for each parameter and
// activation; one whose shapes change all the time begins anew.
const maxPlans = 1 << 12

// plan returns the way between two lists of placements.
func (m *Mesh) plan(shape []int, from, to []Placement) (*Plan, error) {
	what := fmt.Sprint(shape, from, to)
	m.plans.mu.Lock()
	defer m.plans.mu.Unlock()
	if p := m.plans.byWhat[what]; p != nil {
		return p, nil
	}
	p, err := NewPlan(shape, m.Shape(), from, to, m.world != nil)
	if err != nil {
		return nil, fmt.Errorf("%w (mesh %s)", err, m.equation())
	}
	if m.plans.byWhat == nil || len(m.plans.byWhat) >= maxPlans {
		m.plans.byWhat = map[string]*Plan{}
	}
	m.plans.byWhat[what] = p
	return p, nil
}

// follow does the steps of a plan with this rank's part of a tensor.
func (m *Mesh) follow(ctx context.Context, p *Plan, shape []int, local *tensor.Tensor, from []Placement) (*tensor.Tensor, error) {
	for i := range p.Steps {
		s := &p.Steps[i]
		next, err := m.do(ctx, s, shape, local)
		if err != nil {
			over := "all axes"
			if s.Axis >= 0 {
				over = "axis " + m.axes[s.Axis].Name
			}
			return nil, fmt.Errorf("mesh: %v over %s of %s, from %v to %v of a tensor of shape %v: %w", s.Kind, over, m.equation(), s.From, s.To, shape, err)
		}
		if i > 0 {
			local.Free()
		}
		local = next
	}
	return local, nil
}

// part is what a step knows of this rank's part of the tensor before and after.
type part struct {
	shape      []int
	meshShape  []int
	from, to   [][]cut
	have, want [][]span
	at         []int
}

// do does one step.
func (m *Mesh) do(ctx context.Context, s *Step, shape []int, local *tensor.Tensor) (*tensor.Tensor, error) {
	p := part{shape: shape, meshShape: m.Shape(), at: m.coordinate}
	var err error
	if p.from, err = cutsOf(shape, p.meshShape, s.From); err != nil {
		return nil, err
	}
	if p.to, err = cutsOf(shape, p.meshShape, s.To); err != nil {
		return nil, err
	}
	p.have, p.want = spansAt(shape, p.from, p.at), spansAt(shape, p.to, p.at)
	if s.Kind == StepLocal {
		return p.alone(s, local), nil
	}
	g := m.world
	if s.Axis >= 0 {
		if g, err = m.Group(m.axes[s.Axis].Name); err != nil {
			return nil, err
		}
	}
	if g == nil {
		return nil, fmt.Errorf("the mesh is a sketch, or has no group of all its ranks")
	}
	switch s.Kind {
	case StepAllReduce:
		op, _ := s.From[s.Axis].IsPartial()
		out := tensor.New(local.Device(), local.DType(), local.Shape()...)
		out.CopyFrom(local)
		return out, g.AllReduce(ctx, out, op)
	case StepReduceScatter:
		op, _ := s.From[s.Axis].IsPartial()
		srcs := make([]*tensor.Tensor, g.Size())
		for i, peer := range peersOf(p.meshShape, p.at, s.Axis) {
			srcs[i] = take(local, commonParts(p.have, spansAt(shape, p.to, peer)))
		}
		out := p.empty(local)
		return out, g.ReduceScatterList(ctx, out, srcs, op)
	}
	return p.exchange(ctx, s, g, local)
}

// empty returns a tensor for what the rank holds after the step.
func (p *part) empty(like *tensor.Tensor) *tensor.Tensor {
	return tensor.New(like.Device(), like.DType(), extents(p.want)...)
}

// exchange gives each rank what it needs.
func (p *part) exchange(ctx context.Context, s *Step, g *dist.Group, local *tensor.Tensor) (*tensor.Tensor, error) {
	out := p.empty(local)
	peers := peersOf(p.meshShape, p.at, s.Axis)
	srcs, dsts := make([]*tensor.Tensor, len(peers)), make([]*tensor.Tensor, len(peers))
	parts := make([][][]stretch, len(peers)) // of what comes
	none := tensor.New(local.Device(), local.DType(), 0)
	for i, peer := range peers {
		srcs[i], dsts[i] = none, none
		if s.isSource(peer, p.at) {
			parts[i] = commonParts(spansAt(p.shape, p.from, peer), p.want)
			dsts[i] = place(out, parts[i])
		}
		if i != g.Rank() && s.isSource(p.at, peer) {
			srcs[i] = take(local, commonParts(p.have, spansAt(p.shape, p.to, peer)))
		}
	}
	var err error
	if s.Kind == StepAllGather {
		err = g.AllGatherList(ctx, dsts, local)
	} else {
		mine := g.Rank()
		put(out, parts[mine], take(local, commonParts(p.have, p.want)))
		dsts[mine], parts[mine] = none, nil
		err = g.AllToAll(ctx, dsts, srcs)
	}
	if err != nil {
		return nil, err
	}
	for i, dst := range dsts {
		if parts[i] != nil && !isOnePlace(parts[i]) {
			put(out, parts[i], dst)
			dst.Free()
		}
	}
	return out, nil
}

// alone does a step in which nothing is sent.
func (p *part) alone(s *Step, local *tensor.Tensor) *tensor.Tensor {
	out := p.empty(local)
	first, factor, rest := true, 1.0, 0.0
	if s.Axis >= 0 {
		if op, ok := s.To[s.Axis].IsPartial(); ok && s.From[s.Axis] != s.To[s.Axis] {
			first = p.at[s.Axis] == 0
			switch _, cut := s.From[s.Axis].IsShard(); {
			case cut: // each rank has its chunk, and zeros elsewhere
				first = true
				out.Fill(0)
				if op == dist.Avg {
					factor = float64(p.meshShape[s.Axis])
				}
			case op == dist.Product:
				rest = 1
			case op != dist.Sum:
				first = true
			}
		}
	}
	if !first {
		out.Fill(rest)
		return out
	}
	parts := commonParts(p.have, p.want)
	put(out, parts, take(local, parts))
	if factor != 1 {
		out.Scale(factor)
	}
	return out
}

// backward takes the gradient of the result of a redistribution to that of its operand.
func (m *Mesh) backward(ctx context.Context, g *tensor.Tensor, shape []int, from, to []Placement) (*tensor.Tensor, error) {
	dual := Tensor{g, Layout{m, shape, make([]Placement, len(to))}}
	back := make([]Placement, len(from))
	factor := 1.0
	for a := range from {
		dual.Placements[a], back[a] = to[a].dual(), from[a].dual()
		if from[a] == to[a] {
			continue
		}
		if from[a] == Partial(dist.Avg) {
			factor /= float64(m.axes[a].Size)
		}
		if to[a] == Partial(dist.Avg) {
			factor *= float64(m.axes[a].Size)
		}
		if to[a].kind == varying { // each rank's gradient is a part of the sum
			dual.Placements[a] = back[a]
		}
	}
	in, err := dual.Redistribute(ctx, back...)
	if err != nil {
		return nil, fmt.Errorf("gradient: %w", err)
	}
	if factor != 1 {
		return in.Local.MulScalar(factor), nil
	}
	return in.Local, nil
}

// dual returns the placement of the gradient of a value.
func (p Placement) dual() Placement {
	switch p.kind {
	case replicate:
		return Partial(dist.Sum)
	case partial:
		return Replicate()
	}
	return p
}

// wantGradient panics if no gradient goes through a redistribution.
func wantGradient(local *tensor.Tensor, from, to []Placement) {
	for a := range from {
		for _, p := range []Placement{from[a], to[a]} {
			if p.kind == partial && !p.isMean() && from[a] != to[a] {
				panic(tensor.NewError("redistribute", []*tensor.Tensor{local},
					"no gradient goes through %v on axis %d; detach the value, or use Partial(sum) or Partial(avg)", p, a))
			}
		}
	}
}
