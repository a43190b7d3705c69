// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/tensor"
)

// The operations on tensors. Tensors must be contiguous and on the CPU. All
// types of elements can be moved; float32 and int64 can be reduced, others give
// a [ReduceError]. Tensors from tensor.NewShared are read and written in place by
// the ranks of a node; others are copied. A tensor belongs to the operation until
// it has ended.
//
// The context bounds the wait; without an end of its own, the group's timeout
// does. An error that ends an operation ends the group: the ranks no longer
// agree on what comes next. Errors about arguments are reported before
// anything is sent and leave the group as it was.

// AllReduce replaces t on every rank by its reduction over all ranks, element
// by element. Every rank gets the same bits.
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error {
	return g.run(g.allReduceTensor(ctx, t, op))
}

// AllReduceAsync starts an AllReduce.
func (g *Group) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op ReduceOp) *Work {
	return g.runAsync(g.allReduceTensor(ctx, t, op))
}

func (g *Group) allReduceTensor(ctx context.Context, t *tensor.Tensor, op ReduceOp) (request, error) {
	d, err := lend("the tensor", t, true)
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpAllReduce}, d, d, err)
	}
	r, err := g.allReduce(ctx, d, op)
	return r.keeping(t), err
}

// Broadcast replaces t on every rank by rank src's.
func (g *Group) Broadcast(ctx context.Context, t *tensor.Tensor, src int) error {
	return g.run(g.broadcastTensor(ctx, t, src))
}

// BroadcastAsync starts a Broadcast.
func (g *Group) BroadcastAsync(ctx context.Context, t *tensor.Tensor, src int) *Work {
	return g.runAsync(g.broadcastTensor(ctx, t, src))
}

func (g *Group) broadcastTensor(ctx context.Context, t *tensor.Tensor, src int) (request, error) {
	d, err := lend("the tensor", t, g.rank != src)
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpBroadcast}, d, d, err)
	}
	r, err := g.broadcast(ctx, d, src)
	return r.keeping(t), err
}

// AllGather fills dst with every rank's src, back to back in rank order: dst
// has Size times the elements of src.
func (g *Group) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return g.run(g.allGatherTensor(ctx, dst, src))
}

// AllGatherAsync starts an AllGather.
func (g *Group) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return g.runAsync(g.allGatherTensor(ctx, dst, src))
}

func (g *Group) allGatherTensor(ctx context.Context, dst, src *tensor.Tensor) (request, error) {
	out, err := lend("the destination", dst, true)
	var in collective.Data
	if err == nil {
		in, err = lend("the source", src, false)
	}
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpAllGather}, in, out, err)
	}
	r, err := g.allGather(ctx, out, in)
	return r.keeping(dst, src), err
}

// ReduceScatter fills dst with this rank's part of the reduction of src over
// all ranks, element by element: rank r gets elements r·m to (r+1)·m of it,
// where m is the number of dst's elements. src has Size times as many and stays
// as it is.
func (g *Group) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) error {
	return g.run(g.reduceScatterTensor(ctx, dst, src, op))
}

// ReduceScatterAsync starts a ReduceScatter.
func (g *Group) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) *Work {
	return g.runAsync(g.reduceScatterTensor(ctx, dst, src, op))
}

func (g *Group) reduceScatterTensor(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) (request, error) {
	out, err := lend("the destination", dst, true)
	var in collective.Data
	if err == nil {
		in, err = lend("the source", src, false)
	}
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpReduceScatter}, in, out, err)
	}
	r, err := g.reduceScatter(ctx, out, in, op)
	return r.keeping(dst, src), err
}

// Send sends t to rank dst, whose Recv takes a tensor of the same elements.
func (g *Group) Send(ctx context.Context, t *tensor.Tensor, dst int) error {
	return g.run(g.sendTensor(ctx, t, dst))
}

// SendAsync starts a Send.
func (g *Group) SendAsync(ctx context.Context, t *tensor.Tensor, dst int) *Work {
	return g.runAsync(g.sendTensor(ctx, t, dst))
}

func (g *Group) sendTensor(ctx context.Context, t *tensor.Tensor, dst int) (request, error) {
	d, err := lend("the tensor", t, false)
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpSend}, d, d, err)
	}
	r, err := g.send(ctx, d, dst)
	return r.keeping(t), err
}

// Recv fills t with what rank src sends.
func (g *Group) Recv(ctx context.Context, t *tensor.Tensor, src int) error {
	return g.run(g.recvTensor(ctx, t, src))
}

// RecvAsync starts a Recv.
func (g *Group) RecvAsync(ctx context.Context, t *tensor.Tensor, src int) *Work {
	return g.runAsync(g.recvTensor(ctx, t, src))
}

func (g *Group) recvTensor(ctx context.Context, t *tensor.Tensor, src int) (request, error) {
	d, err := lend("the tensor", t, true)
	if err != nil {
		return g.request(ctx, collective.Call{Op: collective.OpRecv}, d, d, err)
	}
	r, err := g.recv(ctx, d, src)
	return r.keeping(t), err
}

// keeping makes a request hold the tensors that it has borrowed from: they
// must not be collected before it has ended.
func (r request) keeping(ts ...*tensor.Tensor) request {
	r.tensors = ts
	return r
}

// dtypeOf are the numbers by which the types of elements travel.
var dtypeOf = [...]collective.DType{
	tensor.Float32: collective.Float32, tensor.Int64: collective.Int64, tensor.BFloat16: collective.BFloat16,
	tensor.Float16: collective.Float16, tensor.Float64: collective.Float64, tensor.Int32: collective.Int32,
	tensor.Int8: collective.Int8, tensor.Uint8: collective.Uint8, tensor.Bool: collective.Bool,
}

// lend borrows a tensor's memory. What will be written is marked so at once,
// on the goroutine that owns the tensor.
func lend(what string, t *tensor.Tensor, written bool) (collective.Data, error) {
	if t.Device() != tensor.CPU() {
		return collective.Data{}, fmt.Errorf("%s is on device %s; collectives take tensors on the CPU", what, t.Device().Name())
	}
	if !t.IsContiguous() {
		return collective.Data{}, fmt.Errorf("%s of shape %v is not contiguous; call Contiguous first", what, t.Shape())
	}
	if written {
		t.MarkWritten()
	}
	return collective.Data{Buffer: t.Buffer(), DType: dtypeOf[t.DType()], NumElems: t.NumElems()}, nil
}
