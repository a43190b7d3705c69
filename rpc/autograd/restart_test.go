// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var squareMethod = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.square")

// TestAMakerThatCameAgain: a process that has the rank of one that trained before
// makes contexts which the others, who live on, do not take for those of the first,
// whether that one closed them or left in the middle of a step.
func TestAMakerThatCameAgain(t *testing.T) {
	peers := peersOf(t.TempDir()+"/s", 2)
	start := func(rank int) (*rpc.Agent, *testWorker) {
		w := newTestWorker(rank)
		a, err := rpc.Init(t.Context(), peers[rank].Name, rpc.WithToken(agenttest.Token), rpc.WithPeers(peers), w.serve(),
			rpc.Serve(squareMethod, func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) { return in.Square(), nil }))
		if err != nil {
			t.Fatal(err)
		}
		return a, w
	}
	server, _ := start(0)
	defer server.Close()
	const steps = 3
	ids := map[uint64]bool{}
	for life := range 4 {
		a, w := start(1)
		step := func(leaves bool) error {
			dc, err := NewContext(a)
			if err != nil {
				return err
			}
			if ids[dc.ID()] {
				t.Fatalf("life %d makes context %v again", life, dc)
			}
			ids[dc.ID()] = true
			c, err := dc.Pass(t.Context())
			if err != nil {
				return err
			}
			y, err := squareMethod.Call(c, a.Peer("worker0"), c.Param(w.params[0]))
			if err != nil || leaves {
				return err
			}
			defer dc.Close()
			return dc.Backward(t.Context(), y.Sum())
		}
		for n := range steps {
			leaves := life%2 == 1 && n == steps-1
			err := step(leaves)
			// What is made before the server has seen the last connection of the life
			// before go, of which there are a few, is lost with that.
			for tries := 0; life > 0 && errors.Is(err, ErrReleased) && tries < 10; tries++ {
				err = step(leaves)
			}
			if err != nil {
				t.Fatalf("life %d, step %d: %v", life, n, err)
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantReleased(t, []*rpc.Agent{server})
}

// TestAMakerThatCameAtOnce: the end of a process releases what it had made, and not
// what the next one of its rank has made meanwhile.
func TestAMakerThatCameAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(2)
		e := cl.engines[1]
		join := func() *state {
			s, err := e.join(t.Context(), cl.engines[0].newState().id)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		before := join()
		e.lost(0, errLost)
		after := join()
		go e.run(t.Context())
		synctest.Wait()
		if _, err := e.state(before.id); !errors.Is(err, ErrReleased) {
			t.Errorf("the context of the lost process: %v", err)
		}
		if _, err := e.state(after.id); err != nil {
			t.Errorf("the context of the one that came after it: %v", err)
		}
	})
}
