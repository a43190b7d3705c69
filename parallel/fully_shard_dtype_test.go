// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestShardsOfManyDTypes: each parameter is gathered and reduced in its own dtype.
func TestShardsOfManyDTypes(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newWeighted()
		for _, p := range m.Params {
			p.Data().Fill(float64(g.Rank()))
		}
		f, err := sharded(ctx, g, m, 1)
		if err != nil {
			return err
		}
		for range 2 {
			for _, p := range m.Params {
				p.ZeroGrad()
			}
			err := func() (err error) {
				c := nn.Training(ctx)
				defer c.Close()
				defer c.Recover(&err)
				return c.Call(f, tensor.FromFloat32([]float32{1 + 2*float32(g.Rank()), 1, 0.0078125 * float32(g.Rank())})).Backward(ctx)
			}()
			if err != nil {
				return err
			}
			values, err := wholeOf(ctx, f, dataOf)
			if err != nil {
				return err
			}
			grads, err := wholeOf(ctx, f, gradOf)
			if err != nil {
				return err
			}
			for i, p := range m.Params {
				if values[p.Name()][0] != 0 {
					return fmt.Errorf("param %d is not rank 0's", i)
				}
				if p.Grad().DType() != manyDTypes[i] || !slices.Equal(grads[p.Name()], []float32{2, 1, 0.00390625}) {
					return fmt.Errorf("param %d: gradient %v, want [2 1 0.00390625] of %v", i, grads[p.Name()], manyDTypes[i])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestShardedBesideSparse: sparse tables stay whole on every rank, and their rows are summed as
// DDP does it.
func TestShardedBesideSparse(t *testing.T) {
	err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
		m, replica := newClicks(int64(g.Rank()), true), newClicks(int64(g.Rank()), true)
		d, err := NewDDP(ctx, replica, g)
		if err != nil {
			return err
		}
		f, err := sharded(ctx, g, m, 1)
		if err != nil {
			return err
		}
		for step := range 3 {
			ids, targets := ofRank(g.Rank(), step)
			for _, s := range []Strategy{d, f} {
				if _, err := backward(ctx, s, ids, targets); err != nil {
					return err
				}
			}
			want, got := rowsOrGrads(replica), rowsOrGrads(m)
			whole, err := wholeOf(ctx, f, gradOf)
			if err != nil {
				return err
			}
			got["head.weight"], got["head.bias"] = whole["head.weight"], whole["head.bias"]
			for name, w := range want {
				for i := range w {
					if abs(w[i]-got[name][i]) > 1e-6 {
						return fmt.Errorf("step %d: the gradient of %s has element %d %v, of DDP %v", step, name, i, got[name][i], w[i])
					}
				}
			}
			norm, _, err := f.ClipGradNorm(ctx, nn.Parameters(m), 1)
			if err != nil {
				return err
			}
			if want, _, _ := d.ClipGradNorm(ctx, nn.Parameters(replica), 1); !closeTo(norm.Item(), want.Item(), 1e-6) {
				return fmt.Errorf("step %d: the norm is %v, of DDP %v", step, norm.Item(), want.Item())
			}
		}
		if l := f.Layout(m.Users.Weight); !l.Placements[0].IsReplicate() || m.Users.Weight.Data().Dim(0) != 50 {
			return fmt.Errorf("a sparse table lies as %v", l.Placements)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMixedPrecision: values that are gathered in bfloat16 train as well as those of autocast,
// which rounds them to it. Shards and their gradients are float32.
func TestMixedPrecision(t *testing.T) {
	for _, reduce := range []tensor.DType{0, tensor.Float32} {
		for _, micro := range []int{1, 2} {
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				run := func(m *toy, s Strategy) (losses []float64, err error) {
					opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 5e-3})
					in := newBatches(g.Rank(), g.Size(), 16)
					for range 20 {
						opt.ZeroGrad()
						for range micro {
							c := nn.Training(ctx, nn.WithAutocast(tensor.BFloat16))
							ids, targets := in.next()
							loss, err := lossOf(c, s, ids, targets)
							c.Close()
							if err != nil {
								return nil, err
							}
							losses = append(losses, loss)
						}
						opt.Step(nil)
					}
					return losses, nil
				}
				replica, m := newToy(0, width), newToy(0, width)
				d, err := NewDDP(ctx, replica, g)
				if err != nil {
					return err
				}
				want, err := run(replica, d)
				if err != nil {
					return err
				}
				f, err := sharded(ctx, g, m, 1, WithMixedPrecision(tensor.BFloat16, reduce))
				if err != nil {
					return err
				}
				got, err := run(m, f)
				if err != nil {
					return err
				}
				for i, w := range want {
					if !closeTo(got[i], w, 0.02) {
						return fmt.Errorf("loss %d is %v, of autocast %v", i, got[i], w)
					}
				}
				s := f.paramOf[m.Head.Weight]
				if s.base.DType() != tensor.BFloat16 || m.Head.Weight.Data().DType() != tensor.Float32 || m.Head.Weight.Grad().DType() != tensor.Float32 {
					return fmt.Errorf("head.weight is gathered in %v, its shard is %v, its gradient %v", s.base.DType(), m.Head.Weight.Data().DType(), m.Head.Weight.Grad().DType())
				}
				if b := f.paramOf[m.Head.Bias].base.DType(); b != tensor.Float32 {
					return fmt.Errorf("a bias is gathered in %v", b)
				}
				return nothingHeld(f)
			})
			if err != nil {
				t.Errorf("reduced in %v, %d passes a step: %v", reduce, micro, err)
			}
		}
	}
}

// TestManyRanks: with more ranks than rows many ranks hold nothing of a parameter.
func TestManyRanks(t *testing.T) {
	for _, k := range []mazeCase{{ranks: 64, bits: true}, {ranks: 16, replicas: 4}} {
		if err := spawn(t, k.ranks, func(ctx context.Context, g *dist.Group) error { return k.compare(ctx, g) }); err != nil {
			t.Errorf("%d ranks: %v", k.ranks, err)
		}
	}
}

// TestShardedPassesSideBySide: two models in one pass, and two passes before their backward passes.
func TestShardedPassesSideBySide(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		a, b := newMaze(0, g.Rank(), 0, 1, 2), newMaze(1, g.Rank(), 2, 1, 0)
		fa, err := sharded(ctx, g, a, 1)
		if err != nil {
			return err
		}
		fb, err := sharded(ctx, g, b, 1)
		if err != nil {
			return err
		}
		in := newBatches(g.Rank(), g.Size(), 5)
		ids, targets := in.next()
		ids2, targets2 := in.next()
		zero := func() {
			for _, p := range slices.Concat(nn.Parameters(a), nn.Parameters(b)) {
				p.ZeroGrad()
			}
		}
		// Apart.
		for _, f := range []*FSDP{fa, fb} {
			if _, err := backward(ctx, f, ids, targets); err != nil {
				return err
			}
		}
		wantA, wantB := gradients(a), gradients(b)
		zero()
		// Both in one pass.
		c := nn.Training(ctx)
		loss := tensor.CrossEntropy(c.Call(fa, ids), targets).Add(tensor.CrossEntropy(c.Call(fb, ids), targets))
		if err := loss.Backward(ctx); err != nil {
			return err
		}
		c.Close()
		if !sameBits(gradients(a), wantA) || !sameBits(gradients(b), wantB) {
			return fmt.Errorf("rank %d: two models in a pass have other gradients than apart", g.Rank())
		}
		// Two passes of one model, one after the other and then side by side.
		zero()
		for _, x := range [][2]*tensor.Tensor{{ids, targets}, {ids2, targets2}} {
			if _, err := backward(ctx, fa, x[0], x[1]); err != nil {
				return err
			}
		}
		wantA = gradients(a)
		zero()
		c, c2 := nn.Training(ctx), nn.Training(ctx)
		l, l2 := tensor.CrossEntropy(c.Call(fa, ids), targets), tensor.CrossEntropy(c2.Call(fa, ids2), targets2)
		for _, l := range []*tensor.Tensor{l, l2} {
			if err := l.Backward(ctx); err != nil {
				return err
			}
		}
		c.Close()
		c2.Close()
		if !sameBits(gradients(a), wantA) {
			return fmt.Errorf("rank %d: two passes side by side have other gradients than in turn", g.Rank())
		}
		return cmpErr(nothingHeld(fa), nothingHeld(fb))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSteadyMemory: after the first steps, training takes no more memory from the system.
func TestSteadyMemory(t *testing.T) {
	pool := func() mem.Stats {
		return tensor.CPU().(interface{ MemoryStats() mem.Stats }).MemoryStats()
	}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		f, err := sharded(ctx, g, newMaze(0, g.Rank(), 0, 1, 2), 1)
		if err != nil {
			return err
		}
		in := newBatches(g.Rank(), g.Size(), 5)
		var before mem.Stats
		numArenas := 0
		for i := range 20 {
			for _, p := range nn.Parameters(f.Model) {
				p.ZeroGrad()
			}
			ids, targets := in.next()
			if _, err := backward(ctx, f, ids, targets); err != nil {
				return err
			}
			if i == 4 {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				before, numArenas = pool(), len(f.arenas.free)
			}
		}
		if after := pool(); after.Reserved != before.Reserved || len(f.arenas.free) != numArenas {
			return fmt.Errorf("%d bytes more from the system, %d arenas where there were %d", after.Reserved-before.Reserved, len(f.arenas.free), numArenas)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}
