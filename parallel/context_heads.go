// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// byHeads computes an attention of all tokens to all tokens with some of the heads on each rank.
// An exchange gives each rank all tokens of its heads, in their order. Attention is then what it
// is on one rank, and a second exchange gives each rank its tokens of all heads.
func (p *contextPass) byHeads(c *nn.Ctx, m *nn.DotProductAttention, x []*tensor.Tensor, given *givenMask, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) *tensor.Tensor {
	inputs := attentionInputs(c, x)
	heads, packed := inputs[0].Dim(2), 1
	if len(inputs) == 1 {
		heads, packed = heads/(3*m.HeadDim), 3
	}
	n := p.group.Size()
	for i, t := range inputs {
		h := heads
		if packed == 1 {
			h = t.Dim(2)
		}
		if h%n != 0 {
			what := []string{"queries", "keys", "values"}[i]
			c.Fail(fmt.Errorf("context parallelism: the %d heads of the %s cannot be shared by %d ranks of axis %q: %d %% %d = %d. "+
				`Take attention by "ring", which has no such rule`, h, what, n, contextAxis, h, n, h%n))
		}
	}
	for i, t := range inputs {
		inputs[i] = p.exchange(c, t, m.HeadDim, packed, true)
	}
	part := c.AttentionPart()
	if part.Heads == 0 {
		part.Heads = heads
	}
	part.Head += p.rank * (heads / n)
	inner := c.WithAttentionPart(part)
	if p.documents != nil {
		inner = inner.WithDocuments(p.documents)
	}
	if given != nil {
		mask := given.Tensor
		switch mask.Dim(2) {
		case 1, p.z.time:
		default:
			mask = p.gather(c, mask, 2)
		}
		if mask.Dim(1) > 1 {
			mask = mask.Narrow(1, p.rank*(heads/n), heads/n)
		}
		inputs = append(inputs, c.Tape().Const(mask))
	}
	var y *tensor.Tensor
	sharding.Of(c.Tape()).Allow(func() { y = next(inner, inputs)[0] })
	return p.exchange(c, y, m.HeadDim, 1, false)
}

// exchange takes [batch, time, heads…] with this rank's tokens of all heads to all tokens of this
// rank's heads, or back. Its gradient is the other way. x is [batch, time, heads, dim] or [batch,
// time, packed·width], of heads of dim channels.
func (p *contextPass) exchange(c *nn.Ctx, x *tensor.Tensor, dim, packed int, toHeads bool) *tensor.Tensor {
	tape := c.Tape()
	y, err := p.exchanged(c, tape, x.Untracked(), dim, packed, toHeads)
	if err != nil {
		c.Fail(err)
	}
	pass := sharding.Of(tape)
	pass.Give(y, sharding.Boundary{Type: pass.TypeOf(x)})
	return tensor.Record("exchange of heads", y, []*tensor.Tensor{x}, nil, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		dx, err := p.exchanged(ctx, tape, g, dim, packed, !toHeads)
		return []*tensor.Tensor{dx}, err
	})
}

// exchanged is exchange without a record.
func (p *contextPass) exchanged(ctx context.Context, tape *tensor.Tape, x *tensor.Tensor, dim, packed int, toHeads bool) (*tensor.Tensor, error) {
	n := p.group.Size()
	shape := x.Shape()
	batch, width := shape[0], x.NumElems()/(shape[0]*shape[1])
	heads := width / (packed * dim) // that this rank has now
	if toHeads {
		shape[1], shape[2] = p.z.time, shape[2]/n
	} else {
		shape[1], shape[2] = p.z.len(p.rank), shape[2]*n
	}
	y := tape.New(x.Device(), x.DType(), shape...)
	if kept := shape[1]; toHeads {
		p.sent += numBytes(x) / int64(n) * int64(n-1)
	} else {
		p.sent += numBytes(x) / int64(p.z.time) * int64(p.z.time-kept)
	}
	if x.Device() == tensor.Meta {
		return y, nil
	}
	scratch := tensor.NewTape(false)
	defer scratch.Close()
	in := scratch.Const(x).Contiguous().Reshape(batch, x.Dim(1), packed, heads, dim)
	return y, p.swap(ctx, scratch, y, in, toHeads)
}

// swap sends each rank its part of in, [batch, time, packed, heads, dim], and writes to y.
func (p *contextPass) swap(ctx context.Context, scratch *tensor.Tape, y, in *tensor.Tensor, toHeads bool) error {
	n := p.group.Size()
	shape := in.Shape()
	srcs, dsts := make([]*tensor.Tensor, n), make([]*tensor.Tensor, n)
	for r := range n {
		if toHeads {
			h := shape[3] / n
			srcs[r] = in.Narrow(3, r*h, h)
			dsts[r] = scratch.New(in.Device(), in.DType(), shape[0], p.z.len(r), shape[2], h, shape[4])
		} else {
			srcs[r] = p.z.take(in, 1, r)
			dsts[r] = scratch.New(in.Device(), in.DType(), shape[0], p.z.len(p.rank), shape[2], shape[3], shape[4])
		}
	}
	if err := p.group.AllToAll(ctx, dsts, srcs); err != nil {
		return fmt.Errorf("context parallelism: exchange tokens for heads on axis %q: %w", contextAxis, err)
	}
	for r, part := range dsts {
		if toHeads {
			p.z.put(y.Untracked().Reshape(shape[0], p.z.time, shape[2], shape[3]/n, shape[4]), 1, r, part)
		} else {
			y.Untracked().Reshape(shape[0], p.z.len(p.rank), shape[2], shape[3]*n, shape[4]).Narrow(3, r*shape[3], shape[3]).CopyFrom(part)
		}
	}
	return nil
}
