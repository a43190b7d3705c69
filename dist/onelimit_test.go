// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// TestOneLimitACall has what a call waits for come one after the other, each well within
// the limit after the one before: a call has one limit, not one for each rank or message.
func TestOneLimitACall(t *testing.T) {
	const n = 5
	allReduce := func(numElems int) func(context.Context, *Group) error {
		return func(ctx context.Context, g *Group) error { return g.AllReduce(ctx, vec(numElems), Sum) }
	}
	gather := func(ctx context.Context, g *Group) error {
		_, err := GatherObject(ctx, g, g.Rank(), 0)
		return err
	}
	calls := []struct {
		name   string
		awaits func(ctx context.Context, g *Group) error          // what rank 0 calls
		others func(ctx context.Context, g *Group, num int) error // what the others call, after num times the pace
	}{
		{name: "barrier", awaits: func(ctx context.Context, g *Group) error { return g.Barrier(ctx) }},
		{name: "all_reduce", awaits: allReduce(4)},
		{name: "large", awaits: allReduce(1 << 16)},
		{name: "gather_object", awaits: gather},
		{name: "recv_object",
			awaits: func(ctx context.Context, g *Group) error {
				_, err := RecvObject[string](ctx, g, 1)
				return err
			},
			others: func(ctx context.Context, g *Group, num int) error {
				part := numbers([]int64{3})
				if num > 1 {
					part = rawBytes([]byte(`"a"`))
				}
				return g.raw(ctx, time.Now(), operation.Send, 0, part, collective.Data{}, nil)
			}},
		{name: "batch",
			awaits: func(ctx context.Context, g *Group) error {
				a, b := vec(4), vec(4)
				return g.Batch(ctx, Message{Recv: true, Tensor: a, Peer: 1}, Message{Recv: true, Tensor: b, Peer: 1})
			},
			others: func(ctx context.Context, g *Group, _ int) error { return g.Send(ctx, vec(4), 0) }},
	}
	for _, tr := range transports {
		for _, tc := range calls {
			t.Run(tr.name+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				// The load counts that this case meets, not the one before it could begin.
				limit := loaded.Allow(300 * time.Millisecond) // in which the group must be formed, too
				pace := limit * 6 / 10
				begun, over := make(chan struct{}), make(chan struct{})
				err := tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
					if g.Rank() == 0 {
						close(begun)
						defer close(over)
						var late *TimeoutError
						if err := tc.awaits(ctx, g); !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("the last came after far more than %v, and the error is: %v", limit, err)
						}
						return nil
					}
					<-begun
					nums, call := []int{g.Rank()}, tc.others
					switch {
					case call == nil:
						call = func(ctx context.Context, g *Group, _ int) error { return tc.awaits(ctx, g) }
					case g.Rank() == 1:
						nums = []int{1, 2}
					default:
						nums = nil
					}
					start := time.Now()
					for _, num := range nums {
						late := time.NewTimer(time.Until(start.Add(time.Duration(num) * pace)))
						select {
						case <-late.C:
							_ = call(ctx, g, num)
						case <-over:
							late.Stop()
						}
					}
					<-over
					return nil
				}, WithTimeout(limit))
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
