// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// RPCOptions choose what RPC measures.
type RPCOptions struct {
	Cases []string // of [RPCCases]
	Bytes []int    // sizes of echoes, multiples of 4
	Calls int      // of the cases noop and add; echoes and rows are fewer
	Async int      // calls that are under way together
}

// RPCCases are the cases that RPC knows.
func RPCCases() []string { return []string{"noop", "add", "async", "echo", "ps"} }

// The table of the case ps, and how many of its rows a call names.
const (
	PSRows  = 1_000_000
	PSDim   = 64
	PSBatch = 4096
)

const (
	maxRPCBytes = 1 << 30
	maxRPCCalls = 10_000_000
	// psSteps are the pulls and pushes of the case ps.
	psSteps = 200
	// numEchoes is how often each size is echoed.
	numEchoes = 15
)

// Validate reports the first option that makes no sense.
func (o RPCOptions) Validate() error {
	for _, c := range o.Cases {
		if err := oneOf("case", c, RPCCases()); err != nil {
			return err
		}
	}
	for _, n := range o.Bytes {
		if n < 4 || n%4 != 0 || n > maxRPCBytes {
			return fmt.Errorf("an echo of %d bytes: want multiples of 4 up to %d", n, maxRPCBytes)
		}
	}
	for _, n := range []int{o.Calls, o.Async} {
		if n < 1 || n > maxRPCCalls {
			return fmt.Errorf("%d calls: want 1 to %d", n, maxRPCCalls)
		}
	}
	return nil
}

// pair are the arguments of a sum.
type pair struct{ A, B *tensor.Tensor }

// rowGrads are gradients of some rows of a table.
type rowGrads struct{ IDs, Gradients *tensor.Tensor }

// rpcMethods are what the two sides of the bench share.
type rpcMethods struct {
	noop *rpc.Method[struct{}, struct{}]
	add  *rpc.Method[pair, *tensor.Tensor]
	echo *rpc.Method[*tensor.Tensor, *tensor.Tensor]
	pull *rpc.Method[*tensor.Tensor, *tensor.Tensor]
	push *rpc.Method[rowGrads, struct{}]
}

func newRPCMethods() rpcMethods {
	return rpcMethods{
		noop: rpc.NewMethod[struct{}, struct{}]("bench.noop"),
		add:  rpc.NewMethod[pair, *tensor.Tensor]("bench.add"),
		echo: rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("bench.echo"),
		pull: rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("bench.pull"),
		push: rpc.NewMethod[rowGrads, struct{}]("bench.push"),
	}
}

// serve returns the handlers. The table is there if the case ps is measured.
func (m rpcMethods) serve(table *tensor.Tensor) []rpc.Option {
	return []rpc.Option{
		rpc.Serve(m.noop, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }),
		rpc.Serve(m.add, func(_ context.Context, in pair) (*tensor.Tensor, error) { return in.A.Add(in.B), nil }),
		rpc.Serve(m.echo, func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) { return in, nil }, rpc.WithTransient()),
		rpc.Serve(m.pull, func(_ context.Context, ids *tensor.Tensor) (*tensor.Tensor, error) {
			return table.IndexSelect(0, ids), nil
		}, rpc.WithTransient()),
		rpc.Serve(m.push, func(_ context.Context, in rowGrads) (struct{}, error) {
			ids := in.IDs.Int64s()
			in.Gradients.WithFloat32s(func(g []float32) {
				table.WithFloat32s(func(data []float32) {
					for i, id := range ids {
						row := data[int(id)*PSDim:][:PSDim]
						kernel.AddScaled(nil, row, row, -0.1, g[i*PSDim:][:PSDim])
					}
				})
			})
			return struct{}{}, nil
		}, rpc.WithTransient()),
	}
}

// RPC measures calls from rank 0 of a group of two to rank 1, as either of them.
// Rank 0 emits.
func RPC(ctx context.Context, group *dist.Group, o RPCOptions, emit func(Result) error) (err error) {
	if err = o.Validate(); err != nil {
		return fmt.Errorf("bench rpc: %w", err)
	}
	if group.Size() != 2 {
		return fmt.Errorf("bench rpc: a group of %d, want 2", group.Size())
	}
	var table *tensor.Tensor
	if group.Rank() == 1 && slices.Contains(o.Cases, "ps") {
		table = tensor.Zeros(PSRows, PSDim)
	}
	m := newRPCMethods()
	agent, err := rpc.Init(ctx, fmt.Sprintf("worker%d", group.Rank()), append(m.serve(table), rpc.WithGroup(group))...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	if group.Rank() == 0 {
		b := rpcBench{RPCOptions: o, rpcMethods: m, peer: agent.PeerRank(1), transport: envvar.Transport.Get("auto"), emit: emit}
		for _, c := range o.Cases {
			if err := b.measure(ctx, c); err != nil {
				return err
			}
		}
	}
	return agent.Shutdown(ctx)
}

// rpcBench is what the caller has.
type rpcBench struct {
	RPCOptions
	rpcMethods
	peer      *rpc.Peer
	transport string
	emit      func(Result) error
}

func (b *rpcBench) measure(ctx context.Context, name string) error {
	two := tensor.Full(1, 2)
	switch name {
	case "noop":
		return b.latency(name, func() error { _, err := b.noop.Call(ctx, b.peer, struct{}{}); return err })
	case "add":
		return b.latency(name, func() error { _, err := b.add.Call(ctx, b.peer, pair{two, two}); return err })
	case "async":
		return b.together(ctx, pair{two, two})
	case "echo":
		for _, size := range b.Bytes {
			if err := b.echoes(ctx, size); err != nil {
				return err
			}
		}
		return nil
	default:
		return b.table(ctx)
	}
}

// result begins a line.
func (b *rpcBench) result(name string, t times) Result {
	return Result{Bench: "rpc", Case: name, Transport: b.transport, MedianMicros: micros(t.median()), MinMicros: micros(t.quantile(0)), P99Micros: micros(t.quantile(0.99))}
}

// timed calls f some times that are not measured, and then count times.
func timed(warm, count int, f func() error) (times, error) {
	t := make(times, 0, count)
	for i := range warm + count {
		start := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		if i >= warm {
			t = append(t, time.Since(start))
		}
	}
	slices.Sort(t)
	return t, nil
}

// latency measures calls one after the other.
func (b *rpcBench) latency(name string, call func() error) error {
	t, err := timed(min(b.Calls, 500), b.Calls, call)
	if err != nil {
		return err
	}
	return b.emit(b.result(name, t))
}

// together measures calls that are begun without waiting for each other.
func (b *rpcBench) together(ctx context.Context, in pair) error {
	futures := make([]*rpc.Future[*tensor.Tensor], b.Async)
	t, err := timed(1, 5, func() error {
		for i := range futures {
			futures[i] = b.add.Async(ctx, b.peer, in)
		}
		_, err := rpc.WaitAll(ctx, futures...)
		return err
	})
	if err != nil {
		return err
	}
	r := b.result("async", t)
	r.Calls, r.P99Micros = b.Async, 0
	r.CallsPerSec = float64(b.Async) / t.median().Seconds()
	return b.emit(r)
}

// echoes measures a tensor's way to the peer and back.
func (b *rpcBench) echoes(ctx context.Context, size int) error {
	x := tensor.Full(1, size/4)
	t, err := timed(3, numEchoes, func() error {
		back, err := b.echo.Call(ctx, b.peer, x)
		if err == nil && back.NumElems() != x.NumElems() {
			err = fmt.Errorf("bench rpc: %d elements came back of %d", back.NumElems(), x.NumElems())
		}
		if err == nil {
			back.Free()
		}
		return err
	})
	if err != nil {
		return err
	}
	r := b.result("echo", t)
	r.Bytes, r.P99Micros = size, 0
	r.GBPerSec = perSecond(2*float64(size), t.median())
	return b.emit(r)
}

// table measures rows of a table that are pulled, and gradients that are pushed.
func (b *rpcBench) table(ctx context.Context) error {
	g := tensor.NewGenerator(0)
	names := make([]int64, PSBatch)
	for i := range names {
		names[i] = int64(g.Float64() * PSRows)
	}
	ids := tensor.FromInt64(names)
	gradients := tensor.Full(1, PSBatch, PSDim)
	t, err := timed(10, psSteps, func() error {
		pulled, err := b.pull.Call(ctx, b.peer, ids)
		if err != nil {
			return err
		}
		if pulled.NumElems() != PSBatch*PSDim {
			return fmt.Errorf("bench rpc: %d numbers pulled, want %d", pulled.NumElems(), PSBatch*PSDim)
		}
		pulled.Free()
		_, err = b.push.Call(ctx, b.peer, rowGrads{ids, gradients})
		return err
	})
	if err != nil {
		return err
	}
	r := b.result("ps", t)
	r.RowsPerSec = PSBatch / t.median().Seconds()
	return b.emit(r)
}
