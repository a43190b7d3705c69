// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// dualOf returns the placements of the gradient of a value, and by how much an average on an axis
// shrinks it.
func dualOf(placements []Placement, meshShape []int) (dual []Placement, factor float64) {
	factor = 1
	for a, p := range placements {
		if op, ok := p.IsPartial(); ok && op == dist.Avg {
			factor /= float64(meshShape[a])
		}
		dual = append(dual, p.dual())
	}
	return dual, factor
}

func scaled(values []float64, factor float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v * factor
	}
	return out
}

func isClose(a, b []float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-12*(1+math.Abs(b[i])) {
			return false
		}
	}
	return len(a) == len(b)
}

// TestRedistributeGradients: whatever the layouts, a gradient of the whole value comes back as a
// gradient of the whole value, spread as the dual type says.
func TestRedistributeGradients(t *testing.T) {
	seed := seeded.Of(t)
	numDraws := 25
	if testing.Short() {
		numDraws = 8
	}
	for i, meshShape := range meshShapes {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		type draw struct {
			*redistribution
			grads redistribution // of the values: from the dual of to, to the dual of from
			scale float64
		}
		var draws []*draw
		for range numDraws {
			d := &draw{redistribution: &redistribution{shape: drawShape(r)}}
			d.from, d.to = drawPlacements(r, d.shape, meshShape, dist.Sum, dist.Avg), drawPlacements(r, d.shape, meshShape, dist.Sum, dist.Avg)
			d.values = make([]float64, product(d.shape))
			d.parts = partsOf(r, d.values, meshShape, d.from)
			g := &d.grads
			g.shape, g.values, g.results = d.shape, make([]float64, len(d.values)), make([][]float64, product(meshShape))
			for i := range g.values {
				g.values[i] = float64(r.IntN(19) - 9)
			}
			var shrink float64
			g.from, shrink = dualOf(d.to, meshShape)
			g.to, d.scale = dualOf(d.from, meshShape)
			g.parts = partsOf(r, scaled(g.values, shrink), meshShape, g.from)
			draws = append(draws, d)
		}
		err := dist.Spawn(t.Context(), product(meshShape), func(ctx context.Context, g *dist.Group) error {
			m, err := New(ctx, g, axesOfShape(meshShape)...)
			if err != nil {
				return err
			}
			defer m.Close()
			for _, d := range draws {
				tape := tensor.NewTape(true)
				x := d.local(t, m, meshShape)
				x.Local = tape.Leaf(x.Local)
				y, err := x.Redistribute(ctx, d.to...)
				if err != nil {
					return err
				}
				seed := d.grads.local(t, m, meshShape)
				grads, err := y.Local.Grad(ctx, seed.Local, []*tensor.Tensor{x.Local})
				if err != nil {
					return err
				}
				d.grads.results[g.Rank()] = float64s(grads[0])
				tape.Close()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("mesh %v: %v", meshShape, err)
		}
		for _, d := range draws {
			for rank := range product(meshShape) {
				at := coordinateOf(meshShape, rank)
				want := localOf(t, scaled(d.grads.values, d.scale), d.shape, meshShape, d.grads.to, at)
				if got := combined(d.grads.results, meshShape, d.grads.to, at); !isClose(got, want) {
					t.Fatalf("%v of %v over %v to %v: the gradient of rank %d is %v, want %v", d.from, d.shape, meshShape, d.to, rank, got, want)
				}
			}
		}
	}
}

// TestOneElementGradient: the shard of a tensor of one element has its gradient on the rank that
// holds it, and none is lost (pytorch/pytorch#144045).
func TestOneElementGradient(t *testing.T) {
	err := dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"fsdp", 4})
		if err != nil {
			return err
		}
		tape := tensor.NewTape(true)
		defer tape.Close()
		x := Tensor{tape.Leaf(tensor.Full(3, 1-min(g.Rank(), 1))), Layout{m, []int{1}, []Placement{Shard(0)}}}
		full, err := x.Full(ctx)
		if err != nil {
			return err
		}
		// Each rank uses the value as often as its number says: 0 + 1 + 2 + 3 times.
		grads, err := full.MulScalar(float64(g.Rank())).Sum().Grad(ctx, nil, []*tensor.Tensor{x.Local})
		if err != nil {
			return err
		}
		if got := grads[0]; g.Rank() == 0 && got.Item() != 6 || g.Rank() > 0 && got.NumElems() != 0 {
			return fmt.Errorf("the gradient is %v, want 6 on rank 0 and no element elsewhere", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGradientOfGradient: the backward pass of a gather is a reduce-scatter that has a gradient itself.
func TestGradientOfGradient(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"fsdp", 2})
		if err != nil {
			return err
		}
		tape := tensor.NewTape(true)
		defer tape.Close()
		x := tape.Leaf(tensor.Full(float64(2+g.Rank()), 1))
		full, err := Tensor{x, Layout{m, []int{2}, []Placement{Shard(0)}}}.Full(ctx)
		if err != nil {
			return err
		}
		// Both ranks add Σ x³, so the gradient is 2·3x² and the one of its sum 2·6x.
		first, err := full.PowScalar(3).Sum().Grad(ctx, nil, []*tensor.Tensor{x}, tensor.CreateGraph())
		if err != nil {
			return err
		}
		second, err := first[0].Sum().Grad(ctx, nil, []*tensor.Tensor{x})
		if err != nil {
			return err
		}
		v := x.Item()
		if got := [2]float64{first[0].Item(), second[0].Item()}; got != [2]float64{6 * v * v, 12 * v} {
			return fmt.Errorf("derivatives of %v are %v, want %v and %v", v, got, 6*v*v, 12*v)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNoGradient: a reduction without a gradient is refused before anything is sent.
func TestNoGradient(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"dp", 2})
		if err != nil {
			return err
		}
		tape := tensor.NewTape(true)
		defer tape.Close()
		x := Tensor{tape.Leaf(tensor.Zeros(4)), Layout{m, []int{4}, []Placement{Partial(dist.Max)}}}
		_, err = x.Full(ctx)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "no gradient goes through Partial(max) on axis 0") {
		t.Errorf("error %v", err)
	}
}
