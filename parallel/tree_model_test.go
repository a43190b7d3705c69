// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"flag"
	"math/rand"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numTrees  = flag.Int("trees", 60, "number of models that TestTrees draws")
	firstTree = flag.Int64("firsttree", 0, "seed of the first of them")
)

// tree is a random module with modules inside: x [samples, oddSize] to the same. Units lie
// within units, and what is recomputed lies within, around and across them.
type tree struct {
	Linear *nn.Linear
	Scale  *nn.Parameter
	Kids   []*tree
	Shared *nn.Linear // the same in many

	steps           []treeStep
	unit, recompute bool
}

// treeStep is a step of a forward pass, with one of the kids where it needs one.
type treeStep struct{ kind, kid int }

const (
	ownLinear = iota
	ownScale
	sharedLinear
	callKid
	callPair     // with results that are nil or an input
	ignoreKid    // whose result nobody reads
	constantKid  // whose result has no gradient
	detachedKid  // whose input has no gradient
	branchOfKid  // whose input comes from nowhere
	numTreeSteps // and all but the first three need a kid
)

// treePair calls a tree as a module with several results.
type treePair struct{ Tree *tree }

func (p *treePair) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	return []*tensor.Tensor{x[1], nil, c.Call(p.Tree, x[0])}
}

func (t *tree) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := x
	for _, s := range t.steps {
		var kid *tree
		if s.kind > sharedLinear {
			kid = t.Kids[s.kid]
		}
		switch s.kind {
		case ownLinear:
			y = c.Call(t.Linear, y).Tanh()
		case ownScale:
			y = y.Mul(c.Param(t.Scale))
		case sharedLinear:
			y = c.Call(t.Shared, y).Tanh()
		case callKid:
			y = c.Call(kid, y)
		case callPair:
			y = y.Add(c.CallN(&treePair{kid}, y, x)[2]).Tanh()
		case ignoreKid:
			c.Call(kid, y)
		case constantKid:
			y = y.Add(c.Call(kid, y).Detach())
		case detachedKid:
			y = y.Add(c.Call(kid, y.Detach()))
		case branchOfKid:
			y = y.Add(c.Call(kid, tensor.Full(0.3, y.Shape()...)))
		}
	}
	return y
}

// treeCase is a drawn model and a way to train it.
type treeCase struct {
	seed            int64
	ranks, replicas int
	micro           int // passes a step, all but the last under NoSync
	keep            bool
}

func drawTreeCase(seed int64) treeCase {
	r := rand.New(rand.NewSource(seed))
	k := treeCase{seed: seed, ranks: 2 + r.Intn(3), micro: 1 + r.Intn(2)*r.Intn(2), keep: r.Intn(3) == 0}
	if k.ranks == 4 && r.Intn(2) == 0 {
		k.replicas = 2
	}
	return k
}

func (k treeCase) model() *tree {
	r, b := rand.New(rand.NewSource(k.seed)), &nn.Build{Generator: tensor.NewGenerator(k.seed)}
	shared := []*nn.Linear{nn.NewLinear(b, oddSize, oddSize), nn.NewLinear(b, oddSize, oddSize)}
	t := drawTree(r, b, 2, shared)
	t.steps = append([]treeStep{{kind: ownLinear}}, t.steps...)
	t.Linear.Weight.Frozen, t.unit = false, false
	return t
}

func drawTree(r *rand.Rand, b *nn.Build, depth int, shared []*nn.Linear) *tree {
	t := &tree{
		Linear: nn.NewLinear(b, oddSize, oddSize), Scale: b.Normal(1, oddSize), Shared: shared[r.Intn(len(shared))],
		unit: r.Intn(2) == 0, recompute: r.Intn(3) == 0,
	}
	t.Scale.Frozen, t.Linear.Weight.Frozen = r.Intn(4) == 0, r.Intn(5) == 0
	if depth > 0 {
		for range 1 + r.Intn(3) {
			t.Kids = append(t.Kids, drawTree(r, b, depth-1, shared))
		}
	}
	for range 1 + r.Intn(4) {
		s := treeStep{kind: r.Intn(sharedLinear + 1)}
		if n := len(t.Kids); n > 0 && r.Intn(3) > 0 {
			s = treeStep{kind: callKid, kid: r.Intn(n)}
			if r.Intn(2) == 0 {
				s.kind += r.Intn(numTreeSteps - callKid)
			}
		}
		t.steps = append(t.steps, s)
	}
	return t
}

func (k treeCase) train(ctx context.Context, rank, world int, s Strategy, model any) error {
	opt := optim.NewSGD(nn.Parameters(model), optim.SGDOptions{LR: 0.02})
	b := &nn.Build{Generator: tensor.NewGenerator(77)}
	n := oddSamples / world
	share := func() *tensor.Tensor { return b.Normal(1, oddSamples, oddSize).Data().Narrow(0, rank*n, n) }
	again := nn.Recompute(func(m any) bool { t, ok := m.(*tree); return ok && t.recompute })
	for range 3 {
		opt.ZeroGrad()
		for i := range k.micro {
			x, y := share(), share()
			pass := func() (err error) {
				c := nn.Training(ctx)
				defer c.Close()
				defer c.Recover(&err)
				return distance(c.With(again).Call(s, x), y).Backward(c)
			}
			err := error(nil)
			if i < k.micro-1 {
				err = s.NoSync(pass)
			} else {
				err = pass()
			}
			if err != nil {
				return err
			}
		}
		opt.Step(nil)
	}
	return nil
}

// TestTrees: whatever the units are, and whatever is recomputed, sharded parameters are those
// of one rank.
func TestTrees(t *testing.T) {
	t.Parallel()
	for seed := *firstTree; seed < *firstTree+int64(*numTrees); seed++ {
		k := drawTreeCase(seed)
		one := k.model()
		s, err := NewSingle(one)
		if err == nil {
			err = k.train(t.Context(), 0, 1, s, one)
		}
		if err != nil {
			t.Fatalf("seed %d, one rank: %v", seed, err)
		}
		want := map[string][]float32{}
		for _, p := range nn.Parameters(one) {
			want[p.Name()] = p.Data().Float32s()
		}
		err = spawn(t, k.ranks, func(ctx context.Context, g *dist.Group) error {
			m := k.model()
			opts := []FSDPOption{WithPolicy(ByFunc(func(path string, m any) bool { t, ok := m.(*tree); return ok && t.unit }))}
			if k.keep {
				opts = append(opts, WithReshard(Never))
			} else if k.ranks == 4 && k.replicas == 0 {
				opts = append(opts, groups...)
			}
			f, err := sharded(ctx, g, m, k.replicas, opts...)
			if err != nil {
				return err
			}
			if err := k.train(ctx, g.Rank(), k.ranks, f, m); err != nil {
				return err
			}
			if err := nothingHeld(f); err != nil {
				return err
			}
			return compareWhole(ctx, f, want, 1e-4)
		})
		if err != nil {
			t.Errorf("-firsttree %d -trees 1 (%+v): %v", seed, k, err)
		}
	}
}
