// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var allDTypes = []DType{Float32, BFloat16, Float16, Float64, Int64, Int32, Int8, Uint8, Bool}

// values reads any dtype.
func values(t *Tensor) []int64 { return t.Detach().To(Int64).Int64s() }

// Elements of every dtype are moved as they are.
func TestIndexingMovesEveryDType(t *testing.T) {
	x64 := FromInt64([]int64{1, 0, 3, 4, 5, 0, 7, 8, 9, 10, 11, 12}, 3, 4)
	ids := FromInt64([]int64{2, 0}).To(Int32)
	along := FromInt64([]int64{3, 0, 1, 1, 2, 3}, 3, 2)
	mask := x64.To(Bool)
	ops := map[string]func(x *Tensor) *Tensor{
		"index select": func(x *Tensor) *Tensor { return x.IndexSelect(0, ids) },
		"select last":  func(x *Tensor) *Tensor { return x.T().IndexSelect(1, ids) },
		"gather":       func(x *Tensor) *Tensor { return x.Gather(1, along) },
		"scatter":      func(x *Tensor) *Tensor { return x.Scatter(1, along, x.Narrow(1, 0, 2)) },
		"masked":       func(x *Tensor) *Tensor { return x.MaskedSelect(mask) },
		"cat":          func(x *Tensor) *Tensor { return Cat(1, x.Narrow(1, 1, 2), x) },
		"stack":        func(x *Tensor) *Tensor { return Stack(1, x, x.Flip(0)) },
		"tril":         func(x *Tensor) *Tensor { return x.Tril(0) },
		"roll":         func(x *Tensor) *Tensor { return x.Roll([]int{1}, []int{1}) },
		"diagonal":     func(x *Tensor) *Tensor { return x.Diagonal(0, 0, 1) },
		"top k":        func(x *Tensor) *Tensor { v, _ := x.TopK(2, 1, true); return v },
		"sort":         func(x *Tensor) *Tensor { v, _ := x.Sort(0, true); return v },
		"nonzero":      func(x *Tensor) *Tensor { return x.NonZero() },
		"unfold":       func(x *Tensor) *Tensor { return x.Unfold(1, 2, 1) },
	}
	for name, op := range ops {
		for _, dtype := range allDTypes {
			from := x64
			if dtype == Bool {
				from = mask.To(Int64)
			}
			got, want := op(from.To(dtype)), op(from)
			if got.DType() != dtype && name != "nonzero" || !slices.Equal(got.Shape(), want.Shape()) || !slices.Equal(values(got), values(want)) {
				t.Errorf("%s of %v: %v%v %v, want %v%v", name, dtype, got.DType(), got.Shape(), values(got), want.Shape(), values(want))
			}
		}
	}
}

func TestSumsByIndexOfEveryDType(t *testing.T) {
	ids := FromInt64([]int64{1, 0, 1})
	x, src := FromInt64([]int64{1, 2, 3, 4}, 2, 2), FromInt64([]int64{1, 2, 3, 4, 5, 6}, 3, 2)
	index := FromInt64([]int64{1, 0, 1, 1, 0, 0}, 3, 2)
	for _, dtype := range allDTypes[:8] {
		for name, want := range map[string][]int64{"index add": {4, 6, 9, 12}, "scatter add": {6, 10, 7, 8}, "cumsum": {1, 2, 4, 6}} {
			var got *Tensor
			switch a, b := x.To(dtype), src.To(dtype); name {
			case "index add":
				got = a.IndexAdd(0, ids, b)
			case "scatter add":
				got = a.ScatterAdd(0, index, b)
			default:
				got = a.CumSum(0)
			}
			if !slices.Equal(values(got), want) {
				t.Errorf("%s of %v: %v, want %v", name, dtype, values(got), want)
			}
		}
	}
	mustFail(t, "truth values cannot be added", func() { x.To(Bool).IndexAdd(0, ids, src.To(Bool)) })
}

// A gradient that comes back through an index operation has the value's dtype.
func TestHalfGradientsThroughIndexing(t *testing.T) {
	ids := FromInt64([]int64{2, 0, 2})
	for name, op := range map[string]func(x *Tensor) *Tensor{
		"index select": func(x *Tensor) *Tensor { return x.IndexSelect(0, ids) },
		"gather":       func(x *Tensor) *Tensor { return x.Gather(0, ids) },
	} {
		tp := NewTape(true)
		sink := &collector{shape: []int{3}}
		x := tp.Watch(FromFloat32([]float32{1, 2, 3}), sink)
		loss := op(x.To(BFloat16)).To(Float32).Sum()
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sink.grad.Float32s(); !slices.Equal(got, []float32{1, 0, 2}) {
			t.Errorf("%s: gradient %v, want 1 0 2", name, got)
		}
		tp.Close()
	}
}

// Under autocast features of two dtypes are joined, and each gets its gradient.
func TestCatOfTwoDTypes(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	a, b := &collector{shape: []int{2}}, &collector{shape: []int{3}}
	x, y := tp.Watch(FromFloat32([]float32{1, 2}), a), tp.Watch(FromFloat32([]float32{3, 4, 5}), b)
	out := Cat(0, x.To(BFloat16), y)
	if got := out.Float32s(); out.DType() != Float32 || !slices.Equal(got, []float32{1, 2, 3, 4, 5}) {
		t.Errorf("%v %v", out.DType(), got)
	}
	if err := out.Mul(FromFloat32([]float32{1, 2, 3, 4, 5})).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.grad.Float32s(), []float32{1, 2}) || !slices.Equal(b.grad.Float32s(), []float32{3, 4, 5}) {
		t.Errorf("gradients %v and %v", a.grad, b.grad)
	}
}

func TestIndicesOutOfRange(t *testing.T) {
	x := Zeros(3, 4)
	for _, bad := range []int64{-1, 4, math.MaxInt64, math.MinInt64} {
		message := fmt.Sprintf("index %d at position [1 0] is out of range: dim 1 has 4 elements", bad)
		index := FromInt64([]int64{0, 1, bad, 99}, 2, 2)
		mustFail(t, "gather(float32[3 4], int64[2 2]): "+message, func() { x.Gather(1, index) })
		mustFail(t, message, func() { x.ScatterAdd(1, index, Zeros(2, 2)) })
		mustFail(t, message, func() { x.Scatter(1, index, Zeros(2, 2)) })
		ids := FromInt64([]int64{0, bad})
		mustFail(t, fmt.Sprintf("index %d at position [1]", bad), func() { x.IndexSelect(1, ids) })
		mustFail(t, fmt.Sprintf("index %d at position [1]", bad), func() { x.IndexAdd(1, ids, Zeros(3, 2)) })
		mustFail(t, fmt.Sprintf("id %d at position [1] is not one of the 4 classes (numClasses)", bad), func() { OneHot(ids, 4) })
	}
	// The first of many, whichever thread sees one first.
	many := make([]int64, 1<<17)
	for i := 70001; i < len(many); i += 999 {
		many[i] = 3
	}
	mustFail(t, "index 3 at position [70001]", func() { x.IndexSelect(0, FromInt64(many)) })
}

func TestIndexingMisuse(t *testing.T) {
	x := Zeros(3, 4)
	ids := FromInt64([]int64{0})
	mustFail(t, "must be int64 or int32", func() { x.IndexSelect(0, Zeros(1)) })
	mustFail(t, "one dim", func() { x.IndexSelect(0, ids.Reshape(1, 1)) })
	mustFail(t, "as many dims", func() { x.Gather(0, ids) })
	mustFail(t, "5 elements in dim 1, the tensor 4", func() { x.Gather(0, FromInt64(make([]int64, 5), 1, 5)) })
	mustFail(t, "the source 1", func() { x.ScatterAdd(0, FromInt64(make([]int64, 2), 1, 2), Zeros(1, 1)) })
	mustFail(t, "must be float32[1 4]", func() { x.IndexAdd(0, ids, Zeros(2, 4)) })
	mustFail(t, "must be bool", func() { x.MaskedSelect(x) })
	mustFail(t, "only 2", func() { x.MaskedScatter(FromBool([]bool{true}), Zeros(2)) })
	mustFail(t, "no 5 elements", func() { x.TopK(5, 1, true) })
	mustFail(t, "one shape, but for dim 0", func() { Cat(0, x, Zeros(3, 3)) })
	mustFail(t, "number of dims", func() { Cat(0, x, Zeros(3)) })
	mustFail(t, "at least one", func() { Cat(0) })
	mustFail(t, "one shape", func() { Stack(0, x, Zeros(4, 3)) })
	mustFail(t, "do not fill dim 1", func() { x.Split(1, 2, 3) })
	mustFail(t, "no window", func() { x.Unfold(1, 5, 1) })
	mustFail(t, "no data on device meta", func() { New(Meta, Bool, 3).NonZero() })
	mustFail(t, "has no end", func() { ArangeOf(CPU(), Float32, 0, 1, 0) })
	mustFail(t, "two devices", func() { New(Meta, Float32, 3, 4).IndexSelect(0, ids) })
}

func TestEinsumMisuse(t *testing.T) {
	a, b := Zeros(2, 3), Zeros(4, 5)
	mustFail(t, `einsum(float32[2 3], float32[4 5]): spec "ij,jk->ik": "j" stands for 4 elements in operand 1 and for 3 in another`,
		func() { Einsum("ij,jk->ik", a, b) })
	mustFail(t, "describes 1 operands, there are 2", func() { Einsum("ij->i", a, b) })
	mustFail(t, `"ijk" has letters for 3 dims, operand 0 has 2`, func() { Einsum("ijk", a) })
	mustFail(t, `"k" of the result is in no operand`, func() { Einsum("ij->ik", a) })
	mustFail(t, `"i" is twice in the result`, func() { Einsum("ij->ii", a) })
	mustFail(t, `"1" is not a letter`, func() { Einsum("i1->i", a) })
	mustFail(t, `dims of 2 and 3 elements in operand 0`, func() { Einsum("ii", a) })
	mustFail(t, `the ellipsis stands for`, func() { Einsum("...,...", a, b) })
	mustFail(t, `there are no operands`, func() { Einsum("") })
}

// Whatever a spec says, the result is a tensor or an *Error that quotes it.
func TestEinsumOfAnySpec(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 0))
	pieces := []string{"i", "j", "k", "ij", "jk", "...", ",", "->", ".", " ", "A", "1", "é", "-"}
	operands := []*Tensor{Full(1, 2, 3), Full(1, 3, 3), Full(1, 2), Zeros(0, 3), Full(2)}
	worked := 0
	for range 20_000 {
		spec := ""
		for range rng.IntN(8) {
			spec += pieces[rng.IntN(len(pieces))]
		}
		in := make([]*Tensor, 1+rng.IntN(3))
		for i := range in {
			in[i] = operands[rng.IntN(len(operands))]
		}
		func() {
			defer func() {
				switch v := recover().(type) {
				case nil:
					worked++
				case *Error:
					if !strings.Contains(v.Msg, fmt.Sprintf("%q", spec)) {
						t.Errorf("%q: %v", spec, v)
					}
				default:
					t.Fatalf("%q of %v: %v", spec, in, v)
				}
			}()
			Einsum(spec, in...)
		}()
	}
	if worked < 100 {
		t.Errorf("only %d specs made sense", worked)
	}
}

// Large operands, which threads share, against plain loops.
func TestLargeIndexing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	for _, shape := range [][3]int{{1, 300, 513}, {40, 33, 17}, {900, 130, 1}, {2, 5000, 3}, {1, 70000, 1}} {
		outer, size, inner := shape[0], shape[1], shape[2]
		n := size + 7
		x, src := randomTensor(rng, false, shape[:]), randomTensor(rng, false, []int{outer, n, inner})
		ids, index := make([]int64, n), make([]int64, outer*n*inner)
		for i := range ids {
			ids[i] = rng.Int64N(int64(size))
		}
		for i := range index {
			index[i] = rng.Int64N(int64(size))
		}
		xs, ss := x.Float32s(), src.Float32s()
		at := func(o, i, k int) int { return (o*size+i)*inner + k }
		selected, gathered := make([]float32, outer*n*inner), make([]float32, outer*n*inner)
		added, scattered, put := slices.Clone(xs), slices.Clone(xs), slices.Clone(xs)
		for p := range index {
			o, i, k := p/(n*inner), p/inner%n, p%inner
			selected[p] = xs[at(o, int(ids[i]), k)]
			gathered[p] = xs[at(o, int(index[p]), k)]
			added[at(o, int(ids[i]), k)] += ss[p]
			scattered[at(o, int(index[p]), k)] += ss[p]
			put[at(o, int(index[p]), k)] = ss[p]
		}
		id, ix := FromInt64(ids), FromInt64(index, outer, n, inner)
		for name, c := range map[string]struct {
			got  *Tensor
			want []float32
		}{
			"index select": {x.IndexSelect(1, id), selected},
			"gather":       {x.Gather(1, ix), gathered},
			"index add":    {x.IndexAdd(1, id, src), added},
			"scatter add":  {x.ScatterAdd(1, ix, src), scattered},
			"scatter":      {x.Scatter(1, ix, src), put},
			"cat":          {Cat(1, x, src).Narrow(1, size, n), ss},
		} {
			if !slices.Equal(c.got.Float32s(), c.want) {
				t.Errorf("%s of %v differs from the plain loop", name, shape)
			}
		}
		// Running sums from both ends meet.
		sum, back := x.CumSum(1), x.cumSum(1, true)
		both, total := sum.Add(back).Sub(x), x.SumKeep(1).Expand(outer, size, inner)
		compareValues(t, fmt.Sprintf("cumsum of %v", shape), both.Float32s(), widen(total.Float32s()), 1e-4)
	}
}

// Orders of long and short rows, with many equal elements and NaN, in all dtypes.
func TestSortedOrders(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	nan := float32(math.NaN())
	special := []float32{nan, float32(math.Inf(1)), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1)), 1, -1}
	for _, cols := range []int{1, 2, 7, 64, 127, 128, 1000, 9000} {
		rows := max(1, 1000/cols)
		data := make([]float32, rows*cols)
		for i := range data {
			data[i] = float32(rng.IntN(90) - 45)
			if rng.IntN(10) == 0 {
				data[i] = special[rng.IntN(len(special))]
			}
		}
		for _, dtype := range []DType{Float32, BFloat16, Float16, Float64, Int64, Int32, Int8} {
			x := FromFloat32(data, rows, cols)
			if !dtype.IsFloat() {
				x = FromFloat32(finite(data), rows, cols)
			}
			x = x.To(dtype)
			plain := x.To(Float32).Float32s()
			for _, descending := range []bool{false, true} {
				order := x.ArgSort(1, descending).Int64s()
				k := min(cols, 1+rng.IntN(70))
				_, top := x.TopK(k, 1, descending)
				for r := range rows {
					row := plain[r*cols : (r+1)*cols]
					want := make([]int64, cols)
					for i := range want {
						want[i] = int64(i)
					}
					slices.SortStableFunc(want, func(a, b int64) int {
						c := compareNaNLast(row[a], row[b])
						if descending {
							return -c
						}
						return c
					})
					if got := order[r*cols : (r+1)*cols]; !slices.Equal(got, want) {
						t.Fatalf("%v, %d columns, descending %v: row %v is sorted by %v, want %v", dtype, cols, descending, row, got, want)
					}
					if got := top.Int64s()[r*k : (r+1)*k]; !slices.Equal(got, want[:k]) {
						t.Fatalf("%v, %d columns, largest %v: the best %d of %v are %v, want %v", dtype, cols, descending, k, row, got, want[:k])
					}
				}
			}
		}
	}
}

func finite(data []float32) []float32 {
	out := slices.Clone(data)
	for i, x := range out {
		if x-x != 0 {
			out[i] = 7
		}
	}
	return out
}

func compareNaNLast(a, b float32) int {
	switch {
	case a != a && b != b || a == b:
		return 0
	case b != b || a < b:
		return -1
	}
	return 1
}

func TestRanges(t *testing.T) {
	if got := ArangeOf(CPU(), Float32, 1, 2, 0.25).Float32s(); !slices.Equal(got, []float32{1, 1.25, 1.5, 1.75}) {
		t.Errorf("arange: %v", got)
	}
	if got := ArangeOf(CPU(), Int32, 5, -2, -3).Int64s(); !slices.Equal(got, []int64{5, 2, -1}) {
		t.Errorf("arange down: %v", got)
	}
	if got := ArangeOf(CPU(), Int64, 3, 3, 1).NumElems(); got != 0 {
		t.Errorf("empty arange: %v", got)
	}
	if got := Linspace(CPU(), -1, 1, 5).Float32s(); !slices.Equal(got, []float32{-1, -0.5, 0, 0.5, 1}) {
		t.Errorf("linspace: %v", got)
	}
	if got := Eye(CPU(), 2, 3).Float32s(); !slices.Equal(got, []float32{1, 0, 0, 0, 1, 0}) {
		t.Errorf("eye: %v", got)
	}
	if got := OneHot(FromInt64([]int64{2, 0}), 3).Int64s(); !slices.Equal(got, []int64{0, 0, 1, 1, 0, 0}) {
		t.Errorf("one hot: %v", got)
	}
	if got := FromFloat32([]float32{0, 2, 0, 1, 0, -1}, 2, 3).NonZero(); !slices.Equal(got.Int64s(), []int64{0, 1, 1, 0, 1, 2}) || got.Dim(0) != 3 {
		t.Errorf("nonzero: %v", got)
	}
	// Shapes without data.
	x := New(Meta, Float32, 4, 6)
	if got := x.Flip(1).Unfold(0, 2, 1).Shape(); !slices.Equal(got, []int{3, 6, 2}) {
		t.Errorf("on meta: %v", got)
	}
	if v, _ := x.TopK(2, 1, true); !slices.Equal(v.Shape(), []int{4, 2}) {
		t.Errorf("top k on meta: %v", v.Shape())
	}
}

func TestCatPromotes(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(Full(1.5, 2), sink)
	got := Cat(0, x.To(BFloat16), FromInt64([]int64{7}), x)
	if got.DType() != Float32 || !slices.Equal(got.Float32s(), []float32{1.5, 1.5, 7, 1.5, 1.5}) {
		t.Errorf("cat of bfloat16, int64 and float32 is %v", got)
	}
	if err := got.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := sink.grad.Float32s(); !slices.Equal(g, []float32{2, 2}) {
		t.Errorf("gradient %v, want [2 2]", g)
	}
}

// The row of the padding gets no gradient, however the ids lie.
func TestPaddingOfStridedIDs(t *testing.T) {
	ids := FromInt64([]int64{1, 9, 2, 9, 0, 9}, 3, 2).Select(1, 0)
	for _, dtype := range []DType{Float32, BFloat16, Float64} {
		tp := NewTape(true)
		sink := &collector{shape: []int{3, 1}}
		table := tp.Watch(Full(1, 3, 1), sink)
		if err := EmbeddingPadded(table.To(dtype), ids, 2).To(Float32).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sink.grad.Float32s(); !slices.Equal(got, []float32{1, 1, 0}) {
			t.Errorf("%v: gradient %v, want 1 1 0", dtype, got)
		}
		tp.Close()
	}
}
