// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// The threads of the process stay.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// onEveryTransport runs ranks as goroutines, which share memory, and as ranks that know each other
// only through the environment.
func onEveryTransport(t *testing.T, n int, main func(ctx context.Context, g *dist.Group) error) {
	t.Helper()
	t.Run(fmt.Sprintf("goroutines/%d", n), func(t *testing.T) {
		if err := dist.Spawn(t.Context(), n, main); err != nil {
			t.Fatal(err)
		}
	})
	for _, kind := range []string{"shm", "tcp"} {
		t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
			t.Setenv("COHORT_TRANSPORT", kind)
			t.Setenv("COHORT_TOKEN", strings.Repeat("5a", 32)) // of this test's ranks
			address := freeAddress(t)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for r := range n {
				wg.Go(func() {
					g, err := dist.Init(t.Context(), dist.WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", address, r, n)))
					if err == nil {
						err = main(t.Context(), g)
						if err != nil {
							g.Fail(err)
						}
						err = errors.Join(err, g.Close())
					}
					errs[r] = err
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// freeAddress returns an address on which nobody listens at the moment, below the range from which
// the system takes ports for connections that go out.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// TestDistribute: what one rank has gets to all, is redistributed and comes back whole, over every
// transport.
func TestDistribute(t *testing.T) {
	seed := seeded.Of(t)
	for _, meshShape := range [][]int{{2}, {3}, {2, 2}, {3, 2}, {2, 2, 2}} {
		onEveryTransport(t, product(meshShape), func(ctx context.Context, g *dist.Group) error {
			m, err := New(ctx, g, axesOfShape(meshShape)...)
			if err != nil {
				return err
			}
			defer m.Close()
			r := rand.New(rand.NewPCG(seed, 0)) // the same on all ranks
			for range 6 {
				shape := drawShape(r)
				values := make([]float64, product(shape))
				for i := range values {
					values[i] = float64(r.IntN(100))
				}
				src := r.IntN(m.Size())
				first, second := drawPlacements(r, shape, meshShape, dist.Sum), drawPlacements(r, shape, meshShape, dist.Sum)
				var whole *tensor.Tensor
				if m.Rank() == src {
					whole = tensor.FromFloat64(values, len(values)).Reshape(shape...)
				}
				x, err := Distribute(ctx, whole, m, src, first...)
				if err != nil {
					return err
				}
				if x, err = x.Redistribute(ctx, second...); err != nil {
					return err
				}
				if x, err = FromLocal(ctx, x.Local, m, nil, second...); err != nil {
					return err
				}
				full, err := x.Full(ctx)
				if err != nil {
					return err
				}
				if got := float64s(full); !slices.Equal(got, values) || !slices.Equal(x.Shape, shape) {
					return fmt.Errorf("%v of %v over %v to %v: %v of shape %v, want %v", first, shape, meshShape, second, got, x.Shape, values)
				}
			}
			return nil
		})
	}
}

// TestCut: no rank sends anything, so one rank alone can cut for all.
func TestCut(t *testing.T) {
	whole := tensor.FromFloat64([]float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5, 2)
	for r := range 2 {
		m, err := Sketch(2*r, Axis{"dp", 2}, Axis{"tp", 2})
		if err != nil {
			t.Fatal(err)
		}
		x, err := Cut(whole, m, StridedShard(0, 2), Replicate())
		if err != nil {
			t.Fatal(err)
		}
		// The pieces of tp have three rows and two; dp takes two and one, and one and one.
		if want := [][]float64{{0, 1, 2, 3, 6, 7}, {4, 5, 8, 9}}[r]; !slices.Equal(float64s(x.Local), want) {
			t.Errorf("dp %d holds %v, want %v", r, float64s(x.Local), want)
		}
	}
}

func TestDistributeErrors(t *testing.T) {
	err := dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"dp", 2}, Axis{"tp", 2})
		if err != nil {
			return err
		}
		defer m.Close()
		part := tensor.Zeros(2, 3)
		uneven, wide, wrong := part, part, part
		switch g.Rank() {
		case 1:
			wrong = tensor.FromFloat64(make([]float64, 6), 2, 3)
		case 2:
			uneven = tensor.Zeros(1, 3)
		case 3:
			wide = nil
		}
		for _, c := range []struct {
			do   func() error
			want string
		}{
			{func() error { _, err := Distribute(ctx, nil, m, 0, Shard(0), Replicate()); return err }, "distribute from rank 0 over dp 2 × tp 2: that rank gave no tensor"},
			{func() error { _, err := Distribute(ctx, part, m, 0, Shard(2), Replicate()); return err }, "Shard(2) on axis 0: the tensor has 2 dims"},
			{func() error { _, err := Distribute(ctx, part, m, 4, Shard(0), Replicate()); return err }, "want a rank from 0 to 3"},
			{func() error { _, err := FromLocal(ctx, uneven, m, nil, Shard(0), Replicate()); return err }, "rank 3 at [1 1] has a part of shape [2 3], want [1 3]"},
			{func() error { _, err := FromLocal(ctx, wide, m, nil, Shard(0), Shard(1)); return err }, "rank 3 at [1 1] has no local tensor: give it one of shape [2 3]"},
			{func() error { _, err := FromLocal(ctx, wrong, m, []int{4, 3}, Shard(0), Replicate()); return err }, "rank 1 at [0 1] has a part of dtype float64, and rank 0 of float32"},
			{func() error { _, err := FromLocal(ctx, part, m, []int{4, 3}, Shard(0)); return err }, "the mesh has 2 axes, and there are 1 placements"},
		} {
			if err := c.do(); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("rank %d: error %v, want %q", g.Rank(), err, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
