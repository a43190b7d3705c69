// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	stowMethod  = rpc.NewMethod[struct{}, *tensor.Tensor]("test.stow")
	relayMethod = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.relay")
	itemStream  = rpc.NewStream[*tensor.Tensor, struct{}]("test.items")
)

// TestWrongContext: a call that ought to be in a pass, and is made with another context,
// fails with ErrNoPass wherever gradients would be lost by it; one that says that it
// evaluates does not, and neither does one that has nothing to differentiate.
func TestWrongContext(t *testing.T) {
	all, _ := agents(t, "pipe", 2)
	s := newStage(1)
	err := all[1].Offer(
		rpc.Serve(layerMethod, func(ctx context.Context, x *tensor.Tensor) (y *tensor.Tensor, err error) {
			return s.forward(Ctx(ctx), x), nil
		}),
		rpc.Serve(relayMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return layerMethod.Call(ctx, rpc.AgentOf(ctx).Self(), x)
		}),
		rpc.Serve(stowMethod, func(ctx context.Context, _ struct{}) (*tensor.Tensor, error) {
			c := nn.Training(ctx)
			return c.Param(s.model.Bias).Exp(), nil // with a history that is nobody's
		}),
		rpc.Serve(peekMethod, func(context.Context, struct{}) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{s.model.Bias.Data()}, nil
		}),
		rpc.ServeStream(itemStream, func(ctx context.Context, s *rpc.Stream[struct{}, *tensor.Tensor]) error {
			_, err := s.Recv(ctx)
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, to := t.Context(), all[0].PeerRank(1)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	c, err := dc.Pass(ctx)
	if err != nil {
		t.Fatal(err)
	}
	x := tensor.Full(1, 2, 4)
	local := c.Param(param(9, 2, 4)).Exp()
	deadline, cancel := context.WithTimeout(c, time.Minute)
	defer cancel()
	evaluation := nn.Evaluation(c)
	defer evaluation.Close()
	timed, cancel2 := context.WithTimeout(nn.Evaluation(ctx), time.Minute)
	defer cancel2()
	call := func(m *rpc.Method[*tensor.Tensor, *tensor.Tensor], ctx context.Context, x *tensor.Tensor) (bool, error) {
		y, err := m.Call(ctx, to, x)
		return err == nil && y.NeedsGrad(), err
	}
	for _, test := range []struct {
		name     string
		run      func() (gradients bool, err error)
		fails    bool
		gradient bool
		says     string
	}{
		{"a layer, with the pass", func() (bool, error) { return call(layerMethod, c, x) }, false, true, ""},
		{"a layer, with a limit on the pass", func() (bool, error) { return call(layerMethod, deadline, x) }, false, true, ""},
		{"a layer, with another context", func() (bool, error) { return call(layerMethod, ctx, x) }, true, false, "the parameter"},
		{"a layer, in an evaluation inside the pass", func() (bool, error) { return call(layerMethod, evaluation, x) }, false, false, ""},
		{"a layer, with a limit on an evaluation", func() (bool, error) { return call(layerMethod, timed, x) }, false, false, ""},
		{"a layer by way of another, in an evaluation", func() (bool, error) { return call(relayMethod, timed, x) }, false, false, ""},
		{"a layer by way of another, with another context", func() (bool, error) { return call(relayMethod, ctx, x) }, true, false, "the parameter"},
		{"an argument with a history, with another context", func() (bool, error) { return call(relayMethod, ctx, local) }, true, false, "argument of test.relay 0"},
		{"an argument with a history, in an evaluation", func() (bool, error) { return call(relayMethod, timed, local) }, true, false, "argument of test.relay 0"},
		{"what Detach returns, in an evaluation", func() (bool, error) { return call(layerMethod, timed, local.Detach()) }, false, false, ""},
		{"a result with a history of its own", func() (bool, error) { _, err := stowMethod.Call(ctx, to, struct{}{}); return false, err }, true, false, "result of test.stow 0"},
		{"nothing to differentiate", func() (bool, error) { _, err := peekMethod.Call(ctx, to, struct{}{}); return false, err }, false, false, ""},
	} {
		gradients, err := test.run()
		switch {
		case gradients != test.gradient:
			t.Errorf("%s: the result has a history: %t", test.name, gradients)
		case !test.fails && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.fails && (!errors.Is(err, ErrNoPass) || !strings.Contains(err.Error(), test.says) || rpc.KindOf(err) != rpc.KindApplication):
			t.Errorf("%s: %v (kind %q), want %v that says %q", test.name, err, rpc.KindOf(err), ErrNoPass, test.says)
		}
	}
	stream, err := itemStream.Open(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(ctx, local); err == nil || !strings.Contains(err.Error(), "streams is not recorded") {
		t.Errorf("a tensor with a history on a stream: %v", err)
	}
	if err := stream.Send(ctx, local.Detach()); err != nil {
		t.Error(err)
	}
}

// TestAPeerWithoutAutograd that answers a call of a pass is an error, not a result
// through which no gradient comes.
func TestAPeerWithoutAutograd(t *testing.T) {
	a := agentsServing(t, "pipe", 2, func(rank int) rpc.Option {
		if rank == 0 {
			return WithEngine()
		}
		return rpc.Serve(layerMethod, func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil })
	})[0]
	dc, err := NewContext(a)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = layerMethod.Call(c, a.PeerRank(1), tensor.Full(1, 2)); err == nil || !strings.Contains(err.Error(), "worker1 takes no part in contexts") {
		t.Error(err)
	}
}
