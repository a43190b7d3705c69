// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// With TPConfig.Pieces, a layer with the style column or row computes the tokens of each rank in
// pieces, so that messages travel while it computes. With two ranks, two pieces and time from left
// to right:
//
//	column   gathers     a a a b b b           a: the first half of each rank's tokens
//	         products          A A A B B B     b: the second half
//
//	row      products    A A A B B B
//	         sums              a a a b b b
//
// In the backward pass the same happens the other way round.

// pieces says how the tokens of ranks are divided: each has n of them.
type pieces struct {
	t    *tensorParallel
	who  string
	n    int   // tokens of a rank
	ends []int // of the pieces, within a rank's tokens
}

// piecesOf returns the pieces of a sequence of which this rank has n tokens, nil if there are none:
// every rank must have as many.
func (t *tensorParallel) piecesOf(c *nn.Ctx, b boundary, numTokens int) *pieces {
	if t.config.Pieces < 2 || t.now(c, kindSequence) != kindSequence || !c.Tape().Recording() || numTokens%t.size != 0 {
		return nil
	}
	p := &pieces{t: t, who: b.who, n: numTokens / t.size}
	num := min(t.config.Pieces, p.n)
	for i := range num {
		p.ends = append(p.ends, (i+1)*p.n/num)
	}
	if len(p.ends) < 2 {
		return nil
	}
	return p
}

// piecesOfColumn is piecesOf what a layer with the style column takes, and piecesOfRow of what
// one with the style row takes: it has all tokens.
func (t *tensorParallel) piecesOfColumn(c *nn.Ctx, b boundary, x []*tensor.Tensor) *pieces {
	if t.config.Pieces < 2 || b.from != kindSequence || len(x) != 1 || x[0] == nil || x[0].NumDims() < 2 || t.now(c, kindSequence) != kindSequence {
		return nil
	}
	pass := t.passOf(c.Tape())
	return t.piecesOf(c, b, pass.among(c, b, "tokens", x[0].Dim(-2), pass.tokens))
}

func (t *tensorParallel) piecesOfRow(c *nn.Ctx, b boundary, x []*tensor.Tensor) *pieces {
	if b.to != kindSequence || len(x) != 1 || x[0] == nil || x[0].NumDims() < 2 {
		return nil
	}
	return t.piecesOf(c, b, x[0].Dim(-2))
}

// at returns where piece i begins among a rank's tokens, and how many it has.
func (p *pieces) at(i int) (first, length int) {
	if i > 0 {
		first = p.ends[i-1]
	}
	return first, p.ends[i] - first
}

// copyOf returns piece i of a rank's tokens, or of those of all ranks, one after the other.
func (p *pieces) copyOf(x *tensor.Tensor, i, ranks int) *tensor.Tensor {
	first, length := p.at(i)
	shape := x.Shape()
	dim := len(shape) - 2
	shape[dim] = ranks * length
	out := tensor.New(x.Device(), x.DType(), shape...)
	if x.Device() == tensor.Meta {
		return out
	}
	x = x.Untracked()
	for r := range ranks {
		out.Narrow(dim, r*length, length).CopyFrom(x.Narrow(dim, r*p.n+first, length))
	}
	return out
}

// place writes piece i back to where copyOf has found it.
func (p *pieces) place(x, piece *tensor.Tensor, i, ranks int) {
	if x.Device() == tensor.Meta {
		return
	}
	first, length := p.at(i)
	dim := x.NumDims() - 2
	piece = piece.Untracked()
	for r := range ranks {
		x.Narrow(dim, r*p.n+first, length).CopyFrom(piece.Narrow(dim, r*length, length))
	}
}

// flight is a collective under way, with the memory that it writes to.
type flight struct {
	work *mesh.Pending // nil on tensor.Meta
	out  *tensor.Tensor
	to   mesh.Placement // of what it writes
}

// land waits for the collective and returns what it has written, of which nobody else knows.
func (f flight) land(ctx context.Context) (*tensor.Tensor, error) {
	if f.work == nil {
		return f.out, nil
	}
	out, err := f.work.Wait(context.WithoutCancel(ctx))
	if err == nil {
		err = out[0].Expect(f.to)
	}
	return f.out, err
}

// gather sends a piece of this rank's tokens to all. x is memory of its own.
func (p *pieces) gather(ctx context.Context, x *tensor.Tensor) flight {
	return p.start(ctx, x, p.t.size, 1)
}

// scatter sums a piece of all tokens, and leaves each rank its own.
func (p *pieces) scatter(ctx context.Context, x *tensor.Tensor) flight {
	return p.start(ctx, x, 1, p.t.size)
}

func (p *pieces) start(ctx context.Context, x *tensor.Tensor, times, parts int) flight {
	shape := x.Shape()
	dim := len(shape) - 2
	shape[dim] = shape[dim] * times / parts
	out := tensor.New(x.Device(), x.DType(), shape...)
	whole := out.Shape()
	from, to := mesh.Shard(dim), mesh.Replicate()
	if parts > 1 {
		whole = x.Shape()
		from, to = mesh.Partial(dist.Sum), mesh.Shard(dim)
	}
	p.t.count(whole, x.DType(), from, to)
	if x.Device() == tensor.Meta {
		return flight{out: out}
	}
	value := mesh.Tensor{Local: x, Layout: mesh.Layout{Mesh: p.t.mesh, Shape: whole, Placements: []mesh.Placement{from}}}
	if parts > 1 {
		return flight{mesh.ReduceScatterAsync(ctx, tensorAxis, dim, []*tensor.Tensor{out}, value), out, to}
	}
	return flight{mesh.AllGatherAsync(ctx, tensorAxis, []*tensor.Tensor{out}, value), out, to}
}

func (p *pieces) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tensor parallel: %s, in pieces: %w", p.who, err)
}

// column runs a layer on the tokens of all ranks, piece by piece as they come. Layers with one
// input share the pieces.
func (p *pieces) column(c *nn.Ctx, b boundary, x *tensor.Tensor, next func(x *tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	pass := p.t.passOf(c.Tape())
	key := crossing{x, b.to, c.Tape().Segment(), c.Recomputing()}
	coming, known := pass.coming[key]
	if !known {
		coming = p.order(c, b, x)
		pass.coming[key] = coming
	}
	ys := make([]*tensor.Tensor, len(p.ends))
	for i := range ys {
		ys[i] = next(coming(i))
	}
	return p.join(c, ys, p.t.size, nil)
}

// order begins to gather all pieces, and returns a function that waits for one.
func (p *pieces) order(c *nn.Ctx, b boundary, x *tensor.Tensor) func(i int) *tensor.Tensor {
	flights, values := make([]flight, len(p.ends)), make([]*tensor.Tensor, len(p.ends))
	for i := range flights {
		flights[i] = p.gather(c, p.copyOf(x, i, 1))
	}
	sums := make([]flight, len(p.ends)) // of the gradients
	return func(i int) *tensor.Tensor {
		if values[i] != nil {
			return values[i]
		}
		out, err := flights[i].land(c)
		if err != nil {
			c.Fail(p.wrap(err))
		}
		y := c.Tape().Adopt(out)
		p.t.give(c, b, x, y)
		// The first piece comes last in the backward pass, and hands on the gradient of all.
		values[i] = tensor.Record("tensor parallel", y, []*tensor.Tensor{x}, nil, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			sums[i] = p.scatter(ctx, g.Keep().Untracked().Contiguous())
			if i > 0 {
				return []*tensor.Tensor{nil}, nil
			}
			dx := tensor.New(x.Device(), x.DType(), x.Shape()...)
			for k := range slices.Backward(sums) {
				piece, err := sums[k].land(ctx)
				if err != nil {
					return nil, p.wrap(err)
				}
				p.place(dx, piece, k, 1)
				sums[k] = flight{}
			}
			return []*tensor.Tensor{c.Tape().Adopt(dx)}, nil
		})
		return values[i]
	}
}

// join puts pieces together. Its backward function takes them apart, or asks split.
func (p *pieces) join(c *nn.Ctx, ys []*tensor.Tensor, ranks int, split func(ctx context.Context, g *tensor.Tensor) []*tensor.Tensor) *tensor.Tensor {
	shape := ys[0].Shape()
	shape[len(shape)-2] = ranks * p.n
	y := tensor.New(ys[0].Device(), ys[0].DType(), shape...)
	for i, piece := range ys {
		p.place(y, piece, i, ranks)
	}
	y = c.Tape().Adopt(y)
	if pass := sharding.Of(c.Tape()); pass != nil {
		pass.Give(y, sharding.Boundary{Type: pass.TypeOf(ys[0])})
	}
	return tensor.Record("tensor parallel", y, ys, nil, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		if split != nil {
			return split(ctx, g), nil
		}
		grads := make([]*tensor.Tensor, len(ys))
		for i := range grads {
			grads[i] = c.Tape().Adopt(p.copyOf(g, i, ranks))
		}
		return grads, nil
	})
}

// row runs a layer on its tokens, piece by piece, and sums each piece while it computes the next.
func (p *pieces) row(c *nn.Ctx, b boundary, x *tensor.Tensor, next func(x *tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	var dx *tensor.Tensor
	parts, flights := make([]*tensor.Tensor, len(p.ends)), make([]flight, len(p.ends))
	for i := range parts {
		parts[i] = next(p.take(c, x, i, &dx))
		flights[i] = p.scatter(c, parts[i].Detach().Keep().Untracked().Contiguous())
	}
	back := make([]flight, len(p.ends)) // the gathers of the gradients
	ys := make([]*tensor.Tensor, len(p.ends))
	for i, f := range flights {
		out, err := f.land(c)
		if err != nil {
			c.Fail(p.wrap(err))
		}
		y := c.Tape().Adopt(out)
		p.t.give(c, b, parts[i], y)
		ys[i] = tensor.Record("tensor parallel", y, []*tensor.Tensor{parts[i]}, nil, func(ctx context.Context, _ *tensor.Tensor) ([]*tensor.Tensor, error) {
			g, err := back[i].land(ctx)
			if err != nil {
				return nil, p.wrap(err)
			}
			back[i] = flight{}
			return []*tensor.Tensor{c.Tape().Adopt(g)}, nil
		})
		if parts[i].Device() != tensor.Meta {
			parts[i].Untracked().Free() // which no backward pass reads
		}
	}
	return p.join(c, ys, 1, func(ctx context.Context, g *tensor.Tensor) []*tensor.Tensor {
		grads := make([]*tensor.Tensor, len(ys))
		for i := range slices.Backward(grads) { // the last piece is the first to be needed
			piece := p.copyOf(g, i, 1)
			back[i] = p.gather(ctx, piece)
			grads[i] = piece
		}
		return grads
	})
}

// take returns piece i of the tokens of all ranks. The gradients of all pieces come together in
// one tensor, which the first piece hands on.
func (p *pieces) take(c *nn.Ctx, x *tensor.Tensor, i int, dx **tensor.Tensor) *tensor.Tensor {
	y := c.Tape().Adopt(p.copyOf(x, i, p.t.size))
	if pass := sharding.Of(c.Tape()); pass != nil {
		pass.Give(y, sharding.Boundary{Type: pass.TypeOf(x)})
	}
	return tensor.Record("tensor parallel", y, []*tensor.Tensor{x}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		if i == len(p.ends)-1 {
			*dx = tensor.New(x.Device(), x.DType(), x.Shape()...)
		}
		p.place(*dx, g, i, p.t.size)
		if i > 0 {
			return []*tensor.Tensor{nil}, nil
		}
		return []*tensor.Tensor{c.Tape().Adopt(*dx)}, nil
	})
}
