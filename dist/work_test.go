// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestWaitNamesItsOperation: the error of a wait that its own context ends says for
// what, of which group and on which rank.
func TestWaitNamesItsOperation(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 0 {
			return g.Barrier(ctx)
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		limit, give := context.WithCancel(ctx)
		x := tensor.Zeros(3)
		for want, w := range map[string]*Work{
			`waiting for recv of 3 float32 from rank 0 of group "world" on rank 1: `: g.RecvAsync(limit, x, 0),
			`waiting for a batch of 2 messages of group "world" on rank 1: `:         g.BatchAsync(limit, Message{Tensor: x, Peer: 0, Recv: true}, Message{Tensor: x, Peer: 0, Recv: true}),
		} {
			if err := w.Wait(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		give()
		return nil
	})
	if err == nil {
		t.Error("rank 0's barrier passed alone")
	}
}

// TestHeldReceiveHasNoNumber: a receive that waits behind one from any rank is of
// no message yet.
func TestHeldReceiveHasNoNumber(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 0 {
			return g.Barrier(ctx)
		}
		first := g.RecvAnyAsync(ctx, tensor.Zeros(3))
		limit, cancel := context.WithCancel(ctx)
		held := g.RecvAsync(limit, tensor.Zeros(3), 0)
		cancel()
		for what, w := range map[string]*Work{"first": first, "held": held} {
			if err := w.Wait(ctx); err == nil || strings.Contains(err.Error(), "recv 0") || !strings.Contains(err.Error(), "recv of group") {
				t.Errorf("the %s receive gave %v", what, err)
			}
		}
		return nil
	})
	if err == nil {
		t.Error("rank 0's barrier passed alone")
	}
}
