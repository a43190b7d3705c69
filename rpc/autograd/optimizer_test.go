// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	refsMethod  = rpc.NewMethod[struct{}, []*rpc.RRef[*nn.Parameter]]("test.refs")
	layerMethod = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.layer")
	peekMethod  = rpc.NewMethod[struct{}, []*tensor.Tensor]("test.peek")
)

// stage is a layer of a model that runs on a worker.
type stage struct{ model *nn.Linear }

func newStage(rank int) *stage {
	s := &stage{&nn.Linear{Weight: param(rank, 4, 4), Bias: param(100+rank, 4)}}
	nn.Parameters(s.model) // which names them: before several handlers use them
	return s
}

func (s *stage) forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return c.Call(s.model, x).Tanh() }

func (s *stage) serve() rpc.Option {
	return rpc.WithOptions(WithEngine(),
		rpc.Serve(refsMethod, func(ctx context.Context, _ struct{}) ([]*rpc.RRef[*nn.Parameter], error) {
			return Refs(rpc.AgentOf(ctx), nn.Parameters(s.model)), nil
		}),
		rpc.Serve(layerMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return s.forward(Ctx(ctx), x), nil
		}),
		rpc.Serve(peekMethod, func(context.Context, struct{}) ([]*tensor.Tensor, error) {
			var out []*tensor.Tensor
			for _, p := range nn.Parameters(s.model) {
				out = append(out, p.Data())
			}
			return out, nil
		}))
}

// algorithms are all of them, with an optimizer of one process that is the same.
var algorithms = map[string]struct {
	alg   Algorithm
	local func(params []*nn.Parameter) optim.Optimizer
}{
	"sgd": {SGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01}), func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewSGD(ps, optim.SGDOptions{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01})
	}},
	"adam": {Adam(optim.AdamOptions{LR: 0.01, Beta1: optim.Zero}), func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewAdam(ps, optim.AdamOptions{LR: 0.01, Beta1: optim.Zero})
	}},
	"adamw": {AdamW(optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, AMSGrad: true}), func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewAdamW(ps, optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, AMSGrad: true})
	}},
	"adagrad": {Adagrad(optim.AdagradOptions{LR: 0.1}), func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewAdagrad(ps, optim.AdagradOptions{LR: 0.1})
	}},
	"rmsprop": {RMSprop(optim.RMSpropOptions{LR: 0.01, Centered: true}), func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewRMSprop(ps, optim.RMSpropOptions{LR: 0.01, Centered: true})
	}},
}

// TestStepsAreThoseOfOneProcess: a model over three workers, trained for five
// steps, has the weights that one process gets, bit for bit.
func TestStepsAreThoseOfOneProcess(t *testing.T) {
	const workers, steps = 3, 5
	input := func(step int) *tensor.Tensor { return tensor.FromFloat32(values(8, 50+step), 2, 4) }
	for name, c := range algorithms {
		t.Run(name, func(t *testing.T) {
			var local []*stage
			var params []*nn.Parameter
			for r := range workers {
				s := newStage(r)
				local = append(local, s)
				params = append(params, nn.Parameters(s.model)...)
			}
			opt := c.local(params)
			var norms []float64
			for step := range steps {
				c := nn.Training(t.Context())
				opt.ZeroGrad()
				x := input(step)
				for _, s := range local {
					x = s.forward(c, x)
				}
				if err := x.Mul(x).Mean().Backward(c); err != nil {
					t.Fatal(err)
				}
				norm, scale := optim.ClipGradNorm(params, 0.05)
				norms = append(norms, norm.Item())
				opt.Groups()[0].SetLR(0.1 / float64(step+1))
				opt.Step(scale)
				c.Close()
			}

			all, stages := stagesOf(t, workers)
			ctx := t.Context()
			var refs []*rpc.RRef[*nn.Parameter]
			for _, p := range all[0].Peers() {
				mine, err := refsMethod.Call(ctx, p, struct{}{})
				if err != nil {
					t.Fatal(err)
				}
				refs = append(refs, mine...)
			}
			dopt, err := NewOptimizer(ctx, all[0], c.alg, refs)
			if err != nil {
				t.Fatal(err)
			}
			defer dopt.Close()
			for step := range steps {
				dc, err := NewContext(all[0])
				if err != nil {
					t.Fatal(err)
				}
				c, err := dc.Pass(ctx)
				if err != nil {
					t.Fatal(err)
				}
				x := stages[0].forward(c, input(step))
				for r := 1; r < workers; r++ {
					if x, err = layerMethod.Call(c, all[0].PeerRank(r), x); err != nil {
						t.Fatal(err)
					}
				}
				if err := dc.Backward(ctx, x.Mul(x).Mean()); err != nil {
					t.Fatal(err)
				}
				norm, scale, err := dopt.ClipGradNorm(ctx, dc, 0.05)
				if err != nil {
					t.Fatal(err)
				}
				if math.Abs(norm-norms[step]) > 1e-15 {
					t.Errorf("step %d: the norm is %v, in one process %v", step, norm, norms[step])
				}
				if err := dopt.SetLR(ctx, 0.1/float64(step+1)); err != nil {
					t.Fatal(err)
				}
				if err := dopt.Step(ctx, dc, scale); err != nil {
					t.Fatal(err)
				}
				dc.Close()
			}
			for r := range workers {
				got, err := peekMethod.Call(ctx, all[0].PeerRank(r), struct{}{})
				if err != nil {
					t.Fatal(err)
				}
				for i, p := range nn.Parameters(local[r].model) {
					if g, w := got[i].Float32s(), p.Data().Float32s(); !slices.Equal(g, w) {
						t.Errorf("parameter %d of worker%d is %v, in one process %v", i, r, g, w)
					}
				}
			}
			for _, r := range refs {
				r.Release()
			}
		})
	}
}

// stagesOf makes agents that serve a stage each.
func stagesOf(t testing.TB, n int) ([]*rpc.Agent, []*stage) {
	t.Helper()
	stages := make([]*stage, n)
	all := agentsServing(t, "unix", n, func(rank int) rpc.Option {
		stages[rank] = newStage(rank)
		return stages[rank].serve()
	})
	return all, stages
}

// TestOptimizersFailWithTheOwnersName for what cannot be.
func TestOptimizersFailWithTheOwnersName(t *testing.T) {
	all, stages := stagesOf(t, 2)
	ctx := t.Context()
	refs, err := refsMethod.Call(ctx, all[0].Peer("worker1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	sgd := SGD(optim.SGDOptions{LR: 0.1})
	for what, try := range map[string]func() (*Optimizer, error){
		"on worker1 (rank 1): tensor: ":       func() (*Optimizer, error) { return NewOptimizer(ctx, all[0], SGD(optim.SGDOptions{LR: -1}), refs) },
		"on worker1 (rank 1): no algorithm":   func() (*Optimizer, error) { return NewOptimizer(ctx, all[0], Algorithm{}, refs) },
		"the parameter is in a group already": func() (*Optimizer, error) { return NewOptimizer(ctx, all[0], sgd, append(refs, refs[0])) },
		"there are no parameters":             func() (*Optimizer, error) { return NewOptimizer(ctx, all[0], sgd, nil) },
		"reference 0 of 1 is nil":             func() (*Optimizer, error) { return NewOptimizer(ctx, all[0], sgd, []*rpc.RRef[*nn.Parameter]{nil}) },
	} {
		_, err := try()
		wantError(t, err, nil, what)
	}
	opt, err := NewOptimizer(ctx, all[0], sgd, refs)
	if err != nil {
		t.Fatal(err)
	}
	before := stages[1].model.Weight.Data().Float32s()
	dc, _ := NewContext(all[0])
	if err := opt.Step(ctx, dc, 1); err != nil {
		t.Errorf("a step in a context that worker1 has no part in: %v", err)
	}
	wantError(t, opt.SetLR(ctx, math.NaN()), nil, "on worker1 (rank 1)", "LR")
	c, _ := dc.Pass(ctx)
	if _, err := layerMethod.Call(c, all[0].Peer("worker1"), tensor.Zeros(1, 4)); err != nil {
		t.Fatal(err)
	}
	dc.Close()
	wantReleased(t, all)
	wantError(t, opt.Step(ctx, dc, 1), ErrReleased, "step in context 0/", "on worker1 (rank 1)")
	if got := stages[1].model.Weight.Data().Float32s(); !slices.Equal(got, before) {
		t.Errorf("the weight has changed from %v to %v without a gradient", before, got)
	}
	refs[0].Release()
	_, err = NewOptimizer(ctx, all[0], sgd, refs)
	if rpc.KindOf(err) != rpc.KindReleased || !strings.Contains(err.Error(), "worker1") {
		t.Errorf("an optimizer of a released reference: %v", err)
	}
	if err := all[1].Close(); err != nil {
		t.Fatal(err)
	}
	dc, _ = NewContext(all[0])
	var own *Error
	if err := opt.Step(ctx, dc, 1); !errors.As(err, &own) || own.Worker != "worker1" {
		t.Errorf("a step when the owner is gone: %v", err)
	}
	dc.Close()
	opt.Close()
}

// TestOptimizersOfAMakerThatIsGoneAreDropped.
func TestOptimizersOfAMakerThatIsGoneAreDropped(t *testing.T) {
	all, _ := stagesOf(t, 2)
	refs, err := refsMethod.Call(t.Context(), all[0].Peer("worker1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	count := func() int { return all[1].References().By["worker0"] }
	agenttest.Eventually(t, "the references to the parameters count", func() bool { return count() == len(refs) })
	var opts []*Optimizer
	for i := range 3 {
		opt, err := NewOptimizer(t.Context(), all[0], SGD(optim.SGDOptions{LR: 0.1}), refs)
		if err != nil {
			t.Fatal(err)
		}
		if opts = append(opts, opt); i == 0 {
			opt.Close()
		}
	}
	agenttest.Eventually(t, "one of three optimizers is closed", func() bool { return count() == len(refs)+2 })
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "their maker is gone", func() bool { return count() == 0 })
	runtime.KeepAlive(opts)
	runtime.KeepAlive(refs)
}

// TestRemoteResultsInAContext: what a call left at its worker is fetched, and
// differentiated, as if it had been sent.
func TestRemoteResultsInAContext(t *testing.T) {
	all, stages := stagesOf(t, 2)
	ctx := t.Context()
	x := tensor.FromFloat32(values(8, 3), 2, 4)
	one := nn.Training(ctx)
	h := stages[1].forward(one, x)
	h = stages[1].forward(one, h)
	if err := h.Sum().Backward(one); err != nil {
		t.Fatal(err)
	}
	one.Close()

	dc, _ := NewContext(all[0])
	defer dc.Close()
	c, _ := dc.Pass(ctx)
	ref, err := layerMethod.Remote(c, all[0].Peer("worker1"), x)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Release()
	here, err := ref.ToHere(c)
	if err != nil {
		t.Fatal(err)
	}
	if !here.NeedsGrad() {
		t.Fatal("what was fetched has no history")
	}
	out, err := layerMethod.Call(c, all[0].Peer("worker1"), here)
	if err != nil {
		t.Fatal(err)
	}
	if err := dc.Backward(ctx, out.Sum()); err != nil {
		t.Fatal(err)
	}
	e, _ := engineOf(all[1])
	far := &Context{s: stateOf(t, e, dc.ID())}
	for i, p := range nn.Parameters(stages[1].model) {
		wantBits(t, fmt.Sprintf("parameter %d", i), far.Gradient(p), p.Grad())
	}
}
