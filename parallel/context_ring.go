// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// InterceptCall implements nn.Interceptor: a pass steps in on attention, inside of the other
// parts, so that what they say of heads is known (nn.Ctx.AttentionPart).
func (p *contextPass) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	m, ok := module.(*nn.DotProductAttention)
	if !ok {
		return next(c, x)
	}
	nn.WantInputs("DotProductAttention", x, "queries, keys and values in one tensor, or in three and perhaps a mask", 1, 3, 4)
	if len(x) > 1 && x[1].Dim(1) != x[0].Dim(1) || x[0].Dim(1) != p.z.len(p.rank) {
		c.Fail(fmt.Errorf("context parallelism: attention of %d queries to %d keys: this rank has %d of %d tokens, and tokens attend to those of their own sequence alone",
			x[0].Dim(1), x[min(1, len(x)-1)].Dim(1), p.z.len(p.rank), p.z.time))
	}
	if m.Window > 0 && !m.Causal {
		panic(tensor.NewError("DotProductAttention", x, "a window of %d wants Causal", m.Window))
	}
	var mask *tensor.Tensor
	if len(x) == 4 {
		mask, x = x[3], x[:3]
	}
	given := p.given(c, mask, x[0].Dim(-2))
	if p.form == headsAttention {
		return []*tensor.Tensor{p.byHeads(c, m, x, given, next)}
	}
	return []*tensor.Tensor{p.ring(c, m, x, given)}
}

// InterceptParam implements nn.Interceptor.
func (p *contextPass) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// ring is an attention whose keys and values go from rank to rank. In step i, this rank has those
// of the rank i before it; it sends them on and receives the next while it computes.
type ring struct {
	*contextPass
	tape    *tensor.Tape
	blocks  *tensor.AttentionBlocks
	window  int
	causal  bool
	pairs   bool // blocks are of two chunks
	given   *givenMask
	q, k, v *tensor.Tensor // this rank's, [batch, time, heads, dim]
	out     *tensor.Tensor // like q
	lse     *tensor.Tensor // float32 [batch, heads, time]
}

// ring computes an attention of all tokens to all tokens. x is q, k and v, or all in one.
func (p *contextPass) ring(c *nn.Ctx, m *nn.DotProductAttention, x []*tensor.Tensor, given *givenMask) *tensor.Tensor {
	r := &ring{contextPass: p, tape: c.Tape(), window: m.Window, causal: m.Causal, given: given}
	inputs := attentionInputs(c, x)
	if len(inputs) == 1 {
		r.q, r.k, r.v = packedHeads(inputs[0], m.HeadDim)
	} else {
		r.q, r.k, r.v = inputs[0], inputs[1], inputs[2]
	}
	o := tensor.AttentionOptions{Scale: m.Scale, SoftCap: m.SoftCap, Part: c.AttentionPart()}
	o.Part.Time, o.Part.KeyTime = p.z.time, p.z.time
	if c.Training() {
		o.Dropout, o.Generator = m.Dropout, c.Generator()
	}
	r.blocks = tensor.NewAttentionBlocks(r.q.Dim(3), o)
	r.pairs = o.Dropout > 0 || given != nil || p.documents != nil || m.Window > 0 && m.Window < p.z.time

	y := c.Tape().New(r.q.Device(), r.q.DType(), r.q.Shape()...)
	r.out = y
	r.lse = c.Tape().New(r.q.Device(), tensor.Float32, r.q.Dim(0), r.q.Dim(2), r.q.Dim(1))
	if err := r.forward(c); err != nil {
		c.Fail(err)
	}
	if len(inputs) == 1 {
		y = r.out.Reshape(r.q.Dim(0), r.q.Dim(1), r.q.Dim(2)*r.q.Dim(3))
	}
	pass := sharding.Of(c.Tape())
	pass.Give(y, sharding.Boundary{Type: pass.TypeOf(inputs[0])})
	return tensor.Record("ring attention", y, inputs, append([]*tensor.Tensor{r.out, r.lse}, inputs...), func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		dq, dk, dv, err := r.backward(ctx, g.Reshape(r.q.Shape()...))
		if err != nil || len(inputs) > 1 {
			return []*tensor.Tensor{dq, dk, dv}, err
		}
		whole := r.tape.New(g.Device(), tensor.Float32, inputs[0].Shape()...)
		wq, wk, wv := packedHeads(whole, m.HeadDim)
		wq.CopyFrom(dq)
		wk.CopyFrom(dk)
		wv.CopyFrom(dv)
		return []*tensor.Tensor{whole}, nil
	})
}

// packedHeads returns the queries, keys and values of a packed projection [batch, time, 3·width]:
// views [batch, time, heads, dim] under no tape.
func packedHeads(qkv *tensor.Tensor, dim int) (q, k, v *tensor.Tensor) {
	width := qkv.Dim(2)
	if dim < 1 || width%(3*dim) != 0 {
		panic(tensor.NewError("ring attention", []*tensor.Tensor{qkv}, "queries, keys and values of whole heads of %d channels take a multiple of %d: %d %% %d = %d",
			dim, 3*dim, width, 3*max(dim, 1), width%(3*max(dim, 1))))
	}
	h := qkv.Untracked().Contiguous().Reshape(qkv.Dim(0), qkv.Dim(1), 3, width/3/dim, dim)
	return h.Select(2, 0), h.Select(2, 1), h.Select(2, 2)
}

// attentionInputs returns the operands of an attention in the dtype that it computes in.
func attentionInputs(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor {
	dtype := tensor.Float32
	low := c.Tape().Autocast() == tensor.BFloat16
	for _, t := range x {
		low = low || t.DType() == tensor.BFloat16
	}
	if low {
		dtype = tensor.BFloat16
	}
	inputs := make([]*tensor.Tensor, len(x))
	for i, t := range x {
		inputs[i] = t.To(dtype)
	}
	return inputs
}

// work returns the blocks of this rank's queries and the keys of a rank.
func (r *ring) work(from int) []ringBlock {
	if !r.pairs {
		return r.z.blocks(r.rank, from, r.causal)
	}
	blocks := r.z.pairs(r.rank, from, r.causal, r.window)
	if r.packed != nil {
		blocks = r.packed.refine(r.rank, from, blocks)
	}
	return blocks
}

// each calls fn for the blocks of the keys and values of a rank.
func (r *ring) each(from int, kv *tensor.Tensor, fn func(b ringBlock, at tensor.AttentionBlock, q, k, v *tensor.Tensor)) {
	keys, values := kv.Select(0, 0), kv.Select(0, 1)
	cut := func(t *tensor.Tensor, tokens [2]int) *tensor.Tensor {
		return t.Narrow(1, tokens[0], tokens[1]-tokens[0])
	}
	for _, b := range r.work(from) {
		at := tensor.AttentionBlock{Query: b.query, Key: b.key, Causal: b.causal}
		q, k, v := cut(r.q.Untracked(), b.queries), cut(keys, b.keys), cut(values, b.keys)
		if !b.masked && r.given == nil || q.Device() == tensor.Meta { // shapes do not depend on masks
			fn(b, at, q, k, v)
			continue
		}
		scratch := tensor.NewTape(false)
		at.Mask = r.block(scratch, b, r.window, r.given)
		fn(b, at, q, k, v)
		scratch.Close()
	}
}

// held returns whose keys and values this rank has in step i.
func (r *ring) held(i int) int { n := r.group.Size(); return (r.rank - i + n) % n }

// room returns memory for keys and values, or their gradients, of a rank: [2, batch, time,
// heads, dim].
func (r *ring) room(from int, dtype tensor.DType) *tensor.Tensor {
	t := tensor.New(r.k.Device(), dtype, 2, r.k.Dim(0), r.z.len(from), r.k.Dim(2), r.k.Dim(3))
	r.tape.Count(numBytes(t))
	return t
}

// done frees what room has returned.
func (r *ring) done(t *tensor.Tensor) {
	r.tape.Count(-numBytes(t))
	t.Free()
}

func numBytes(t *tensor.Tensor) int64 { return int64(t.NumElems()) * int64(t.DType().Size()) }

// own returns this rank's keys and values in one tensor.
func (r *ring) own() *tensor.Tensor {
	kv := r.room(r.rank, r.k.DType())
	kv.Select(0, 0).CopyFrom(r.k.Untracked())
	kv.Select(0, 1).CopyFrom(r.v.Untracked())
	return kv
}

// pass sends what this rank holds in a step on, and begins to receive what it holds in the next.
func (r *ring) pass(ctx context.Context, i int, kv *tensor.Tensor) (next *tensor.Tensor, work *dist.Work) {
	if i == r.group.Size()-1 {
		return nil, nil
	}
	next = r.room(r.held(i+1), kv.DType())
	r.sent += numBytes(kv)
	if kv.Device() == tensor.Meta {
		return next, nil
	}
	return next, r.group.BatchAsync(ctx,
		dist.Message{Tensor: kv, Peer: r.after()}, dist.Message{Recv: true, Tensor: next, Peer: r.before()})
}

// send and receive begin a message to the next rank and from the one before. Nothing is sent of
// tensors on tensor.Meta.
func (r *ring) send(ctx context.Context, t *tensor.Tensor) *dist.Work {
	r.sent += numBytes(t)
	if t.Device() == tensor.Meta {
		return nil
	}
	return r.group.SendAsync(ctx, t, r.after())
}

func (r *ring) receive(ctx context.Context, t *tensor.Tensor) *dist.Work {
	if t.Device() == tensor.Meta {
		return nil
	}
	return r.group.RecvAsync(ctx, t, r.before())
}

func (r *ring) after() int  { return (r.rank + 1) % r.group.Size() }
func (r *ring) before() int { return r.held(1) }

// arrive waits for messages.
func (r *ring) arrive(ctx context.Context, what string, work *dist.Work) error {
	if work == nil {
		return nil
	}
	if err := work.Wait(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("context parallelism: %s go around rank %d of axis %q: %w", what, r.rank, contextAxis, err)
	}
	return nil
}

// forward computes out and lse.
func (r *ring) forward(ctx context.Context) error {
	sums := r.out
	if r.out.DType() != tensor.Float32 {
		sums = tensor.New(r.out.Device(), tensor.Float32, r.out.Shape()...)
		r.tape.Count(numBytes(sums))
		defer r.done(sums)
	}
	merged := tensor.NewAttentionSums(sums, r.lse)
	kv := r.own()
	for i := range r.group.Size() {
		next, work := r.pass(ctx, i, kv)
		r.each(r.held(i), kv, func(b ringBlock, at tensor.AttentionBlock, q, k, v *tensor.Tensor) {
			out, lse := r.blocks.Forward(at, q, k, v)
			merged.Add(b.queries[0], out, lse)
			out.Free()
			lse.Free()
		})
		if err := r.arrive(ctx, "keys and values", work); err != nil {
			return err
		}
		r.done(kv)
		kv = next
	}
	if sums != r.out {
		low := sums.To(r.out.DType())
		r.out.CopyFrom(low)
		low.Free()
	}
	return nil
}

// backward computes the gradients of q, k and v from that of out, all float32. Keys and values go
// around once more, and with them their gradients, to which each rank adds its part. They end
// with the rank from which they come.
func (r *ring) backward(ctx context.Context, g *tensor.Tensor) (dq, dk, dv *tensor.Tensor, err error) {
	n := r.group.Size()
	dq = r.tape.New(r.q.Device(), tensor.Float32, r.q.Shape()...)
	home := r.tape.New(r.k.Device(), tensor.Float32, 2, r.k.Dim(0), r.k.Dim(1), r.k.Dim(2), r.k.Dim(3))
	kv := r.own()
	var sent *tensor.Tensor // gradients on their way to the next rank
	var sending *dist.Work
	for i := range n {
		from := r.held(i)
		sums := r.room(from, tensor.Float32)
		var arriving *tensor.Tensor // what the ranks before have added up
		var receiving *dist.Work
		if i > 0 {
			arriving = r.room(from, tensor.Float32)
			receiving = r.receive(ctx, arriving)
		}
		next, work := r.pass(ctx, i, kv)
		r.each(from, kv, func(b ringBlock, at tensor.AttentionBlock, q, k, v *tensor.Tensor) {
			rows := b.numQueries()
			bq, bk, bv := r.blocks.Backward(at, g.Narrow(1, b.queries[0], rows), r.out.Untracked().Narrow(1, b.queries[0], rows), r.lse.Narrow(2, b.queries[0], rows), q, k, v)
			dq.AddAt(1, b.queries[0], bq)
			sums.Select(0, 0).AddAt(1, b.keys[0], bk)
			sums.Select(0, 1).AddAt(1, b.keys[0], bv)
			for _, t := range []*tensor.Tensor{bq, bk, bv} {
				t.Free()
			}
		})
		for _, w := range []*dist.Work{work, receiving, sending} {
			if err := r.arrive(ctx, "gradients of keys and values", w); err != nil {
				return nil, nil, nil, err
			}
		}
		r.done(kv)
		kv = next
		if arriving != nil {
			sums.Axpy(1, arriving)
			r.done(arriving)
			r.done(sent)
		}
		sent, sending = sums, r.send(ctx, sums)
	}
	back := r.receive(ctx, home)
	for _, w := range []*dist.Work{back, sending} {
		if err := r.arrive(ctx, "gradients of keys and values", w); err != nil {
			return nil, nil, nil, err
		}
	}
	r.done(sent)
	return dq, home.Select(0, 0), home.Select(0, 1), nil
}
