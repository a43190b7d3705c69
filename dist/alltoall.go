// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// AllToAll sends srcs[r] to every rank r and fills dsts[r] with what rank r
// sends to this one. All sizes may differ; the receiver of each tensor has one
// of as many elements for it.
func (g *Group) AllToAll(ctx context.Context, dsts, srcs []*tensor.Tensor) error {
	return g.call(g.allToAll(ctx, dsts, srcs))
}

// AllToAllAsync starts an [Group.AllToAll].
func (g *Group) AllToAllAsync(ctx context.Context, dsts, srcs []*tensor.Tensor) *Work {
	return g.callAsync(g.allToAll(ctx, dsts, srcs))
}

func (g *Group) allToAll(ctx context.Context, dsts, srcs []*tensor.Tensor) *request {
	r := g.newRequest(ctx, operation.AllToAll)
	r.oneEach("destination", len(dsts))
	r.oneEach("source", len(srcs))
	r.lendAll(&r.out, "destination", dsts, true)
	r.lendAll(&r.in, "source", srcs, false)
	r.sameTypes()
	r.separate(-1)
	if r.err != nil {
		return r
	}
	for i := range g.size {
		r.parts, r.recvs = append(r.parts, srcs[i].NumElems()), append(r.recvs, dsts[i].NumElems())
	}
	r.exchange()
	return r
}

// AllToAllSingle cuts src along its first dim into a part for each rank and
// fills dst with what the ranks send to this one, in their order. recvCounts
// and sendCounts say how many indices of the first dim each part has; nil
// stands for equal parts. Either all ranks give counts or none does: where
// both are nil the parts of all ranks have one size.
func (g *Group) AllToAllSingle(ctx context.Context, dst, src *tensor.Tensor, recvCounts, sendCounts []int) error {
	return g.call(g.allToAllSingle(ctx, dst, src, recvCounts, sendCounts))
}

// AllToAllSingleAsync starts an [Group.AllToAllSingle].
func (g *Group) AllToAllSingleAsync(ctx context.Context, dst, src *tensor.Tensor, recvCounts, sendCounts []int) *Work {
	return g.callAsync(g.allToAllSingle(ctx, dst, src, recvCounts, sendCounts))
}

func (g *Group) allToAllSingle(ctx context.Context, dst, src *tensor.Tensor, recvCounts, sendCounts []int) *request {
	r := g.newRequest(ctx, operation.AllToAll)
	r.lend(&r.out, "the destination", dst, true)
	r.lend(&r.in, "the source", src, false)
	r.sameTypes()
	r.separate(-1)
	if r.err != nil {
		return r
	}
	if have, want := r.out.data.NumElems, r.in.data.NumElems; recvCounts == nil && sendCounts == nil && have != want {
		r.refuse("the destination has %d elements, the source %d: without counts both have the same", have, want)
	}
	r.parts = r.cut(r.parts, "the source", "sendCounts", src, sendCounts)
	r.recvs = r.cut(r.recvs, "the destination", "recvCounts", dst, recvCounts)
	if r.err != nil {
		return r
	}
	if recvCounts != nil || sendCounts != nil {
		r.exchange()
		return r
	}
	r.of(r.in.data.DType, r.parts[0])
	return r
}

// cut appends to parts how many elements of t are each rank's.
func (r *request) cut(parts []int, what, arg string, t *tensor.Tensor, counts []int) []int {
	n := r.g.size
	switch {
	case t.NumDims() == 0:
		r.refuse("%s has no dim to cut", what)
		return parts
	case counts == nil && t.Dim(0)%n != 0:
		r.refuse("%s of shape %v has %d indices in its first dim, which %d ranks cannot share evenly", what, t.Shape(), t.Dim(0), n)
		return parts
	case counts != nil && len(counts) != n:
		r.refuse("%s has %d counts, want one for each of %d ranks", arg, len(counts), n)
		return parts
	}
	row := 1
	for d := 1; d < t.NumDims(); d++ {
		row *= t.Dim(d)
	}
	sum := 0
	for i := range n {
		c := t.Dim(0) / n
		if counts != nil {
			c = counts[i]
		}
		if c < 0 || c > t.Dim(0) {
			r.refuse("%s[%d] is %d; %s has %d indices in its first dim", arg, i, c, what, t.Dim(0))
			return parts
		}
		sum += c
		parts = append(parts, c*row)
	}
	if sum != t.Dim(0) {
		r.refuse("the sum of %s is %d; %s has %d indices in its first dim", arg, sum, what, t.Dim(0))
	}
	return parts
}

// exchange makes the call one of uneven parts; what this rank sends itself must
// be what it takes from itself.
func (r *request) exchange() {
	me := r.g.rank
	if r.parts[me] != r.recvs[me] {
		r.refuse("this rank sends %d elements to itself and takes %d", r.parts[me], r.recvs[me])
		return
	}
	r.call.DType = r.in.data.DType
	r.call.SetExchange(r.parts, r.recvs)
}
