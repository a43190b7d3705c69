// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// spawn runs ranks as goroutines, with an end in case they wait for ever.
func spawn(t *testing.T, n int, main func(ctx context.Context, g *dist.Group) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test's limit"))
	defer cancel()
	return dist.Spawn(ctx, n, main)
}

func TestReplicasStayEqual(t *testing.T) {
	for _, optimizer := range []string{"sgd", "adamw"} {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprint(optimizer, n), func(t *testing.T) {
				digests := make([]string, n)
				err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
					m, err := train(ctx, g, optimizer, 50)
					if err == nil {
						digests[g.Rank()] = digest(m)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if len(slices.Compact(digests)) != 1 || digests[0] == digest(newToy(0, width)) {
					t.Errorf("digests of the ranks' parameters: %v", digests)
				}
			})
		}
	}
}

// TestTwoRanksTrainAsOne: 8 + 8 rows on two ranks give the losses and
// gradients of 16 rows on one. SGD notices a forgotten division, which AdamW
// hides.
func TestTwoRanksTrainAsOne(t *testing.T) {
	const numSteps = 50
	for _, optimizer := range []string{"sgd", "adamw"} {
		t.Run(optimizer, func(t *testing.T) {
			alone := newToy(0, width)
			opt := optimizers[optimizer](nn.Parameters(alone))
			in := newBatches(0, 1, 16)
			losses, grads := make([]float64, numSteps), make([]map[string][]float32, numSteps)
			for i := range numSteps {
				opt.ZeroGrad()
				ids, targets := in.next()
				loss, err := backward(t.Context(), alone, ids, targets)
				if err != nil {
					t.Fatal(err)
				}
				losses[i], grads[i] = loss, gradients(alone)
				opt.Step(nil)
			}
			worstLoss, worstGrad := 0.0, 0.0
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				m := newToy(int64(g.Rank()), width)
				ddp, err := NewDDP(ctx, m, g, small)
				if err != nil {
					return err
				}
				opt := optimizers[optimizer](nn.Parameters(m))
				in := newBatches(g.Rank(), 2, 8)
				for i := range numSteps {
					opt.ZeroGrad()
					ids, targets := in.next()
					loss, err := backward(ctx, ddp, ids, targets)
					if err != nil {
						return err
					}
					mean := tensor.Full(loss/2, 1)
					if err := g.AllReduce(ctx, mean, dist.Sum); err != nil {
						return err
					}
					if g.Rank() == 0 {
						off, where := difference(t, gradients(m), grads[i])
						worstGrad = max(worstGrad, off)
						worstLoss = max(worstLoss, math.Abs(mean.Item()-losses[i])/losses[i])
						if !(worstGrad <= 1e-5 && worstLoss <= 1e-5) {
							return fmt.Errorf("step %d: loss %v, alone %v; the gradient of %s is off by %.1e", i, mean.Item(), losses[i], where, off)
						}
					}
					opt.Step(nil)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if first, last := losses[0], losses[numSteps-1]; last > 0.9*first {
				t.Errorf("the loss went from %v to %v: nothing was learned, so nothing was shown", first, last)
			}
			t.Logf("largest relative difference: of a loss %.1e, of a gradient %.1e", worstLoss, worstGrad)
		})
	}
}

func TestStateComesFromRank0(t *testing.T) {
	err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
		m := newToy(int64(7+g.Rank()), width)
		if _, err := NewDDP(ctx, m, g); err != nil {
			return err
		}
		if got, want := digest(m), digest(newToy(7, width)); got != want {
			return fmt.Errorf("rank %d has state %s, rank 0 had %s", g.Rank(), got, want)
		}
		if v := m.Seen.Data.Float32s()[2]; v != 7 {
			return fmt.Errorf("rank %d: the buffer is %v, rank 0's is 7", g.Rank(), v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// other returns a model that differs from newToy's in one thing.
func other(what string) *toy {
	m := newToy(0, width)
	b := &nn.Build{}
	switch what {
	case "shape":
		m.Head = nn.NewLinear(b, width, classes+1)
	case "more":
		m.Hidden.Layers = append(m.Hidden.Layers, nn.NewLinear(b, width, width))
	case "fewer":
		m.Seen = nil
	case "buffer":
		m.Seen.Data = tensor.Zeros(4)
	case "dtype":
		m.Seen.Data = tensor.FromInt64([]int64{1, 2, 3})
	case "frozen":
		m.Norm.Bias.Frozen = true
	case "sparse":
		m.Head.Weight.Sparse = true
	}
	return m
}

func TestMismatchIsNamed(t *testing.T) {
	for what, want := range map[string]string{
		"shape":  "rank 0 has head.weight [11 32] where rank 1 has head.weight [12 32]",
		"more":   "rank 0 has norm.weight [32] where rank 1 has hidden.4.weight [32 32]",
		"fewer":  "rank 0 has seen [3] where rank 1 has nothing more",
		"buffer": "rank 0 has seen [3] where rank 1 has seen [4]",
		"dtype":  "rank 0 has seen [3] (float32 buffer) where rank 1 has seen [3] (int64 buffer)",
		"frozen": "rank 0 has norm.bias [32] (float32) where rank 1 has norm.bias [32] (frozen float32)",
		"sparse": "rank 0 has head.weight [11 32] (float32) where rank 1 has head.weight [11 32] (sparse float32)",
	} {
		t.Run(what, func(t *testing.T) {
			told := make([]error, 3)
			err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
				m := newToy(0, width)
				if g.Rank() > 0 {
					m = other(what)
				}
				_, told[g.Rank()] = NewDDP(ctx, m, g)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for rank, err := range told {
				var mismatch *MismatchError
				if !errors.As(err, &mismatch) || mismatch.Rank != 1 || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d: %v, want a *MismatchError with %q", rank, err, want)
				}
			}
		})
	}
}

func TestFillBuckets(t *testing.T) {
	p := func(n int) *nn.Parameter { return nn.NewParameter(tensor.Zeros(n)) }
	for _, c := range []struct {
		sizes       []int
		first, rest int
		want        []int // parameters a bucket
	}{
		{nil, 8, 8, nil},
		{[]int{1}, 1 << 20, 1 << 20, []int{1}},
		{[]int{1, 1, 1, 1, 1}, 4, 8, []int{1, 2, 2}},
		{[]int{100, 1, 1, 100}, 4, 8, []int{1, 2, 1}},
		{[]int{1, 1, 1}, 1000, 4, []int{3}},
		{[]int{0, 2, 0}, 8, 8, []int{2, 1}},
	} {
		var ps []*nn.Parameter
		for _, n := range c.sizes {
			ps = append(ps, p(n))
		}
		var got []int
		total := 0
		for _, run := range fillBuckets(ps, c.first, c.rest) {
			got = append(got, len(run))
			total += len(run)
		}
		if !slices.Equal(got, c.want) || total != len(ps) {
			t.Errorf("sizes %v with limits %d and %d bytes: %v, want %v", c.sizes, c.first, c.rest, got, c.want)
		}
	}
}

// TestBucketsAreReducedDuringBackward: in the hook of the parameter whose
// gradient comes last, before the pass can go on, the first bucket arrives.
// That needs all ranks to have sent it: backward was still running everywhere.
func TestBucketsAreReducedDuringBackward(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		if len(nativeOf(ddp).buckets) < 3 {
			return fmt.Errorf("%d buckets, the test needs 3", len(nativeOf(ddp).buckets))
		}
		checked := 0
		m.Tokens.Weight.OnGradReady(func(ctx context.Context, p *nn.Parameter) error {
			checked++
			last := len(nativeOf(ddp).buckets) - 1
			if !slices.Contains(nativeOf(ddp).buckets[last].params, p) {
				return fmt.Errorf("the embedding is not in bucket %d", last)
			}
			for i, b := range nativeOf(ddp).buckets[:last] {
				if err := b.work.wait(ctx); err != nil {
					return fmt.Errorf("bucket %d does not arrive while backward waits: %w", i, err)
				}
			}
			return nil
		})
		in := newBatches(g.Rank(), 2, 8)
		for range 3 {
			for _, p := range nn.Parameters(m) {
				p.ZeroGrad()
			}
			ids, targets := in.next()
			if _, err := backward(ctx, ddp, ids, targets); err != nil {
				return err
			}
		}
		if checked != 3 {
			return fmt.Errorf("the last gradient came %d times in 3 passes", checked)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// forked uses one of two layers, by rank or not.
type forked struct {
	First, A, B, Last *nn.Linear
	useB              bool
}

func newForked(seed int64, useB bool) *forked {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	return &forked{nn.NewLinear(b, 4, 4), nn.NewLinear(b, 4, 4), nn.NewLinear(b, 4, 4), nn.NewLinear(b, 4, 3), useB}
}

func (m *forked) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	middle := m.A
	if m.useB {
		middle = m.B
	}
	return c.Call(m.Last, c.Call(middle, c.Call(m.First, x)))
}

func TestUnusedParameter(t *testing.T) {
	rows := []float32{1, 2, 3, 4, -1, 0.5, 2, -3}
	for name, useB := range map[string][]bool{"on one rank": {false, true}, "on all": {false, false}} {
		t.Run(name, func(t *testing.T) {
			// By hand: the mean of what each rank would compute alone.
			want := make(map[string][]float32)
			for r := range 2 {
				m := newForked(1, useB[r])
				for _, p := range nn.Parameters(m) {
					if want[p.Name()] == nil {
						want[p.Name()] = make([]float32, p.Data().NumElems())
					}
				}
				if _, err := backward(t.Context(), m, tensor.FromFloat32(rows[4*r:4*r+4], 1, 4), tensor.FromInt64([]int64{1})); err != nil {
					t.Fatal(err)
				}
				for name, g := range gradients(m) {
					for i, v := range g {
						want[name][i] += v / 2
					}
				}
			}
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				m := newForked(1, useB[g.Rank()])
				ddp, err := NewDDP(ctx, m, g, WithBucketBytes(16, 16))
				if err != nil {
					return err
				}
				for pass := range 2 {
					for _, p := range nn.Parameters(m) {
						p.ZeroGrad()
					}
					r := g.Rank()
					if _, err := backward(ctx, ddp, tensor.FromFloat32(rows[4*r:4*r+4], 1, 4), tensor.FromInt64([]int64{1})); err != nil {
						return err
					}
					for name, got := range gradients(m) {
						for i, v := range got {
							if !(math.Abs(float64(v-want[name][i])) <= 1e-6) {
								return fmt.Errorf("pass %d: gradient of %s is %v, want %v", pass, name, got, want[name])
							}
						}
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

// TestFrozenAndEmptyParameters: a frozen parameter comes from rank 0 and gets
// no gradient, whether it was frozen before or after DDP; one without elements
// is no trouble.
func TestFrozenAndEmptyParameters(t *testing.T) {
	type model struct {
		*forked
		Empty *nn.Parameter
		Count *nn.Buffer
	}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := &model{newForked(int64(g.Rank()), false), nn.NewParameter(tensor.Zeros(0, 3)), &nn.Buffer{Data: tensor.FromInt64([]int64{int64(5 + g.Rank())})}}
		m.First.Weight.Frozen = true
		ddp, err := NewDDP(ctx, m, g, WithBucketBytes(64, 64))
		if err != nil {
			return err
		}
		if got, want := len(nn.Parameters(ddp)), len(nn.Parameters(m)); got != want {
			return fmt.Errorf("the DDP shows %d parameters of %d", got, want)
		}
		m.A.Weight.Frozen = true
		if _, err := backward(ctx, ddp, tensor.FromFloat32([]float32{1, 2, 3, float32(g.Rank())}, 1, 4), tensor.FromInt64([]int64{2})); err != nil {
			return err
		}
		if m.Count.Data.Item() != 5 {
			return fmt.Errorf("the int64 buffer is %v, rank 0's 5", m.Count.Data.Item())
		}
		for _, p := range nn.Parameters(m) {
			unused := strings.HasPrefix(p.Name(), "b.") || p.Name() == "empty" // on every rank
			if (p.Grad() == nil) != (p.Frozen || unused) {
				return fmt.Errorf("%s: frozen %t, gradient %v", p.Name(), p.Frozen, p.Grad())
			}
		}
		if want := newForked(0, false).First.Weight.Data().Float32s(); !slices.Equal(m.First.Weight.Data().Float32s(), want) {
			return fmt.Errorf("rank %d: the frozen weight is not rank 0's", g.Rank())
		}
		m.First.Weight.Frozen = false
		if _, err := backward(ctx, ddp, tensor.FromFloat32([]float32{1, 2, 3, 4}, 1, 4), tensor.FromInt64([]int64{2})); err == nil || !strings.Contains(err.Error(), "first.weight was frozen") {
			return fmt.Errorf("a parameter that thaws gives %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDefaultBuckets: without an option, the bucket that is full last has about an eighth of the
// gradients, and no bucket is tiny or huge.
func TestDefaultBuckets(t *testing.T) {
	for total, want := range map[int]int{0: 1 << 20, 1 << 20: 1 << 20, 80 << 20: 10 << 20, 1 << 40: 25 << 20} {
		if got := bucketSize(total); got != want {
			t.Errorf("gradients of %d bytes have buckets of %d, want %d", total, got, want)
		}
	}
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		b := &nn.Build{Generator: tensor.NewGenerator(1)}
		m := nn.NewSequential()
		for range 24 {
			m.Layers = append(m.Layers, nn.NewLinear(b, 512, 512))
		}
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		buckets := nativeOf(ddp).buckets
		last := buckets[len(buckets)-1].flat.NumElems()
		if share := float64(last) / float64(nn.NumParams(m)); len(buckets) < 8 || share > 0.2 {
			return fmt.Errorf("%d buckets, the last of which has %.2f of the gradients", len(buckets), share)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
