// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

func TestPositions(t *testing.T) {
	c := Evaluation(t.Context())
	defer c.Close()
	if got := c.Positions(3).Int64s(); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("positions %v", got)
	}
	packed := c.WithDocuments(tensor.FromInt64([]int64{4, 4, 4, 9, 9, 2, 7, 7, 7, 7, 7, 7}, 2, 6))
	got := packed.Positions(6)
	if want := []int64{0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 4, 5}; !slices.Equal(got.Int64s(), want) || !slices.Equal(got.Shape(), []int{2, 6}) {
		t.Errorf("positions within documents: %v of shape %v, want %v", got.Int64s(), got.Shape(), want)
	}
	at := tensor.FromInt64([]int64{0, 7})
	if got := packed.WithPositions(at).Positions(2).Int64s(); !slices.Equal(got, []int64{0, 7}) {
		t.Errorf("given positions: %v", got)
	}
	if packed.WithPositions(at).Documents() == nil {
		t.Error("the documents are lost with the positions")
	}
}

// TestRoPETableOfPositions: a table of given positions has the rows of the table of all.
func TestRoPETableOfPositions(t *testing.T) {
	c := Evaluation(t.Context())
	defer c.Close()
	freq := tensor.RoPEFrequencies(8, 10_000)
	whole, _ := c.RoPETable(freq, 6)
	part, _ := c.WithPositions(tensor.FromInt64([]int64{5, 1})).RoPETable(freq, 2)
	want := slices.Concat(whole.Narrow(0, 5, 1).Float32s(), whole.Narrow(0, 1, 1).Float32s())
	if !slices.Equal(part.Float32s(), want) {
		t.Errorf("%v, want %v", part.Float32s(), want)
	}
}

// TestDocumentsAttend: what attention gives for a packed row is what it gives for each of its
// documents alone.
func TestDocumentsAttend(t *testing.T) {
	g := tensor.NewGenerator(3)
	draw := func() *tensor.Tensor {
		x := tensor.Zeros(1, 5, 2, 4)
		g.Normal(x, 0, 1)
		return x
	}
	q, k, v := draw(), draw(), draw()
	for _, m := range []*DotProductAttention{{HeadDim: 4, Causal: true}, {HeadDim: 4}, {HeadDim: 4, Causal: true, Window: 2}} {
		c := Evaluation(t.Context())
		packed := c.WithDocuments(tensor.FromInt64([]int64{0, 0, 0, 1, 1}, 1, 5))
		all := packed.CallN(m, q, k, v)[0]
		for _, part := range [][2]int{{0, 3}, {3, 2}} {
			of := func(x *tensor.Tensor) *tensor.Tensor { return x.Narrow(1, part[0], part[1]).Contiguous() }
			want := c.CallN(m, of(q), of(k), of(v))[0].Float32s()
			got := of(all).Float32s()
			for i := range want {
				if d := got[i] - want[i]; d > 1e-6 || d < -1e-6 {
					t.Fatalf("%+v: document at %v: element %d is %v, want %v", *m, part, i, got[i], want[i])
				}
			}
		}
		c.Close()
	}
}

type addsLoss struct{ Weight *Parameter }

func (m *addsLoss) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := x.Mul(c.Param(m.Weight))
	c.AddLoss(y.Square().Sum())
	return y
}

// TestAddLoss: the gradient of an added loss reaches the parameters, with and without recomputation.
func TestAddLoss(t *testing.T) {
	var want float32
	for _, again := range []bool{false, true} {
		m := &addsLoss{NewParameter(tensor.FromFloat32([]float32{3}))}
		err := func() (err error) {
			c := Training(context.Background())
			defer c.Close()
			defer c.Recover(&err)
			if again {
				c = c.With(Recompute(func(any) bool { return true }))
			}
			y := c.Call(m, c.Tape().Const(tensor.FromFloat32([]float32{2})))
			y = c.Call(m, y)
			return y.Sum().Add(c.AddedLoss()).Backward(c)
		}()
		if err != nil {
			t.Fatal(err)
		}
		got := m.Weight.Grad().Float32s()[0]
		if want = 4*3 + 8*3 + 4*4*27; got != want { // of 2w² + 4w² + 4w⁴
			t.Errorf("recomputed %v: the gradient is %v, want %v", again, got, want)
		}
	}
}

// TestDocumentsWithMask: a mask that is added, and is the same for all queries, goes together with
// documents.
func TestDocumentsWithMask(t *testing.T) {
	c := Evaluation(t.Context())
	defer c.Close()
	x := tensor.FromFloat32([]float32{1, 2, 4, 8}, 1, 4, 1, 1)
	packed := c.WithDocuments(tensor.FromInt64([]int64{0, 0, 1, 1}, 1, 4))
	mask := tensor.FromFloat32([]float32{float32(math.Inf(-1)), 0, 0, 0}, 1, 1, 1, 4)
	zeros := tensor.Zeros(1, 4, 1, 1)
	got := packed.CallN(&DotProductAttention{HeadDim: 1}, zeros, zeros, x, mask)[0].Float32s()
	if want := []float32{2, 2, 6, 6}; !slices.Equal(got, want) {
		t.Errorf("the result is %v, want %v", got, want)
	}
}

// TestDropoutOfParts: cuts of a dim nest, and a part drops what the whole does.
func TestDropoutOfParts(t *testing.T) {
	drop := NewDropout(0.5)
	pass := func() *Ctx { return Training(t.Context(), WithGenerator(tensor.NewGenerator(4))) }
	whole, part := pass(), pass()
	defer whole.Close()
	defer part.Close()
	y := whole.Call(drop, tensor.Full(1, 2, 12, 3))
	// Tokens 1 2 3 8 9 10, and of these the middle ones: 3 and 8.
	c := part.WithCut(tensor.Cut{Dim: 1, Size: 12, Runs: [][2]int{{1, 4}, {8, 11}}}).WithCut(tensor.Cut{Dim: 1, Size: 6, Runs: [][2]int{{2, 4}}})
	got := c.Call(drop, tensor.Full(1, 2, 2, 3)).Float32s()
	want := tensor.Cat(1, y.Narrow(1, 3, 1), y.Narrow(1, 8, 1)).Float32s()
	if !slices.Equal(got, want) {
		t.Errorf("the part is %v, want %v", got, want)
	}
}
