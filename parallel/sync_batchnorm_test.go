// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// normed is a small network with norms of every kind of fusion: images [batch,
// 3, 4, 5] to features.
type normed struct {
	Conv1 *nn.Conv2d
	Norm1 *nn.BatchNorm2d
	Conv2 *nn.Conv2d
	Norm2 *nn.BatchNorm2d
	Norm3 *nn.BatchNorm2d
}

func newNormed(seed int64) *normed {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	o := nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true}
	return &normed{
		nn.NewConv2d(b, 3, 4, nn.Square(3), o), nn.NewBatchNorm2d(b, 4, nn.BatchNormOptions{}),
		nn.NewConv2d(b, 4, 4, nn.Square(3), o), nn.NewBatchNorm2d(b, 4, nn.BatchNormOptions{}),
		nn.NewBatchNorm1d(b, 4, nn.BatchNormOptions{Cumulative: true}),
	}
}

func (m *normed) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = m.Norm1.ReLU(c, c.Call(m.Conv1, x))
	x = m.Norm2.AddReLU(c, c.Call(m.Conv2, x), x)
	return c.Call(m.Norm3, x.Sum(2, 3))
}

// normedPass returns Σ y² · w of a training pass over rows [from, to) of the data.
func normedPass(ctx context.Context, m nn.Module, x, w *tensor.Tensor, from, to int) (loss float64, err error) {
	return nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
		y := c.Call(m, x.Narrow(0, from, to-from).Contiguous())
		return y.Mul(y).Mul(w.Narrow(0, from, to-from).Contiguous()).Sum()
	})
}

// TestSyncBatchNorm: ranks with parts of a batch, of several sizes or none,
// compute what one rank does with the whole of it: losses, gradients, running
// statistics.
func TestSyncBatchNorm(t *testing.T) {
	const batch, steps = 9, 3
	rng := rand.New(rand.NewPCG(3, 0))
	draw := func(shape ...int) *tensor.Tensor {
		x := tensor.Zeros(shape...)
		x.WithFloat32s(func(d []float32) {
			for i := range d {
				d[i] = float32(rng.NormFloat64()) + 0.5
			}
		})
		return x
	}
	x, w := draw(batch, 3, 4, 5), draw(batch, 4)
	alone := newNormed(0)
	var losses []float64
	for range steps {
		for _, p := range nn.Parameters(alone) {
			p.ZeroGrad()
		}
		loss, err := normedPass(t.Context(), alone, x, w, 0, batch)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
	}
	want := nn.Buffers(alone) // naming them writes, so that ranks must not do it at once
	for _, ends := range [][]int{{0, 6, 9}, {0, 1, 4, 9}, {0, 5, 5, 9}} {
		ranks := len(ends) - 1
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			grads := make([]map[string][]float32, ranks)
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				m := newNormed(0)
				if n := ConvertSyncBatchNorm(m, g); n != 3 {
					return fmt.Errorf("found %d norms, want 3", n)
				}
				for i := range steps {
					for _, p := range nn.Parameters(m) {
						p.ZeroGrad()
					}
					loss, err := normedPass(ctx, m, x, w, ends[g.Rank()], ends[g.Rank()+1])
					if err != nil {
						return err
					}
					sum := tensor.Full(loss, 1)
					if err := g.AllReduce(ctx, sum, dist.Sum); err != nil {
						return err
					}
					if d := sum.Item() - losses[i]; !(max(d, -d) <= 1e-5*losses[i]) {
						return fmt.Errorf("step %d: loss %v, alone %v", i, sum.Item(), losses[i])
					}
				}
				grads[g.Rank()] = gradients(m)
				for i, b := range nn.Buffers(m) {
					if b.Data.DType() == tensor.Int64 {
						if !slices.Equal(b.Data.Int64s(), []int64{steps}) {
							return fmt.Errorf("%s is %v", b.Name(), b.Data.Int64s())
						}
						continue
					}
					for j, v := range b.Data.Float32s() {
						if d := abs(v - want[i].Data.Float32s()[j]); !(d <= 1e-5) {
							return fmt.Errorf("%s: element %d is off by %v", b.Name(), j, d)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			// The gradients of the ranks add up to that of the whole batch.
			total := map[string][]float32{}
			for _, g := range grads {
				for name, v := range g {
					if total[name] == nil {
						total[name] = make([]float32, len(v))
					}
					for i := range v {
						total[name][i] += v[i]
					}
				}
			}
			if off, where := difference(t, total, gradients(alone)); !(off <= 1e-5) {
				t.Errorf("the gradient of %s is off by %.1e", where, off)
			}
		})
	}
}

// Buffers are rank 0's at the start of each training pass, int64 ones too.
func TestBuffersComeFromRank0(t *testing.T) {
	x, w := tensor.Full(1, 4, 3, 4, 5), tensor.Full(1, 4, 4)
	for _, keep := range []bool{false, true} {
		err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
			m := newNormed(int64(g.Rank()))
			var opts []DDPOption
			if keep {
				opts = append(opts, WithLocalBuffers())
			}
			ddp, err := NewDDP(ctx, m, g, opts...)
			if err != nil {
				return err
			}
			x := x.Clone()
			x.WithFloat32s(func(d []float32) {
				for i := range d {
					d[i] = float32(i%7) * float32(g.Rank()+1)
				}
			})
			if g.Rank() == 1 {
				m.Norm1.NumBatchesTracked.Data.Fill(40)
			}
			if _, err := normedPass(ctx, ddp, x, w, 0, 4); err != nil {
				return err
			}
			own := m.Norm1.RunningVar.Data.Float32s()
			if err := ddp.SyncBuffers(ctx); err != nil {
				return err
			}
			seen, count := m.Norm1.RunningVar.Data.Float32s(), m.Norm1.NumBatchesTracked.Data.Int64s()[0]
			if keep != slices.Equal(own, seen) && g.Rank() != 0 {
				return fmt.Errorf("rank %d: running variance %v before and %v after", g.Rank(), own, seen)
			}
			want := int64(1)
			if keep && g.Rank() == 1 {
				want = 41
			}
			if count != want {
				return fmt.Errorf("rank %d: %d batches counted, want %d", g.Rank(), count, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
