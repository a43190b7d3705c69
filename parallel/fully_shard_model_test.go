// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// maze is a model with what is hard for sharding: ids [batch] to logits [batch, classes].
type maze struct {
	Tokens *nn.Embedding
	Blocks []*mazeBlock
	Scale  *nn.Parameter // one element
	Head   *nn.Linear
	Idle   *nn.Parameter // nobody reads it
	Seen   *nn.Buffer

	order []int // of the calls of blocks
	rank  int   // takes other ways than the rest
}

type mazeBlock struct {
	In, Out *nn.Linear
	Norm    *nn.LayerNorm
	Shared  *nn.Linear // the same in two blocks
	Odd     *nn.Parameter
	Extra   *nn.Parameter // read by rank 0 alone

	rank int
}

const mazeWidth = 13

func newMaze(seed int64, rank int, order ...int) *maze {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	m := &maze{
		Tokens: nn.NewEmbedding(b, numIDs, mazeWidth), Scale: b.Normal(1, 1), Idle: b.Normal(1, 3),
		Seen: &nn.Buffer{Data: tensor.Full(float64(seed), 3)}, order: order, rank: rank,
	}
	shared := nn.NewLinear(b, mazeWidth, mazeWidth)
	for i := range 3 {
		k := &mazeBlock{
			In: nn.NewLinear(b, mazeWidth, 33), Out: nn.NewLinear(b, 33, mazeWidth), Norm: nn.NewLayerNorm(b, mazeWidth),
			Odd: b.Normal(1, 1, mazeWidth), Extra: b.Normal(1, mazeWidth), rank: rank,
		}
		if i != 1 {
			k.Shared = shared
		}
		m.Blocks = append(m.Blocks, k)
	}
	m.Blocks[1].In.Weight.Frozen = true
	m.Head = &nn.Linear{Weight: m.Tokens.Weight} // tied
	return m
}

func (m *maze) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	for _, i := range m.order {
		x = c.Call(m.Blocks[i], x)
	}
	return c.Call(m.Head, x.Mul(c.Param(m.Scale))).Narrow(-1, 0, classes)
}

func (m *mazeBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := c.Call(m.Out, c.Call(m.In, c.Call(m.Norm, x)).GELU())
	if m.Shared != nil {
		h = c.Call(m.Shared, h)
	}
	if m.rank == 0 {
		h = h.Add(c.Param(m.Extra))
	}
	return x.Add(h.Mul(c.Param(m.Odd)))
}

// mazeCase is a way to train.
type mazeCase struct {
	name     string
	ranks    int
	replicas int
	micro    int // passes a step; 0 is 1
	noSync   bool
	clip     float64
	order    []int
	around   nn.Interceptor
	opts     []FSDPOption
	bits     bool // equal to DDP in every bit
}

func ofType[T any](m any) bool { _, ok := m.(T); return ok }

var groups = []FSDPOption{WithReshard(WithinGroupsOf(2))}

var mazeCases = []mazeCase{
	{name: "plain", ranks: 2, bits: true},
	{name: "uneven", ranks: 3, bits: true},
	{name: "four", ranks: 4, bits: true},
	{name: "calls", ranks: 2, order: []int{0, 1, 0, 2, 2, 0}},
	{name: "kept", ranks: 2, opts: []FSDPOption{WithReshard(Never)}, bits: true},
	{name: "groups", ranks: 4, opts: groups, bits: true},
	{name: "groups of three", ranks: 6, opts: []FSDPOption{WithReshard(WithinGroupsOf(3))}, bits: true},
	{name: "groups, calls", ranks: 4, opts: groups, order: []int{0, 1, 0, 2, 2, 0}},
	{name: "groups, recompute", ranks: 4, opts: groups, around: nn.Recompute(ofType[*mazeBlock]), order: []int{0, 1, 0, 2, 2, 0}},
	{name: "groups, recompute all", ranks: 4, opts: groups, around: nn.Recompute(ofType[*maze]), bits: true},
	{name: "groups, accumulate", ranks: 4, opts: groups, micro: 3},
	{name: "groups, small units", ranks: 4, opts: append([]FSDPOption{WithPolicy(BySize(1))}, groups...), bits: true},
	{name: "recompute inside", ranks: 2, around: nn.Recompute(ofType[*nn.LayerNorm]), bits: true},
	{name: "recompute units", ranks: 2, around: nn.Recompute(ofType[*mazeBlock]), bits: true},
	{name: "recompute calls", ranks: 2, around: nn.Recompute(ofType[*mazeBlock]), order: []int{0, 1, 0, 2, 2, 0}},
	{name: "recompute all calls", ranks: 2, around: nn.Recompute(ofType[*maze]), order: []int{0, 1, 0, 2, 2, 0}},
	{name: "recompute within recompute", ranks: 2, around: nn.Recompute(func(m any) bool { return ofType[*maze](m) || ofType[*mazeBlock](m) }), bits: true},
	{name: "recompute all", ranks: 2, around: nn.Recompute(ofType[*maze]), bits: true},
	{name: "accumulate", ranks: 3, micro: 3},
	{name: "no sync", ranks: 3, micro: 3, noSync: true},
	{name: "clip", ranks: 3, clip: 0.05},
	{name: "replicas", ranks: 4, replicas: 2, clip: 0.05, micro: 2, noSync: true},
	{name: "one unit", ranks: 2, opts: []FSDPOption{WithPolicy(ByHand())}, bits: true},
	{name: "small units", ranks: 2, opts: []FSDPOption{WithPolicy(BySize(1))}, bits: true},
	{name: "dim 1", ranks: 3, opts: []FSDPOption{WithShardDim(func(_ string, shape []int) int {
		if d := len(shape) - 1; shape[d]%3 == 0 {
			return d
		}
		return 0
	})}, bits: true},
}

// run trains a few steps and returns the losses and norms.
func (k *mazeCase) run(ctx context.Context, g *dist.Group, s Strategy, params []*nn.Parameter) (seen []float64, err error) {
	opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-2})
	in := newBatches(g.Rank(), g.Size(), 5)
	for range 3 {
		opt.ZeroGrad()
		for i := range max(1, k.micro) {
			pass := func() error {
				c := nn.Training(ctx)
				if k.around != nil {
					c = c.With(k.around)
				}
				defer c.Close()
				ids, targets := in.next()
				loss, err := lossOf(c, s, ids, targets)
				seen = append(seen, loss)
				return err
			}
			if k.noSync && i < k.micro-1 {
				err = s.NoSync(pass)
			} else {
				err = pass()
			}
			if err != nil {
				return nil, err
			}
		}
		var scale *tensor.Tensor
		if k.clip > 0 {
			var norm *tensor.Tensor
			if norm, scale, err = s.ClipGradNorm(ctx, params, k.clip); err != nil {
				return nil, err
			}
			seen = append(seen, norm.Item())
		}
		opt.Step(scale)
	}
	return seen, nil
}

// lossOf runs one forward and backward pass under a carrier.
func lossOf(c *nn.Ctx, m nn.Module, ids, targets *tensor.Tensor) (loss float64, err error) {
	defer c.Recover(&err)
	l := tensor.CrossEntropy(c.Call(m, ids), targets)
	if err := l.Backward(c); err != nil {
		return 0, err
	}
	return l.Item(), nil
}

// closeTo reports whether two numbers differ by at most a relative difference.
func closeTo(a, b, within float64) bool { return max(a-b, b-a) <= within*max(a, -a, b, -b) }

func TestMazes(t *testing.T) {
	t.Parallel()
	for _, k := range mazeCases {
		t.Run(k.name, func(t *testing.T) {
			err := spawn(t, k.ranks, func(ctx context.Context, g *dist.Group) error { return k.compare(ctx, g) })
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// compare trains under DDP and under FSDP.
func (k *mazeCase) compare(ctx context.Context, g *dist.Group) error {
	order := k.order
	if order == nil {
		order = []int{0, 1, 2}
	}
	replica, model := newMaze(int64(g.Rank()), g.Rank(), order...), newMaze(int64(g.Rank()), g.Rank(), order...)
	d, err := NewDDP(ctx, replica, g, small)
	if err != nil {
		return err
	}
	want, err := k.run(ctx, g, d, nn.Parameters(replica))
	if err != nil {
		return err
	}
	f, err := sharded(ctx, g, model, k.replicas, k.opts...)
	if err != nil {
		return err
	}
	got, err := k.run(ctx, g, f, nn.Parameters(model))
	if err != nil {
		return err
	}
	within := 2e-6
	if k.bits {
		within = 0
	}
	for i, w := range want {
		if !closeTo(got[i], w, within) {
			return fmt.Errorf("number %d of the losses and norms is %v, of DDP %v", i, got[i], w)
		}
	}
	for i, of := range []func(*nn.Parameter) *tensor.Tensor{gradOf, dataOf} {
		whole, err := wholeOf(ctx, f, of)
		if err != nil {
			return err
		}
		for _, p := range nn.Parameters(replica) {
			name := fmt.Sprintf("rank %d: the %s of %s", g.Rank(), []string{"gradient", "value"}[i], p.Name())
			if (whole[p.Name()] == nil) != (of(p) == nil) {
				return fmt.Errorf("%s is there or not as it is not with DDP", name)
			}
			if of(p) == nil {
				continue
			}
			largest := 0.0
			for _, x := range of(p).Float32s() {
				largest = max(largest, abs(x))
			}
			for j, x := range of(p).Float32s() {
				if y := whole[p.Name()][j]; abs(x-y) > 20*within*largest {
					return fmt.Errorf("%s has element %d %v, with DDP %v", name, j, y, x)
				}
			}
		}
	}
	if n := len(f.passes); n != 0 {
		return fmt.Errorf("%d passes are left", n)
	}
	for _, u := range f.units {
		if u.here || u.coming != nil || u.holds != 0 {
			return fmt.Errorf("%s are held after the last pass: %d", u.name(), u.holds)
		}
	}
	if got, want := fmt.Sprint(f.Unused()), "[idle]"; got != want {
		return fmt.Errorf("unused parameters: %v, want %v", got, want)
	}
	return nil
}
