// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// Broadcast replaces t on every rank by rank src's.
func (g *Group) Broadcast(ctx context.Context, t *tensor.Tensor, src int) error {
	return g.call(g.broadcast(ctx, t, src))
}

// BroadcastAsync starts a [Group.Broadcast].
func (g *Group) BroadcastAsync(ctx context.Context, t *tensor.Tensor, src int) *Work {
	return g.callAsync(g.broadcast(ctx, t, src))
}

func (g *Group) broadcast(ctx context.Context, t *tensor.Tensor, src int) *request {
	r := g.newBroadcast(ctx, src)
	r.lend(&r.in, "the tensor", t, r.stores)
	r.of(r.in.data.DType, r.in.data.NumElems)
	return r
}

// BroadcastCoalesced does a [Group.Broadcast] of each of the tensors, which have one
// type of elements, in one operation.
func (g *Group) BroadcastCoalesced(ctx context.Context, ts []*tensor.Tensor, src int) error {
	return g.call(g.broadcastCoalesced(ctx, ts, src))
}

// BroadcastCoalescedAsync starts a [Group.BroadcastCoalesced].
func (g *Group) BroadcastCoalescedAsync(ctx context.Context, ts []*tensor.Tensor, src int) *Work {
	return g.callAsync(g.broadcastCoalesced(ctx, ts, src))
}

func (g *Group) broadcastCoalesced(ctx context.Context, ts []*tensor.Tensor, src int) *request {
	r := g.newBroadcast(ctx, src)
	r.lendAll(&r.in, "tensor", ts, r.stores)
	r.of(r.in.data.DType, r.in.data.NumElems)
	return r
}

func (g *Group) newBroadcast(ctx context.Context, src int) *request {
	r := g.newRequest(ctx, operation.Broadcast)
	r.rooted("the source", src)
	r.inPlace, r.loads, r.stores = true, g.rank == src, g.rank != src
	return r
}
