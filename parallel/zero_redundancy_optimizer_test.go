// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// zeroOptimizers make optimizers of several groups, of which some parameters are in none.
var zeroOptimizers = map[string]func(params []*nn.Parameter) optim.Optimizer{
	"adamw": func(params []*nn.Parameter) optim.Optimizer {
		o := optim.NewAdamW(params[:4], optim.AdamWOptions{LR: 1e-2, WeightDecay: 0.1, AMSGrad: true})
		o.AddGroup(params[4:], optim.AdamWOptions{LR: 1e-3})
		return o
	},
	"momentum": func(params []*nn.Parameter) optim.Optimizer {
		return optim.NewSGD(params[1:], optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	},
	"sgd": func(params []*nn.Parameter) optim.Optimizer { return optim.NewSGD(params, optim.SGDOptions{LR: 0.1}) },
	"adagrad": func(params []*nn.Parameter) optim.Optimizer {
		return optim.NewAdagrad(params, optim.AdagradOptions{LR: 0.1, InitialAccumulatorValue: 0.5})
	},
	"rmsprop": func(params []*nn.Parameter) optim.Optimizer {
		return optim.NewRMSprop(params, optim.RMSpropOptions{LR: 1e-2, Momentum: 0.5, Centered: true})
	},
}

// zeroRun is a DDP with an optimizer whose state may be divided.
type zeroRun struct {
	model *toy
	ddp   *DDP
	opt   optim.Optimizer
	in    *batches
}

func newZeroRun(ctx context.Context, g *dist.Group, name string, divide bool) (r zeroRun, err error) {
	r.model = newToy(int64(g.Rank()), width)
	if r.ddp, err = NewDDP(ctx, r.model, g, small); err != nil {
		return r, err
	}
	r.in = newBatches(g.Rank(), g.Size(), 8)
	params := nn.Parameters(r.model)
	if !divide {
		r.opt = zeroOptimizers[name](params)
		return r, nil
	}
	r.opt, err = newZero(ctx, g, params, zeroOptimizers[name], func(int) int { return 512 })
	return r, err
}

// steps trains; the update of each third step is left out, as after a loss that is not finite.
func (r zeroRun) steps(ctx context.Context, n int) error {
	for i := range n {
		r.opt.ZeroGrad()
		ids, targets := r.in.next()
		if _, err := backward(ctx, r.ddp, ids, targets); err != nil {
			return err
		}
		scale := tensor.FromFloat64([]float64{0.75})
		if i%3 == 2 {
			scale = tensor.FromFloat64([]float64{math.NaN()})
		}
		if err := Update(ctx, r.opt, scale); err != nil {
			return err
		}
		if i%3 == 2 {
			r.opt.Skipped()
		}
	}
	return nil
}

// TestZeroEqualsDDP: with its state divided, an optimizer gives the bits that it gives without,
// of the parameters, and of the state when it is put together. A state that was put together
// goes on among other ranks.
func TestZeroEqualsDDP(t *testing.T) {
	t.Parallel()
	for name := range zeroOptimizers {
		for _, n := range []int{1, 2, 3, 5} {
			err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
				plain, err := newZeroRun(ctx, g, name, false)
				if err != nil {
					return err
				}
				divided, err := newZeroRun(ctx, g, name, true)
				if err != nil {
					return err
				}
				for _, r := range []zeroRun{plain, divided} {
					if err := r.steps(ctx, 7); err != nil {
						return err
					}
				}
				if got, want := digest(divided.model), digest(plain.model); got != want {
					return fmt.Errorf("the parameters have the digest %s, want %s", got, want)
				}
				z := divided.opt.(*ZeroRedundancyOptimizer)
				if got, want := z.NumSteps(), plain.opt.NumSteps(); got != want {
					return fmt.Errorf("%d steps, want %d", got, want)
				}
				if err := holdsItsOwn(z, plain.opt); err != nil {
					return err
				}
				to := n - 1
				whole, err := z.ConsolidateState(ctx, to)
				if err != nil {
					return err
				}
				if g.Rank() != to {
					if whole != nil {
						return fmt.Errorf("rank %d has a consolidated state, which was for rank %d", g.Rank(), to)
					}
					whole = plain.opt.State()
				}
				if err := equalStates(whole, plain.opt.State()); err != nil {
					return err
				}
				// Go on from it: the ranks hold other parts now.
				resumed, err := newZeroRun(ctx, g, name, true)
				if err != nil {
					return err
				}
				for i, s := range nn.StateDict(resumed.model) {
					s.Tensor.CopyFrom(nn.StateDict(plain.model)[i].Tensor)
				}
				if err := resumed.opt.(*ZeroRedundancyOptimizer).LoadState(whole); err != nil {
					return err
				}
				resumed.opt.SetNumSteps(plain.opt.NumSteps())
				resumed.in = plain.in
				at := plain.in.at
				if err := plain.steps(ctx, 2); err != nil {
					return err
				}
				resumed.in.at = at
				if err := resumed.steps(ctx, 2); err != nil {
					return err
				}
				if got, want := digest(resumed.model), digest(plain.model); got != want {
					return fmt.Errorf("after the state was loaded, the parameters have the digest %s, want %s", got, want)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%s on %d ranks: %v", name, n, err)
			}
		}
	}
}

// holdsItsOwn fails if a rank has memory for state that it does not update.
func holdsItsOwn(z *ZeroRedundancyOptimizer, plain optim.Optimizer) error {
	held, own := 0, 0
	for _, s := range z.State() {
		if s.Tensor.Device() != tensor.Meta {
			held += s.Tensor.NumElems()
		}
	}
	for p := range z.owner {
		kinds := 0
		for _, s := range plain.State() {
			if kind, name, _ := strings.Cut(s.Name, "."); name == p.Name() && kind != "step" {
				kinds++
			}
		}
		if z.Holds(p) && kinds > 0 {
			own += kinds*p.Data().NumElems() + 1
		}
		if want := kinds; optim.NumStates(z, p) != want && z.Holds(p) || optim.NumStates(z, p) != 0 && !z.Holds(p) {
			return fmt.Errorf("%s has %d states here", p.Name(), optim.NumStates(z, p))
		}
	}
	if held != own {
		return fmt.Errorf("the rank holds %d elements of state, its parameters have %d", held, own)
	}
	return nil
}

func equalStates(got, want nn.NamedTensors) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d state tensors, want %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; g.Name != w.Name || !slices.Equal(g.Tensor.Shape(), w.Tensor.Shape()) || !slices.Equal(elements(g.Tensor), elements(w.Tensor)) {
			return fmt.Errorf("state %d is %s %v %v, want %s %v %v", i, g.Name, g.Tensor.Shape(), elements(g.Tensor), w.Name, w.Tensor.Shape(), elements(w.Tensor))
		}
	}
	return nil
}

// TestPartitionAsPyTorch compares who has which parameter, and in which order a rank's parameters
// are broadcast, with PyTorch's; see testdata/zero_partition.py.
func TestPartitionAsPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/zero_partition_2.15.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Ranks  int
		Sizes  [][]int
		Owners [][]int
		Order  [][][2]int
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		owners, order := make([][]int, len(c.Sizes)), make([][][2]int, c.Ranks)
		for g := range c.Sizes {
			owners[g] = make([]int, len(c.Sizes[g]))
		}
		for _, a := range partition(c.Sizes, c.Ranks) {
			owners[a.group][a.param] = a.rank
			order[a.rank] = append(order[a.rank], [2]int{a.group, a.param})
		}
		if got, want := fmt.Sprint(owners, order), fmt.Sprint(c.Owners, c.Order); got != want {
			t.Errorf("%v on %d ranks: got %s, want %s", c.Sizes, c.Ranks, got, want)
		}
	}
}

// TestZeroRefuses: what cannot be divided is refused on every rank, with the rank that is at fault.
func TestZeroRefuses(t *testing.T) {
	t.Parallel()
	adam := func(o optim.AdamOptions) func(params []*nn.Parameter) optim.Optimizer {
		return func(params []*nn.Parameter) optim.Optimizer { return optim.NewAdam(params, o) }
	}
	for _, c := range []struct {
		name string
		of   func(rank int, params []*nn.Parameter) ([]*nn.Parameter, func(params []*nn.Parameter) optim.Optimizer)
		want string
	}{
		{"another learning rate", func(rank int, params []*nn.Parameter) ([]*nn.Parameter, func([]*nn.Parameter) optim.Optimizer) {
			lr := 0.1
			if rank == 2 {
				lr = 0.2
			}
			return params, adam(optim.AdamOptions{LR: lr})
		}, "initial_lr:0.2"},
		{"another optimizer", func(rank int, params []*nn.Parameter) ([]*nn.Parameter, func([]*nn.Parameter) optim.Optimizer) {
			if rank == 2 {
				return params, zeroOptimizers["sgd"]
			}
			return params, adam(optim.AdamOptions{})
		}, "rank 0 has a *optim.Adam where rank 2 has a *optim.SGD"},
		{"fewer parameters", func(rank int, params []*nn.Parameter) ([]*nn.Parameter, func([]*nn.Parameter) optim.Optimizer) {
			if rank == 2 {
				params = params[:3]
			}
			return params, adam(optim.AdamOptions{})
		}, "where rank 2 has nothing more"},
		{"no optimizer", func(rank int, params []*nn.Parameter) ([]*nn.Parameter, func([]*nn.Parameter) optim.Optimizer) {
			if rank == 2 {
				return params, func([]*nn.Parameter) optim.Optimizer { return nil }
			}
			return params, adam(optim.AdamOptions{})
		}, "where rank 2 has no optimizer: newOptimizer returned nil"},
	} {
		told := make([]error, 3)
		_ = spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
			params, newOptimizer := c.of(g.Rank(), nn.Parameters(newToy(1, width)))
			_, told[g.Rank()] = NewZeroRedundancyOptimizer(ctx, g, params, newOptimizer)
			return nil
		})
		for rank, err := range told {
			var differs *OptimizerMismatchError
			if !errors.As(err, &differs) || differs.Rank != 2 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: rank %d is told %v, want rank 2 and %q", c.name, rank, err, c.want)
			}
		}
	}
}

// TestZeroFaults: a rank that leaves is named by the others, in the update, and Step says what to call.
func TestZeroFaults(t *testing.T) {
	t.Parallel()
	told := make([]error, 3)
	err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
		r, err := newZeroRun(ctx, g, "adamw", true)
		if err != nil {
			return err
		}
		if err := r.steps(ctx, 1); err != nil {
			return err
		}
		if g.Rank() == 2 {
			return errors.New("leaves before the second update")
		}
		told[g.Rank()] = Update(ctx, r.opt, nil)
		return nil
	})
	for rank, e := range told[:2] {
		if e == nil || !strings.Contains(e.Error(), "zero redundancy optimizer: broadcast ") || !strings.Contains(e.Error(), "rank 2") {
			t.Errorf("rank %d is told %v", rank, e)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "leaves before the second update") {
		t.Errorf("the job ended with %v", err)
	}
	defer func() {
		if e, ok := recover().(*tensor.Error); !ok || !strings.Contains(e.Error(), "parallel.Update(ctx, optimizer, scale)") {
			t.Errorf("Step panicked with %v", e)
		}
	}()
	(&ZeroRedundancyOptimizer{}).Step(nil)
}
