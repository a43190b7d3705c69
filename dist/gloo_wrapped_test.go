// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/tensor"
)

// wrapped is what is said of a rank whose calls are to be compared.
const wrapped = "TORCH_DISTRIBUTED_DEBUG=DETAIL, with which PyTorch's ranks make groups"

// TestGlooWrapped has rank 1 of a job come as PyTorch's ranks do whose calls are to be
// compared: the Go rank, which waits for it in a call or in Init, says so, and it is told.
func TestGlooWrapped(t *testing.T) {
	t.Parallel()
	for version, prefix := range map[string]string{"1.13": "0", "2.15": "0//cpu/"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := store.NewMemory()
			old, keys, wrapper := version == "1.13", store.Prefix(s, prefix), store.Prefix(s, "pg_wrapper:0")
			if !old {
				wrapper = store.Prefix(keys, "pg_wrapper:0")
			}
			said := make(chan error, 1)
			go func() {
				cfg := gloo.Config{Group: "theirs", Rank: 1, Members: make([]Member, 2), Store: keys, Generation: gloo.PerDevice}
				if old {
					cfg.Generation = gloo.PerPair
				}
				b, err := gloo.Open(ctx, cfg)
				if err == nil {
					defer b.Close()
					cfg.Store = wrapper
					b, err = gloo.Open(ctx, cfg)
				}
				if err == nil && old {
					const key = "store_based_barrier_key:1"
					for n, _ := s.Add(ctx, key, 1); n < 2 && err == nil; n, err = s.Add(ctx, key, 0) {
						time.Sleep(time.Millisecond)
					}
				}
				if err == nil {
					defer b.Close()
					call := operation.Call{Op: operation.Barrier, Seq: 1}
					if err = b.MonitoredBarrier(ctx, call, true); err != nil {
						t.Errorf("before the Go rank knows, the other one says %v", err)
					}
					err = b.Collective(ctx, call, collective.Data{}, collective.Data{})
				}
				said <- err
			}()
			g, err := Init(ctx, WithBackend("gloo"), WithPyTorch(version), WithStore(s), WithRank(0, 2))
			if err == nil {
				err = g.AllReduce(ctx, filled(tensor.Float32, 4, 0), Sum)
				defer g.Close()
			}
			var blamed *RankError
			if !errors.As(err, &blamed) || blamed.Rank != 1 || !strings.Contains(err.Error(), wrapped) {
				t.Errorf("the Go rank says %v", err)
			}
			if err := <-said; err == nil || ctx.Err() != nil {
				t.Errorf("the other rank says %v", err)
			}
		})
	}
}

// TestPyTorchWrapped sets TORCH_DISTRIBUTED_DEBUG=DETAIL for a PyTorch rank alone: the Go ranks
// name it, and it gets an exception before its limit; -pytorch.all: in every place.
func TestPyTorchWrapped(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, p *python) {
		for place := range 3 {
			if place > 0 && !*allPyTorch { // each takes a new process
				break
			}
			m := mixedJob{python: p, size: 3, env: map[string]string{"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, fresh: true}
			m.goes = slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == place })
			begun := time.Now()
			o := m.run(t, []pyStep{{Op: "all_reduce", Count: 10}}, func(ctx context.Context, g *Group) error {
				return g.AllReduce(ctx, filled(tensor.Float32, 10, g.Rank()), Sum)
			})
			for _, r := range m.goes {
				var blamed *RankError
				if !errors.As(o.errs[r], &blamed) || blamed.Rank != place || !strings.Contains(o.errs[r].Error(), wrapped) {
					t.Errorf("rank %d says %v", r, o.errs[r])
				}
			}
			if a := o.answers[place]; a.died != nil || a.Error == "" {
				t.Errorf("the PyTorch rank says %q, %v", a.Error, a.died)
			} else {
				t.Logf("after %v: %s", time.Since(begun).Round(time.Millisecond), a.Error)
			}
		}
	})
}
