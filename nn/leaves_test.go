// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// aside is a leaf that keeps a gradient beside the parameter.
type aside struct{ grad *tensor.Tensor }

func (a *aside) GradBuffer() (*tensor.Tensor, bool) { return a.grad, false }

func (a *aside) GradReady(context.Context) error { return nil }

// TestGradientsOfAPassGoElsewhere: what a parameter holds of another pass stays,
// frozen parameters have no leaf, and a step can be taken on the gradient.
func TestGradientsOfAPassGoElsewhere(t *testing.T) {
	p, frozen := NewParameter(tensor.Full(3, 2)), NewParameter(tensor.Full(5, 2))
	frozen.Frozen = true
	pass := func(opts ...CtxOption) {
		c := Training(t.Context(), opts...)
		defer c.Close()
		if err := c.Param(p).Mul(c.Param(frozen)).Sum().Backward(c); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	leaf, asked := &aside{tensor.Zeros(2)}, 0
	pass(WithLeaves(func(q *Parameter) tensor.Leaf {
		asked++
		if q != p {
			t.Errorf("asked for the leaf of another parameter")
		}
		return leaf
	}))
	if got := p.Grad().Float32s(); !slices.Equal(got, []float32{5, 5}) || asked != 1 {
		t.Errorf("the parameter holds %v after a pass of its own, and %d leaves were asked for; want [5 5] and 1", got, asked)
	}
	if got := leaf.grad.Float32s(); !slices.Equal(got, []float32{5, 5}) {
		t.Errorf("the leaf holds %v, want [5 5]", got)
	}
	other := tensor.Full(7, 2)
	p.WithGrad(other, nil, func() {
		if p.Grad() != other {
			t.Error("the gradient is not the one that was given")
		}
	})
	p.WithGrad(nil, nil, func() {
		if p.Grad() != nil {
			t.Error("there is a gradient though none was given")
		}
	})
	if got := p.Grad().Float32s(); !slices.Equal(got, []float32{5, 5}) {
		t.Errorf("the parameter holds %v afterwards, want [5 5]", got)
	}
	defer func() {
		var te *tensor.Error
		if err, ok := recover().(error); !ok || !errors.As(err, &te) {
			t.Errorf("a gradient of another shape panicked with %v, want a *tensor.Error", err)
		}
	}()
	p.WithGrad(tensor.Zeros(3), nil, func() {})
}

// A gradient from elsewhere is the parameter's, and a pass adds to it.
func TestSetGrad(t *testing.T) {
	p := NewParameter(tensor.FromFloat32([]float32{1, 2}, 2))
	pass := func() []float32 {
		t.Helper()
		if _, err := Backward(t.Context(), func(c *Ctx) *tensor.Tensor { return c.Param(p).Sum() }); err != nil {
			t.Fatal(err)
		}
		return p.Grad().Float32s()
	}
	p.SetGrad(tensor.FromFloat32([]float32{5, 6}, 2))
	if got := p.Grad().Float32s(); !slices.Equal(got, []float32{5, 6}) {
		t.Errorf("the gradient is %v", got)
	}
	if got := pass(); !slices.Equal(got, []float32{6, 7}) {
		t.Errorf("after a pass the gradient is %v", got)
	}
	p.SetGrad(nil)
	if p.Grad() != nil {
		t.Error("there is a gradient still")
	}
	if got := pass(); !slices.Equal(got, []float32{1, 1}) {
		t.Errorf("a pass after it was taken away gives %v", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a gradient of another shape was taken")
		}
	}()
	p.SetGrad(tensor.Zeros(3))
}

// A gradient, and its memory, goes with a value of another dtype, shape or device.
func TestSetDataDropsWhatDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		data  *tensor.Tensor
		stays bool
	}{
		{tensor.Zeros(2, 3), true},
		{tensor.Zeros(3, 2), false},
		{tensor.Zeros(2, 3).To(tensor.BFloat16), false},
		{tensor.New(tensor.Meta, tensor.Float32, 2, 3), false},
	} {
		p := NewParameter(tensor.Full(1, 2, 3))
		p.SetGrad(tensor.Full(2, 2, 3))
		p.SetRowGrad(&tensor.RowGrad{IDs: tensor.FromInt64([]int64{1}), Rows: tensor.Zeros(1, 3), NumRows: 2})
		p.SetData(c.data)
		if (p.Grad() != nil) != c.stays || (p.RowGrad() != nil) != c.stays {
			t.Errorf("the gradient is %v, that by rows %v, after SetData(%v)", p.Grad(), p.RowGrad(), c.data)
		}
		buf, _ := p.GradBuffer()
		if buf.DType() != c.data.DType() || buf.Device() != c.data.Device() || !slices.Equal(buf.Shape(), c.data.Shape()) {
			t.Errorf("gradients of a %v collect in a %v", c.data, buf)
		}
		p.SetGradBuffer(nil)
		if next, holds := p.GradBuffer(); next == buf || holds {
			t.Error("SetGradBuffer(nil) kept the buffer")
		}
	}
}
