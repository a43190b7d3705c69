// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestBringGoesOnWithWhatAnEarlierCallLeft: a handler keeps a value, another one
// computes with it, a third sends it as it is.
func TestBringGoesOnWithWhatAnEarlierCallLeft(t *testing.T) {
	w, v := param(1, 4), param(2, 4)
	one := nn.Training(t.Context())
	h := one.Param(w).Exp()
	if err := h.Tanh().Mul(one.Param(v)).Add(h).Sum().Backward(one); err != nil {
		t.Fatal(err)
	}
	one.Close()

	cl := newCluster(2)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	var shelf *tensor.Tensor
	cl.call(t, c, 0, 1, "put", func(ctx context.Context, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
		shelf = Ctx(ctx).Param(w).Exp()
		return nil, nil
	})
	got := cl.call(t, c, 0, 1, "use", func(ctx context.Context, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
		h, err := Bring(ctx, shelf)
		if err != nil {
			return nil, err
		}
		return []*tensor.Tensor{h.Tanh().Mul(Ctx(ctx).Param(v))}, nil
	})[0]
	raw := cl.call(t, c, 0, 1, "get", func(context.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{shelf}, nil
	})[0]
	if err := dc.Backward(t.Context(), got.Add(raw).Sum()); err != nil {
		t.Fatal(err)
	}
	far := &Context{s: stateOf(t, cl.engines[1], dc.ID())}
	wantBits(t, "w", far.Gradient(w), w.Grad())
	wantBits(t, "v", far.Gradient(v), v.Grad())
	if ps := far.Parameters(); !slices.Equal(ps, []*nn.Parameter{w, v}) {
		t.Errorf("parameters with gradients: %v", ps)
	}
	dc.Close()
	cl.wantNothingLeft(t)
}

// TestCallsSideBySide: asynchronous calls run on the workers at once, each under a
// tape of its own. Sums of whole numbers have the same bits in any order.
func TestCallsSideBySide(t *testing.T) {
	const calls = 16
	cl := newCluster(3)
	w := nn.NewParameter(tensor.FromFloat32([]float32{1, 2, 3}))
	dc := newContext(cl.engines[0], nil)
	for round := range 3 {
		c, err := dc.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		scale := func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{in[0].Mul(Ctx(ctx).Param(w))}, nil
		}
		var waits []func() ([]*tensor.Tensor, error)
		for i := range calls {
			waits = append(waits, cl.async(c, 0, 1+i%2, "scale", scale, c.Param(w).MulScalar(float64(i))))
		}
		sum := tensor.Zeros()
		for i, wait := range waits {
			out, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			if i%4 != 3 { // some feed nothing
				sum = sum.Add(out[0].Sum())
			}
		}
		if err := dc.Backward(t.Context(), sum); err != nil {
			t.Fatal(err)
		}
		// d/dw of Σ i·w·w is i·w on each side; i over those that count.
		here, there := 0.0, map[int]float64{}
		for i := range calls {
			if i%4 != 3 {
				here += float64(i)
				there[1+i%2] += float64(i)
			}
		}
		for worker := range 3 {
			f := here
			if worker > 0 {
				f = there[worker]
			}
			got := (&Context{s: stateOf(t, cl.engines[worker], dc.ID())}).Gradient(w)
			wantBits(t, fmt.Sprintf("round %d, worker%d", round, worker), got, w.Data().MulScalar(f*float64(round+1)))
		}
	}
	dc.Close()
	cl.wantNothingLeft(t)
}

// TestSeveralContextsAtOnce: trainers of one parameter do not see each other's
// gradients.
func TestSeveralContextsAtOnce(t *testing.T) {
	cl := newCluster(4)
	w := nn.NewParameter(tensor.FromFloat32([]float32{1, 2, 3}))
	var wg sync.WaitGroup
	for trainer := range 3 {
		wg.Go(func() {
			for step := range 20 {
				dc := newContext(cl.engines[trainer], nil)
				c, err := dc.Pass(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				f := float64(trainer*100 + step)
				out, err := cl.async(c, trainer, 3, "scale", func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
					return []*tensor.Tensor{in[0].Mul(Ctx(ctx).Param(w))}, nil
				}, tensor.Full(f, 3))()
				if err == nil {
					err = dc.Backward(t.Context(), out[0].Sum())
				}
				if err != nil {
					t.Error(err)
					return
				}
				wantBits(t, "w", (&Context{s: stateOf(t, cl.engines[3], dc.ID())}).Gradient(w), tensor.Full(f, 3))
				dc.Close()
			}
		})
	}
	wg.Wait()
	cl.wantNothingLeft(t)
}

// TestParameterGrads: the maker's passes leave their gradients where DDP and local
// optimizers look, with their hooks; those of others stay in the context.
func TestParameterGrads(t *testing.T) {
	cl := newCluster(2)
	near, far := param(1, 3), param(2, 3)
	ready := 0
	near.OnGradReady(func(context.Context, *nn.Parameter) error { ready++; return nil })
	dc := newContext(cl.engines[0], []ContextOption{WithParameterGrads()})
	c, _ := dc.Pass(t.Context())
	c.Tape().ScaleGrads(0.5)
	y := cl.call(t, c, 0, 1, "scale", func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{in[0].Mul(Ctx(ctx).Param(far))}, nil
	}, c.Param(near))[0]
	if err := dc.Backward(t.Context(), y.Sum()); err != nil {
		t.Fatal(err)
	}
	wantBits(t, "near", near.Grad(), far.Data().MulScalar(0.5))
	wantBits(t, "far", (&Context{s: stateOf(t, cl.engines[1], dc.ID())}).Gradient(far), near.Data().MulScalar(0.5))
	if ready != 1 || len(dc.Parameters()) != 0 || far.Grad() != nil {
		t.Errorf("hooks ran %d times, %d parameters in the context, want 1 and 0; the far one's own gradient is %v", ready, len(dc.Parameters()), far.Grad())
	}
	dc.Close()
}

// TestRowGradientsStayRows over calls that read different rows of a table.
func TestRowGradientsStayRows(t *testing.T) {
	cl := newCluster(2)
	table := param(1, 10, 2)
	table.Sparse = true
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	sum := tensor.Zeros()
	for _, ids := range [][]int64{{1, 7, 1}, {7, 3}} {
		out := cl.call(t, c, 0, 1, "lookup", func(ctx context.Context, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{tensor.Embedding(Ctx(ctx).Param(table), tensor.FromInt64(ids, len(ids)))}, nil
		})
		sum = sum.Add(out[0].Sum())
	}
	if err := dc.Backward(t.Context(), sum); err != nil {
		t.Fatal(err)
	}
	far := &Context{s: stateOf(t, cl.engines[1], dc.ID())}
	g := far.RowGradient(table)
	if g == nil || !slices.Equal(g.IDs.Int64s(), []int64{1, 3, 7}) || !slices.Equal(g.Rows.Float32s(), []float32{2, 2, 1, 1, 2, 2}) {
		t.Errorf("gradient by rows %v", g)
	}
	if got := far.Gradient(table).Float32s(); got[2] != 2 || got[6] != 1 || got[14] != 2 || got[0] != 0 {
		t.Errorf("dense gradient %v", got)
	}
	dc.Close()
}

// TestOutsideOfContexts a handler's carrier takes no gradients.
func TestOutsideOfContexts(t *testing.T) {
	if c := Ctx(t.Context()); c.Training() || From(c) != nil {
		t.Error("without a context there is a pass")
	}
	x := tensor.Zeros(2)
	if y, err := Bring(t.Context(), x); y != x || err != nil {
		t.Errorf("Bring gave %v, %v", y, err)
	}
}
