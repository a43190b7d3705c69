// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/tensor"
)

// Send sends t to rank dst, whose Recv takes a tensor of the same elements.
// When it returns t may be changed again; the receiver may not have it yet.
func (g *Group) Send(ctx context.Context, t *tensor.Tensor, dst int) error {
	return g.call(g.message(ctx, Message{Tensor: t, Peer: dst}))
}

// SendAsync starts a [Group.Send].
func (g *Group) SendAsync(ctx context.Context, t *tensor.Tensor, dst int) *Work {
	return g.callAsync(g.message(ctx, Message{Tensor: t, Peer: dst}))
}

// Recv fills t with what rank src sends.
func (g *Group) Recv(ctx context.Context, t *tensor.Tensor, src int) error {
	return g.call(g.message(ctx, Message{Recv: true, Tensor: t, Peer: src}))
}

// RecvAsync starts a [Group.Recv].
func (g *Group) RecvAsync(ctx context.Context, t *tensor.Tensor, src int) *Work {
	return g.callAsync(g.message(ctx, Message{Recv: true, Tensor: t, Peer: src}))
}

// RecvAny fills t with the next message that comes from any rank and returns
// that rank. It waits for the receives that this rank has issued before it, and
// receives issued after it wait for it: they would take each other's messages.
func (g *Group) RecvAny(ctx context.Context, t *tensor.Tensor) (src int, err error) {
	w := g.RecvAnyAsync(ctx, t)
	<-w.done
	return w.src, w.err
}

// RecvAnyAsync starts a [Group.RecvAny]; [Work.Source] tells the rank.
func (g *Group) RecvAnyAsync(ctx context.Context, t *tensor.Tensor) *Work {
	r := g.newRequest(ctx, operation.Recv)
	r.call.Root = operation.AnyRank
	if g.size == 1 {
		r.refuse("there is no other rank")
	}
	r.carries(t)
	return g.callAsync(r)
}

// Message is one tensor to send to a peer, or to receive from it.
type Message struct {
	Recv   bool // whether it is received
	Tensor *tensor.Tensor
	Peer   int
}

// Batch sends and receives messages, all begun before any is waited for, and
// returns when all have ended: exchanges that would wait for each other if
// they came one after the other. Messages with one peer go in their order.
func (g *Group) Batch(ctx context.Context, ms ...Message) error {
	w := g.BatchAsync(ctx, ms...)
	<-w.done
	return w.err
}

// BatchAsync starts a [Group.Batch]. Its work ends when all messages have, with
// the error of the first that failed.
func (g *Group) BatchAsync(ctx context.Context, ms ...Message) *Work {
	rs := make([]*request, len(ms))
	var refused error
	for i, m := range ms {
		rs[i] = g.message(ctx, m)
		rs[i].inDevice()
		if rs[i].err != nil && refused == nil {
			refused = fmt.Errorf("message %d of the batch: %w", i, rs[i].err)
		}
	}
	if refused != nil {
		for _, r := range rs {
			r.release()
		}
		return failedWork(refused)
	}
	whole := newWhole(g, len(rs))
	begun := time.Now() // of the batch, which is one call
	for _, r := range rs {
		r.call.Begun = begun
		r.whole = whole
		g.start(r)
	}
	return whole
}

// message makes the request of a message.
func (g *Group) message(ctx context.Context, m Message) *request {
	op := operation.Send
	if m.Recv {
		op = operation.Recv
	}
	r := g.newRequest(ctx, op)
	r.peer(m.Peer)
	r.carries(m.Tensor)
	return r
}

// peer checks the other rank of a message.
func (r *request) peer(rank int) {
	what := "the destination"
	if r.call.Op == operation.Recv {
		what = "the source"
	}
	r.rooted(what, rank)
	if rank == r.g.rank {
		r.refuse("%s is rank %d itself", what, rank)
	}
}

// carries says what a message consists of.
func (r *request) carries(t *tensor.Tensor) {
	recv := r.call.Op == operation.Recv
	r.inPlace, r.loads, r.stores = true, !recv, recv
	r.lend(&r.in, "the tensor", t, recv)
	r.of(r.in.data.DType, r.in.data.NumElems)
}
