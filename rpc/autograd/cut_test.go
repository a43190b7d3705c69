// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// TestCutConnection: the optimizer's state is where the parameters are when a new
// connection has been made.
func TestCutConnection(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "tcp")
	between := agenttest.NewProxy(t)
	peers := []rpc.PeerAddr{{Name: "worker0", Addr: "127.0.0.1:1"}, {Name: "worker1", Addr: between.Address()}}
	var all [2]*rpc.Agent
	far := newStage(1)
	for r, serve := range []rpc.Option{WithEngine(), far.serve()} {
		a, err := rpc.Init(t.Context(), peers[r].Name, rpc.WithToken(agenttest.Token), rpc.WithPeers(peers), rpc.WithListen("127.0.0.1:0"), serve)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		all[r] = a
		peers[0].Addr = a.Addr()
	}
	between.To(all[1].Addr())
	ctx, owner := t.Context(), all[0].Peer("worker1")
	refs, err := refsMethod.Call(ctx, owner, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	options := optim.SGDOptions{LR: 0.1, Momentum: 0.9}
	opt, err := NewOptimizer(ctx, all[0], SGD(options), refs)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Close()
	same := newStage(1)
	local := optim.NewSGD(nn.Parameters(same.model), options)
	for i := range 6 {
		if i%2 == 1 {
			between.Cut()
		}
		x := tensor.FromFloat32(values(8, i), 2, 4)
		// The first calls may find the end of the old connection.
		agenttest.Eventually(t, "a step over a new connection", func() bool {
			_, err := opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
				y, err := layerMethod.Call(c, owner, x)
				if err != nil {
					return nil, err
				}
				return y.Sum(), nil
			})
			if err != nil {
				t.Logf("step %d: %v", i, err)
			}
			return err == nil
		})
		c := nn.Training(context.Background())
		if err := same.forward(c, x).Sum().Backward(c); err != nil {
			t.Fatal(err)
		}
		local.Step(nil)
		local.ZeroGrad()
		c.Close()
	}
	for i, p := range nn.Parameters(far.model) {
		wantBits(t, p.Name(), p.Data(), nn.Parameters(same.model)[i].Data())
	}
}
