// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"slices"
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
			if err := step(life%2 == 1 && n == steps-1); err != nil {
				t.Fatalf("life %d, step %d: %v", life, n, err)
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantReleased(t, []*rpc.Agent{server})
}

// TestAMakerThatCameAtOnce: the end of a connection of a process releases what that
// process had made, and ends the passes that it has a part in, but not those of the next
// one of its rank, of which this one has heard before, by a third.
func TestAMakerThatCameAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(3)
		e, second := cl.engines[1], member{0, 77}
		join := func(life uint64) *state {
			s, err := e.join(t.Context(), cl.engines[0].newState().id, life)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		with := func(who ...member) *state {
			s := newContext(e, nil).s
			s.learn(who...)
			return s
		}
		before, after := join(first(0).Life), join(second.Life)
		old, young, both := with(first(0)), with(second, first(2)), with(first(0), second)
		wantError(t, both.broken, nil, "started again")
		go e.run(t.Context())
		e.lost(first(0), errLost)
		synctest.Wait()
		if _, err := e.state(before.id); !errors.Is(err, ErrReleased) {
			t.Errorf("the context of the lost process: %v", err)
		}
		if _, err := e.state(after.id); err != nil {
			t.Errorf("the context of the one that came after it: %v", err)
		}
		wantError(t, old.broken, errLost, "on worker0")
		if young.broken != nil {
			t.Errorf("a pass with the process that came after it: %v", young.broken)
		}
		if got := young.members(); !slices.Equal(got, []member{second, first(2)}) {
			t.Errorf("the context has %v", got)
		}
	})
}
