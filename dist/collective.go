// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// Each function here makes the request of one operation from its arguments,
// which it checks: an error has sent nothing.

func (g *Group) allReduce(ctx context.Context, d collective.Data, op ReduceOp) (request, error) {
	c := collective.Call{Op: collective.OpAllReduce, Reduce: op, DType: d.DType, Count: d.NumElems}
	err := d.Check()
	if err == nil {
		_, err = collective.ReducerFor(op, d.DType)
	}
	return g.request(ctx, c, d, d, err)
}

func (g *Group) broadcast(ctx context.Context, d collective.Data, src int) (request, error) {
	c := collective.Call{Op: collective.OpBroadcast, DType: d.DType, Count: d.NumElems, Root: src}
	err := d.Check()
	if err == nil {
		err = g.checkRank("the source", src)
	}
	return g.request(ctx, c, d, d, err)
}

func (g *Group) allGather(ctx context.Context, dst, src collective.Data) (request, error) {
	c := collective.Call{Op: collective.OpAllGather, DType: src.DType, Count: src.NumElems}
	err := src.Check()
	if err == nil {
		err = dst.Check()
	}
	switch {
	case err != nil:
	case dst.DType != src.DType:
		err = fmt.Errorf("the destination has elements of type %v, the source of %v", dst.DType, src.DType)
	case dst.NumElems != g.size*src.NumElems:
		err = fmt.Errorf("the destination has %d elements, want %d: %d of each of %d ranks",
			dst.NumElems, g.size*src.NumElems, src.NumElems, g.size)
	}
	return g.request(ctx, c, src, dst, err)
}

func (g *Group) reduceScatter(ctx context.Context, dst, src collective.Data, op ReduceOp) (request, error) {
	c := collective.Call{Op: collective.OpReduceScatter, Reduce: op, DType: dst.DType, Count: dst.NumElems}
	err := src.Check()
	if err == nil {
		err = dst.Check()
	}
	if err == nil {
		_, err = collective.ReducerFor(op, dst.DType)
	}
	switch {
	case err != nil:
	case dst.DType != src.DType:
		err = fmt.Errorf("the destination has elements of type %v, the source of %v", dst.DType, src.DType)
	case src.NumElems != g.size*dst.NumElems:
		err = fmt.Errorf("the source has %d elements, want %d: %d for each of %d ranks",
			src.NumElems, g.size*dst.NumElems, dst.NumElems, g.size)
	}
	return g.request(ctx, c, src, dst, err)
}

func (g *Group) barrier(ctx context.Context) (request, error) {
	return g.request(ctx, collective.Call{Op: collective.OpBarrier}, collective.Data{}, collective.Data{}, nil)
}

func (g *Group) send(ctx context.Context, d collective.Data, dst int) (request, error) {
	return g.message(ctx, collective.OpSend, "the destination", d, dst)
}

func (g *Group) recv(ctx context.Context, d collective.Data, src int) (request, error) {
	return g.message(ctx, collective.OpRecv, "the source", d, src)
}

func (g *Group) message(ctx context.Context, op collective.Op, what string, d collective.Data, peer int) (request, error) {
	c := collective.Call{Op: op, DType: d.DType, Count: d.NumElems, Root: peer}
	err := d.Check()
	if err == nil {
		err = g.checkRank(what, peer)
	}
	if err == nil && peer == g.rank {
		err = fmt.Errorf("%s is rank %d itself", what, peer)
	}
	return g.request(ctx, c, d, d, err)
}

func (g *Group) checkRank(what string, rank int) error {
	if rank < 0 || rank >= g.size {
		return fmt.Errorf("%s is rank %d of a group of %d", what, rank, g.size)
	}
	return nil
}

func (g *Group) request(ctx context.Context, c collective.Call, in, out collective.Data, err error) (request, error) {
	if err != nil {
		return request{}, fmt.Errorf("dist: %v of group %q on rank %d: %w", c.Op, g.name, g.rank, err)
	}
	return request{ctx: ctx, call: c, in: in, out: out}, nil
}

// run runs a request that was made without error.
func (g *Group) run(r request, err error) error {
	if err != nil {
		return err
	}
	return g.do(r)
}

// runAsync starts a request that was made without error.
func (g *Group) runAsync(r request, err error) *Work {
	if err != nil {
		return failedWork(err)
	}
	return g.begin(r)
}

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error { return g.run(g.barrier(ctx)) }

// BarrierAsync starts a barrier: its work ends when all ranks have called it.
func (g *Group) BarrierAsync(ctx context.Context) *Work { return g.runAsync(g.barrier(ctx)) }
