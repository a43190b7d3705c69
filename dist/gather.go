// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// AllGather fills dst with every rank's src, back to back in rank order: dst
// has Size times the elements of src. src may be its own rank's part of dst.
func (g *Group) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return g.call(g.allGather(ctx, dst, src))
}

// AllGatherAsync starts an [Group.AllGather].
func (g *Group) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return g.callAsync(g.allGather(ctx, dst, src))
}

func (g *Group) allGather(ctx context.Context, dst, src *tensor.Tensor) *request {
	r := g.newRequest(ctx, operation.AllGather)
	r.lend(&r.out, "the destination", dst, true)
	r.lend(&r.in, "the source", src, false)
	r.sameTypes()
	n := r.in.data.NumElems
	r.sized("the destination", r.out.data.NumElems, n)
	r.separate(g.rank * n)
	r.of(r.in.data.DType, n)
	return r
}

// AllGatherList fills dsts[r] with rank r's src. The sizes may differ between
// ranks; every rank's dsts have them.
func (g *Group) AllGatherList(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor) error {
	return g.call(g.allGatherList(ctx, dsts, src))
}

// AllGatherListAsync starts an [Group.AllGatherList].
func (g *Group) AllGatherListAsync(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor) *Work {
	return g.callAsync(g.allGatherList(ctx, dsts, src))
}

func (g *Group) allGatherList(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor) *request {
	r := g.newRequest(ctx, operation.AllGather)
	r.oneEach("destination", len(dsts))
	r.lendAll(&r.out, "destination", dsts, true)
	r.lend(&r.in, "the source", src, false)
	r.sameTypes()
	r.own("the source", r.in.data.NumElems, "destination", dsts)
	r.separate(r.before(dsts))
	r.call.DType = r.in.data.DType
	r.partsOf(dsts)
	return r
}

// AllGatherCoalesced does an [Group.AllGather] of each of the srcs into the
// dst of the same index, in one operation. All have one type of elements.
func (g *Group) AllGatherCoalesced(ctx context.Context, dsts, srcs []*tensor.Tensor) error {
	return g.call(g.allGatherCoalesced(ctx, dsts, srcs))
}

// AllGatherCoalescedAsync starts an [Group.AllGatherCoalesced].
func (g *Group) AllGatherCoalescedAsync(ctx context.Context, dsts, srcs []*tensor.Tensor) *Work {
	return g.callAsync(g.allGatherCoalesced(ctx, dsts, srcs))
}

func (g *Group) allGatherCoalesced(ctx context.Context, dsts, srcs []*tensor.Tensor) *request {
	r := g.newRequest(ctx, operation.AllGather)
	r.lendAll(&r.out, "destination", dsts, true)
	r.lendAll(&r.in, "source", srcs, false)
	r.sameTypes()
	r.interleave(&r.out, "destination", dsts, "source", srcs)
	r.separate(g.rank * r.in.data.NumElems)
	r.of(r.in.data.DType, r.in.data.NumElems)
	return r
}

// Gather fills dsts[r] with rank r's src, on rank dst; other ranks have no
// dsts. The sizes may differ between ranks.
func (g *Group) Gather(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor, dst int) error {
	return g.call(g.gather(ctx, dsts, src, dst))
}

// GatherAsync starts a [Group.Gather].
func (g *Group) GatherAsync(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor, dst int) *Work {
	return g.callAsync(g.gather(ctx, dsts, src, dst))
}

func (g *Group) gather(ctx context.Context, dsts []*tensor.Tensor, src *tensor.Tensor, dst int) *request {
	r := g.newRequest(ctx, operation.Gather)
	r.rooted("the destination", dst)
	r.lend(&r.in, "the source", src, false)
	r.of(r.in.data.DType, r.in.data.NumElems)
	if g.rank != dst {
		r.none("destination", len(dsts), dst)
		return r
	}
	r.oneEach("destination", len(dsts))
	r.lendAll(&r.out, "destination", dsts, true)
	r.sameTypes()
	r.own("the source", r.in.data.NumElems, "destination", dsts)
	r.separate(r.before(dsts))
	if r.uneven(dsts) {
		r.call.Parts = r.parts
	}
	return r
}
