// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pass is one forward pass, to be followed by loss.Backward.
type pass struct {
	c    *nn.Ctx
	loss *tensor.Tensor
}

func forward(ctx context.Context, m nn.Module, ids, targets *tensor.Tensor) pass {
	c := nn.Training(ctx)
	return pass{c, tensor.CrossEntropy(c.Call(m, ids), targets)}
}

func (p pass) backward(ctx context.Context, opts ...tensor.BackwardOption) error {
	return p.loss.Backward(ctx, opts...)
}

// TestAccumulation: whatever way two microbatches of two ranks go, the
// gradient is the sum over microbatches of the mean over ranks.
func TestAccumulation(t *testing.T) {
	type step func(ctx context.Context, d *DDP, first, second func() pass) error
	ways := map[string]step{
		"no sync, then sync": func(ctx context.Context, d *DDP, first, second func() pass) error {
			if err := d.NoSync(func() error { return first().backward(ctx) }); err != nil {
				return err
			}
			return second().backward(ctx)
		},
		"no sync ends before backward": func(ctx context.Context, d *DDP, first, second func() pass) error {
			var p pass
			if err := d.NoSync(func() error { p = first(); return nil }); err != nil {
				return err
			}
			if err := p.backward(ctx); err != nil {
				return err
			}
			return second().backward(ctx)
		},
		"sync twice": func(ctx context.Context, d *DDP, first, second func() pass) error {
			if err := first().backward(ctx); err != nil {
				return err
			}
			return second().backward(ctx)
		},
		"two passes under way": func(ctx context.Context, d *DDP, first, second func() pass) error {
			a, b := first(), second()
			if err := b.backward(ctx); err != nil {
				return err
			}
			return a.backward(ctx)
		},
		"sync, then no sync, then sync of nothing": func(ctx context.Context, d *DDP, first, second func() pass) error {
			if err := first().backward(ctx); err != nil {
				return err
			}
			if err := d.NoSync(func() error { return second().backward(ctx) }); err != nil {
				return err
			}
			c := nn.Training(ctx)
			defer c.Close()
			zero := c.Call(d, tensor.FromInt64([]int64{1})).Sum().MulScalar(0)
			return zero.Backward(ctx)
		},
	}
	want := accumulated(t)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				m := newToy(0, width)
				d, err := NewDDP(ctx, m, g, small)
				if err != nil {
					return err
				}
				for range 2 { // the second time finds what the first left
					for _, p := range nn.Parameters(m) {
						p.ZeroGrad()
					}
					in := newBatches(g.Rank(), 2, 8)
					var passes []pass
					next := func() pass {
						ids, targets := in.next()
						p := forward(ctx, d, ids, targets)
						passes = append(passes, p)
						return p
					}
					if err := way(ctx, d, next, next); err != nil {
						return err
					}
					for _, p := range passes {
						p.c.Close()
					}
					if off, where := difference(t, gradients(m), want); !(off < 1e-5) {
						return fmt.Errorf("rank %d: gradient of %s is off by %.1e", g.Rank(), where, off)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// accumulated returns the gradients of one rank with the same 2·16 rows.
func accumulated(t *testing.T) map[string][]float32 {
	m := newToy(0, width)
	in := newBatches(0, 1, 16)
	for range 2 {
		ids, targets := in.next()
		if _, err := backward(t.Context(), m, ids, targets); err != nil {
			t.Fatal(err)
		}
	}
	return gradients(m)
}

// TestModelRunsTwiceInAPass: as for contrastive losses.
func TestModelRunsTwiceInAPass(t *testing.T) {
	both := func(ctx context.Context, m nn.Module, ids, targets []int64) error {
		c := nn.Training(ctx)
		defer c.Close()
		half := len(ids) / 2
		a := tensor.CrossEntropy(c.Call(m, tensor.FromInt64(ids[:half])), tensor.FromInt64(targets[:half]))
		b := tensor.CrossEntropy(c.Call(m, tensor.FromInt64(ids[half:])), tensor.FromInt64(targets[half:]))
		return a.Add(b).Backward(ctx)
	}
	rows := func(rank int) (ids, targets []int64) {
		i, o := newBatches(rank, 2, 8).next()
		return i.Int64s(), o.Int64s()
	}
	want := make(map[string][]float32)
	for r := range 2 {
		m := newToy(0, width)
		ids, targets := rows(r)
		if err := both(t.Context(), m, ids, targets); err != nil {
			t.Fatal(err)
		}
		for name, g := range gradients(m) {
			sum := slices.Clone(g)
			for i := range sum {
				sum[i] /= 2
				if r == 1 {
					sum[i] += want[name][i]
				}
			}
			want[name] = sum
		}
	}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		d, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		ids, targets := rows(g.Rank())
		if err := both(ctx, d, ids, targets); err != nil {
			return err
		}
		if off, where := difference(t, gradients(m), want); !(off < 1e-5) {
			return fmt.Errorf("rank %d: gradient of %s is off by %.1e", g.Rank(), where, off)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPassesAndWrappersShareNothing: two DDPs in one pass divide once, and a
// pass that another one interrupts is prepared once.
func TestPassesAndWrappersShareNothing(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		b := &nn.Build{}
		first, second := nn.NewLinear(b, 2, 2), nn.NewLinear(b, 2, 2)
		d1, err := NewDDP(ctx, first, g)
		if err != nil {
			return err
		}
		d2, err := NewDDP(ctx, second, g)
		if err != nil {
			return err
		}
		x := tensor.Full(1, 1, 2)
		c := nn.Training(ctx)
		defer c.Close()
		y := c.Call(d2, c.Call(d1, x))
		other := nn.Training(ctx)
		defer other.Close()
		other.Call(d2, x)
		if err := y.Add(c.Call(d2, x)).Sum().Backward(ctx); err != nil {
			return err
		}
		if got := second.Bias.Grad().Float32s(); !slices.Equal(got, []float32{2, 2}) {
			return fmt.Errorf("the gradient of a bias used twice is %v, want [2 2]", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGraphKept: two backward passes over one tape add up to twice the
// gradient, on every rank alike.
func TestGraphKept(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		d, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		ids, targets := newBatches(g.Rank(), 2, 8).next()
		p := forward(ctx, d, ids, targets)
		defer p.c.Close()
		if err := p.backward(ctx, tensor.RetainGraph()); err != nil {
			return err
		}
		once := gradients(m)
		if err := p.backward(ctx, tensor.RetainGraph()); err != nil {
			return err
		}
		for _, g := range once {
			for i := range g {
				g[i] *= 2
			}
		}
		if off, where := difference(t, gradients(m), once); !(off < 1e-5) {
			return fmt.Errorf("rank %d: gradient of %s is off by %.1e", g.Rank(), where, off)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEvaluationThroughDDP: a pass without gradients changes nothing and
// communicates nothing, so one rank may run it alone.
func TestEvaluationThroughDDP(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		d, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		ids, targets := newBatches(g.Rank(), 2, 8).next()
		if _, err := backward(ctx, d, ids, targets); err != nil {
			return err
		}
		before := gradients(m)
		if g.Rank() == 0 {
			c := nn.Evaluation(ctx)
			c.Call(d, ids)
			c.Close()
		}
		if !sameBits(gradients(m), before) {
			return fmt.Errorf("rank %d: an evaluation changed gradients", g.Rank())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
