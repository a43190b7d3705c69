// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"
	"testing"
)

// TestSizesThatWrapAround: a product of sizes that overflows would pass for a
// small tensor, and its elements would lie in memory of others.
func TestSizesThatWrapAround(t *testing.T) {
	const half = 1 << 32 // half·half is 0 in 64 bits
	mustFail(t, "more than", func() { Zeros(half, half) })
	mustFail(t, "more than", func() { Zeros(math.MaxInt64/4 - 8) })
	mustFail(t, "more than", func() { New(Meta, Float32, 1<<62) })
	mustFail(t, "more than", func() { Zeros(0).Reshape(half, half) })
	mustFail(t, "more than", func() { Zeros(1, 1).Expand(half, half) })
	mustFail(t, "negative", func() { Zeros(1).Expand(-1) })
	mustFail(t, "negative", func() { Zeros(0).Reshape(-1, 0) })
	mustFail(t, "not inside dim 0", func() { Zeros(4).Narrow(0, math.MaxInt, 1) })
	mustFail(t, "comes after", func() { Zeros(2, 3, 4).Flatten(2, 0) })
	if got := Zeros(half, 0, half).NumElems(); got != 0 {
		t.Errorf("%d elements, want 0", got)
	}
}

// TestIntegersAreNoFloats: kernels would take the bytes of one for the other.
func TestIntegersAreNoFloats(t *testing.T) {
	ints := FromInt64(make([]int64, 12), 1, 12)
	heads := FromInt64(make([]int64, 4), 1, 1, 1, 4)
	mustFail(t, "linear(int64[1 12], float32[3 12]): wants float32", func() { Linear(ints, Zeros(3, 12), nil) })
	mustFail(t, "wants float32", func() { Affine(Zeros(1, 2), Zeros(2, 12), ints.Reshape(12)) })
	mustFail(t, "wants float32", func() { LayerNorm(ints, Zeros(12), Zeros(12), 1e-5) })
	mustFail(t, "wants float32", func() { CrossEntropy(ints, FromInt64([]int64{0})) })
	mustFail(t, "wants float32", func() { Embedding(ints, FromInt64([]int64{0})) })
	mustFail(t, "wants float32", func() { ScaledDotProductAttention(heads, heads, heads, AttentionOptions{}) })
	mustFail(t, "wants float32", func() { SelfAttention(ints.Reshape(1, 1, 12), 2, AttentionOptions{}) })
}

func TestWritingWhatIsRead(t *testing.T) {
	x := counting(3, 3)
	x.CopyFrom(x.T())
	if got := x.Float32s(); !slices.Equal(got, []float32{0, 3, 6, 1, 4, 7, 2, 5, 8}) {
		t.Errorf("a matrix overwritten with its transpose is %v", got)
	}
	y := Full(1, 6)
	y.Narrow(0, 1, 5).Axpy(1, y.Narrow(0, 0, 5))
	if got := y.Float32s(); !slices.Equal(got, []float32{1, 2, 2, 2, 2, 2}) {
		t.Errorf("a run added to its neighbour gives %v", got)
	}
	mustFail(t, "one element repeated", func() { Zeros(1).Expand(3).CopyFrom(counting(3)) })
}

// TestGradBufferOfAnotherShape: the leaf was resharded between the passes.
func TestGradBufferOfAnotherShape(t *testing.T) {
	for _, shape := range [][]int{{1, 2}, {5, 2}} {
		tp := NewTape(true)
		w := tp.Watch(Zeros(3, 2), &collector{shape: shape})
		loss := Linear(Zeros(4, 2), w, nil).Sum()
		mustFail(t, "the shape that the forward pass saw", func() { _ = loss.Backward(t.Context()) })
		tp.Close()
	}
}

func TestExhaustedMemory(t *testing.T) {
	mustFail(t, "bytes on cpu", func() { Zeros(1<<46, 1) })
}
