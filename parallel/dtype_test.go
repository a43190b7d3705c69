// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// weighted is a model whose gradients are known: its loss is the sum of each
// parameter times the inputs, of as many elements.
type weighted struct {
	Params []*nn.Parameter
	skip   func(i int) bool // parameters that the pass leaves out
}

var manyDTypes = []tensor.DType{tensor.BFloat16, tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float64, tensor.Float32, tensor.BFloat16}

func newWeighted() *weighted {
	m := &weighted{skip: func(int) bool { return false }}
	for _, d := range manyDTypes {
		m.Params = append(m.Params, nn.NewParameter(tensor.Full(0.5, 3).To(d)))
	}
	return m
}

func (m *weighted) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	sum := x.Sum().MulScalar(0)
	for i, p := range m.Params {
		if !m.skip(i) {
			sum = sum.Add(c.Param(p).Mul(x.To(p.Data().DType())).Sum().To(tensor.Float32))
		}
	}
	return sum
}

// pass runs one pass of the model in d.
func (m *weighted) pass(ctx context.Context, d *DDP, x ...float32) (err error) {
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	return c.Call(d, tensor.FromFloat32(x)).Backward(ctx)
}

// TestParametersOfManyDTypes: each is averaged in its own dtype. PyTorch's buckets
// are of one dtype too, and (1 + 1/256)/2 rounds to 0.50390625 in its bfloat16.
func TestParametersOfManyDTypes(t *testing.T) {
	for _, limits := range [][]int{{1 << 20, 1 << 20}, {8, 8}, {1, 1}} {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := newWeighted()
			for _, p := range m.Params {
				p.Data().Fill(float64(g.Rank()))
			}
			ddp, err := NewDDP(ctx, m, g, WithBucketBytes(limits[0], limits[1]))
			if err != nil {
				return err
			}
			for _, b := range nativeOf(ddp).buckets {
				for _, p := range b.params {
					if p.Data().DType() != b.flat.DType() {
						return fmt.Errorf("a %v in a bucket of %v", p.Data().DType(), b.flat.DType())
					}
				}
			}
			for range 2 {
				for _, p := range m.Params {
					p.ZeroGrad()
				}
				if err := m.pass(ctx, ddp, 1+2*float32(g.Rank()), 1, 0.0078125*float32(g.Rank())); err != nil {
					return err
				}
				for i, p := range m.Params {
					if p.Data().Float32s()[0] != 0 {
						return fmt.Errorf("param %d is not rank 0's", i)
					}
					if p.Grad().DType() != manyDTypes[i] || !slices.Equal(p.Grad().Float32s(), []float32{2, 1, 0.00390625}) {
						return fmt.Errorf("param %d: gradient %v, want [2 1 0.00390625] of %v", i, p.Grad(), manyDTypes[i])
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("limits %v: %v", limits, err)
		}
	}
}

// TestDTypesThatDiffer: the error is every rank's, and names the parameter and both.
func TestDTypesThatDiffer(t *testing.T) {
	told := make([]error, 2)
	_ = spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newWeighted()
		if g.Rank() == 1 {
			m.Params[2].SetData(m.Params[2].Data().To(tensor.Float16))
		}
		_, told[g.Rank()] = NewDDP(ctx, m, g)
		return nil
	})
	for rank, err := range told {
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "params.2 [3] (bfloat16)") || !strings.Contains(err.Error(), "(float16)") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestModelsThatCannotBeAveraged: each says which parameter, and what to do.
func TestModelsThatCannotBeAveraged(t *testing.T) {
	for want, param := range map[string]*nn.Parameter{
		"params.0 is on device meta": nn.NewParameter(tensor.New(tensor.Meta, tensor.Float32, 3)),
		"params.0 is int64":          nn.NewParameter(tensor.FromInt64([]int64{1, 2, 3})),
	} {
		err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
			_, err := NewDDP(ctx, &weighted{Params: []*nn.Parameter{param}}, g)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
	}
}

// TestGradientsThatLeaveTheirBucket: a parameter whose gradient has other memory
// since NewDDP would be each rank's own.
func TestGradientsThatLeaveTheirBucket(t *testing.T) {
	for name, change := range map[string]func(p *nn.Parameter){
		"dtype":    func(p *nn.Parameter) { p.SetData(p.Data().To(tensor.Float32)) },
		"shape":    func(p *nn.Parameter) { p.SetData(tensor.Zeros(1, 3).To(tensor.BFloat16)) },
		"set grad": func(p *nn.Parameter) { p.SetGrad(tensor.Zeros(3).To(tensor.BFloat16)) },
	} {
		err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
			m := newWeighted()
			ddp, err := NewDDP(ctx, m, g)
			if err != nil {
				return err
			}
			change(m.Params[2])
			if err := m.pass(ctx, ddp, 1, 2, 3); err == nil || !strings.Contains(err.Error(), "the gradient of params.2 has got other memory") {
				return fmt.Errorf("the pass gives %v", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		m := newWeighted()
		ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{}))
		if err != nil {
			return err
		}
		m.Params[2].SetData(m.Params[2].Data().To(tensor.Float32))
		if err := m.pass(ctx, ddp, 1, 2, 3); err == nil || !strings.Contains(err.Error(), "params.2 has another dtype") {
			return fmt.Errorf("the pass gives %v", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("beside PyTorch: %v", err)
	}
}

// TestUnusedParametersAreLeftAlone: AdamW decays none that no rank has used, and
// those that some rank has used have the mean, as PyTorch's DDP has it with
// find_unused_parameters.
func TestUnusedParametersAreLeftAlone(t *testing.T) {
	const lr, decay = 0.1, 0.5
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := &weighted{}
		for range 4 {
			m.Params = append(m.Params, nn.NewParameter(tensor.Full(1, 3)))
		}
		for _, limits := range []int{1, 1 << 20} {
			ddp, err := NewDDP(ctx, m, g, WithBucketBytes(limits, limits))
			if err != nil {
				return err
			}
			opt := optim.NewAdamW(m.Params, optim.AdamWOptions{LR: lr, WeightDecay: decay})
			seen := 0
			m.Params[1].OnGradReady(func(context.Context, *nn.Parameter) error { seen++; return nil })
			for step := range 4 {
				for _, p := range m.Params {
					p.Data().Fill(1)
				}
				// Both use 0, one 1, in turn, and nobody the others, of which 3 has used to be.
				m.skip = func(i int) bool { return i == 1 && g.Rank() == step%2 || i == 2 || i == 3 && step > 0 }
				opt.ZeroGrad()
				if err := m.pass(ctx, ddp, 2, 2, 2); err != nil {
					return err
				}
				opt.Step(nil)
				for i, want := range []float32{2, 1, 0, 0} {
					p := m.Params[i]
					if i == 3 && step == 0 {
						want = 2
					}
					if want == 0 && (p.Grad() != nil || p.Data().Float32s()[0] != 1) {
						return fmt.Errorf("step %d: nobody uses %s, whose gradient is %v and value %v", step, p.Name(), p.Grad(), p.Data())
					}
					if want != 0 && (p.Grad() == nil || p.Grad().Float32s()[0] != want || p.Data().Float32s()[0] > 1-lr*decay) {
						return fmt.Errorf("step %d: the gradient of %s is %v, want %v; its value %v", step, p.Name(), p.Grad(), want, p.Data())
					}
				}
			}
			if seen != 4 {
				return fmt.Errorf("the gradient that one rank computes was announced %d times in 4 passes", seen)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHooksBeforeTheSum: a hook changes what a rank brings to the sum, also where that is
// nothing, and never the sum: ranks would go apart.
func TestHooksBeforeTheSum(t *testing.T) {
	for name, opts := range map[string][]DDPOption{"ours": nil, "PyTorch's": {WithPyTorch(PyTorchOptions{FindUnused: true})}} {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := &weighted{}
			for range 3 {
				m.Params = append(m.Params, nn.NewParameter(tensor.Full(1, 3)))
				m.Params[len(m.Params)-1].OnGradReady(func(_ context.Context, p *nn.Parameter) error {
					p.Grad().Scale(10)
					return nil
				})
			}
			ddp, err := NewDDP(ctx, m, g, opts...)
			if err != nil {
				return err
			}
			m.skip = func(i int) bool { return i == 1 && g.Rank() == 0 || i == 2 } // one rank uses 1, nobody 2
			for step := range 2 {
				for _, p := range m.Params {
					p.ZeroGrad()
				}
				if err := m.pass(ctx, ddp, 2, 2, 2); err != nil {
					return err
				}
				for i, want := range []float32{20, 10} {
					if got := m.Params[i].Grad().Float32s()[0]; got != want {
						return fmt.Errorf("rank %d, step %d: the gradient of %d is %v, want %v", g.Rank(), step, i, got, want)
					}
				}
				if m.Params[2].Grad() != nil {
					return fmt.Errorf("rank %d, step %d: nobody has used 2, whose gradient is %v", g.Rank(), step, m.Params[2].Grad())
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnusedUnderAccumulation: what one pass of a step has used is not lost where the last
// one, which the ranks share, does without it.
func TestUnusedUnderAccumulation(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newWeighted()
		ddp, err := NewDDP(ctx, m, g, WithBucketBytes(8, 8))
		if err != nil {
			return err
		}
		for step := range 3 {
			for _, p := range m.Params {
				p.ZeroGrad()
			}
			m.skip = func(i int) bool { return i == 0 || i == 1 && g.Rank() == step%2 }
			if err := ddp.NoSync(func() error { return m.pass(ctx, ddp, 2, 2, 2) }); err != nil {
				return err
			}
			m.skip = func(i int) bool { return i < 3 }
			if err := m.pass(ctx, ddp, 2, 2, 2); err != nil {
				return err
			}
			for i, p := range m.Params {
				want := float32(4) // of both passes
				if i < 3 {
					want = []float32{0, 1, 2}[i]
				}
				if i == 0 && p.Grad() != nil || i > 0 && (p.Grad() == nil || p.Grad().Float32s()[0] != want) {
					return fmt.Errorf("rank %d, step %d: the gradient of %d is %v, want %v", g.Rank(), step, i, p.Grad(), want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNoSyncInsideNoSync: the inner one ends nothing.
func TestNoSyncInsideNoSync(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newWeighted()
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		x := float32(1 + g.Rank())
		stop := errors.New("an error of the inner one")
		err = ddp.NoSync(func() error {
			if err := ddp.NoSync(func() error { return stop }); err != stop {
				return fmt.Errorf("the inner one gives %v", err)
			}
			return m.pass(ctx, ddp, x, x, x)
		})
		if err != nil {
			return err
		}
		if got := m.Params[0].Grad().Float32s()[0]; got != x/2 {
			return fmt.Errorf("rank %d: the gradient is %v, want the rank's own half, %v", g.Rank(), got, x/2)
		}
		if err := m.pass(ctx, ddp, x, x, x); err != nil {
			return err
		}
		if got := m.Params[0].Grad().Float32s()[0]; got != 3 {
			return fmt.Errorf("rank %d: the sum of both passes is %v, want 3", g.Rank(), got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNothingIsInFlightAfterAFailedPass: what the other ranks bring later does not
// come into the gradients of a rank whose pass has failed.
func TestNothingIsInFlightAfterAFailedPass(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		late := how == "panic" // then the other rank comes when the first has given up
		failed, looked := make(chan struct{}), make(chan struct{})
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := newWeighted()
			ddp, err := NewDDP(ctx, m, g, WithBucketBytes(1, 1))
			if err != nil {
				return err
			}
			if g.Rank() == 1 {
				if late {
					<-failed
				}
				for _, b := range nativeOf(ddp).buckets {
					b.flat.Fill(7)
					b.work = allReduced{mesh.AllReduceAsync(ctx, replicateAxis, b.owing...)}
				}
				<-looked
				return nil
			}
			defer close(looked)
			if late {
				nativeOf(ddp).grace = time.Millisecond
			}
			stop := errors.New("no more")
			m.Params[0].OnGradReady(func(context.Context, *nn.Parameter) error {
				if late {
					panic(&tensor.Error{Op: "hook", Msg: stop.Error()})
				}
				return stop
			})
			err = m.pass(ctx, ddp, 1, 2, 3)
			if err == nil || !strings.Contains(err.Error(), "no more") {
				return fmt.Errorf("the pass gives %v", err)
			}
			close(failed)
			if nativeOf(ddp).launched == 0 {
				return errors.New("the pass failed before its first bucket, so nothing was shown")
			}
			for _, b := range nativeOf(ddp).buckets[:nativeOf(ddp).launched] {
				if late {
					if err := b.work.wait(ctx); err != nil {
						return err
					}
					if g := b.params[0].Grad(); g != nil {
						return fmt.Errorf("the gradient is %v, of memory that another rank's reduction came to", g)
					}
					continue
				}
				if !b.work.ended() {
					return errors.New("a reduction is still under way")
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
}
