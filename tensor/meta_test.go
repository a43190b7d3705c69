// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// onMeta returns a tensor like t without data.
func onMeta(t *Tensor) *Tensor { return New(Meta, t.dtype, t.shape...) }

// TestOperationsOnMeta: every operation gives the shape and dtype that it gives
// elsewhere, its gradients too, or an *Error: never what no program can expect.
func TestOperationsOnMeta(t *testing.T) {
	eachCase(t, CPU(), func(t *testing.T, c opCase, in []*Tensor, seed uint64) {
		defer func() {
			switch err := recover().(type) {
			case nil:
			case *Error:
				t.Log(err)
			default:
				t.Fatal(err)
			}
		}()
		for _, opts := range [][]BackwardOption{nil, {RetainGraph()}, {CreateGraph()}} {
			if len(opts) > 0 && c.once != "" {
				continue
			}
			tp := NewTape(true)
			defer tp.Close()
			leaves, sinks := make([]*Tensor, len(in)), make([]*collector, len(in))
			for i, x := range in {
				x = onMeta(x)
				sinks[i] = &collector{shape: x.shape, grad: x}
				leaves[i] = tp.Watch(x, sinks[i])
			}
			got, want := c.apply(leaves), c.apply(in)
			if got.Device() != Meta || got.dtype != want.dtype || !slices.Equal(got.shape, want.shape) {
				t.Errorf("%v%v on %v, want %v%v", got.dtype, got.shape, got.Device().Name(), want.dtype, want.shape)
			}
			if !got.NeedsGrad() {
				return
			}
			if err := got.Sum().Backward(t.Context(), opts...); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestIndicesOnMeta: operations that read ids compute shapes alone, as far as ids do
// not decide them.
func TestIndicesOnMeta(t *testing.T) {
	x, row := New(Meta, Float32, 3, 4), New(Meta, Float32, 4)
	ids, ids2, mask := New(Meta, Int64, 3), New(Meta, Int64, 3, 2), New(Meta, Bool, 3, 4)
	for name, c := range map[string]struct {
		fn   func(x *Tensor) *Tensor
		want []int
	}{
		"index select":  {func(x *Tensor) *Tensor { return x.IndexSelect(1, ids) }, []int{3, 3}},
		"index add":     {func(x *Tensor) *Tensor { return x.IndexAdd(0, ids, x) }, []int{3, 4}},
		"gather":        {func(x *Tensor) *Tensor { return x.Gather(1, ids2) }, []int{3, 2}},
		"scatter":       {func(x *Tensor) *Tensor { return x.Scatter(1, ids2, x) }, []int{3, 4}},
		"scatter add":   {func(x *Tensor) *Tensor { return x.ScatterAdd(1, ids2, x) }, []int{3, 4}},
		"scatter value": {func(x *Tensor) *Tensor { return x.ScatterValue(1, ids2, 1) }, []int{3, 4}},
		"masked fill":   {func(x *Tensor) *Tensor { return x.MaskedFill(mask, 1) }, []int{3, 4}},
		"where":         {func(x *Tensor) *Tensor { return Where(mask, x, x) }, []int{3, 4}},
		"embedding":     {func(x *Tensor) *Tensor { return Embedding(x, ids2) }, []int{3, 2, 4}},
		"bag":           {func(x *Tensor) *Tensor { return EmbeddingBag(x, ids2, nil, EmbeddingBagOptions{}) }, []int{3, 4}},
		"bag, offsets":  {func(x *Tensor) *Tensor { return EmbeddingBag(x, ids, ids, EmbeddingBagOptions{Mode: BagSum}) }, []int{3, 4}},
		"bag, largest":  {func(x *Tensor) *Tensor { return EmbeddingBag(x, ids2, nil, EmbeddingBagOptions{Mode: BagMax}) }, []int{3, 4}},
		"cross entropy": {func(x *Tensor) *Tensor { return CrossEntropy(x, ids) }, []int{}},
		"weights": {func(x *Tensor) *Tensor {
			return CrossEntropy(x, ids, CrossEntropyOptions{Weight: row, LabelSmoothing: 0.1})
		}, []int{}},
		"soft targets": {func(x *Tensor) *Tensor { return CrossEntropy(x, x) }, []int{}},
		"nll":          {func(x *Tensor) *Tensor { return NLL(x, ids) }, []int{}},
		"one hot":      {func(x *Tensor) *Tensor { return x.Add(OneHot(ids, 4)) }, []int{3, 4}},
		"sort":         {func(x *Tensor) *Tensor { v, _ := x.Sort(0, true); return v }, []int{3, 4}},
		"top k":        {func(x *Tensor) *Tensor { v, _ := x.TopK(2, 1, true); return v }, []int{3, 2}},
		"arg max":      {func(x *Tensor) *Tensor { return x.ArgMax(1) }, []int{3}},
		"max":          {func(x *Tensor) *Tensor { v, _ := x.Max(1); return v }, []int{3}},
		"masked attention": {func(x *Tensor) *Tensor {
			h := x.Reshape(1, 3, 1, 4)
			return ScaledDotProductAttention(h, h, h, AttentionOptions{Mask: New(Meta, Bool, 3, 3), Causal: true})
		}, []int{1, 3, 1, 4}},
		"batch norm": {func(x *Tensor) *Tensor {
			return BatchNorm(x, row, row, BatchNormOptions{Eps: 1e-5, Training: true, RunningMean: row, RunningVar: row, NumBatches: New(Meta, Int64)})
		}, []int{3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, opts := range [][]BackwardOption{nil, {CreateGraph()}} {
				if opts != nil && strings.HasPrefix(name, "bag") {
					continue // its definition is made of the ids
				}
				tp := NewTape(true)
				defer tp.Close()
				got := c.fn(tp.Watch(x, &collector{grad: New(Meta, Float32, 3, 4)}))
				if got.Device() != Meta || !slices.Equal(got.shape, c.want) {
					t.Errorf("%v on %s, want shape %v", got, got.Device().Name(), c.want)
				}
				if got.NeedsGrad() {
					if err := got.Sum().Backward(t.Context(), opts...); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestReadingFromMeta: what needs the numbers says that there are none, and what to do.
func TestReadingFromMeta(t *testing.T) {
	x, one, ids := New(Meta, Float32, 3, 4), New(Meta, Float32, 1), New(Meta, Int64, 3)
	rows := RowGrad{IDs: ids, Rows: x, NumRows: 5}
	for name, fn := range map[string]func(){
		"item":             func() { one.Item() },
		"item of integers": func() { New(Meta, Int64).Item() },
		"sum squares":      func() { x.SumSquares() },
		"float32s":         func() { x.Float32s() },
		"int64s":           func() { ids.Int64s() },
		"with float32s":    func() { x.WithFloat32s(func([]float32) {}) },
		"with float64s":    func() { New(Meta, Float64, 2).WithFloat64s(func([]float64) {}) },
		"buffer":           func() { x.Buffer() },
		"non zero":         func() { x.NonZero() },
		"masked select":    func() { x.MaskedSelect(x.GtScalar(0)) },
		"masked scatter":   func() { x.MaskedScatter(x.GtScalar(0), x) },
		"repeats":          func() { x.RepeatInterleaveBy(ids, 0) },
	} {
		t.Run(name, func(t *testing.T) { mustFail(t, "has no data on device meta", fn) })
	}
	if _, err := x.Lend(); err == nil {
		t.Error("the memory was lent")
	}
	if got := New(Meta, Float32, 0).SumSquares(); got != 0 {
		t.Errorf("the squares of nothing sum up to %v", got)
	}
	if got := fmt.Sprint(x, one); got != "float32[3 4] float32[1]" {
		t.Errorf("%s", got)
	}
	rows.Dense() // a shape
	rows.Add(rows)
	SumRowGrads(rows, rows)
}

// TestPeakOnMeta: a pass on Meta says how much memory the same pass takes on the CPU.
func TestPeakOnMeta(t *testing.T) {
	peak := func(dev Device) (most, left int64) {
		tape := NewTape(true)
		defer tape.Close()
		w := tape.Leaf(New(dev, Float32, 64, 64))
		x := tape.Const(New(dev, Float32, 32, 64))
		for range 4 {
			x = x.MatMul(w).GELU()
		}
		loss := x.Square().Mean()
		tape.Count(1000)
		if _, err := loss.Grad(t.Context(), nil, []*Tensor{w}); err != nil {
			t.Fatal(err)
		}
		tape.Count(-1000)
		return tape.PeakBytes(), tape.LiveBytes()
	}
	want, left := peak(CPU())
	if got, rest := peak(Meta); got != want || rest != left || got < 9*32*64*4+1000 || left >= got {
		t.Errorf("a pass on meta holds %d bytes at most and %d at its end, on the CPU %d and %d", got, rest, want, left)
	}
}
