// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// peersOf lists n workers at sockets whose names begin so.
func peersOf(name string, n int) []rpc.PeerAddr {
	peers := make([]rpc.PeerAddr, n)
	for r := range peers {
		peers[r] = rpc.PeerAddr{Name: fmt.Sprintf("worker%d", r), Addr: fmt.Sprintf("unix:%s.%d", name, r)}
	}
	return peers
}

// runWorker is the main of a worker process: RANK,SIZE,SOCKET. It serves until its
// standard input ends.
func runWorker(arg string) error {
	parts := strings.SplitN(arg, ",", 3)
	rank, _ := strconv.Atoi(parts[0])
	size, _ := strconv.Atoi(parts[1])
	a, err := rpc.Init(context.Background(), fmt.Sprintf("worker%d", rank), rpc.WithToken(agenttest.Token),
		rpc.WithPeers(peersOf(parts[2], size)), newTestWorker(rank).serve(), newWide().serve())
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return a.Close()
}

// processes starts workers 1 to n-1 as processes of their own, and makes this one
// worker 0.
func processes(t testing.TB, n int) (*rpc.Agent, *testWorker, []*agenttest.Process) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("sockets of the test have Linux's names")
	}
	name := t.TempDir() + "/s"
	others := make([]*agenttest.Process, n)
	for r := 1; r < n; r++ {
		others[r] = agenttest.Begin(t, fmt.Sprintf("-worker=%d,%d,%s", r, n, name))
	}
	for _, p := range others[1:] {
		p.Await(t, "ready")
	}
	w := newTestWorker(0)
	a, err := rpc.Init(t.Context(), "worker0", rpc.WithToken(agenttest.Token), rpc.WithPeers(peersOf(name, n)), w.serve())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, w, others
}

// TestRandomGraphsOverProcesses is the same over processes.
func TestRandomGraphsOverProcesses(t *testing.T) {
	for n := 3; n <= 5; n++ {
		a, w, _ := processes(t, n)
		for seed := range uint64(20) {
			wantProgram(t, a, w, 100*uint64(n)+seed)
		}
	}
}

// TestAKilledProcessEndsThePass soon, and the error names it.
func TestAKilledProcessEndsThePass(t *testing.T) {
	a, w, others := processes(t, 3)
	dc, err := NewContext(a)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := dc.Pass(t.Context())
	y := c.Param(w.params[0])
	for _, to := range []string{"worker1", "worker2", "worker1"} {
		if y, err = failMethod.Call(c, a.Peer(to), y); err != nil {
			t.Fatal(err)
		}
	}
	if err := others[2].Kill(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = dc.Backward(t.Context(), y.Sum())
	wantError(t, err, nil, "on worker2 (rank 2)")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	wantReleased(t, []*rpc.Agent{a})
}

// TestAProcessThatDiesInMidPass: those that wait for its gradients end soon,
// too, and keep nothing.
func TestAProcessThatDiesInMidPass(t *testing.T) {
	a, w, _ := processes(t, 4)
	for _, c := range []struct {
		mode  Mode
		dying string
		rank  int
	}{{Smart, "worker3", 3}, {Fast, "worker2", 2}} {
		dc, err := NewContext(a)
		if err != nil {
			t.Fatal(err)
		}
		c1, _ := dc.Pass(t.Context())
		in := travelling{Choices: nil, Calls: 0, Workers: 4, NumOut: 1}
		in.Choices, _ = rand.NewPCG(1, 7).MarshalBinary()
		in.In = []*tensor.Tensor{c1.Param(w.params[0]).Exp()}
		before, err := bodyMethod.Call(c1, a.Peer("worker1"), in)
		if err != nil {
			t.Fatal(err)
		}
		y, err := dieMethod.Call(c1, a.Peer(c.dying), before.Out[0].Add(in.In[0]))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		err = dc.Backward(t.Context(), y.Sum(), WithMode(c.mode))
		wantError(t, err, nil, fmt.Sprintf("on %s (rank %d)", c.dying, c.rank))
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%v: it took %v", c.mode, took)
		}
		wantReleased(t, []*rpc.Agent{a})
		agenttest.Eventually(t, "worker1 has no context", func() bool {
			n, err := openMethod.Call(t.Context(), a.Peer("worker1"), struct{}{})
			return err == nil && n == 0
		})
	}
}
