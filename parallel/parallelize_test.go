// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// gatherer is the simplest way to split a model: an axis cuts parameters as cuts says by name, and
// each read of one gathers it.
type gatherer struct {
	p    *Parallel
	cuts map[string]mesh.Placement
}

func (g *gatherer) axis() string               { return tensorAxis }
func (g *gatherer) agreed() string             { return fmt.Sprint(g.cuts) }
func (g *gatherer) join(context.Context) error { return nil }
func (g *gatherer) String() string             { return "some parameters" }

func (g *gatherer) lay() error {
	for _, q := range nn.Parameters(g.p.Model) {
		if at, ok := g.cuts[q.Name()]; ok {
			g.p.lays[q].at[tensorAxis] = at
		}
	}
	return nil
}

func (g *gatherer) InterceptCall(c *nn.Ctx, _ any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	return next(c, x)
}

func (g *gatherer) InterceptParam(c *nn.Ctx, q *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	local := next(c)
	at, cut := g.cuts[q.Name()]
	if !cut {
		return local
	}
	tp, err := g.p.mesh.Sub(tensorAxis)
	if err != nil {
		c.Fail(err)
	}
	shape := g.p.lays[q].shape
	values := tensor.New(local.Device(), local.DType(), local.Shape()...) // outside of the pass
	values.CopyFrom(local)
	whole, err := mesh.Tensor{Local: values, Layout: mesh.Layout{Mesh: tp, Shape: shape, Placements: []mesh.Placement{at}}}.Full(c)
	if err != nil {
		c.Fail(err)
	}
	if pass := sharding.Of(c.Tape()); pass != nil {
		b := sharding.Boundary{Type: slices.Clone(pass.TypeOf(local))}
		b.Type[len(b.Type)-1] = mesh.Replicate()
		b.GradGives = pass.TypeOf(local)
		for i, a := range pass.Axes() {
			if a.Data {
				b.GradGives[i] = mesh.Partial(dist.Sum)
			}
		}
		pass.Give(whole, b)
	}
	return tensor.Record("gather", whole, []*tensor.Tensor{local}, nil, func(ctx context.Context, grad *tensor.Tensor) ([]*tensor.Tensor, error) {
		part, err := mesh.Cut(grad, tp, at)
		return []*tensor.Tensor{part.Local}, err
	})
}

// gatherOver splits a model over a mesh whose axis tp is that of a gatherer.
func gatherOver(ctx context.Context, model any, m *mesh.Mesh, cuts map[string]mesh.Placement) (*Parallel, error) {
	p := newParallel(model, m, Config{})
	if m.Has(tensorAxis) {
		p.parts = []splitter{&gatherer{p, cuts}}
	}
	return p, p.setUp(ctx)
}

// toyCuts cut parameters of a toy evenly, unevenly, in pieces, and along dim 1.
var toyCuts = map[string]mesh.Placement{
	"tokens.weight":   mesh.Shard(0), // 31 rows
	"hidden.0.weight": mesh.StridedShard(0, 4),
	"hidden.0.bias":   mesh.StridedShard(0, 2),
	"hidden.2.weight": mesh.Shard(1),
	"head.weight":     mesh.Shard(0),
	"norm.weight":     mesh.StridedShard(0, 2),
}

// wholeValues returns all values of tensors that lie as the parameters do.
func wholeValues(ctx context.Context, p *Parallel, of func(q *nn.Parameter) *tensor.Tensor) (map[string][]float32, error) {
	out := map[string][]float32{}
	for _, q := range nn.Parameters(p.Model) {
		if p.IsAway(q) {
			continue
		}
		t := of(q)
		if t == nil || p.IsAway(q) {
			continue
		}
		whole, err := mesh.Tensor{Local: t, Layout: p.Layout(q)}.Full(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.Name(), err)
		}
		out[q.Name()] = whole.Float32s()
	}
	return out, nil
}

// TestComposedIsOneRank: with parameters cut in all ways by one axis, and then by fsdp, steps
// have the losses, gradients, norms and weights of one rank.
func TestComposedIsOneRank(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][]mesh.Axis{
		{{Name: "tp", Size: 2}},
		{{Name: "tp", Size: 3}},
		{{Name: "replicate", Size: 2}, {Name: "tp", Size: 2}},
		{{Name: "fsdp", Size: 2}, {Name: "tp", Size: 2}},
		{{Name: "replicate", Size: 2}, {Name: "fsdp", Size: 2}, {Name: "tp", Size: 2}},
	} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			size := 1
			for _, a := range sizes {
				size *= a.Size
			}
			tp := sizes[len(sizes)-1].Size
			samplers := size / tp
			const numSteps = 3
			alone := newToy(0, width)
			single, err := NewSingle(alone)
			if err != nil {
				t.Fatal(err)
			}
			var norms []float64
			opt := optim.NewSGD(nn.Parameters(alone), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
			for step := range int64(numSteps) {
				opt.ZeroGrad()
				for r := range int64(samplers) {
					for _, m := range toyPasses(single, r, step) {
						if _, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor { return m.Loss(c).MulScalar(1 / float64(samplers)) }); err != nil {
							t.Fatal(err)
						}
					}
				}
				norm, scale := optim.ClipGradNorm(nn.Parameters(alone), 0.5)
				norms = append(norms, norm.Item())
				opt.Step(scale)
			}
			want, wantGrads := map[string][]float32{}, gradients(alone)
			for _, q := range nn.Parameters(alone) {
				want[q.Name()] = q.Data().Float32s()
			}
			for _, onMeta := range []bool{false, true} {
				err = spawn(t, size, func(ctx context.Context, g *dist.Group) error {
					m, err := mesh.New(ctx, g, sizes...)
					if err != nil {
						return err
					}
					model := newToy(int64(g.Rank()), width)
					if onMeta {
						model = newToyOn(tensor.Meta, 0)
					}
					p, err := gatherOver(ctx, model, m, toyCuts)
					if err == nil && onMeta {
						err = p.Materialize(ctx, tensor.CPU())
					}
					if err != nil {
						return err
					}
					opt := optim.NewSGD(nn.Parameters(model), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
					for step := range int64(numSteps) {
						opt.ZeroGrad()
						if _, err := p.Step(ctx, toyPasses(p, int64(g.Rank()/tp), step)); err != nil {
							return err
						}
						norm, scale, err := p.ClipGradNorm(ctx, nn.Parameters(model), 0.5)
						if err != nil {
							return err
						}
						if math.Abs(norm.Item()/norms[step]-1) > 1e-5 {
							return fmt.Errorf("the norm of step %d is %v, that of one rank %v", step, norm.Item(), norms[step])
						}
						opt.Step(scale)
					}
					for i, of := range []func(q *nn.Parameter) *tensor.Tensor{gradOf, dataOf} {
						got, err := wholeValues(ctx, p, of)
						if err != nil {
							return err
						}
						if worst, where := difference(t, got, []map[string][]float32{wantGrads, want}[i]); worst > 1e-5 {
							return fmt.Errorf("%s of %s differ by %.2g", []string{"gradients", "values"}[i], where, worst)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// newToyOn builds a toy on a device.
func newToyOn(dev tensor.Device, seed int64) *toy {
	b := &nn.Build{Generator: tensor.NewGenerator(seed), Device: dev}
	return &toy{
		Tokens: nn.NewEmbedding(b, numIDs, width),
		Hidden: nn.NewSequential(nn.NewLinear(b, width, 2*width), &nn.GELU{}, nn.NewLinear(b, 2*width, width), &nn.ReLU{}),
		Norm:   nn.NewLayerNorm(b, width),
		Head:   nn.NewLinear(b, width, classes),
		Seen:   &nn.Buffer{Data: tensor.On(dev).Full(float64(seed), 3)},
	}
}

// TestPiecesThatDoNotDivide: rows of a piece that fsdp does not divide on some rank are refused on
// all ranks, before anything is trained.
func TestPiecesThatDoNotDivide(t *testing.T) {
	for _, c := range []struct {
		width, fsdp int
		want        string
	}{
		{8, 3, "the 3 ranks of axis fsdp cannot share the 4 rows that a rank has of a piece, nor another dim: 4 % 3 = 1: choose an fsdp that divides 4"},
		{9, 2, "the 2 ranks of axis fsdp cannot share the 5 rows that a rank has of a piece, nor another dim: 5 % 2 = 1: choose an fsdp that divides 5"}, // the second rank of tp has 4
	} {
		told := make([]error, 2*c.fsdp)
		err := spawn(t, len(told), func(ctx context.Context, g *dist.Group) error {
			m, err := mesh.New(ctx, g, mesh.Axis{Name: shardAxis, Size: c.fsdp}, mesh.Axis{Name: tensorAxis, Size: 2})
			if err != nil {
				return err
			}
			_, told[g.Rank()] = gatherOver(ctx, newToy(0, c.width), m, map[string]mesh.Placement{"hidden.0.bias": mesh.StridedShard(0, 2)})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for rank, err := range told {
			if err == nil || !strings.Contains(err.Error(), "other axes cut hidden.0.bias along dim 0 within 2 pieces (packed), and "+c.want) {
				t.Errorf("width %d over %d ranks, rank %d: got %v, want %s", c.width, c.fsdp, rank, err, c.want)
			}
		}
	}
}

// TestBadComposition: what cannot be split is one error on every rank.
func TestBadComposition(t *testing.T) {
	for want, c := range map[string]struct {
		axes []mesh.Axis
		cuts map[string]mesh.Placement
	}{
		`the mesh has an axis "dp": Parallelize knows the axes pp, replicate, fsdp, ep, cp, tp`:                                  {axes: []mesh.Axis{{Name: "dp"}}},
		"the axis fsdp of the mesh comes after tp":                                                                               {axes: []mesh.Axis{{Name: "tp", Size: 2}, {Name: "fsdp", Size: 1}}},
		"head.bias: mesh: [Shard(1)] of a tensor of shape [11]":                                                                  {axes: []mesh.Axis{{Name: "tp"}}, cuts: map[string]mesh.Placement{"head.bias": mesh.Shard(1)}},
		"the ranks split the model differently: rank 0 has map[head.weight:Shard(0)] where rank 1 has map[head.weight:Shard(1)]": {axes: []mesh.Axis{{Name: "tp"}}},
	} {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m, err := mesh.New(ctx, g, c.axes...)
			if err != nil {
				return err
			}
			cuts := c.cuts
			if cuts == nil {
				cuts = map[string]mesh.Placement{"head.weight": mesh.Shard(g.Rank())}
			}
			if m.Has(tensorAxis) && m.Axes()[0].Name == tensorAxis && len(m.Axes()) == 1 {
				_, err = gatherOver(ctx, newToy(0, width), m, cuts)
			} else {
				_, err = Parallelize(ctx, newToy(0, width), m, Config{})
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%v, want %q", err, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestSizes: the sizes that are left out follow from the number of ranks.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		sizes Sizes
		ranks int
		want  string
	}{
		{Sizes{}, 1, "[]"},
		{Sizes{}, 4, "[{replicate 4}]"},
		{Sizes{TP: 2}, 8, "[{replicate 4} {tp 2}]"},
		{Sizes{Replicate: 1, TP: 2, PP: 2}, 8, "[{pp 2} {fsdp 2} {tp 2}]"},
		{Sizes{Replicate: 2, FSDP: 1, EP: 2, CP: 2}, 8, "[{replicate 2} {ep 2} {cp 2}]"},
		{Sizes{Replicate: 2, FSDP: 2}, 8, "mesh: replicate 2 × fsdp 2 = 4 ranks, and there are 8 ranks; change"},
		{Sizes{TP: 3}, 8, "mesh: tp 3 = 3 ranks, and there are 8 ranks: 8 % 3 = 2; change"},
		{Sizes{TP: -1}, 8, "mesh: axis tp has the size -1"},
	} {
		axes, err := c.sizes.solve(c.ranks)
		got := fmt.Sprint(axes)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v for %d ranks: %s, want %s", c.sizes, c.ranks, got, c.want)
		}
	}
}

// TestSampler: ranks that share the work on samples have one number, and the others one each, in
// the order of the mesh.
func TestSampler(t *testing.T) {
	axes := []mesh.Axis{{Name: "pp", Size: 2}, {Name: "fsdp", Size: 2}, {Name: "ep", Size: 3}, {Name: "tp", Size: 2}}
	for rank := range 24 {
		m, err := mesh.Sketch(rank, axes...)
		if err != nil {
			t.Fatal(err)
		}
		if sampler, n := Sampler(m); n != 6 || sampler != rank%12/2 {
			t.Errorf("rank %d is %d of %d", rank, sampler, n)
		}
	}
}

// TestMeshFollowsNodes: ranks of tp are on one node, also where ranks of a node have no numbers that
// follow each other, and a model is split over such a mesh.
func TestMeshFollowsNodes(t *testing.T) {
	res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
		m, err := NewMesh(ctx, g, Sizes{Replicate: 2, TP: 2})
		if err != nil {
			return err
		}
		defer m.Close()
		tp, err := m.Group("tp")
		if err != nil {
			return err
		}
		if nodes := tp.Nodes(); nodes[0] != nodes[1] {
			return fmt.Errorf("the ranks %v of tp are on the nodes %v", tp.Ranks(), nodes)
		}
		p, err := gatherOver(ctx, newToy(int64(g.Rank()), width), m, toyCuts)
		if err != nil {
			return err
		}
		sampler, _ := Sampler(m)
		_, err = p.Step(ctx, toyPasses(p, int64(sampler), 0))
		return err
	}, disttest.WithNodes(0, 1, 0, 1))
	if err := res.Err(); err != nil {
		t.Error(err)
	}
}
