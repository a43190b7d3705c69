// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bf16Tolerance is that of results rounded to bfloat16 once or twice, relative
// to the largest; half a unit in the last place is 2⁻⁹.
const bf16Tolerance = 1.0 / 128

// lowCases are the operations that compute in bfloat16 or take it, by the names
// in testdata/golden/autocast.safetensors.
func lowCases() map[string]func(in []*Tensor) *Tensor {
	targets := FromInt64([]int64{2, -100, 0, 4, 1, 3})
	m := map[string]func(in []*Tensor) *Tensor{
		"matmul":           func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
		"matmul batched":   func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
		"matmul broadcast": func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
		"linear":           func(in []*Tensor) *Tensor { return Linear(in[0], in[1], in[2]) },
		"attention": func(in []*Tensor) *Tensor {
			return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Causal: true})
		},
		"layer norm":    func(in []*Tensor) *Tensor { return LayerNorm(in[0], in[1], in[2], 1e-5) },
		"softmax":       func(in []*Tensor) *Tensor { return in[0].Softmax(-1) },
		"cross entropy": func(in []*Tensor) *Tensor { return CrossEntropy(in[0], targets) },
		"mse":           func(in []*Tensor) *Tensor { return MSE(in[0], in[1]) },
		"embedding":     func(in []*Tensor) *Tensor { return Embedding(in[0], FromInt64([]int64{3, 1, 3, 0, 2, 3}, 2, 3)) },
		"gelu":          func(in []*Tensor) *Tensor { return in[0].GELU() },
		"sum":           func(in []*Tensor) *Tensor { return in[0].Sum(0) },
	}
	for name, fn := range m {
		if !strings.HasPrefix(name, "bf16 ") {
			m["bf16 "+name] = fn
		}
	}
	m["norm of linear"] = func(in []*Tensor) *Tensor { return LayerNorm(Linear(in[0], in[1], nil), in[2], in[3], 1e-5) }
	m["loss of linear"] = func(in []*Tensor) *Tensor { return CrossEntropy(Linear(in[0], in[1], in[2]), targets) }
	m["residual"] = func(in []*Tensor) *Tensor { return in[0].Add(Linear(in[0], in[1], nil).GELU()) }
	m["softmax of linear"] = func(in []*Tensor) *Tensor { return Linear(in[0], in[1], nil).Softmax(-1) }
	for _, stride := range []int{1, 2} {
		o := Conv2dOptions{Stride: [2]int{stride, stride}, Padding: [2]int{1, 1}}
		name := fmt.Sprintf("conv2d stride %d", stride)
		m[name] = func(in []*Tensor) *Tensor { return Conv2d(in[0], in[1], in[2], o) }
		m["bf16 "+name] = m[name]
	}
	training := BatchNormOptions{Eps: 1e-5, Training: true}
	fused := func(x, gamma, beta, residual *Tensor) *Tensor {
		o := training
		o.ReLU, o.Residual = true, residual
		return BatchNorm(x, gamma, beta, o)
	}
	m["batch norm"] = func(in []*Tensor) *Tensor { return BatchNorm(in[0], in[1], in[2], training) }
	m["bf16 batch norm"] = m["batch norm"]
	m["group norm"] = func(in []*Tensor) *Tensor { return GroupNorm(in[0], 2, in[1], in[2], 1e-5) }
	m["bf16 group norm"] = m["group norm"]
	m["max pool"] = func(in []*Tensor) *Tensor { return MaxPool2d(in[0], Pool2dOptions{Kernel: [2]int{2, 2}}) }
	m["bf16 max pool"] = m["max pool"]
	m["adaptive avg pool"] = func(in []*Tensor) *Tensor { return AdaptiveAvgPool2d(in[0], 1, 1) }
	m["bf16 adaptive avg pool"] = m["adaptive avg pool"]
	plain := Conv2dOptions{Padding: [2]int{1, 1}}
	m["norm of conv2d"] = func(in []*Tensor) *Tensor {
		return fused(Conv2d(in[0], in[1], nil, plain), in[2], in[3], nil)
	}
	m["residual norm of conv2d"] = func(in []*Tensor) *Tensor {
		return fused(Conv2d(in[0], in[1], nil, plain), in[2], in[3], in[0])
	}
	m["linear twice"] = func(in []*Tensor) *Tensor { return Linear(Linear(in[0], in[1], nil).ReLU(), in[2], nil) }
	return m
}

// TestAutocastAgreesWithPyTorch compares results, gradients and the dtypes of
// both.
func TestAutocastAgreesWithPyTorch(t *testing.T) {
	golden, err := readGolden(filepath.Join("testdata", "golden", "autocast.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	cases := lowCases()
	for key := range golden {
		if name, part, _ := strings.Cut(key, "/"); part == "out" && cases[name] == nil {
			t.Errorf("no case %q", name)
		}
	}
	for name, apply := range cases {
		t.Run(name, func(t *testing.T) {
			want := golden[name+"/out"]
			if want == nil {
				t.Fatal("PyTorch's values are missing")
			}
			tp := NewTape(true)
			defer tp.Close()
			if !strings.HasPrefix(name, "bf16 ") {
				tp.SetAutocast(BFloat16)
			}
			var leaves []*Tensor
			var sinks []*collector
			for i := 0; golden[fmt.Sprintf("%s/in%d", name, i)] != nil; i++ {
				in := golden[fmt.Sprintf("%s/in%d", name, i)]
				sinks = append(sinks, &collector{grad: New(CPU(), in.dtype, in.shape...)})
				leaves = append(leaves, tp.Watch(in, sinks[i]))
			}
			out := apply(leaves)
			if out.dtype != want.dtype || !slices.Equal(out.shape, want.shape) {
				t.Errorf("the result is %v%v, PyTorch's %v%v", out.dtype, out.shape, want.dtype, want.shape)
			}
			compareValues(t, "value", out.Float32s(), widen(want.Float32s()), bf16Tolerance)
			if err := out.To(Float32).Mul(golden[name+"/weights"]).Sum().Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, s := range sinks {
				want := golden[fmt.Sprintf("%s/grad%d", name, i)]
				compareValues(t, fmt.Sprintf("gradient of operand %d", i), s.grad.Float32s(), widen(want.Float32s()), 2*bf16Tolerance)
			}
		})
	}
}

// TestLowPrecisionAgreesWithDefinitions holds the rows of the tables that take
// bfloat16 against their definitions in float64 on the rounded operands: with
// operands of bfloat16, and of float32 under autocast.
func TestLowPrecisionAgreesWithDefinitions(t *testing.T) {
	names := []string{
		"add", "add row", "mul", "relu", "gelu", "gelu tanh", "sum", "sum first", "sum last", "mean", "exp", "sub", "tanh",
		"matmul", "matmul transposed", "matmul batched", "matmul broadcast", "matmul strided", "linear", "linear without bias", "affine",
		"layer norm", "layer norm strided", "softmax", "cross entropy", "mse", "embedding", "used twice",
		"rms norm", "rms norm without weight", "swiglu", "rope", "group norm", "instance norm",
		"batch norm", "batch norm of rows", "batch norm relu", "batch norm add", "batch norm add relu", "batch norm evaluation", "cumprod", "attention float mask",
		"attention", "attention causal", "self attention", "reshape", "permute", "narrow", "select", "expand", "clone",
		"conv2d", "conv2d 1x1", "conv2d stride", "conv2d depthwise", "conv1d", "conv transpose 2d",
	}
	seen := map[string]bool{}
	eachCase(t, CPU(), func(t *testing.T, c opCase, in []*Tensor, seed uint64) {
		if !slices.Contains(names, c.name) {
			t.Skip("not of this table")
		}
		seen[c.name] = true
		arrays, low, wide := make([]array, len(in)), make([]*Tensor, len(in)), make([]*Tensor, len(in))
		for i, x := range in {
			low[i] = x.To(BFloat16)
			wide[i] = low[i].To(Float32)
			arrays[i] = array{x.Shape(), widen(low[i].Float32s())}
		}
		want := c.naive(arrays)
		// The gradients of float32 are checked elsewhere.
		exact := lowGradients(t, c, wide, 0)
		for kind, operands := range map[string][]*Tensor{"bfloat16": low, "autocast": wide} {
			autocast := DType(0)
			if kind == "autocast" {
				autocast = BFloat16
			}
			tp := NewTape(false)
			tp.SetAutocast(autocast)
			under := make([]*Tensor, len(operands))
			for i, x := range operands {
				under[i] = tp.Const(x)
			}
			got := c.apply(under)
			compareValues(t, kind, got.Float32s(), want.data, bf16Tolerance)
			tp.Close()
			for i, g := range lowGradients(t, c, operands, autocast) {
				if g.dtype != operands[i].dtype {
					t.Errorf("%s: the gradient of operand %d is %v", kind, i, g.dtype)
				}
				compareValues(t, fmt.Sprintf("%s: gradient of operand %d", kind, i), g.Float32s(), widen(exact[i].Float32s()), 3*bf16Tolerance)
			}
		}
	})
	for _, name := range names {
		if !seen[name] {
			t.Errorf("no row is called %q", name)
		}
	}
}

// lowGradients are the gradients of the sum of the result's elements, weighed.
func lowGradients(t *testing.T, c opCase, in []*Tensor, autocast DType) []*Tensor {
	t.Helper()
	tp := NewTape(true)
	defer tp.Close()
	tp.SetAutocast(autocast)
	leaves, grads := make([]*Tensor, len(in)), make([]*Tensor, len(in))
	for i, x := range in {
		grads[i] = New(CPU(), x.dtype, x.shape...)
		leaves[i] = tp.Watch(x, &collector{grad: grads[i]})
	}
	out := c.apply(leaves)
	weights := make([]float32, out.NumElems())
	for i := range weights {
		weights[i] = float32(i%5) - 1.5
	}
	if err := out.To(Float32).Mul(FromFloat32(weights, out.shape...)).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	return grads
}

// TestAutocastSecondOrder differentiates a gradient: the values are those of
// float32 to the tolerance.
func TestAutocastSecondOrder(t *testing.T) {
	x, w := FromFloat32([]float32{1, -2, 0.5, 3, 1.5, -1}, 2, 3), FromFloat32([]float32{0.5, 1, -1, 2, 0.25, 1, -0.5, 1, 2}, 3, 3)
	second := func(autocast DType) []float32 {
		tp := NewTape(true)
		defer tp.Close()
		tp.SetAutocast(autocast)
		lx, lw := tp.Watch(x, &collector{}), tp.Watch(w, &collector{})
		g := FromFloat32([]float32{1, 2, 0.5}, 3)
		y := LayerNorm(Linear(lx, lw, nil).GELU(), g, g, 1e-5).Softmax(-1)
		grads, err := y.Mul(y).Sum().Grad(t.Context(), nil, []*Tensor{lx}, CreateGraph())
		if err != nil {
			t.Fatal(err)
		}
		twice, err := grads[0].Square().Sum().Grad(t.Context(), nil, []*Tensor{lw})
		if err != nil {
			t.Fatal(err)
		}
		return twice[0].Float32s()
	}
	compareValues(t, "second gradient", second(BFloat16), widen(second(0)), 0.05)
}

// TestDirectGradients: the gradient of a float32 weight is added up in float32,
// in its own buffer, over several uses and passes.
func TestDirectGradients(t *testing.T) {
	const rows, width = 300, 4
	data := make([]float32, rows*width)
	for i := range data {
		data[i] = 1 + float32(i%3)/256 // the sum of 300 has digits that bfloat16 lacks
	}
	x := FromFloat32(data, rows, width).To(BFloat16)
	w := &collector{shape: []int{width, width}}
	bias := &collector{shape: []int{width}}
	for range 2 {
		tp := NewTape(true)
		tp.SetAutocast(BFloat16)
		y := Linear(tp.Const(x), tp.Watch(Full(1, width, width), w), tp.Watch(Zeros(width), bias))
		if err := y.To(Float32).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		tp.Close()
	}
	for i, g := range w.grad.Float32s() {
		want := 0.0
		for r := range rows {
			want += 2 * float64(x.Float32s()[r*width+i%width])
		}
		if math.Abs(float64(g)-want) > 1e-3 {
			t.Errorf("element %d of the weight's gradient is %v, want %v", i, g, want)
		}
	}
	if got := bias.grad.Float32s(); got[0] != 2*rows {
		t.Errorf("the bias's gradient is %v, want %d", got, 2*rows)
	}
}

func TestLowPrecisionRefuses(t *testing.T) {
	f, low, ids := Zeros(2, 2), Zeros(2, 2).To(BFloat16), FromInt64([]int64{1, 0, 1, 0}, 2, 2)
	tp := NewTape(false)
	tp.SetAutocast(BFloat16)
	for what, fn := range map[string]func(){
		"the dtypes differ":          func() { f.MatMul(low) },
		"the dtypes differ: convert": func() { Linear(low, f, nil) },
		"wants float32 or bfloat16":  func() { tp.Const(ids).MatMul(f) },
		"wants float32 or bfloat16 ": func() { Linear(f.To(Float16), f, nil) },
		"wants float32 for the bias": func() { Linear(f, f, Zeros(2).To(BFloat16)) },
		"wants bfloat16, or 0":       func() { tp.SetAutocast(Float16) },
	} {
		func() {
			defer func() {
				var e *Error
				if err, _ := recover().(error); !errors.As(err, &e) || !strings.Contains(err.Error(), strings.TrimSpace(what)) {
					t.Errorf("%s: got %v", what, err)
				}
			}()
			fn()
		}()
	}
}
