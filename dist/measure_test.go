// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// measure prints the time of collectives as the wall time of a loop closed by
// a barrier, divided by its length; the median of several loops.
func measure(ctx context.Context, g *Group) error {
	timed := func(reps int, f func() error) (time.Duration, error) {
		var took []time.Duration
		for range 5 {
			if err := g.Barrier(ctx); err != nil {
				return 0, err
			}
			start := time.Now()
			for range reps {
				if err := f(); err != nil {
					return 0, err
				}
			}
			if err := g.Barrier(ctx); err != nil {
				return 0, err
			}
			took = append(took, time.Since(start)/time.Duration(reps))
		}
		slices.Sort(took)
		return took[len(took)/2], nil
	}
	for _, size := range []int{4, 4096, 65536, 1 << 20, 16 << 20, 64 << 20} {
		reps := min(2000, max(7, (32<<20)/size))
		for _, where := range []string{"slab", "private"} {
			n := size / 4
			x, all := private(collective.Float32, n), private(collective.Float32, n*g.Size())
			if where == "slab" {
				var err error
				if x, err = slabbed(collective.Float32, n); err != nil {
					return err
				}
				if all, err = slabbed(collective.Float32, n*g.Size()); err != nil {
					return err
				}
			}
			for i := range n {
				set(x, i, 1)
			}
			for _, c := range []struct {
				name string
				f    func() error
			}{
				{"all_reduce", func() error { return g.run(g.allReduce(ctx, x, Max)) }},
				{"all_reduce_sum", func() error { return g.run(g.allReduce(ctx, x, Sum)) }},
				{"broadcast", func() error { return g.run(g.broadcast(ctx, x, 0)) }},
				{"all_gather", func() error { return g.run(g.allGather(ctx, all, x)) }},
				{"reduce_scatter", func() error {
					src, dst := x, all
					dst.NumElems = n / g.Size()
					src.NumElems = dst.NumElems * g.Size()
					return g.run(g.reduceScatter(ctx, dst, src, Max))
				}},
				{"sendrecv_roundtrip", func() error {
					if g.Rank() > 1 {
						return nil
					}
					if g.Rank() == 0 {
						if err := g.run(g.send(ctx, x, 1)); err != nil {
							return err
						}
						return g.run(g.recv(ctx, x, 1))
					}
					if err := g.run(g.recv(ctx, x, 0)); err != nil {
						return err
					}
					return g.run(g.send(ctx, x, 0))
				}},
			} {
				if err := c.f(); err != nil {
					return err
				}
				took, err := timed(reps, c.f)
				if err != nil {
					return err
				}
				if g.Rank() == 0 {
					fmt.Printf("%s %s %s %d %.1fus %.3fGB/s\n", g.Transport(), where, c.name, size,
						float64(took)/1e3, float64(size)/took.Seconds()/1e9)
				}
			}
			if x.Buffer.Slab != nil {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				_ = x.Buffer.Slab.Close()
				_ = all.Buffer.Slab.Close()
			}
		}
	}
	took, err := timed(2000, func() error { return g.Barrier(ctx) })
	if g.Rank() == 0 {
		fmt.Printf("%s - barrier 0 %.1fus\n", g.Transport(), float64(took)/1e3)
	}
	return err
}

// overlap prints the time of a step of matrix products on one thread, alone
// and with asynchronous all-reduces that begin during it, as DDP's do.
func overlap(ctx context.Context, g *Group) error {
	const size, products, bytes = 512, 24, 4 << 20
	a, b, c := make([]float32, size*size), make([]float32, size*size), make([]float32, size*size)
	buckets := make([]collective.Data, 4)
	for i := range buckets {
		var err error
		if buckets[i], err = slabbed(collective.Float32, bytes/4); err != nil {
			return err
		}
	}
	step := func(reduce bool) error {
		var works []*Work
		for i := range products {
			kernel.Gemm(nil, size, size, size, 1, kernel.Matrix{Data: a, Stride: size}, kernel.Matrix{Data: b, Stride: size}, 0, c, size, nil)
			if every := products / len(buckets); reduce && i%every == every-1 {
				works = append(works, g.runAsync(g.allReduce(ctx, buckets[i/every], Max)))
			}
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	var took [2][]time.Duration
	for i := range 42 {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		start := time.Now()
		if err := step(i%2 == 1); err != nil {
			return err
		}
		if i >= 2 {
			took[i%2] = append(took[i%2], time.Since(start))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	alone, with := took[0][len(took[0])/2], took[1][len(took[1])/2]
	fmt.Printf("rank %d: step alone %v, with %d all-reduces of %d bytes %v: %.3f\n", g.Rank(), alone, len(buckets), bytes, with, float64(with)/float64(alone))
	return nil
}

// TestMeasure prints figures when asked: DIST_MEASURE=2 go test -run Measure -v
// ./dist (with DIST_MEASURE_OVERLAP=1 those of overlap).
func TestMeasure(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("DIST_MEASURE"))
	if err != nil {
		t.Skip("DIST_MEASURE is not set to a number of ranks")
	}
	what := "measure"
	if os.Getenv("DIST_MEASURE_OVERLAP") != "" {
		what = "overlap"
	}
	ps := startRanks(t, n, what)
	for _, p := range ps {
		if err := p.await(t, 5*time.Minute); err != nil {
			t.Error(err)
		}
		fmt.Print(p.output())
	}
}
