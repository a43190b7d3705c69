// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// unreduced is a layer whose author forgot a reduction: it says that its result is
// a part of a sum.
type unreduced struct{ *nn.Linear }

func (u *unreduced) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := c.Call(u.Linear, x)
	sharding.Of(c.Tape()).Give(y, sharding.Boundary{Type: sharding.Type{mesh.Partial(dist.Sum)}})
	return y
}

// TestDDPChecksTypes: a value that owes a reduction ends the first pass on every
// rank, named by module and axis, before the optimizer.
func TestDDPChecksTypes(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		b := &nn.Build{Generator: tensor.NewGenerator(1)}
		m := nn.NewSequential(nn.NewLinear(b, 4, 4), &unreduced{nn.NewLinear(b, 4, 4)}, &nn.GELU{})
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		_, err = nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor { return c.Call(ddp, tensor.Full(1, 2, 4)).Mean() })
		var typed *sharding.Error
		if !errors.As(err, &typed) || typed.Axis != "replicate" || !strings.Contains(err.Error(), "forward of 2 (*nn.GELU)") {
			return fmt.Errorf("got %v, want an error of module 2 about axis replicate", err)
		}
		for _, p := range nn.Parameters(m) {
			if p.Grad() != nil {
				return fmt.Errorf("%s has a gradient", p.Name())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDDPChecksOnePass: the first training pass is checked, with frozen parameters,
// sparse ones, recomputation and evaluation passes around, and no later one.
func TestDDPChecksOnePass(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(1, width)
		m.Tokens.Weight.Sparse = true
		nn.Parameters(m.Norm)[0].Frozen = true
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		in := newBatches(g.Rank(), g.Size(), 8)
		for i, want := range []bool{true, false, false} {
			evaluation := nn.Evaluation(ctx)
			ids, targets := in.next()
			evaluation.Call(ddp, ids)
			if sharding.Of(evaluation.Tape()) != nil {
				return errors.New("an evaluation is checked")
			}
			evaluation.Close()
			var pass *sharding.Pass
			_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
				y := c.With(nn.Recompute(func(m any) bool { _, ok := m.(*nn.Linear); return ok })).Call(ddp, ids)
				pass = sharding.Of(c.Tape())
				return tensor.CrossEntropy(y, targets)
			})
			if err != nil {
				return err
			}
			if (pass != nil) != want || want != pass.Checked() {
				return fmt.Errorf("pass %d: checked is %v, want %v", i, pass.Checked(), want)
			}
			for _, p := range nn.Parameters(m) {
				if owes := pass.Owes(p.Name()); want && !p.Frozen && (len(owes) != 1 || owes[0] != mesh.Partial(dist.Sum)) {
					return fmt.Errorf("the gradient of %s owes %v, want Partial(sum)", p.Name(), owes)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// peeking is a layer that takes the value of its weight past the carrier.
type peeking struct{ Inner *nn.Linear }

func (p *peeking) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if x.Dim(-1) == p.Inner.Weight.Data().Dim(1) {
		return tensor.Linear(x, c.Tape().Const(p.Inner.Weight.Data()), nil)
	}
	return c.Call(p.Inner, x)
}

// TestFSDPChecksTypes: the first training pass is checked on a mesh of two axes. A
// shard that is used as if it were the whole parameter is an error of its module.
func TestFSDPChecksTypes(t *testing.T) {
	err := dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp", Size: 2})
		if err != nil {
			return err
		}
		defer m.Close()
		b := &nn.Build{Generator: tensor.NewGenerator(1)}
		good := nn.NewSequential(nn.NewLinear(b, 4, 4), &nn.GELU{}, nn.NewLinear(b, 4, 4))
		fsdp, err := FullyShard(ctx, good, m)
		if err != nil {
			return err
		}
		for i := range 2 {
			var pass *sharding.Pass
			_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
				y := c.Call(fsdp, tensor.Full(1, 2, 4))
				pass = sharding.Of(c.Tape())
				return y.Mean()
			})
			if err != nil || pass.Checked() != (i == 0) {
				return fmt.Errorf("pass %d: %v, checked is %v", i, err, pass.Checked())
			}
			for _, p := range nn.Parameters(good) {
				if owes := pass.Owes(p.Name()); i == 0 && (len(owes) != 2 || owes[0] != mesh.Partial(dist.Sum) || owes[1] != mesh.Partial(dist.Sum)) {
					return fmt.Errorf("the gradient of %s owes %v, want Partial(sum) on both axes", p.Name(), owes)
				}
			}
		}
		bad := nn.NewSequential(nn.NewLinear(b, 4, 4), &peeking{nn.NewLinear(b, 4, 4)})
		if fsdp, err = FullyShard(ctx, bad, m); err != nil {
			return err
		}
		_, err = nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor { return c.Call(fsdp, tensor.Full(1, 2, 4)).Mean() })
		var typed *sharding.Error
		if !errors.As(err, &typed) || typed.Axis != "fsdp" || !strings.Contains(err.Error(), "forward of 1 (*parallel.peeking)") ||
			!strings.Contains(err.Error(), `(1.inner.weight) is Shard(0) over axis "fsdp", the first Varying: gather it first`) {
			return fmt.Errorf("got %v, want an error of module 1 about a shard over axis fsdp", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
