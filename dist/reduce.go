// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// AllReduce replaces t on every rank by its reduction over all ranks, element
// by element. Every rank gets the same bits.
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error {
	return g.call(g.allReduce(ctx, t, op))
}

// AllReduceAsync starts an [Group.AllReduce].
func (g *Group) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op ReduceOp) *Work {
	return g.callAsync(g.allReduce(ctx, t, op))
}

func (g *Group) allReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.AllReduce)
	r.inPlace, r.loads, r.stores = true, true, true
	r.lend(&r.in, "the tensor", t, true)
	r.reduces(op)
	return r
}

// AllReduceCoalesced does an [Group.AllReduce] of each of the tensors, which have one
// type of elements, in one operation.
func (g *Group) AllReduceCoalesced(ctx context.Context, ts []*tensor.Tensor, op ReduceOp) error {
	return g.call(g.allReduceCoalesced(ctx, ts, op))
}

// AllReduceCoalescedAsync starts an [Group.AllReduceCoalesced].
func (g *Group) AllReduceCoalescedAsync(ctx context.Context, ts []*tensor.Tensor, op ReduceOp) *Work {
	return g.callAsync(g.allReduceCoalesced(ctx, ts, op))
}

func (g *Group) allReduceCoalesced(ctx context.Context, ts []*tensor.Tensor, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.AllReduce)
	r.inPlace, r.loads, r.stores = true, true, true
	r.lendAll(&r.in, "tensor", ts, true)
	r.reduces(op)
	return r
}

// Reduce replaces t on rank dst by its reduction over all ranks, element by
// element. On the other ranks t stays as it is.
func (g *Group) Reduce(ctx context.Context, t *tensor.Tensor, dst int, op ReduceOp) error {
	return g.call(g.reduce(ctx, t, dst, op))
}

// ReduceAsync starts a [Group.Reduce].
func (g *Group) ReduceAsync(ctx context.Context, t *tensor.Tensor, dst int, op ReduceOp) *Work {
	return g.callAsync(g.reduce(ctx, t, dst, op))
}

func (g *Group) reduce(ctx context.Context, t *tensor.Tensor, dst int, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.Reduce)
	r.rooted("the destination", dst)
	r.inPlace, r.loads, r.stores = true, true, g.rank == dst
	r.lend(&r.in, "the tensor", t, g.rank == dst)
	r.reduces(op)
	return r
}

// ReduceScatter fills dst with this rank's part of the reduction of src over
// all ranks, element by element: rank r gets elements r·m to (r+1)·m of it,
// where m is the number of dst's elements. src has Size times as many and stays
// as it is.
func (g *Group) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) error {
	return g.call(g.reduceScatter(ctx, dst, src, op))
}

// ReduceScatterAsync starts a [Group.ReduceScatter].
func (g *Group) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) *Work {
	return g.callAsync(g.reduceScatter(ctx, dst, src, op))
}

func (g *Group) reduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.ReduceScatter)
	r.lend(&r.out, "the destination", dst, true)
	r.lend(&r.in, "the source", src, false)
	r.sameTypes()
	n := r.out.data.NumElems
	r.sized("the source", r.in.data.NumElems, n)
	r.separate(-1)
	r.reduces(op)
	r.call.Count = n
	return r
}

// ReduceScatterList fills dst with the reduction over all ranks of the tensor
// in their srcs that has this rank's number. srcs has one tensor for each
// rank; their sizes may differ, but are the same on all ranks.
func (g *Group) ReduceScatterList(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, op ReduceOp) error {
	return g.call(g.reduceScatterList(ctx, dst, srcs, op))
}

// ReduceScatterListAsync starts a [Group.ReduceScatterList].
func (g *Group) ReduceScatterListAsync(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, op ReduceOp) *Work {
	return g.callAsync(g.reduceScatterList(ctx, dst, srcs, op))
}

func (g *Group) reduceScatterList(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.ReduceScatter)
	r.lend(&r.out, "the destination", dst, true)
	r.oneEach("source", len(srcs))
	r.lendAll(&r.in, "source", srcs, false)
	r.sameTypes()
	r.own("the destination", r.out.data.NumElems, "source", srcs)
	r.separate(-1)
	r.reduces(op)
	r.partsOf(srcs)
	if g.rules != nil && r.err == nil {
		r.instead, r.err = g.rules.ReduceScatterList(ctx)
	}
	return r
}

// ReduceScatterCoalesced does a [Group.ReduceScatter] of each of the srcs into
// the dst of the same index, in one operation. All have one type of elements.
func (g *Group) ReduceScatterCoalesced(ctx context.Context, dsts, srcs []*tensor.Tensor, op ReduceOp) error {
	return g.call(g.reduceScatterCoalesced(ctx, dsts, srcs, op))
}

// ReduceScatterCoalescedAsync starts a [Group.ReduceScatterCoalesced].
func (g *Group) ReduceScatterCoalescedAsync(ctx context.Context, dsts, srcs []*tensor.Tensor, op ReduceOp) *Work {
	return g.callAsync(g.reduceScatterCoalesced(ctx, dsts, srcs, op))
}

func (g *Group) reduceScatterCoalesced(ctx context.Context, dsts, srcs []*tensor.Tensor, op ReduceOp) *request {
	r := g.newRequest(ctx, operation.ReduceScatter)
	r.lendAll(&r.out, "destination", dsts, true)
	r.lendAll(&r.in, "source", srcs, false)
	r.sameTypes()
	r.interleave(&r.in, "source", srcs, "destination", dsts)
	r.separate(-1)
	r.reduces(op)
	r.call.Count = r.out.data.NumElems
	return r
}
