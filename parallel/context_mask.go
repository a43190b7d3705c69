// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// packing says which chunks of packed sequences have documents in common.
type packing struct {
	z    zigzag
	rows int
	ids  [][]map[int64]bool // by chunk and row: the documents that are there
}

func newPacking(z zigzag, documents *tensor.Tensor) *packing {
	p := &packing{z: z, rows: documents.Dim(0)}
	ids := documents.Int64s()
	for i := range 2 * z.ranks {
		chunk := make([]map[int64]bool, p.rows)
		for row := range chunk {
			chunk[row] = map[int64]bool{}
			at := z.chunk(i)
			for _, id := range ids[row*z.time+at[0] : row*z.time+at[1]] {
				chunk[row][id] = true
			}
		}
		p.ids = append(p.ids, chunk)
	}
	return p
}

// common reports whether two chunks have any document in common, and whether both are of one
// document alone, in each row.
func (p *packing) common(i, j int) (any, one bool) {
	one = true
	for row := range p.rows {
		a, b := p.ids[i][row], p.ids[j][row]
		shared := false
		for id := range a {
			shared = shared || b[id]
		}
		any = any || shared
		one = one && shared && len(a) == 1 && len(b) == 1
	}
	return any, one
}

// refine leaves out blocks of chunks without a common document, and says which need a mask.
func (p *packing) refine(rank, from int, blocks []ringBlock) (kept []ringBlock) {
	for _, b := range blocks {
		chunk := func(rank, place int) int {
			c := p.z.chunks(rank)
			if p.z.chunk(c[0])[0] == place {
				return c[0]
			}
			return c[1]
		}
		any, one := p.common(chunk(rank, b.query), chunk(from, b.key))
		if !any {
			continue
		}
		b.masked = b.masked || !one
		kept = append(kept, b)
	}
	return kept
}

// givenMask is the mask that a model gives an attention: float32, added to the scores, [batch,
// heads, time, keyTime] or dims of 1. keyTime is the whole sequence, and time is the whole one or
// this rank's part.
type givenMask struct{ *tensor.Tensor }

// given returns the mask of an attention with keys of all ranks, nil for none. A mask of this
// rank's keys, such as one of padding, is gathered. heads are those of the queries.
func (p *contextPass) given(c *nn.Ctx, mask *tensor.Tensor, heads int) *givenMask {
	if mask == nil {
		return nil
	}
	fail := func(format string, args ...any) {
		c.Fail(fmt.Errorf("context parallelism: the mask of attention, of shape %v, %s", mask.Shape(), fmt.Sprintf(format, args...)))
	}
	part, time := p.z.len(p.rank), p.z.time
	shape := mask.Shape()
	for len(shape) < 4 {
		shape = append([]int{1}, shape...)
	}
	queries, keys := shape[2], shape[3]
	switch {
	case mask.NeedsGrad():
		fail("needs a gradient, which would be that of this rank's tokens alone: add no mask that is trained")
	case len(shape) > 4 || shape[1] != 1 && shape[1] != heads:
		fail("must fit [batch, heads, time, keyTime], with %d heads", heads)
	case keys != time && keys != part && keys != 1:
		fail("is for %d keys, and there are %d tokens, %d of them on this rank", keys, time, part)
	case queries != time && queries != part && queries != 1:
		fail("is for %d queries, and there are %d tokens, %d of them on this rank", queries, time, part)
	case keys == part && queries == part:
		fail("is for this rank's queries and this rank's keys: a mask by pairs must have all %d keys; use nn.DotProductAttention's Causal and Window, or nn.Ctx.WithDocuments", time)
	}
	if m := p.masks[mask]; m != nil {
		return m
	}
	scratch := tensor.NewTape(false)
	defer scratch.Close()
	m := scratch.Const(mask).Reshape(shape...)
	if m.DType() == tensor.Bool {
		m = m.To(tensor.Float32).Log() // 0 for true, -Inf for false
	}
	m = m.To(tensor.Float32).Contiguous()
	if keys == part {
		m = p.gather(c, m, 3)
	}
	if keys == 1 {
		m = m.Expand(shape[0], shape[1], queries, time).Clone()
	}
	g := &givenMask{m.Keep()}
	p.masks[mask] = g
	return g
}

// block returns the mask of a block, under the tape scratch, nil where nothing is masked.
func (p *contextPass) block(scratch *tensor.Tape, b ringBlock, window int, given *givenMask) *tensor.Tensor {
	queries, keys := b.numQueries(), b.numKeys()
	var mask *tensor.Tensor // bool
	if b.masked && window > 0 {
		// Query i stands at b.query + i and sees keys after that place less the window.
		at := scratch.Const(tensor.Arange(p.device(given), max(queries, keys)))
		q, k := at.Narrow(0, 0, queries).Reshape(queries, 1), at.Narrow(0, 0, keys).Reshape(1, keys)
		mask = k.AddScalar(float64(b.key + window - b.query)).Gt(q)
	}
	if b.masked && p.documents != nil {
		d := scratch.Const(p.documents)
		same := d.Narrow(1, b.query, queries).Reshape(-1, 1, queries, 1).Eq(d.Narrow(1, b.key, keys).Reshape(-1, 1, 1, keys))
		if mask != nil {
			same = same.LogicalAnd(mask)
		}
		mask = same
	}
	if mask != nil {
		mask = mask.To(tensor.Float32).Log()
	}
	if given != nil {
		g := scratch.Const(given.Tensor)
		switch g.Dim(2) {
		case 1:
		case p.z.time:
			g = g.Narrow(2, b.query, queries)
		default:
			g = g.Narrow(2, b.queries[0], queries)
		}
		if g = g.Narrow(3, b.key, keys); mask != nil {
			g = g.Add(mask)
		}
		mask = g
	}
	return mask
}

// device returns where masks are made.
func (p *contextPass) device(given *givenMask) tensor.Device {
	switch {
	case given != nil:
		return given.Device()
	case p.documents != nil:
		return p.documents.Device()
	}
	return p.on
}

// gather returns a tensor of which each rank has its part of dim dim, the whole sequence in its
// order, under no tape.
func (p *contextPass) gather(c *nn.Ctx, t *tensor.Tensor, dim int) *tensor.Tensor {
	shape := t.Shape()
	n := p.group.Size()
	srcs, dsts := make([]*tensor.Tensor, n), make([]*tensor.Tensor, n)
	t = t.Untracked().Contiguous()
	for r := range n {
		shape[dim] = p.z.len(r)
		srcs[r], dsts[r] = t, tensor.New(t.Device(), t.DType(), shape...)
	}
	shape[dim] = p.z.time
	whole := tensor.New(t.Device(), t.DType(), shape...)
	p.sent += int64(n-1) * numBytes(t)
	if t.Device() == tensor.Meta {
		return whole
	}
	if err := p.group.AllToAll(c, dsts, srcs); err != nil {
		c.Fail(fmt.Errorf("context parallelism: gather what the ranks have of %d tokens: %w", p.z.time, err))
	}
	for r, part := range dsts {
		p.z.put(whole, dim, r, part)
		part.Free()
	}
	return whole
}

// whole returns a result of the model for all tokens, in their order. Of its gradient, which every
// rank has whole, a rank takes that of its tokens.
func (p *contextPass) whole(c *nn.Ctx, t *tensor.Tensor) *tensor.Tensor {
	whole := p.gather(c, t, 1)
	y := c.Tape().New(whole.Device(), whole.DType(), whole.Shape()...)
	y.CopyFrom(whole)
	whole.Free()
	pass := sharding.Of(c.Tape())
	pass.Give(y, sharding.Boundary{Type: pass.TypeOf(t)})
	return tensor.Record("gather of tokens", y, []*tensor.Tensor{t}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{p.z.take(g, 1, p.rank)}, nil
	})
}
