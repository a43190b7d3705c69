// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// TestMain is also the main of the worker processes of process_test.go.
func TestMain(m *testing.M) {
	if worker, ok := strings.CutPrefix(os.Args[len(os.Args)-1], "-worker="); ok {
		if err := runWorker(worker); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	tensor.CPU() // its threads live as long as the process, not in the bubble of a test
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// travelling is a random program that goes from process to process: what chooses
// its operations, and the calls that are left, travel along.
type travelling struct {
	Choices []byte
	Calls   int
	Workers int
	Depth   int
	NumOut  int
	In      []*tensor.Tensor
}

type travelled struct {
	Choices []byte
	Calls   int
	Out     []*tensor.Tensor
}

var (
	bodyMethod = rpc.NewMethod[travelling, travelled]("test.body")
	gradMethod = rpc.NewMethod[uint64, []*tensor.Tensor]("test.gradients")
	failMethod = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.fail")
	dieMethod  = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.die")
	openMethod = rpc.NewMethod[struct{}, int]("test.open")
)

// testWorker is what a worker of the tests serves. Its parameters depend on its rank.
type testWorker struct {
	params []*nn.Parameter
}

func newTestWorker(rank int) *testWorker {
	w := &testWorker{}
	for i := range paramsPerWorker {
		w.params = append(w.params, param(10*rank+i, width))
	}
	return w
}

var errBroken = errors.New("disk on fire")

func (w *testWorker) serve() rpc.Option {
	return rpc.WithOptions(WithEngine(),
		rpc.WithError("test.broken", errBroken),
		rpc.Serve(bodyMethod, func(ctx context.Context, in travelling) (travelled, error) {
			var src rand.PCG
			if err := src.UnmarshalBinary(in.Choices); err != nil {
				return travelled{}, err
			}
			a := rpc.AgentOf(ctx)
			p := &program{rng: rand.New(&src), workers: in.Workers, calls: in.Calls}
			remote := &over{agent: a, worker: w, p: p, src: &src}
			p.w = remote
			out := p.body(ctx, a.Rank(), in.In, in.Depth, in.NumOut)
			choices, _ := src.MarshalBinary()
			return travelled{choices, p.calls, out}, remote.err
		}),
		rpc.Serve(gradMethod, func(ctx context.Context, id uint64) ([]*tensor.Tensor, error) {
			out := make([]*tensor.Tensor, len(w.params))
			e, err := engineOf(rpc.AgentOf(ctx))
			if err != nil {
				return nil, err
			}
			if s, err := e.state(id); err == nil {
				for i, p := range w.params {
					out[i], _ = s.grads.get(p)
				}
			}
			return out, nil
		}),
		rpc.Serve(dieMethod, func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
			return tensor.Record("death", in.Detach(), []*tensor.Tensor{in}, nil, func(context.Context, *tensor.Tensor) ([]*tensor.Tensor, error) {
				p, _ := os.FindProcess(os.Getpid())
				_ = p.Kill()
				select {}
			}), nil
		}),
		rpc.Serve(openMethod, func(ctx context.Context, _ struct{}) (int, error) {
			e, err := engineOf(rpc.AgentOf(ctx))
			return len(e.all()), err
		}),
		rpc.Serve(failMethod, func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
			return tensor.Record("fault", in.Detach(), []*tensor.Tensor{in}, nil, func(context.Context, *tensor.Tensor) ([]*tensor.Tensor, error) {
				return nil, errBroken
			}), nil
		}))
}

// over is the world of a program on one agent.
type over struct {
	agent  *rpc.Agent
	worker *testWorker
	p      *program
	src    *rand.PCG
	err    error
}

func (o *over) param(ctx context.Context, _, i int) *tensor.Tensor {
	return Ctx(ctx).Param(o.worker.params[i])
}

func (o *over) call(ctx context.Context, _, to, depth, numOut int, args ...*tensor.Tensor) []*tensor.Tensor {
	choices, _ := o.src.MarshalBinary()
	out, err := bodyMethod.Call(Ctx(ctx), o.agent.PeerRank(to), travelling{choices, o.p.calls, o.p.workers, depth, numOut, args})
	if err == nil {
		err = o.src.UnmarshalBinary(out.Choices)
	}
	if err != nil {
		if o.err == nil {
			o.err = err
		}
		return args[:1]
	}
	o.p.calls = out.Calls
	return out.Out
}

// inOneProcess returns the gradients of all workers' parameters of a random
// program that begins at root, computed under one tape.
func inOneProcess(t testing.TB, seed uint64, workers, root int) [][]*tensor.Tensor {
	t.Helper()
	params := make([][]*nn.Parameter, workers)
	for r := range params {
		params[r] = newTestWorker(r).params
	}
	tape := tensor.NewTape(true)
	defer tape.Close()
	var grads gradients
	var parts []*part
	p := newProgram(seed, workers)
	w := alone{p, tape, params, &grads, &parts}
	p.w = w
	loss := p.run(w.enter(t.Context()), root)
	grads.begin(parts)
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	grads.settle(parts)
	out := make([][]*tensor.Tensor, workers)
	for r := range params {
		for _, q := range params[r] {
			g, _ := grads.get(q)
			out[r] = append(out[r], g)
		}
	}
	return out
}

// wantProgram runs a random program from an agent, and compares.
func wantProgram(t testing.TB, a *rpc.Agent, w *testWorker, seed uint64) {
	t.Helper()
	want := inOneProcess(t, seed, a.Size(), a.Rank())
	dc, err := NewContext(a)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	src := rand.NewPCG(seed, 7)
	p := &program{rng: rand.New(src), workers: a.Size(), calls: callsOfProgram}
	o := &over{agent: a, worker: w, p: p, src: src}
	p.w = o
	loss := p.run(c, a.Rank())
	if o.err != nil {
		t.Fatalf("seed %d: %v", seed, o.err)
	}
	if err := dc.Backward(t.Context(), loss); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for r := range a.Size() {
		got, err := gradMethod.Call(t.Context(), a.PeerRank(r), dc.ID())
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			wantBits(t, fmt.Sprintf("seed %d: parameter %d of rank %d", seed, i, r), got[i], want[r][i])
		}
	}
}

// agents makes n agents, connected in one way, with what a test worker serves.
func agents(t testing.TB, transport string, n int) ([]*rpc.Agent, []*testWorker) {
	t.Helper()
	workers := make([]*testWorker, n)
	for r := range workers {
		workers[r] = newTestWorker(r)
	}
	return agentsServing(t, transport, n, func(rank int) rpc.Option { return workers[rank].serve() }), workers
}

// agentsServing makes n agents.
func agentsServing(t testing.TB, transport string, n int, serve func(rank int) rpc.Option) []*rpc.Agent {
	t.Helper()
	meet := rpc.WithListen("127.0.0.1:0")
	if transport == agenttest.Pipe {
		meet = rpc.WithNetwork(rpc.NewNetwork())
	}
	mem := store.NewMemory()
	return agenttest.Start(t, transport, n, func(ctx context.Context, rank int) (*rpc.Agent, error) {
		return rpc.Init(ctx, fmt.Sprintf("worker%d", rank), rpc.WithToken(agenttest.Token), meet, rpc.WithStore(mem, rank, n), serve(rank))
	})
}

// wantReleased waits until no agent knows a context.
func wantReleased(t testing.TB, all []*rpc.Agent) {
	t.Helper()
	for _, a := range all {
		e, _ := engineOf(a)
		agenttest.Eventually(t, fmt.Sprintf("%v has no context", a), func() bool { return len(e.all()) == 0 })
	}
}

func TestRandomGraphsOverAgents(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, transport string) {
		for _, n := range []int{3, 5} {
			all, workers := agents(t, transport, n)
			for seed := range uint64(10) {
				wantProgram(t, all[seed%2], workers[seed%2], seed)
			}
			wantReleased(t, all)
		}
	})
}

// TestAFailureOverAgents keeps its type and names the worker.
func TestAFailureOverAgents(t *testing.T) {
	all, workers := agents(t, "unix", 3)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	c, _ := dc.Pass(t.Context())
	y, err := failMethod.Call(c, all[0].Peer("worker2"), c.Param(workers[0].params[0]))
	if err != nil {
		t.Fatal(err)
	}
	err = dc.Backward(t.Context(), y.Sum())
	wantError(t, err, errBroken, "autograd: backward in context "+contextName(dc.ID())+": on worker2 (rank 2): disk on fire")
	if strings.Count(err.Error(), "rank 2") != 1 || strings.Contains(err.Error(), prefix) {
		t.Errorf("%v: says more than once where it was, or how it came here", err)
	}
	wantReleased(t, all)
	_, err = failMethod.Call(c, all[0].Peer("worker1"), c.Param(workers[0].params[0]))
	wantError(t, err, ErrReleased, "disk on fire")
}

// TestAsynchronousCallsOverAgents: futures of one pass, which run side by side.
func TestAsynchronousCallsOverAgents(t *testing.T) {
	all, workers := agents(t, "unix", 3)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	c, _ := dc.Pass(t.Context())
	x := c.Param(workers[0].params[0])
	var fs []*rpc.Future[travelled]
	for i := range 20 {
		choices, _ := rand.NewPCG(uint64(i), 7).MarshalBinary()
		fs = append(fs, bodyMethod.Async(c, all[0].PeerRank(1+i%2), travelling{choices, 5, 3, 1, 1, []*tensor.Tensor{x}}))
	}
	answers, err := rpc.WaitAll(t.Context(), fs...)
	if err != nil {
		t.Fatal(err)
	}
	sum := x.Sum()
	for _, a := range answers {
		sum = sum.Add(a.Out[0].Sum())
	}
	if err := dc.Backward(c, sum); err != nil { // with a carrier as the context, too
		t.Fatal(err)
	}
	if dc.Gradient(workers[0].params[0]) == nil {
		t.Error("the parameter has no gradient")
	}
}

// TestALostCallerReleasesItsContexts at once, not after a minute.
func TestALostCallerReleasesItsContexts(t *testing.T) {
	all, workers := agents(t, "tcp", 2)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	c, _ := dc.Pass(t.Context())
	if _, err := failMethod.Call(c, all[0].Peer("worker1"), c.Param(workers[0].params[0])); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	wantReleased(t, all)
	if _, err := dc.Pass(t.Context()); !errors.Is(err, ErrReleased) {
		t.Errorf("a pass of a context whose agent is closed: %v", err)
	}
}

func TestAgentsWithoutAutograd(t *testing.T) {
	a, err := rpc.Init(t.Context(), "lonely", rpc.WithNetwork(rpc.NewNetwork()), rpc.WithToken(agenttest.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := NewContext(a); err == nil || !strings.Contains(err.Error(), "autograd.WithEngine()") {
		t.Errorf("NewContext of an agent without it: %v", err)
	}
	if _, err := NewContext(nil); err == nil {
		t.Error("NewContext of no agent gave no error")
	}
}
