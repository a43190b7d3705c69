// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// Scatter fills dst on every rank r with rank src's srcs[r]; other ranks have
// no srcs. The sizes may differ between ranks.
func (g *Group) Scatter(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, src int) error {
	return g.call(g.scatter(ctx, dst, srcs, src))
}

// ScatterAsync starts a [Group.Scatter].
func (g *Group) ScatterAsync(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, src int) *Work {
	return g.callAsync(g.scatter(ctx, dst, srcs, src))
}

func (g *Group) scatter(ctx context.Context, dst *tensor.Tensor, srcs []*tensor.Tensor, src int) *request {
	r := g.newRequest(ctx, operation.Scatter)
	r.rooted("the source", src)
	r.lend(&r.out, "the destination", dst, true)
	r.of(r.out.data.DType, r.out.data.NumElems)
	if g.rank != src {
		r.none("source", len(srcs), src)
		return r
	}
	r.oneEach("source", len(srcs))
	r.lendAll(&r.in, "source", srcs, false)
	r.sameTypes()
	r.own("the destination", r.out.data.NumElems, "source", srcs)
	r.separate(-1)
	if r.uneven(srcs) {
		r.call.Parts = r.parts
	}
	return r
}
