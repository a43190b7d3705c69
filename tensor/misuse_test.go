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
	mustFail(t, "its 0 elements cannot be divided by the 0 of", func() { Zeros(0).Reshape(-1, 0) })
	mustFail(t, "its 6 elements cannot be divided by the 4 of the other sizes of [4 -1]", func() { Zeros(6).Reshape(4, -1) })
	mustFail(t, "one size may be -1, of [-1 -1] there are more", func() { Zeros(6).Reshape(-1, -1) })
	mustFail(t, "negative", func() { Zeros(6).Reshape(-1, -2) })
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
	y = FromFloat32([]float32{1, 2, 3, 4})
	y.Narrow(0, 1, 3).CopyScaled(10, y.Narrow(0, 0, 3))
	if got := y.Float32s(); !slices.Equal(got, []float32{1, 10, 20, 30}) {
		t.Errorf("a run overwritten by ten times its neighbour is %v", got)
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

// TestElementwiseMisuse: shapes and dtypes that do not fit are named.
func TestElementwiseMisuse(t *testing.T) {
	x, flags := Zeros(2, 3), FromBool(make([]bool, 6), 2, 3)
	ints, probabilities := FromInt64(make([]int64, 6), 2, 3), Full(0.5, 2, 3)
	for _, c := range []struct {
		want string
		fn   func()
	}{
		{"maximum(float32[2 3], float32[2]): the shapes cannot be broadcast", func() { x.Maximum(Zeros(2)) }},
		{"lt(float32[2 3], float32[4]): the shapes cannot be broadcast", func() { x.Lt(Zeros(4)) }},
		{"not defined on bool", func() { flags.Sub(flags) }},
		{"not defined on bool", func() { flags.Neg() }},
		{"where(float32[2 3]): wants bool, got float32; convert by To", func() { Where(x, x, x) }},
		{"where(bool[2 3], float32[2 3], float32[2]): the shapes", func() { Where(flags, x, Zeros(2)) }},
		{"the mask cannot be broadcast", func() { Zeros(3).MaskedFill(flags, 0) }},
		{"wants bool", func() { x.MaskedFill(ints, 0) }},
		{"cannot take 0.5 into int64", func() { ints.MaskedFill(flags, 0.5) }},
		{"integers have no negative powers", func() { ints.PowScalar(-1) }},
		{"a limit is NaN", func() { x.Clamp(math.NaN(), 1) }},
		{"one for each channel", func() { x.PReLU(Zeros(2)) }},
		{"dim 2 is not one of its 2 dims", func() { x.Softmax(2) }},
		{"wants at least one dim", func() { x.Sum().Softmax(0) }},
		{"is twice in [1 -1]", func() { x.Sum(1, -1) }},
		{"wants a floating dtype", func() { ints.Mean() }},
		{"wants a floating dtype", func() { ints.Var(1) }},
		{"wants a floating dtype", func() { ints.Norm(2) }},
		{"p is NaN", func() { x.Norm(math.NaN()) }},
		{"no element to choose", func() { Zeros(0).AMax() }},
		{"dim 0 has no element to choose", func() { Zeros(0, 2).ArgMax(0) }},
		{"the shapes must be equal", func() { MSE(x, Zeros(3)) }},
		{"the shapes must be equal", func() { L1(x, Zeros(2, 1)) }},
		{"takes options once", func() { L1(x, x, LossOptions{}, LossOptions{}) }},
		{"no reduction 9", func() { L1(x, x, LossOptions{Reduction: 9}) }},
		{"cannot be broadcast to the losses", func() { L1(x, x, LossOptions{Weight: Zeros(2)}) }},
		{"beta must not be negative", func() { SmoothL1(x, x, -1) }},
		{"delta must be positive", func() { Huber(x, x, 0) }},
		{"element 4 is 1.5, no probability", func() {
			p := probabilities.Clone()
			p.WithFloat32s(func(d []float32) { d[4] = 1.5 })
			BCE(p, x)
		}},
		{"weight of the positives", func() { BCEWithLogits(x, x, BCEWithLogitsOptions{PosWeight: Zeros(4)}) }},
		{"target 3 of row 1 is not one of the 3 classes", func() { CrossEntropy(x, FromInt64([]int64{0, 3})) }},
		{"target -1 of row 0 is not one of the 3 classes", func() { NLL(x, FromInt64([]int64{-1, 0})) }},
		{"target -100 of row 0", func() {
			CrossEntropy(x, FromInt64([]int64{IgnoreIndex, 0}), CrossEntropyOptions{IgnoreIndex: new(int64(0))})
		}},
		{"the weight must have shape [3]", func() { CrossEntropy(x, FromInt64([]int64{0, 1}), CrossEntropyOptions{Weight: Zeros(2)}) }},
		{"label smoothing must be between 0 and 1", func() { CrossEntropy(x, FromInt64([]int64{0, 1}), CrossEntropyOptions{LabelSmoothing: 2}) }},
		{"must have the logits' shape without its last dim", func() { CrossEntropy(x, FromInt64([]int64{0})) }},
		{"must have the logits' shape", func() { CrossEntropy(x, Zeros(2)) }},
		{"wants int64 for the targets, got float32; convert by To", func() { NLL(x, Zeros(2)) }},
		{"unlike PyTorch", func() { CrossEntropy(Zeros(2, 5, 3), FromInt64(make([]int64, 6), 2, 3)) }},
		{"wants int64 for the ids, got float32; convert by To", func() { Embedding(x, x) }},
		{"wants float32 or bfloat16, the second operand is int64; convert by To", func() { x.MatMul(ints.T()) }},
		{"wants float32, the second operand is int64; convert by To", func() { RMSNorm(x, ints.Select(0, 0), 1e-5) }},
		{"nn.WithAutocast", func() { x.MatMul(x.To(BFloat16).T()) }},
		{"PaddingIdx 2 is not one of the table's 2 rows", func() { EmbeddingPadded(x, FromInt64([]int64{0}), 2) }},
		{"the images have 1 channel, the weight takes 3", func() { Conv2d(Zeros(1, 1, 5, 5), Zeros(4, 3, 3, 3), nil, Conv2dOptions{}) }},
		{"the images have 2 channels, the weight takes 4", func() { ConvTranspose2d(Zeros(1, 2, 5, 5), Zeros(4, 3, 3, 3), nil, Conv2dOptions{}, [2]int{}) }},
		{"2 groups do not divide the 3 channels", func() { Conv2d(Zeros(1, 2, 5, 5), Zeros(3, 1, 3, 3), nil, Conv2dOptions{Groups: 2}) }},
		{"has no label smoothing", func() { NLL(x, FromInt64([]int64{0, 1}), CrossEntropyOptions{LabelSmoothing: 0.1}) }},
		{"targets [batch]", func() { CosineEmbedding(x, x, Zeros(3), 0) }},
	} {
		mustFail(t, c.want, c.fn)
	}
}

// TestNothingToCompute: empty tensors have results of the right shape.
func TestNothingToCompute(t *testing.T) {
	empty := Zeros(0, 3)
	for _, got := range []*Tensor{
		empty.Add(empty), empty.Exp(), empty.To(BFloat16).SiLU(), empty.Gt(empty), empty.Softmax(1), empty.LogSoftmax(0), empty.LeakyReLU(1),
		empty.Clamp(0, 1), empty.MaskedFill(empty.Gt(empty), 1), empty.T().Clone().T(), Dropout(empty, 0.5, NewGenerator(0)),
	} {
		if !slices.Equal(got.Shape(), []int{0, 3}) {
			t.Errorf("an empty operand gives %v", got)
		}
	}
	Zeros(3, 0).CopyFrom(Zeros(3, 0))
	wantFloats(t, "the sum of nothing", empty.Sum(0), 0, 0, 0)
	wantFloats(t, "the product of nothing", empty.Prod(0), 1, 1, 1)
	wantFloats(t, "all of nothing", empty.All(), 1)
	wantFloats(t, "any of nothing", empty.Any(), 0)
	wantFloats(t, "the mean of nothing", empty.Mean(), nan32)
	wantFloats(t, "logsumexp of nothing", empty.LogSumExp(), -inf32)
	wantFloats(t, "the loss of no rows", CrossEntropy(empty, FromInt64(nil, 0)), nan32)
}

// TestString: rows can be told apart, and a value that is gone says so.
func TestString(t *testing.T) {
	for want, x := range map[string]*Tensor{
		"float32[2 2] [[0 1] [2 3]]":       counting(2, 2),
		"int64[2] [7 8]":                   FromInt64([]int64{7, 8}),
		"float32[] 5":                      Full(5),
		"float32[2 0] [[] []]":             Zeros(2, 0),
		"float32[2 1 2] [[[0 2]] [[1 3]]]": counting(2, 2).T().Reshape(2, 1, 2),
		"bfloat16[1 1] [[0.5]]":            Full(0.5, 1, 1).To(BFloat16),
		"float32[65]":                      Zeros(65),
		"float32[2] (freed)":               freedValue(),
	} {
		if got := x.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// freed returns a value whose tape was closed.
func freedValue() *Tensor {
	tp := NewTape(false)
	defer tp.Close()
	return tp.Const(Zeros(2)).AddScalar(1)
}

// TestNumbersAtTheirLimits: what does not fit fails and does not wrap around.
func TestNumbersAtTheirLimits(t *testing.T) {
	mustFail(t, "wants numbers up to", func() {
		Conv2d(Zeros(1, 1, 8, 8), Zeros(1, 1, 5, 5), nil, Conv2dOptions{Dilation: [2]int{1 << 62, 1}})
	})
	yes := FromBool([]bool{true})
	mustFail(t, "cannot take -Inf into int64", func() { FromInt64([]int64{1}).MaskedFill(yes, math.Inf(-1)) })
	mustFail(t, "cannot take 300 into uint8", func() { FromUint8([]uint8{1}).MaskedFill(yes, 300) })
	mustFail(t, "into int64", func() { FromInt64([]int64{1}).Fill(1 << 63) })
	mustFail(t, "broadcast", func() { Zeros(0, 1).MaskedFill(FromBool(nil, 0, 5), 1) })
	mustFail(t, "count at position 0", func() { Zeros(1).RepeatInterleaveBy(FromInt64([]int64{1 << 61}), 0) })
	mustFail(t, "no 36028797018963968 bytes", func() { Zeros(1).RepeatInterleaveBy(FromInt64([]int64{1 << 52}), 0) })
	mustFail(t, "cannot make planes", func() { AdaptiveAvgPool2d(Zeros(1, 1, 4, 4), 1<<60, 1) })
	mustFail(t, "negative", func() { RoPEFrequencies(-2, 10000) })
	a, b := FromInt64([]int64{127, -1, -1, 1}).To(Int8), FromInt64([]int64{-1, -3, -2, -5}).To(Int8)
	wantFloats(t, "negative powers of integers", a.Pow(b), 0, -1, 1, 1)
	if got := New(Meta, Float32, 2, 3).RepeatInterleaveBy(FromInt64([]int64{4, 1}), 0).Shape(); !slices.Equal(got, []int{5, 3}) {
		t.Errorf("repeats of shapes alone give %v, want [5 3]", got)
	}
	ones := Full(1, 2, 2)
	wantFloats(t, "tril of all", ones.Tril(math.MaxInt), 1, 1, 1, 1)
	wantFloats(t, "triu of none", ones.Triu(math.MaxInt), 0, 0, 0, 0)
	wantFloats(t, "triu of all", ones.Triu(math.MinInt), 1, 1, 1, 1)
}

// TestPyTorchHabits: what its users expect of numbers and indices.
func TestPyTorchHabits(t *testing.T) {
	x := FromFloat32([]float32{0.1, 2, 3})
	wantFloats(t, "the last element", x.Select(0, -1), 3)
	mustFail(t, "index -4 is not in dim 0", func() { x.Select(0, -4) })
	for _, dtype := range []DType{Float32, BFloat16, Float16} {
		wantFloats(t, "a number against its rounded self", x.To(dtype).EqScalar(0.1), 1, 0, 0)
	}
	if n := len(Zeros(2, 0).Chunk(3, 1)); n != 3 {
		t.Errorf("nothing is cut into %d chunks, want 3", n)
	}
	third := FromFloat32([]float32{1}).To(Float64).DivScalar(3)
	if got := Dropout(third, 1e-12, NewGenerator(1)).Item(); math.Abs(got-1.0/3) > 1e-11 {
		t.Errorf("dropout makes %v of a third in float64", got)
	}
}
