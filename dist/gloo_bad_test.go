// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPyTorchMismatches has a PyTorch rank call something other than the Go rank:
// the Go rank says who sent what, and the PyTorch rank gets an exception, where one
// message too large would end its process.
func TestPyTorchMismatches(t *testing.T) {
	t.Parallel()
	reduceOf := func(n int) func(ctx context.Context, g *Group) error {
		return func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, filled(tensor.Float32, n, g.Rank()), Sum)
		}
	}
	for _, tc := range []struct {
		name  string
		steps []pyStep
		main  func(ctx context.Context, g *Group) error
		want  string
	}{
		{"more elements", []pyStep{{Op: "all_reduce", Count: 3000}}, reduceOf(10), "all_reduce"},
		{"fewer elements", []pyStep{{Op: "all_reduce", Count: 10}}, reduceOf(3000), "all_reduce"},
		{"wider elements", []pyStep{{Op: "all_reduce", Count: 1000, DType: "float64"}}, reduceOf(1000), "all_reduce"},
		{"another collective", []pyStep{{Op: "all_gather_list", Count: 10, Parts: "even"}}, reduceOf(10), "all_reduce"},
		{"a pickle", []pyStep{{Op: "all_gather_object"}}, reduceOf(10), "all_reduce"},
		{"a longer message", []pyStep{{Op: "send", Count: 3000}}, func(ctx context.Context, g *Group) error {
			sent := g.SendAsync(ctx, filled(tensor.Float32, 3000, 0), 1-g.Rank())
			return errors.Join(g.Recv(ctx, filled(tensor.Float32, 10, 0), 1-g.Rank()), sent.Wait(ctx))
		}, "recv"},
		{"a shorter place for a message", []pyStep{{Op: "send", Count: 10}}, func(ctx context.Context, g *Group) error {
			got := g.RecvAsync(ctx, filled(tensor.Float32, 10, 0), 1-g.Rank())
			return errors.Join(g.Send(ctx, filled(tensor.Float32, 3000, 0), 1-g.Rank()), got.Wait(ctx))
		}, "send"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachPython(t, func(t *testing.T, p *python) {
				for place := range 2 {
					o := mixedJob{python: p, size: 2, goes: []int{place}}.run(t, tc.steps, tc.main)
					err, answer := o.errs[place], o.answers[1-place]
					var blamed *RankError
					var wire *WireError
					if !errors.As(err, &blamed) || blamed.Rank != 1-place || !errors.As(err, &wire) || wire.Sent == "" || !strings.HasPrefix(wire.Call, tc.want) || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("the Go rank %d says %v", place, err)
					}
					if answer.died != nil || answer.Error == "" {
						t.Errorf("the PyTorch rank says %q, %v", answer.Error, answer.died)
					}
				}
			})
		})
	}
}

// TestPyTorchDies ends a PyTorch rank in the middle of a job; -pytorch.all: in every place.
func TestPyTorchDies(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for place := range 3 {
			if place > 0 && !*allPyTorch { // each takes a new process
				break
			}
			dies := (place + 1) % 3
			var took time.Duration
			m := mixedJob{python: p, size: 3, goes: []int{place, (place + 2) % 3}}
			o := m.run(t, []pyStep{{Op: "all_reduce", Count: 1000}, {Op: "exit", Code: 3}}, func(ctx context.Context, g *Group) error {
				c := one{op: operationNamed("all_reduce"), dtype: tensor.Float32, layout: "dense", count: 1000}
				if err := c.run(ctx, g); err != nil {
					return err
				}
				begun := time.Now()
				err := c.run(ctx, g)
				if g.Rank() == place {
					took = time.Since(begun)
				}
				return err
			})
			for _, r := range m.goes {
				var blamed *RankError
				if !errors.As(o.errs[r], &blamed) || blamed.Rank != dies || !errors.Is(o.errs[r], ErrGone) {
					t.Errorf("rank %d says %v, want that rank %d has gone", r, o.errs[r], dies)
				}
			}
			if took > loaded.Allow(5*time.Second) {
				t.Errorf("rank %d took %v", place, took)
			}
		}
	})
}

// TestPyTorchMonitors has a rank not come to a monitored barrier: rank 0 says who, and
// nobody's process ends.
func TestPyTorchMonitors(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		c := one{op: operationNamed("all_reduce"), dtype: tensor.Float32, layout: "dense", count: 10} // all have come
		steps := []pyStep{pyOf(c, 0), {Op: "monitored_barrier", DType: "uint8"}}
		o := mixedJob{python: p, size: 3, goes: []int{0, 2}}.run(t, steps, func(ctx context.Context, g *Group) error {
			if err := c.run(ctx, g); err != nil {
				return err
			}
			if g.Rank() == 2 {
				return g.Store().Wait(ctx, "go on")
			}
			limit, cancel := context.WithTimeout(ctx, waitLimit()) // in which the PyTorch rank comes
			defer cancel()
			err := g.MonitoredBarrier(limit)
			return errors.Join(err, g.Store().Set(ctx, "go on", nil))
		})
		var late *TimeoutError
		if !errors.As(o.errs[0], &late) || len(late.Missing) != 1 || late.Missing[0].Rank != 2 {
			t.Errorf("rank 0 says %v, want that rank 2 is missing", o.errs[0])
		}
		if a := o.answers[1]; a.died != nil || a.Error == "" {
			t.Errorf("the PyTorch rank says %q, %v", a.Error, a.died)
		}
	})
}

// TestPyTorchWorldSizes has ranks believe in jobs of other sizes.
func TestPyTorchWorldSizes(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for _, pySize := range []int{2, 4} {
			url := "tcp://" + freeAddr(t)
			peer := p.take(t, 1)[0]
			said := make(chan pyAnswer)
			go func() {
				said <- peer.play(pyJob{InitMethod: url, Rank: 1, Size: pySize, Timeout: 3})
				peer.kill()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			third := make(chan error)
			go func() { // who is as many as rank 0
				g, err := Init(ctx, WithBackend("gloo"), WithURL(url), WithRank(2, 3))
				if err == nil {
					_ = g.Close()
				}
				third <- err
			}()
			g, err := Init(ctx, WithBackend("gloo"), WithURL(url), WithRank(0, 3))
			if err == nil {
				_ = g.Close()
			}
			cancel()
			var blamed *RankError
			if !errors.As(err, &blamed) || blamed.Rank != 1 {
				t.Errorf("a rank 1 of %d ranks: rank 0 of 3 says %v", pySize, err)
			}
			if err := <-third; err == nil {
				t.Errorf("a rank 1 of %d ranks: rank 2 of 3 says nothing", pySize)
			}
			if a := <-said; a.Error == "" {
				t.Errorf("a rank 1 of %d ranks says nothing: %v", pySize, a.died)
			}
		}
	})
}

// TestPyTorchGenerations has ranks of two PyTorch generations come to one job.
func TestPyTorchGenerations(t *testing.T) {
	var old, young *python
	for _, p := range pythons(t) {
		if p.old() {
			old = p
		} else {
			young = p
		}
	}
	if old == nil || young == nil {
		t.Skip("it takes PyTorch 1.13 and a later one")
	}
	url := "tcp://" + freeAddr(t)
	said := make(chan pyAnswer)
	// Both before either begins: the other may take long to start.
	for i, peer := range []*pyRank{old.take(t, 1)[0], young.take(t, 1)[0]} {
		go func() {
			a := peer.play(pyJob{InitMethod: url, Rank: i + 1, Size: 3, Timeout: 5})
			peer.kill()
			said <- a
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := Init(ctx, WithBackend("gloo"), WithURL(url), WithRank(0, 3))
	if err == nil {
		_ = g.Close()
	}
	var blamed *RankError
	if !errors.As(err, &blamed) || blamed.Rank != 2 || !strings.Contains(err.Error(), "PyTorch 2") {
		t.Errorf("rank 0 says %v, want that rank 2 runs PyTorch 2", err)
	}
	for range 2 {
		if a := <-said; a.died != nil || a.Error == "" {
			t.Errorf("a PyTorch rank says %q, %v", a.Error, a.died)
		}
	}
}

// TestPyTorchLeft has Go's rank 0 give up on a job of which rank 1 comes to the store
// only, while a PyTorch rank waits to be connected with rank 0: by whom depends on their
// ports. The PyTorch rank hears of it at once, where 1.13 would wait for five times its
// limit, and its process goes on. -pytorch.product does so several times.
func TestPyTorchLeft(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for range map[bool]int{false: 1, true: 6}[*wholePyTorch] {
			url := "tcp://" + freeAddr(t)
			peer := p.take(t, 1)[0]
			said := make(chan pyAnswer, 1)
			go func() {
				a := peer.play(pyJob{InitMethod: url, Rank: 2, Size: 3, Timeout: 60})
				peer.kill()
				said <- a
			}()
			// 1.13 tries again to connect after a second, where nobody listens yet.
			ctx, cancel := context.WithTimeout(t.Context(), min(loaded.Allow(4*time.Second), 12*time.Second))
			comes := make(chan error, 1)
			go func() {
				c, err := store.DialPyTorch(ctx, strings.TrimPrefix(url, "tcp://"))
				if err == nil {
					defer c.Close()
					_, err = c.Join(ctx)
				}
				if err == nil { // 1.13 says where it is when it knows everybody's host
					err = c.Set(ctx, "default_pg/0/0/rank_1", []byte("host"))
				}
				comes <- err
				<-ctx.Done()
			}()
			g, err := Init(ctx, WithBackend("gloo"), WithURL(url), WithRank(0, 3))
			if err == nil {
				_ = g.Close()
			}
			left := time.Now()
			cancel()
			var late *TimeoutError
			if !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0].Rank != 1 {
				t.Errorf("rank 0 says %v, want that rank 1 is missing", err)
			}
			if err := <-comes; err != nil {
				t.Error(err)
			}
			a := <-said
			if took := time.Since(left); a.died != nil || a.Error == "" || took > loaded.Allow(10*time.Second) {
				t.Errorf("the PyTorch rank says %q, %v after %v", a.Error, a.died, took)
			}
		}
	})
}

// TestPyTorchSaidWrong says the other PyTorch than there is; -pytorch.all: as every rank.
func TestPyTorchSaidWrong(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		version := "1.13.1"
		if p.old() {
			version = "2.6"
		}
		for place := range 2 {
			if p.old() == (place == 0) && !*allPyTorch { // each takes a new process
				continue
			}
			o := mixedJob{python: p, size: 2, goes: []int{place}, opts: []Option{WithPyTorch(version)}, patience: 5 * time.Second}.run(t, nil, nil)
			if err := o.errs[place]; err == nil || !strings.Contains(err.Error(), "WithPyTorch says") && !strings.Contains(err.Error(), "it runs PyTorch 2") {
				t.Errorf("rank %d says %v", place, err)
			}
		}
	})
}

// TestPyTorchLimits asks a group with PyTorch members for what their Gloo does not
// have: that is refused, and the group goes on.
func TestPyTorchLimits(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		c := one{op: operationNamed("all_reduce"), dtype: tensor.Int32, layout: "dense", count: 100}
		o := mixedJob{python: p, size: 2, goes: []int{1}}.run(t, []pyStep{pyOf(c, 0)}, func(ctx context.Context, g *Group) error {
			x := filled(tensor.Float32, 4, 0)
			for name, try := range map[string]func() error{
				"all_reduce": func() error { return g.AllReduce(ctx, filled(tensor.Int64, 4, 0), Avg) },
				"all_gather": func() error {
					return g.AllGatherList(ctx, []*tensor.Tensor{x, filled(tensor.Float32, 3, 0)}, filled(tensor.Float32, 3, 0))
				},
				"broadcast": func() error {
					_, err := BroadcastObject(ctx, g, "text", 0)
					return err
				},
				"split": func() error {
					_, err := g.Split(ctx, 0, 0)
					return err
				},
			} {
				var refused *PyTorchError
				if err := try(); !errors.As(err, &refused) || refused.Op != name || refused.Rank != 1 {
					return fmt.Errorf("%s: got %v, want a PyTorchError", name, err)
				}
			}
			return c.run(ctx, g)
		})
		if err := o.err(); err != nil {
			t.Error(err)
		}
	})
}
