// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkStep is a step whose second layer is in another process: forward,
// backward, and with an optimizer or without. testdata/step.py is the same in PyTorch.
func BenchmarkStep(b *testing.B) {
	for _, with := range []string{"", "+optimizer"} {
		for _, mode := range []Mode{Smart, Fast} {
			b.Run(fmt.Sprint(mode, with), func(b *testing.B) { benchmarkStep(b, mode, with != "") })
		}
	}
}

// wide is the layer of the benchmark's worker.
type wide struct{ weight *nn.Parameter }

func newWide() *wide { return &wide{nn.NewParameter(tensor.Full(0.01, 64, 64))} }

var (
	wideMethod     = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("bench.layer")
	wideRefsMethod = rpc.NewMethod[struct{}, []*rpc.RRef[*nn.Parameter]]("bench.refs")
)

func (w *wide) serve() rpc.Option {
	return rpc.WithOptions(
		rpc.Serve(wideMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return tensor.Linear(x, Ctx(ctx).Param(w.weight), nil).Tanh(), nil
		}),
		rpc.Serve(wideRefsMethod, func(ctx context.Context, _ struct{}) ([]*rpc.RRef[*nn.Parameter], error) {
			return Refs(rpc.AgentOf(ctx), []*nn.Parameter{w.weight}), nil
		}))
}

func benchmarkStep(b *testing.B, mode Mode, withOptimizer bool) {
	a, _, _ := processes(b, 2)
	peer := a.Peer("worker1")
	mine := newWide()
	x := tensor.Full(0.5, 32, 64)
	ctx := b.Context()
	refs, err := wideRefsMethod.Call(ctx, peer, struct{}{})
	if err != nil {
		b.Fatal(err)
	}
	opt, err := NewOptimizer(ctx, a, SGD(optim.SGDOptions{LR: 1e-4}), append(Refs(a, []*nn.Parameter{mine.weight}), refs...))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		dc, err := NewContext(a)
		if err != nil {
			b.Fatal(err)
		}
		c, err := dc.Pass(ctx)
		if err != nil {
			b.Fatal(err)
		}
		y, err := wideMethod.Call(c, peer, tensor.Linear(x, c.Param(mine.weight), nil))
		if err != nil {
			b.Fatal(err)
		}
		if err := dc.Backward(ctx, y.Mul(y).Mean(), WithMode(mode)); err != nil {
			b.Fatal(err)
		}
		if withOptimizer {
			if err := opt.Step(ctx, dc, 1); err != nil {
				b.Fatal(err)
			}
		}
		dc.Close()
	}
}
