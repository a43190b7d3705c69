// SPDX-License-Identifier: Apache-2.0

//go:build !race

package dist

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestSteadyCallsAllocateNothing counts allocations of operations that are
// repeated: what they need is used again, also where tensors are packed.
func TestSteadyCallsAllocateNothing(t *testing.T) {
	g := alone(t)
	ctx := context.Background()
	x, y := tensor.Zeros(1000), tensor.Zeros(1000)
	column := tensor.Zeros(1000, 2).Select(1, 0)
	list := []*tensor.Tensor{tensor.Zeros(3), column, tensor.Zeros(5)}
	outs := []*tensor.Tensor{tensor.Zeros(3), tensor.Zeros(1000), tensor.Zeros(5)}
	for _, tc := range []struct {
		name string
		most float64 // the copies in the plan of a group of one rank are one
		call func() error
	}{
		{"barrier", 0, func() error { return g.Barrier(ctx) }},
		{"all_reduce", 0, func() error { return g.AllReduce(ctx, x, Sum) }},
		{"all_gather", 1, func() error { return g.AllGather(ctx, y, x) }},
		{"packed all_reduce", 0, func() error { return g.AllReduce(ctx, column, Sum) }},
		{"all_reduce_coalesced", 0, func() error { return g.AllReduceCoalesced(ctx, list, Sum) }},
		{"broadcast_coalesced", 0, func() error { return g.BroadcastCoalesced(ctx, list, 0) }},
		{"reduce_scatter_coalesced", 1, func() error { return g.ReduceScatterCoalesced(ctx, outs, list, Sum) }},
	} {
		var err error
		n := testing.AllocsPerRun(100, func() {
			if e := tc.call(); e != nil {
				err = e
			}
		})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if n > tc.most {
			t.Errorf("%s: %v allocations a call, want at most %v", tc.name, n, tc.most)
		}
	}
	if n := len(g.staging.free); n != 1 {
		t.Errorf("%d slabs of staging memory, want 1 for calls that follow each other", n)
	}
}
