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
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// forks is a toy of which passes leave parts out: the heads lie in the first bucket.
type forks struct {
	Toy   *toy
	Heads []*nn.Linear
	uses  []int // the heads of a pass
}

func newForks(seed int64) *forks {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	m := &forks{Toy: newToy(seed, width)}
	for range 3 {
		m.Heads = append(m.Heads, nn.NewLinear(b, classes, classes))
	}
	return m
}

func (m *forks) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Toy, ids)
	for _, i := range m.uses {
		x = c.Call(m.Heads[i], x)
	}
	return x
}

// staticRun trains with heads that differ between ranks, of which nobody uses the last one. It
// returns the weights, and says whether the first bucket had been reduced when the last
// gradient came.
func staticRun(ctx context.Context, g *dist.Group, opts ...DDPOption) (weights []float32, during bool, err error) {
	m := newForks(int64(g.Rank()))
	d, err := NewDDP(ctx, m, g, append(opts, small)...)
	if err != nil {
		return nil, false, err
	}
	m.uses = []int{g.Rank() % 2}
	m.Toy.Tokens.Weight.OnGradReady(func(context.Context, *nn.Parameter) error {
		during = nativeOf(d).launched > 0
		return nil
	})
	opt := optimizers["sgd"](nn.Parameters(m))
	in := newBatches(g.Rank(), g.Size(), 4)
	for range 4 {
		opt.ZeroGrad()
		for pass := range 2 { // accumulated
			ids, targets := in.next()
			run := func() error {
				_, err := backward(ctx, d, ids, targets)
				return err
			}
			if pass == 0 {
				err = d.NoSync(run)
			} else {
				err = run()
			}
			if err != nil {
				return nil, false, err
			}
		}
		if want := []string{"heads.2.weight", "heads.2.bias"}; !slices.Equal(d.Unused(), want) {
			return nil, false, fmt.Errorf("unused are %v, want %v", d.Unused(), want)
		}
		for _, p := range nn.Parameters(m) {
			if unused := slices.Contains(d.Unused(), p.Name()); unused == (p.Grad() != nil) {
				return nil, false, fmt.Errorf("%s has a gradient: %t", p.Name(), p.Grad() != nil)
			}
		}
		opt.Step(nil)
	}
	return snapshot(m), during, nil
}

// TestStaticGraph: the bits are those of a DDP without the option, but buckets need not wait for
// the end of a pass.
func TestStaticGraph(t *testing.T) {
	for _, hook := range []bool{false, true} {
		err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
			var opts []DDPOption
			if hook {
				opts = append(opts, WithHook(HookFunc(meanHook)))
			}
			want, during, err := staticRun(ctx, g, opts...)
			if err != nil {
				return err
			}
			if during {
				return errors.New("without the option, a bucket with unused parameters was reduced during the pass")
			}
			for _, more := range [][]DDPOption{{WithStaticGraph()}, {WithStaticGraph(), WithJoin()}} {
				got, during, err := staticRun(ctx, g, append(opts, more...)...)
				if err != nil {
					return err
				}
				if !during {
					return errors.New("no bucket was reduced during the pass")
				}
				if !slices.Equal(got, want) {
					return errors.New("the weights differ from those of a DDP without the option")
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestNotStatic: a pass that is not like the first is an error of every rank, with the rank and
// the parameters.
func TestNotStatic(t *testing.T) {
	for name, c := range map[string]struct {
		first, later []int // the heads of rank 1
		says         string
	}{
		"more":  {[]int{0}, []int{0, 1}, "the pass of rank 1 reached heads.1.bias, heads.1.weight, which its first pass did not"},
		"less":  {[]int{0, 1}, []int{1}, "the pass of rank 1 did not reach heads.0.bias, heads.0.weight, which its first pass did,"},
		"other": {[]int{0}, []int{2}, "the pass of rank 1 did not reach heads.0.bias, heads.0.weight, which its first pass did,"},
	} {
		for _, opts := range [][]DDPOption{{small}, {}, {small, WithJoin()}, {small, WithHook(HookFunc(meanHook))}} {
			err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
				m := newForks(1)
				d, err := NewDDP(ctx, m, g, append(opts[:len(opts):len(opts)], WithStaticGraph())...)
				if err != nil {
					return err
				}
				in := newBatches(g.Rank(), g.Size(), 4)
				for step := range 3 {
					m.uses = []int{0}
					if g.Rank() == 1 {
						if m.uses = c.first; step == 2 {
							m.uses = c.later
						}
					}
					for _, p := range nn.Parameters(m) {
						p.ZeroGrad()
					}
					ids, targets := in.next()
					_, err := backward(ctx, d, ids, targets)
					if step < 2 {
						if err != nil {
							return err
						}
						continue
					}
					var e *StaticGraphError
					if !errors.As(err, &e) || e.Rank != 1 || !strings.Contains(err.Error(), c.says) {
						return fmt.Errorf("rank %d gets %v", g.Rank(), err)
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
