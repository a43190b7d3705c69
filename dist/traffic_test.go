// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPredictedTraffic: on every transport, every collective gives as many bytes to other ranks
// as was predicted, whatever its size and wherever its data lies.
func TestPredictedTraffic(t *testing.T) {
	onEveryTransport(t, []int{1, 2, 3, 4}, func(ctx context.Context, g *Group) error {
		n := g.Size()
		for _, count := range []int{0, 1, 7, 4096, 30_001} {
			for _, shared := range []bool{false, true} {
				alloc := tensor.New
				if shared {
					alloc = tensor.NewShared
				}
				vector := func(n int) *tensor.Tensor {
					v := alloc(tensor.CPU(), tensor.Float32, n)
					v.Fill(1)
					return v
				}
				for _, c := range []struct {
					op  operation.Op
					run func() error
				}{
					{operation.AllReduce, func() error { return g.AllReduce(ctx, vector(count), Sum) }},
					{operation.Broadcast, func() error { return g.Broadcast(ctx, vector(count), 0) }},
					{operation.AllGather, func() error { return g.AllGather(ctx, vector(n*count), vector(count)) }},
					{operation.ReduceScatter, func() error { return g.ReduceScatter(ctx, vector(count), vector(n*count), Sum) }},
					{operation.AllToAll, func() error { return g.AllToAllSingle(ctx, vector(n*count), vector(n*count), nil, nil) }},
				} {
					call := operation.Call{Op: c.op, DType: operation.Float32, Count: count}
					if c.op.Reduces() {
						call.Reduce = Sum
					}
					want, err := g.PredictSent(call, shared)
					if err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					before := g.Traffic()
					if err := c.run(); err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					spent := g.Traffic().Since(before)
					if spent.SentBytes != want {
						return fmt.Errorf("rank %d of %d over %s, shared %v: %v gave %d bytes to others, predicted were %d", g.Rank(), n, g.Transport(), shared, call, spent.SentBytes, want)
					}
					if given := want > 0; given != (n > 1 && count > 0) && c.op != operation.Broadcast {
						return fmt.Errorf("%v of %d ranks was predicted to give %d bytes", call, n, want)
					}
				}
			}
		}
		return nil
	})
}

// TestTrafficOfMessages: a message counts for the rank that sends it, once.
func TestTrafficOfMessages(t *testing.T) {
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		for _, count := range []int{1, 5000, 300_000} {
			v := tensor.Zeros(count)
			before, want := g.Traffic(), int64(0)
			var err error
			if g.Rank() == 0 {
				err, want = g.Send(ctx, v, 1), int64(4*count)
			} else {
				err = g.Recv(ctx, v, 0)
			}
			if err != nil {
				return err
			}
			if got := g.Traffic().Since(before).SentBytes; got != want {
				return fmt.Errorf("rank %d: a message of %d bytes counts as %d", g.Rank(), 4*count, got)
			}
		}
		return nil
	})
}

// TestTrafficOfSubgroups: the group counts what the groups give that were made from it.
func TestTrafficOfSubgroups(t *testing.T) {
	err := Spawn(t.Context(), 4, func(ctx context.Context, g *Group) error {
		half, err := g.Split(ctx, g.Rank()/2, 0)
		if err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil { // the split has ended on all ranks
			return err
		}
		before := g.Traffic()
		if err := half.AllReduce(ctx, tensor.Zeros(10_000), Sum); err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		spent := g.Traffic().Since(before)
		if spent.SentBytes != 40_000 || spent.Waited <= 0 {
			return fmt.Errorf("an all-reduce of 40000 bytes between two ranks counts as %+v", spent)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
