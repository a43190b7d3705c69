// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// Two batches of one channel: means 2 and 6, variances 1 and 4.
var normBatches = [][]float32{{1, 3, 1, 3}, {4, 8, 4, 8}}

func TestBatchNormTracksStatistics(t *testing.T) {
	// The running variance is of n-1.
	v1, v2 := 4.0/3, 16.0/3
	for _, c := range []struct {
		options        BatchNormOptions
		mean, variance float64
	}{
		{BatchNormOptions{}, 0.9*(0.1*2) + 0.1*6, 0.9*(0.9+0.1*v1) + 0.1*v2},
		{BatchNormOptions{Momentum: 0.5}, 0.5*(0.5*2) + 0.5*6, 0.5*(0.5+0.5*v1) + 0.5*v2},
		{BatchNormOptions{Cumulative: true}, 4, (v1 + v2) / 2},
	} {
		n := NewBatchNorm1d(&Build{}, 1, c.options)
		for _, batch := range normBatches {
			ctx := Training(t.Context())
			y := ctx.Call(n, tensor.FromFloat32(batch, 4, 1)).Float32s()
			if !(math.Abs(float64(y[0])+1) <= 1e-5 && math.Abs(float64(y[1])-1) <= 1e-5) {
				t.Errorf("%+v: a batch became %v, want -1 and 1", c.options, y)
			}
			ctx.Close()
		}
		mean, variance := n.RunningMean.Data.Item(), n.RunningVar.Data.Item()
		if !(math.Abs(mean-c.mean) <= 1e-6 && math.Abs(variance-c.variance) <= 1e-6) || n.NumBatchesTracked.Data.Item() != 2 {
			t.Errorf("%+v: mean %v and variance %v after %v batches, want %v and %v after 2",
				c.options, mean, variance, n.NumBatchesTracked.Data.Item(), c.mean, c.variance)
		}
		ctx := Evaluation(t.Context())
		y := ctx.Call(n, tensor.FromFloat32([]float32{3}, 1, 1)).Item()
		ctx.Close()
		if want := (3 - mean) / math.Sqrt(variance+1e-5); !(math.Abs(y-want) <= 1e-5) {
			t.Errorf("%+v: 3 is evaluated to %v, want %v", c.options, y, want)
		}
		if n.NumBatchesTracked.Data.Item() != 2 {
			t.Error("an evaluation counts")
		}
	}
	// Without running statistics, an evaluation uses its batch.
	n := NewBatchNorm2d(&Build{}, 1, BatchNormOptions{NoRunningStats: true, NoAffine: true})
	if len(StateDict(n)) != 0 {
		t.Errorf("the state is %v", StateDict(n))
	}
	ctx := Evaluation(t.Context())
	defer ctx.Close()
	if y := ctx.Call(n, tensor.FromFloat32(normBatches[1], 1, 1, 2, 2)).Float32s(); !(math.Abs(float64(y[1])-1) <= 1e-5) {
		t.Errorf("a batch is evaluated to %v, want -1 and 1", y)
	}
}

// The fused forms give what the modules one after the other do, and both are
// seen as a call of the norm.
func TestBatchNormFusions(t *testing.T) {
	b := &Build{Generator: tensor.NewGenerator(1)}
	x, r := tensor.Zeros(2, 3, 4, 5), tensor.Zeros(2, 3, 4, 5)
	b.Generator.Normal(x, 1, 2)
	b.Generator.Normal(r, 0, 1)
	run := func(fused bool) (y []float32, grads [][]float32, calls int) {
		n := NewBatchNorm2d(&Build{}, 3, BatchNormOptions{})
		spy := &callCounter{}
		c := Training(t.Context()).With(spy)
		defer c.Close()
		px, pr := NewParameter(x.Clone()), NewParameter(r.Clone())
		in, residual := c.Param(px), c.Param(pr)
		var out *tensor.Tensor
		if fused {
			out = n.AddReLU(c, n.ReLU(c, in), residual)
		} else {
			out = c.Call(n, c.Call(n, in).ReLU()).Add(residual).ReLU()
		}
		y = out.Float32s()
		if err := out.Mul(out).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*Parameter{px, pr, n.Weight, n.Bias} {
			grads = append(grads, p.Grad().Float32s())
		}
		return y, grads, spy.calls
	}
	want, wantGrads, _ := run(false)
	got, grads, calls := run(true)
	if calls != 2 {
		t.Errorf("interceptors saw %d calls, want 2", calls)
	}
	near := func(what string, got, want []float32) {
		for i, w := range want {
			if d := math.Abs(float64(got[i] - w)); !(d <= 1e-4*(1+math.Abs(float64(w)))) {
				t.Errorf("%s: element %d is %v, want %v", what, i, got[i], w)
				return
			}
		}
	}
	near("result", got, want)
	for i := range grads {
		near([]string{"dx", "dr", "dgamma", "dbeta"}[i], grads[i], wantGrads[i])
	}
}

type callCounter struct{ calls int }

func (s *callCounter) InterceptCall(c *Ctx, _ any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	s.calls++
	return next(c, x)
}

func (s *callCounter) InterceptParam(c *Ctx, _ *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

type normHolder struct{ Inner []*BatchNorm2d }

func (h *normHolder) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return h.Inner[0].ReLU(c, x) }

func TestBatchNormMisuse(t *testing.T) {
	for _, c := range []struct {
		x    *tensor.Tensor
		want string
	}{
		{tensor.Zeros(1, 3), "batch norm"}, {tensor.Zeros(2, 4, 2), "batch norm"},
		{tensor.Zeros(3), "batch norm"}, {tensor.FromInt64([]int64{1, 2, 3}, 1, 3), "batch norm"},
	} {
		m := &normHolder{[]*BatchNorm2d{NewBatchNorm2d(&Build{}, 3, BatchNormOptions{})}}
		_, err := Backward(t.Context(), func(c2 *Ctx) *tensor.Tensor { return c2.Call(m, c.x).Sum() })
		var where *ForwardError
		var what *tensor.Error
		if !errors.As(err, &where) || where.Module != "inner.0" || !errors.As(err, &what) || what.Op != c.want {
			t.Errorf("%v: the error is %v, want one of %s in inner.0", c.x.Shape(), err, c.want)
		}
	}
}

func TestPoolingLayers(t *testing.T) {
	c := Evaluation(t.Context())
	defer c.Close()
	x := tensor.Zeros(2, 3, 8, 6)
	for _, l := range []struct {
		layer Module
		want  []int
	}{
		{&MaxPool2d{Kernel: Square(3), Stride: Square(2), Padding: Square(1)}, []int{2, 3, 4, 3}},
		{&AvgPool2d{Kernel: Square(2)}, []int{2, 3, 4, 3}},
		{&AdaptiveAvgPool2d{Size: [2]int{3, 2}}, []int{2, 3, 3, 2}},
		{&AdaptiveMaxPool2d{Size: Square(1)}, []int{2, 3, 1, 1}},
		{&Flatten{}, []int{2, 144}},
		{NewGroupNorm(&Build{}, 3, 3), []int{2, 3, 8, 6}},
		{NewInstanceNorm2d(&Build{}, 3, true), []int{2, 3, 8, 6}},
	} {
		if got := c.Call(l.layer, x).Shape(); !slices.Equal(got, l.want) {
			t.Errorf("%T gives %v, want %v", l.layer, got, l.want)
		}
	}
	var names []string
	for name, m := range Modules(NewSequential(&Flatten{}, NewSequential(NewGroupNorm(&Build{}, 1, 2)))) {
		if _, ok := m.(*GroupNorm); ok {
			names = append(names, name)
		}
	}
	if !slices.Equal(names, []string{"1.0"}) {
		t.Errorf("the norms are %v", names)
	}
}
