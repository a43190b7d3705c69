// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
)

// The axes of a mesh, outermost first.
const (
	pipelineAxis  = "pp"
	replicateAxis = "replicate"
	shardAxis     = "fsdp"
	expertAxis    = "ep"
	contextAxis   = "cp"
	tensorAxis    = "tp"

	worldAxis = "world" // has all ranks of a pass
)

// knownAxes are the axes in their order, and what each of them does with samples.
var knownAxes = []struct {
	name    string
	samples bool // each rank has samples of its own
	data    bool // values vary along the axis: each rank has samples, or a part of the sequence, of its own
}{
	{name: pipelineAxis},
	{replicateAxis, true, true},
	{shardAxis, true, true},
	{expertAxis, true, true},
	{contextAxis, false, true},
	{tensorAxis, false, false},
}

// split is what an engine ([FSDP], or the buckets of a [DDP]) knows of how a model is split: the
// ranks that run a pass together, and for each parameter the axes over which its gradient is
// summed.
type split struct {
	mesh  *mesh.Mesh // of the ranks that run one pass together: all axes but pp
	world ranks      // all of them, on one axis
	lays  map[*nn.Parameter]*lay
	// inside steps in inside of the engine; nil for nothing.
	inside nn.Interceptor

	// By the axes that are summed over: with fsdp apart, and all on one axis.
	beside, flat map[string]*mesh.Mesh
}

// newSplit makes the groups over which gradients are summed. All ranks of the mesh call it with
// equal lays.
func newSplit(ctx context.Context, m *mesh.Mesh, world ranks, model any, lays map[*nn.Parameter]*lay) (*split, error) {
	s := &split{mesh: m, world: world, lays: lays, beside: map[string]*mesh.Mesh{}, flat: map[string]*mesh.Mesh{}}
	for _, p := range nn.Parameters(model) {
		if lays[p].away {
			continue
		}
		into, fn := s.flat, s.newFlat
		if m.Has(shardAxis) && !(p.Sparse && !p.Frozen) {
			into, fn = s.beside, s.newBeside
		}
		axes := s.owes(p)
		if key := axisOf(axes); into[key] == nil {
			sums, err := fn(ctx, axes)
			if err != nil {
				return nil, fmt.Errorf("the group that sums gradients over %s: %w", key, err)
			}
			into[key] = sums
		}
	}
	return s, nil
}

// innermost returns a carrier with what steps in inside of the engine.
func (s *split) innermost(c *nn.Ctx) *nn.Ctx {
	if s == nil || s.inside == nil {
		return c
	}
	return c.With(s.inside)
}

// newBeside returns a mesh of two axes: fsdp, and before it all other axes that a gradient owes.
func (s *split) newBeside(ctx context.Context, axes []string) (*mesh.Mesh, error) {
	others := slices.DeleteFunc(slices.Clone(axes), func(a string) bool { return a == shardAxis })
	if len(others) < 2 && len(others)+1 == len(s.mesh.Axes()) {
		return s.mesh, nil
	}
	return s.mesh.Merge(ctx, axisOf(others), others, shardAxis)
}

// newFlat returns a mesh of one axis, which has all axes that a gradient owes.
func (s *split) newFlat(ctx context.Context, axes []string) (*mesh.Mesh, error) {
	if len(axes) == 0 {
		return s.mesh, nil
	}
	return s.mesh.Flatten(ctx, axisOf(axes), axes...)
}

// axisOf names the axis that several are merged into.
func axisOf(axes []string) string { return strings.Join(axes, "+") }

// owes returns the axes over which the gradient of a parameter is summed, in the order of the
// mesh.
func (s *split) owes(p *nn.Parameter) []string {
	var axes []string
	for _, a := range s.mesh.Axes() {
		if s.lays[p].owes[a.Name] {
			axes = append(axes, a.Name)
		}
	}
	return axes
}

// besideFSDP returns the mesh of a parameter that fsdp shards, and the axis of it over which the
// shards of gradients are summed, "" for none.
func (s *split) besideFSDP(p *nn.Parameter) (m *mesh.Mesh, axis string) {
	axes := s.owes(p)
	others := slices.DeleteFunc(slices.Clone(axes), func(a string) bool { return a == shardAxis })
	return s.beside[axisOf(axes)], axisOf(others)
}

// sums returns the ranks over which the gradient of a parameter is summed that every one of them
// has whole; nil for none.
func (s *split) sums(p *nn.Parameter) *ranks {
	axes := s.owes(p)
	if len(axes) == 0 {
		return nil
	}
	return &ranks{s.flat[axisOf(axes)], axisOf(axes)}
}

// numSamplers returns how many ranks of the pass have samples of their own: by it gradients are
// divided.
func (s *split) numSamplers() int { return numSamplers(s.mesh) }

func numSamplers(m *mesh.Mesh) int {
	_, n := Sampler(m)
	return n
}

// axes returns the axes as the check of sharding types sees them.
func (s *split) axes() []sharding.Axis {
	var axes []sharding.Axis
	for _, a := range s.mesh.Axes() {
		for _, k := range knownAxes {
			if k.name == a.Name {
				axes = append(axes, sharding.Axis{Name: a.Name, Data: k.data})
			}
		}
	}
	return axes
}

// use says how a parameter lies where something reads it: on fsdp as that axis says, and on the
// others as its lay does.
func (s *split) use(p *nn.Parameter, name string, frozen bool, fsdp mesh.Placement) sharding.Parameter {
	l := s.lays[p]
	use := sharding.Parameter{Name: name}
	for _, a := range s.mesh.Axes() {
		at := l.at[a.Name]
		if a.Name == shardAxis {
			at = fsdp
		}
		use.Value = append(use.Value, at)
		if frozen {
			continue
		}
		if l.owes[a.Name] {
			at = mesh.Partial(dist.Sum)
		}
		use.Gradient = append(use.Gradient, at)
	}
	return use
}

// localDims returns the sizes of a dim of what ranks have of a parameter, before fsdp cuts it. All
// ranks get the same.
func (s *split) localDims(l *lay, dim int) []int {
	var at []mesh.Placement
	var ranks []int // of the axes that cut the dim; of others the first stands for all
	n := 1
	for i, a := range s.mesh.Axes() {
		at, ranks = append(at, l.at[a.Name]), append(ranks, 1)
		if d, cut := at[i].IsShard(); cut && d == dim {
			ranks[i] = a.Size
			n *= a.Size
		}
	}
	var sizes []int
	for rank := range n {
		coordinate := make([]int, len(ranks))
		for i := range ranks {
			coordinate[i] = rank % ranks[i]
			rank /= ranks[i]
		}
		shape, err := mesh.LocalShape(l.shape, s.mesh.Shape(), at, coordinate)
		if err != nil { // Parallelize has checked the lay
			return []int{l.shape[dim]}
		}
		if !slices.Contains(sizes, shape[dim]) {
			sizes = append(sizes, shape[dim])
		}
	}
	return sizes
}

// rows returns what sums the gradients by rows of sparse parameters.
func (s *split) rows(by string, sparse []*nn.Parameter) []*rowSync {
	var syncs []*rowSync
	of := map[string]*rowSync{}
	for _, p := range sparse {
		r := s.sums(p)
		if r == nil {
			continue
		}
		if of[r.axis] == nil {
			of[r.axis] = &rowSync{by: by, ranks: *r}
			syncs = append(syncs, of[r.axis])
		}
		of[r.axis].sparse = append(of[r.axis].sparse, p)
	}
	return syncs
}

// close closes the groups that newSplit has made.
func (s *split) close() error {
	var first error
	for _, meshes := range []map[string]*mesh.Mesh{s.beside, s.flat} {
		for _, m := range meshes {
			if m == s.mesh {
				continue
			}
			if err := m.Close(); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// plainLays returns the lays of a model that no axis but fsdp cuts: gradients owe all axes.
func plainLays(model any, m *mesh.Mesh) map[*nn.Parameter]*lay {
	lays := map[*nn.Parameter]*lay{}
	for _, p := range nn.Parameters(model) {
		l := &lay{shape: p.Data().Shape(), at: map[string]mesh.Placement{}, owes: map[string]bool{}}
		for _, a := range m.Axes() {
			l.owes[a.Name] = a.Name != tensorAxis && a.Name != pipelineAxis
		}
		lays[p] = l
	}
	return lays
}
