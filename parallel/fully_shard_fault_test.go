// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestShardingRefused: what cannot be sharded is named when it is wrapped, by the same error on
// every rank.
func TestShardingRefused(t *testing.T) {
	odd := func(g *dist.Group, here Policy) Policy {
		if g.Rank() == 1 {
			return here
		}
		return ByBlock()
	}
	for _, k := range []struct {
		name string
		axes []mesh.Axis
		wrap func(g *dist.Group, m *maze) []FSDPOption
		want string
	}{
		{name: "axis", axes: []mesh.Axis{{Name: "fsdp", Size: 1}, {Name: "tp"}}, want: `the mesh has an axis "tp"`},
		{name: "no axis", axes: []mesh.Axis{{Name: "replicate"}}, want: `there is no axis "fsdp"`},
		{name: "unknown unit", wrap: func(*dist.Group, *maze) []FSDPOption {
			return []FSDPOption{WithPolicy(ByHand(Unit{Path: "blocks.3"}))}
		}, want: `unit "blocks.3", and the model has no such module; did you mean "blocks.0"?`},
		{name: "unit twice", wrap: func(*dist.Group, *maze) []FSDPOption {
			return []FSDPOption{WithPolicy(ByHand(Unit{Path: "blocks.1"}, Unit{Path: "blocks.1"}))}
		}, want: `the unit "blocks.1" twice`},
		{name: "parameter in no unit", wrap: func(_ *dist.Group, m *maze) []FSDPOption {
			return []FSDPOption{WithPolicy(ByHand(Unit{Path: "blocks.1", Params: []*nn.Parameter{m.Blocks[1].Odd}}))}
		}, want: "tokens.weight is in no unit of the policy"},
		{name: "parameter in two units", wrap: func(_ *dist.Group, m *maze) []FSDPOption {
			all := nn.Parameters(m)
			return []FSDPOption{WithPolicy(ByHand(Unit{Params: all}, Unit{Path: "blocks.1", Params: []*nn.Parameter{m.Blocks[1].Odd}}))}
		}, want: `blocks.1.odd is in two units of the policy, "" and "blocks.1"`},
		{name: "parameter of others", wrap: func(_ *dist.Group, m *maze) []FSDPOption {
			all := slices.DeleteFunc(nn.Parameters(m), func(p *nn.Parameter) bool { return p == m.Blocks[0].Shared.Weight })
			return []FSDPOption{WithPolicy(ByHand(Unit{Params: all}, Unit{Path: "blocks.0", Params: []*nn.Parameter{m.Blocks[0].Shared.Weight}}))}
		}, want: `blocks.0.shared.weight is in unit "blocks.0" of the policy, and modules outside of it hold the parameter too`},
		{name: "uneven", wrap: func(*dist.Group, *maze) []FSDPOption {
			return []FSDPOption{WithShardDim(func(_ string, shape []int) int { return len(shape) - 1 })}
		}, want: "of shape [31 13] is not cut evenly along dim 1 by the 2 ranks of axis fsdp: 13 % 2 = 1"},
		{name: "another policy", wrap: func(g *dist.Group, _ *maze) []FSDPOption {
			return []FSDPOption{WithPolicy(odd(g, ByHand()))}
		}, want: `the ranks divide the model differently: rank 0 has blocks.0.in.weight in the unit "blocks.0", cut along dim 0, gathered in float32 and reduced in float32 where rank 1 has blocks.0.in.weight in the unit "", cut`},
		{name: "a policy that fails", wrap: func(g *dist.Group, _ *maze) []FSDPOption {
			return []FSDPOption{WithPolicy(odd(g, func(any) ([]Unit, error) { return nil, errors.New("no idea") }))}
		}, want: "where rank 1 has an error: no idea"},
		{name: "no policy", wrap: func(*dist.Group, *maze) []FSDPOption { return []FSDPOption{WithPolicy(nil)} }, want: "WithPolicy or WithShardDim got nil: leave"},
		{name: "no dim", wrap: func(*dist.Group, *maze) []FSDPOption { return []FSDPOption{WithShardDim(nil)} }, want: "WithPolicy or WithShardDim got nil: leave"},
		{name: "groups that do not divide", wrap: func(*dist.Group, *maze) []FSDPOption {
			return []FSDPOption{WithReshard(WithinGroupsOf(3))}
		}, want: "WithReshard(WithinGroupsOf(3)): axis fsdp has 2 ranks, which groups of 3 do not divide: choose a size that divides 2"},
		{name: "groups of none", wrap: func(*dist.Group, *maze) []FSDPOption {
			return []FSDPOption{WithReshard(WithinGroupsOf(0))}
		}, want: "WithReshard(WithinGroupsOf(0)): a group has at least 1 rank"},
		{name: "another reshard", wrap: func(g *dist.Group, _ *maze) []FSDPOption {
			return []FSDPOption{WithReshard(WithinGroupsOf(1 + g.Rank()))}
		}, want: "full values given up: never where rank 1 has [{fsdp 2}], full values given up: within groups of 2;"},
		{name: "no dims", wrap: func(_ *dist.Group, m *maze) []FSDPOption {
			m.Scale.SetData(tensor.Full(1))
			return nil
		}, want: "scale has no dims, and cannot be cut: give it the shape [1]"},
		{name: "models", wrap: func(g *dist.Group, m *maze) []FSDPOption {
			if g.Rank() == 1 {
				m.Scale.SetData(tensor.Full(1, 2))
			}
			return nil
		}, want: "fsdp: the ranks have different models: rank 0 has scale [1] where rank 1 has scale [2]"},
	} {
		t.Run(k.name, func(t *testing.T) {
			told := make([]string, 2)
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				axes := k.axes
				if axes == nil {
					axes = []mesh.Axis{{Name: "fsdp"}}
				}
				m, err := mesh.New(ctx, g, axes...)
				if err != nil {
					return err
				}
				model := newMaze(0, g.Rank(), 0, 1, 2)
				nn.Parameters(model)
				var opts []FSDPOption
				if k.wrap != nil {
					opts = k.wrap(g, model)
				}
				_, err = FullyShard(ctx, model, m, opts...)
				told[g.Rank()] = fmt.Sprint(err)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if told[0] != told[1] || !strings.Contains(told[0], k.want) || !strings.HasPrefix(told[0], "fsdp: ") || strings.HasPrefix(told[0], "fsdp: fsdp: ") {
				t.Errorf("the ranks are told\n%s\n%s\nwant %q", told[0], told[1], k.want)
			}
		})
	}
}

// TestNoMesh: a mesh that nobody made is an error, not the end of the program.
func TestNoMesh(t *testing.T) {
	want := `fsdp: the mesh is nil: make one with mesh.New, with an axis "fsdp"`
	if _, err := FullyShard(t.Context(), newMaze(0, 0, 0, 1, 2), nil); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// peek reads a parameter of a block while no block runs.
type peek struct{ *maze }

func (m *peek) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return m.maze.Forward(c, ids).Mul(c.Param(m.Blocks[1].Odd).Narrow(1, 0, 1))
}

// TestMisuse: what would give wrong values or gradients is named in the first pass.
func TestMisuse(t *testing.T) {
	pass := func(ctx context.Context, f *FSDP, g *dist.Group, opts ...nn.CtxOption) error {
		c := nn.Training(ctx, opts...)
		defer c.Close()
		ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
		_, err := lossOf(c, f, ids, targets)
		return err
	}
	for _, k := range []struct {
		name string
		run  func(ctx context.Context, g *dist.Group) error
		want string
	}{
		{"read outside", func(ctx context.Context, g *dist.Group) error {
			f, err := sharded(ctx, g, &peek{newMaze(0, g.Rank(), 0, 1, 2)}, 1)
			if err != nil {
				return err
			}
			return pass(ctx, f, g)
		}, "the parameter is read outside of the call of blocks.1, to whose unit it belongs, and is away"},
		{"leaves", func(ctx context.Context, g *dist.Group) error {
			f, err := sharded(ctx, g, newMaze(0, g.Rank(), 0, 1, 2), 1)
			if err != nil {
				return err
			}
			return pass(ctx, f, g, nn.WithLeaves(func(p *nn.Parameter) tensor.Leaf { return p }))
		}, "nn.WithLeaves takes the gradients of the pass elsewhere"},
		{"changed", func(ctx context.Context, g *dist.Group) error {
			m := newMaze(0, g.Rank(), 0, 1, 2)
			f, err := sharded(ctx, g, m, 1)
			if err != nil {
				return err
			}
			c := nn.Training(ctx)
			defer c.Close()
			ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
			loss := tensor.CrossEntropy(c.Call(f, ids), targets)
			m.Blocks[1].Odd.Data().Scale(2)
			return loss.Backward(ctx)
		}, "the parameters of blocks.1 have been written to between the forward and the backward pass"},
		{"unfrozen", func(ctx context.Context, g *dist.Group) error {
			m := newMaze(0, g.Rank(), 0, 1, 2)
			f, err := sharded(ctx, g, m, 1)
			if err != nil {
				return err
			}
			m.Blocks[1].In.Weight.Frozen = false
			return pass(ctx, f, g)
		}, "blocks.1.in.weight was frozen when FullyShard was called and is not any more"},
		{"other data", func(ctx context.Context, g *dist.Group) error {
			m := newMaze(0, g.Rank(), 0, 1, 2)
			f, err := sharded(ctx, g, m, 1)
			if err != nil {
				return err
			}
			m.Blocks[1].Odd.SetData(tensor.Full(1, 1, mazeWidth+1))
			return pass(ctx, f, g)
		}, "blocks.1.odd is float32[1 14] since FullyShard"},
		{"other order", func(ctx context.Context, g *dist.Group) error {
			order := []int{0, 2}
			if g.Rank() == 1 {
				order = []int{2, 0}
			}
			f, err := sharded(ctx, g, newMaze(0, g.Rank(), order...), 1)
			if err != nil {
				return err
			}
			return pass(ctx, f, g)
		}, "call 2 of a unit was of blocks.0 on rank 0 and of blocks.2 on rank 1"},
		{"other order in an evaluation", func(ctx context.Context, g *dist.Group) (err error) {
			order := []int{0, 2}
			if g.Rank() == 1 {
				order = []int{2, 0}
			}
			f, err := sharded(ctx, g, newMaze(0, g.Rank(), order...), 1)
			if err != nil {
				return err
			}
			c := nn.Evaluation(ctx)
			defer c.Close()
			defer c.Recover(&err)
			ids, _ := newBatches(g.Rank(), g.Size(), 5).next()
			c.Call(f, ids)
			return nil
		}, "call 2 of a unit was of blocks.0 on rank 0 and of blocks.2 on rank 1"},
	} {
		t.Run(k.name, func(t *testing.T) {
			told := make([]string, 2)
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				told[g.Rank()] = fmt.Sprint(k.run(ctx, g))
				return g.Barrier(ctx)
			})
			if err != nil {
				t.Fatal(err)
			}
			for rank, s := range told {
				if k.name == "changed" && rank == 1 {
					continue // a rank that has not changed its own is told by the group
				}
				if !strings.Contains(s, k.want) {
					t.Errorf("rank %d is told %q, want %q", rank, s, k.want)
				}
			}
		})
	}
}

// nothingHeld returns an error if a model holds more than its shards.
func nothingHeld(f *FSDP) error {
	for _, u := range f.units {
		if u.here || u.coming != nil || u.holds != 0 || u.grads != nil || u.reducing != nil || u.summing != nil {
			return fmt.Errorf("%s are held: here %v, %d gathers under way, %d holds, gradients %v", u.name(), u.here, len(u.coming), u.holds, u.grads != nil)
		}
		for _, s := range u.params {
			if !s.base.IsReleased() {
				return fmt.Errorf("%s has its memory", s.name)
			}
		}
	}
	if len(f.passes) > 0 {
		return fmt.Errorf("%d passes are left", len(f.passes))
	}
	return nil
}

// TestPassesGivenUp: passes without a backward pass, and passes that fail on all ranks, leave
// nothing, and the next pass is like any other.
func TestPassesGivenUp(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newMaze(0, g.Rank(), 0, 1, 2)
		f, err := sharded(ctx, g, m, 1)
		if err != nil {
			return err
		}
		ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
		want := math32{}
		for i := range 6 {
			for _, p := range nn.Parameters(m) {
				p.ZeroGrad()
			}
			switch i {
			case 1: // no backward pass
				c := nn.Training(ctx)
				c.Call(f, ids)
				c.Close()
			case 2: // the forward pass fails
				m.order = []int{0, 1, 7}
				func() {
					c := nn.Training(ctx)
					defer c.Close()
					defer func() { _ = recover() }()
					c.Call(f, ids)
				}()
				m.order = []int{0, 1, 2}
			case 3: // gradients that are not reduced, and dropped
				if err := f.NoSync(func() error { _, err := backward(ctx, f, ids, targets); return err }); err != nil {
					return err
				}
				for _, p := range nn.Parameters(m) {
					p.ZeroGrad()
				}
			case 4: // a walk to single values
				c := nn.Training(ctx)
				x := c.Call(f, ids)
				if _, err := tensor.CrossEntropy(x, targets).Grad(ctx, nil, []*tensor.Tensor{x}); err != nil {
					return err
				}
				c.Close()
			}
			if err := nothingHeld(f); err != nil {
				return fmt.Errorf("after pass %d: %w", i, err)
			}
			if i == 1 || i == 2 || i == 4 {
				continue
			}
			if _, err := backward(ctx, f, ids, targets); err != nil {
				return fmt.Errorf("pass %d: %w", i, err)
			}
			got := math32(gradients(m))
			if i == 0 {
				want = got
			} else if !sameBits(got, want) {
				return fmt.Errorf("pass %d has other gradients than pass 0", i)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

type math32 = map[string][]float32

// TestRankEndsInGather: a rank fails in the middle of a pass; the others are told of it by name,
// and hold nothing.
func TestRankEndsInGather(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for _, where := range []string{"forward", "backward"} {
		t.Run(where, func(t *testing.T) {
			told := make([]error, 3)
			err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
				m := newMaze(0, g.Rank(), 0, 1, 2)
				f, err := sharded(ctx, g, m, 1)
				if err != nil {
					return err
				}
				ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
				c := nn.Training(ctx)
				if g.Rank() == 1 {
					c = c.With(failing{where, m.Blocks[1], broken})
				}
				_, told[g.Rank()] = lossOf(c, f, ids, targets)
				if g.Rank() == 1 {
					c.Close()
					return broken
				}
				c.Close()
				return cmpErr(nothingHeld(f), told[g.Rank()])
			})
			if !errors.Is(err, broken) {
				t.Errorf("the job failed with %v, want the culprit's own error", err)
			}
			for rank, err := range told {
				if rank == 1 {
					continue
				}
				var re *dist.RankError
				if !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(err.Error(), "fsdp: ") {
					t.Errorf("rank %d: %v, want a *dist.RankError that names rank 1", rank, err)
				}
			}
		})
	}
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// failing fails in a block.
type failing struct {
	where string
	block *mazeBlock
	err   error
}

func (i failing) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if module != any(i.block) {
		return next(c, x)
	}
	if i.where == "forward" {
		c.Fail(i.err)
	}
	y := next(c, x)
	return []*tensor.Tensor{tensor.Record("fail", y[0].Detach(), y, nil, func(context.Context, *tensor.Tensor) ([]*tensor.Tensor, error) { return nil, i.err })}
}

func (failing) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(c *nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// census counts the units whose full values there are, in each call of a block.
type census struct {
	f    *FSDP
	most int
}

func (i *census) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	n := 0
	for _, u := range i.f.units {
		if u.here || u.coming != nil {
			n++
		}
	}
	i.most = max(i.most, n)
	return next(c, x)
}

func (*census) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(c *nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// TestWindow: a rank never has more than the model's own parameters and two units, in training
// and in evaluation, and after an evaluation nothing.
func TestWindow(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newMaze(0, g.Rank(), 0, 1, 2, 0, 1, 2)
		f, err := sharded(ctx, g, m, 1)
		if err != nil {
			return err
		}
		ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
		watch := &census{f: f}
		for range 3 {
			c := nn.Training(ctx).With(nn.Recompute(ofType[*nn.LayerNorm])).With(watch)
			if _, err := lossOf(c, f, ids, targets); err != nil {
				return err
			}
			c.Close()
			c = nn.Evaluation(ctx).With(watch)
			c.Call(f, ids)
			for _, u := range f.units {
				if u.holds > 0 {
					return fmt.Errorf("%s are held after an evaluation", u.name())
				}
			}
			c.Close()
			if err := nothingHeld(f); err != nil {
				return fmt.Errorf("after an evaluation: %w", err)
			}
		}
		if watch.most != 3 {
			return fmt.Errorf("there were %d units at a time, want 3: the model's own and two", watch.most)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
