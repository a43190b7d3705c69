// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	nan32 = float32(math.NaN())
	inf32 = float32(math.Inf(1))
)

// sameFloats compares with NaN equal to NaN.
func sameFloats(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return x == y || x != x && y != y })
}

func wantFloats(t *testing.T, what string, got *Tensor, want ...float32) {
	t.Helper()
	if g := got.To(Float32).Float32s(); !sameFloats(g, want) {
		t.Errorf("%s is %v, want %v", what, g, want)
	}
}

// TestNumbersThatAreNone: infinities and NaN go through as IEEE 754 and PyTorch
// have it.
func TestNumbersThatAreNone(t *testing.T) {
	for _, dtype := range []DType{Float32, BFloat16, Float16, Float64} {
		x := FromFloat32([]float32{nan32, inf32, -inf32, 0, -1}).To(dtype)
		wantFloats(t, "is nan", x.IsNaN(), 1, 0, 0, 0, 0)
		wantFloats(t, "is inf", x.IsInf(), 0, 1, 1, 0, 0)
		wantFloats(t, "is finite", x.IsFinite(), 0, 0, 0, 1, 1)
		wantFloats(t, "maximum", x.Maximum(x.MulScalar(0)), nan32, nan32, nan32, 0, 0)
		wantFloats(t, "clamp", x.Clamp(-0.5, 2), nan32, 2, -0.5, 0, -0.5)
		wantFloats(t, "sigmoid", x.MulScalar(1000).Sigmoid(), nan32, 1, 0, 0.5, 0)
		wantFloats(t, "silu", x.SiLU().Narrow(0, 0, 4), nan32, inf32, 0, 0)
		wantFloats(t, "relu", x.ReLU(), nan32, inf32, 0, 0, 0)
		wantFloats(t, "eq", x.Eq(x), 0, 1, 1, 1, 1)
		wantFloats(t, "ne", x.Ne(x), 1, 0, 0, 0, 0)
		wantFloats(t, "sign", x.Sign(), 0, 1, -1, 0, -1)
		wantFloats(t, "amax", x.AMax(), nan32)
		wantFloats(t, "amin", x.Narrow(0, 1, 4).AMin(), -inf32)
		if at := x.ArgMin(0).Item(); at != 0 {
			t.Errorf("the smallest of %v is number %v, want NaN's", x, at)
		}
		wantFloats(t, "logsumexp of nothing likely", FromFloat32([]float32{-inf32, -inf32}).To(dtype).LogSumExp(), -inf32)
		wantFloats(t, "logsumexp of the certain", FromFloat32([]float32{inf32, 1}).To(dtype).LogSumExp(), inf32)
		wantFloats(t, "where", Where(x.IsNaN(), FromFloat32([]float32{7}).To(dtype), x), 7, inf32, -inf32, 0, -1)
	}
	wantFloats(t, "half to even", FromFloat32([]float32{0.5, 1.5, -0.5, 2.5}).Round(), 0, 2, 0, 2)
}

// TestTies: PyTorch's rules for gradients where several elements are the one.
func TestTies(t *testing.T) {
	grad := func(data []float32, fn func(x *Tensor) *Tensor) []float32 {
		tp := NewTape(true)
		defer tp.Close()
		sink := &collector{shape: []int{len(data)}}
		if err := fn(tp.Watch(FromFloat32(data), sink)).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		return sink.grad.Float32s()
	}
	tied := []float32{3, 1, 3}
	for _, c := range []struct {
		name string
		fn   func(x *Tensor) *Tensor
		data []float32
		want []float32
	}{
		{"amax shares evenly", func(x *Tensor) *Tensor { return x.AMax() }, tied, []float32{0.5, 0, 0.5}},
		{"max takes the first", func(x *Tensor) *Tensor { v, _ := x.Max(0); return v }, tied, []float32{1, 0, 0}},
		{"clamp is flat at its limits", func(x *Tensor) *Tensor { return x.Clamp(1, 3) }, []float32{1, 3, 2}, []float32{0, 0, 1}},
		{"clamp at one limit", func(x *Tensor) *Tensor { return x.Clamp(1, math.Inf(1)) }, []float32{1, 3, 0}, []float32{0, 1, 0}},
		{"hardtanh too", func(x *Tensor) *Tensor { return x.Hardtanh(1, 3) }, []float32{1, 3, 2}, []float32{0, 0, 1}},
		{"abs is flat at 0", (*Tensor).Abs, []float32{0, -2}, []float32{0, -1}},
		{"the norm is flat at 0", func(x *Tensor) *Tensor { return x.Norm(2) }, []float32{0, 0}, []float32{0, 0}},
		{"the 3-norm is flat at 0", func(x *Tensor) *Tensor { return x.Norm(3) }, []float32{0, 0}, []float32{0, 0}},
		{"the ½-norm is flat in a 0", func(x *Tensor) *Tensor { return x.Norm(0.5) }, []float32{0, 4}, []float32{0, 1}},
		{"the deviation is flat at 0", func(x *Tensor) *Tensor { return x.Std(1) }, []float32{1, 1}, []float32{0, 0}},
		{"huber far away", func(x *Tensor) *Tensor { return Huber(x, Zeros(2), 0.5) }, []float32{inf32, -1}, []float32{0.25, -0.25}},
		{"one zero leaves a product", func(x *Tensor) *Tensor { return x.Prod() }, []float32{2, 0, 4}, []float32{0, 8, 0}},
		{"two leave nothing", func(x *Tensor) *Tensor { return x.Prod() }, []float32{2, 0, 0}, []float32{0, 0, 0}},
		{"power 0", func(x *Tensor) *Tensor { return x.Pow(FromFloat32([]float32{0, 2})) }, []float32{0, 0}, []float32{0, 0}},
	} {
		if got := grad(c.data, c.fn); !slices.Equal(got, c.want) {
			t.Errorf("%s: the gradient is %v, want %v", c.name, got, c.want)
		}
	}
}

// TestStridedOperands holds every way of walking over operands against copies
// of them: permuted, narrowed, repeated along each dim, of many sizes.
func TestStridedOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	for round := range 300 {
		dims := 1 + rng.IntN(4)
		shape, order := make([]int, dims), rng.Perm(dims)
		for i := range shape {
			shape[i] = 1 + rng.IntN(9)
			if rng.IntN(4) == 0 {
				shape[i] = 1 + rng.IntN(70)
			}
		}
		if round%60 == 0 { // enough for several threads
			shape, order = []int{70 + round, 30, 25}, rng.Perm(3)
			dims = 3
		}
		dtype := []DType{Float32, BFloat16, Float64, Int64, Int32, Uint8}[rng.IntN(6)]
		// strided returns a view of the shape and a dense copy made one by one.
		strided := func() (view, dense *Tensor) {
			full := make([]int, dims)
			for i, d := range order {
				full[d] = shape[i] + rng.IntN(2)
				if rng.IntN(4) == 0 {
					full[d] = 1
				}
			}
			view = randomTensor(rng, true, full).MulScalar(3).To(dtype).Permute(order...)
			for i, s := range shape {
				if view.shape[i] > s {
					view = view.Narrow(i, view.shape[i]-s, s)
				}
			}
			view = view.Expand(shape...)
			var all []float64
			flat := device64(view)
			each(shape, func(index []int) {
				at := view.offset
				for i, x := range index {
					at += x * view.strides[i]
				}
				all = append(all, flat[at])
			})
			data := make([]float32, len(all))
			for i, v := range all {
				data[i] = float32(v)
			}
			return view, FromFloat32(data, shape...).To(dtype)
		}
		x, xDense := strided()
		y, yDense := strided()
		check := func(what string, got, want *Tensor) {
			t.Helper()
			if !slices.Equal(float64s(got), float64s(want)) {
				t.Fatalf("round %d: %s of %v%v, strides %v and %v, differs from that of dense operands", round, what, dtype, shape, x.strides, y.strides)
			}
		}
		check("clone", x.Clone(), xDense)
		check("conversion", x.To(Float32), xDense.To(Float32))
		check("sum", x.Add(y), xDense.Add(yDense))
		check("comparison", x.Lt(y), xDense.Lt(yDense))
		check("choice", Where(x.Lt(y), x, y), xDense.Minimum(yDense))
		check("square", x.Square(), xDense.Square())
		check("scalar", x.MulScalar(2), xDense.MulScalar(2))
		scattered := New(CPU(), dtype, permuted(shape, order)...).Permute(inverse(order)...)
		scattered.CopyFrom(x)
		check("copy into a permuted tensor", scattered, xDense)
	}
}

// device64 returns the whole storage of a view as float64.
func device64(t *Tensor) []float64 {
	whole := *t
	n := t.storage.mem.Size / t.dtype.Size()
	whole.shape, whole.strides, whole.offset = []int{n}, []int{1}, 0
	return float64s(&whole)
}

func permuted(shape, order []int) []int {
	out := make([]int, len(shape))
	for i, d := range order {
		out[i] = shape[d]
	}
	return out
}

func inverse(order []int) []int {
	out := make([]int, len(order))
	for i, d := range order {
		out[d] = i
	}
	return out
}

// TestReductionsOfManyShapes: kernels cut large sums into blocks and strips.
func TestReductionsOfManyShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 0))
	for _, shape := range [][]int{{3, 700, 5}, {2, 3, 900}, {70, 2, 300}, {1, 20000, 2}, {40, 300, 3}} {
		x := randomTensor(rng, false, shape)
		a := array{shape, widen(x.Float32s())}
		for _, dims := range [][]int{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
			compareValues(t, "sum", x.Sum(dims...).Float32s(), naiveSum(a, dims...).data, 2e-6)
			top := naiveFold(a, -9, func(acc, v float64) float64 { return max(acc, v) }, dims...)
			compareValues(t, "amax", x.AMax(dims...).Float32s(), top.data, 0)
			compareValues(t, "sum of float64", x.To(Float64).Sum(dims...).Float32s(), naiveSum(a, dims...).data, 1e-7)
		}
		wide := x.To(BFloat16).Sum(0, 1, 2)
		if got, want := wide.Item(), naiveSum(array{shape, float64s(x.To(BFloat16))}, 0, 1, 2).data[0]; math.Abs(got-want) > math.Abs(want)/128+1e-3 {
			t.Errorf("the sum of %v bfloat16 is %v, want %v", shape, got, want)
		}
	}
}

// TestIntegersInPlace: the operations in place take every dtype.
func TestIntegersInPlace(t *testing.T) {
	for _, dtype := range []DType{Float32, BFloat16, Float16, Float64, Int64, Int32, Int8, Uint8} {
		x := FromInt64([]int64{1, 2, 3}).To(dtype)
		x.Axpy(2, FromInt64([]int64{4, 5, 6}).To(dtype))
		x.Scale(3)
		wantFloats(t, "3(x+2y) of "+dtype.String(), x, 27, 36, 45)
		y := New(CPU(), dtype, 3)
		y.CopyScaled(2, x)
		wantFloats(t, "2·x of "+dtype.String(), y, 54, 72, 90)
		x.Fill(7)
		wantFloats(t, "fill", x, 7, 7, 7)
	}
	mustFail(t, "wants contiguous tensors", func() { Zeros(2, 3).CopyScaled(1, Zeros(3, 2).T()) })
	mustFail(t, "cannot take 0.5 into int64", func() { FromInt64([]int64{1}).Scale(0.5) })
	mustFail(t, "cannot take NaN into uint8", func() { FromUint8([]uint8{1}).Fill(math.NaN()) })
}

// TestGradientsKeepTheDTypeOfTheirLeaf through a promotion.
func TestGradientsKeepTheDTypeOfTheirLeaf(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(FromFloat32([]float32{1, 2}), &collector{})
	h := x.To(BFloat16)
	y := h.Mul(FromFloat32([]float32{3, 5})).Add(FromInt64([]int64{1, 1}))
	if y.DType() != Float32 {
		t.Fatalf("bfloat16 times float32 is %v", y.DType())
	}
	grads, err := y.Sum().Grad(t.Context(), nil, []*Tensor{x, h})
	if err != nil {
		t.Fatal(err)
	}
	if grads[0].DType() != Float32 || grads[1].DType() != BFloat16 {
		t.Errorf("the gradients are %v and %v", grads[0], grads[1])
	}
	wantFloats(t, "gradient", grads[0], 3, 5)
}

// TestGradientsUnderCreateGraph: the definitions that a graph of the backward is
// made of give what the kernels give, at the ends of the range too.
func TestGradientsUnderCreateGraph(t *testing.T) {
	for _, c := range []struct {
		name string
		data []float32
		fn   func(x *Tensor) *Tensor
	}{
		{"prod of one zero", []float32{2, 0, 4}, func(x *Tensor) *Tensor { return x.Prod() }},
		{"prod of two zeros", []float32{0, 0, 4, 5, 6}, func(x *Tensor) *Tensor { return x.Prod(0) }},
		{"swiglu of what is far below 0", []float32{-100, -90, 1}, func(x *Tensor) *Tensor { return SwiGLU(x, x) }},
		{"softplus of a negative beta", []float32{-30, 1, 30}, func(x *Tensor) *Tensor { return x.Softplus(-1, 20) }},
	} {
		tp := NewTape(true)
		x := tp.Watch(FromFloat32(c.data), &collector{shape: []int{len(c.data)}})
		loss := c.fn(x).Sum()
		var got [2][]float32
		for i, opts := range [][]BackwardOption{nil, {CreateGraph()}} {
			grads, err := loss.Grad(t.Context(), nil, []*Tensor{x}, opts...)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = grads[0].Float32s()
		}
		for i := range got[0] {
			if math.Abs(float64(got[0][i]-got[1][i])) > 1e-6 || got[1][i] != got[1][i] {
				t.Errorf("%s: the gradient is %v, with a graph %v", c.name, got[0], got[1])
				break
			}
		}
		tp.Close()
	}
	// x·y·z at (0, 0, 3): the gradient is 0, its own is not.
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(FromFloat32([]float32{0, 0, 3}), &collector{shape: []int{3}})
	first, err := x.Prod().Grad(t.Context(), nil, []*Tensor{x}, CreateGraph())
	if err != nil {
		t.Fatal(err)
	}
	second, err := first[0].Select(0, 0).Grad(t.Context(), nil, []*Tensor{x})
	if err != nil {
		t.Fatal(err)
	}
	wantFloats(t, "the second derivative of a product of zeros", second[0], 0, 3, 0)
}

// TestNormAll: the norm of a list is a value of the device, and has the bits of
// the sums of squares one after another.
func TestNormAll(t *testing.T) {
	a, b := FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3), Full(0.1, 7)
	list := []*Tensor{a.Transpose(0, 1), b, b.To(BFloat16), Zeros(0), b.To(Float64)}
	sum := 0.0
	for _, x := range list {
		sum += x.SumSquares()
	}
	squares, norm := SumSquaresAll(list...), NormAll(list...)
	if squares.DType() != Float64 || squares.NumDims() != 0 || squares.Item() != sum || norm.Item() != math.Sqrt(sum) {
		t.Errorf("the sum of squares is %v, the norm %v, want %v and its root", squares, norm, sum)
	}
	if one := SumSquaresAll(a); one.NumDims() != 0 || one.Item() != 91 {
		t.Errorf("the sum of squares of one tensor is %v, want 91", one)
	}
	if m := NormAll(New(Meta, Float32, 3), New(Meta, Float32)); m.Device() != Meta || m.NumElems() != 1 {
		t.Errorf("on the device without data the norm is %v", m)
	}
	for what, misuse := range map[string]func(){
		"no tensors":   func() { NormAll() },
		"integers":     func() { NormAll(FromInt64([]int64{1})) },
		"two devices":  func() { NormAll(a, New(Meta, Float32, 3)) },
		"a nil tensor": func() { NormAll(a, nil) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(*Error); !ok {
					t.Errorf("%s: the norm was taken", what)
				}
			}()
			misuse()
		}()
	}
}
