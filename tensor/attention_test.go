// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"testing"
)

func TestAttentionMisuse(t *testing.T) {
	q, k := Zeros(1, 2, 4, 3), Zeros(1, 5, 2, 3)
	attention := func(k *Tensor, o AttentionOptions) func() {
		return func() { ScaledDotProductAttention(q, k, k, o) }
	}
	mustFail(t, "must divide the 4 of the queries", attention(Zeros(1, 5, 3, 3), AttentionOptions{}))
	mustFail(t, "wants q [batch, time, heads, dim]", attention(Zeros(1, 5, 2, 4), AttentionOptions{}))
	mustFail(t, "the mask cannot be broadcast to [1 4 2 5]", attention(k, AttentionOptions{Mask: Zeros(3, 5)}))
	mustFail(t, "wants a mask of float32", attention(k, AttentionOptions{Mask: FromInt64(make([]int64, 5))}))
	mustFail(t, "want one in [0, 1)", attention(k, AttentionOptions{Dropout: 1}))
	mustFail(t, "dropout wants a generator", attention(k, AttentionOptions{Dropout: 0.5}))
}

// A query that no key is left for gets zeros, and no gradient but 0.
func TestAttentionWithoutKeys(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sinks := make([]*collector, 3)
	var in []*Tensor
	for i := range sinks {
		sinks[i] = &collector{shape: []int{1, 2, 1, 3}}
		in = append(in, tp.Watch(Full(0.5, 1, 2, 1, 3), sinks[i]))
	}
	for _, o := range []AttentionOptions{
		{Mask: FromBool([]bool{true, false, false, false}, 2, 2)},
		{Mask: FromFloat32([]float32{0, float32(math.Inf(-1)), float32(math.Inf(-1)), float32(math.Inf(-1))}, 2, 2), Causal: true},
	} {
		out := ScaledDotProductAttention(in[0], in[1], in[2], o)
		if got := out.Float32s(); got[0] != 0.5 || got[3] != 0 || got[5] != 0 {
			t.Errorf("the result is %v, want 0.5 and 0", got)
		}
		if err := out.Sum().Backward(t.Context(), RetainGraph()); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range sinks {
		for j, g := range s.grad.Float32s() {
			if want := map[bool]float32{true: 2}[i == 2 && j < 3]; g != want {
				t.Errorf("operand %d: gradient %d is %v, want %v", i, j, g, want)
			}
		}
	}
}

// Dropout takes its share, draws from the generator, and is told apart by it.
func TestAttentionDropout(t *testing.T) {
	const time = 200
	g := NewGenerator(3)
	draw := func() []float32 {
		// With equal scores and values of one, a result is the share that was kept.
		x := Full(1, 1, time, 1, 4)
		return ScaledDotProductAttention(x, x, x, AttentionOptions{Dropout: 0.25, Generator: g}).Select(3, 0).Float32s()
	}
	first, second := draw(), draw()
	mean, same := 0.0, 0
	for i, x := range first {
		mean += float64(x) / time
		if x == second[i] {
			same++
		}
	}
	if math.Abs(mean-1) > 0.02 || same > time/4 {
		t.Errorf("the mean is %v, want 1; %d of %d rows agree with another draw", mean, same, time)
	}
}

// With fewer keys than queries the first queries see none, in the definition too.
func TestCausalWithFewerKeys(t *testing.T) {
	q, k := Full(0.5, 1, 3, 1, 2), FromFloat32([]float32{1, 2, 3, 4}, 1, 2, 1, 2)
	got := ScaledDotProductAttention(q, k, k, AttentionOptions{Causal: true}).Float32s()
	if got[0] != 0 || got[1] != 0 || math.Abs(float64(got[2])-1) > 1e-6 {
		t.Errorf("the result is %v, want 0 and then the first key", got)
	}
	masked := Zeros(3, 2).causalMask(math.Inf(-1)).Float32s()
	for i, want := range []bool{true, true, false, true, false, false} {
		if math.IsInf(float64(masked[i]), -1) != want {
			t.Errorf("the mask is %v", masked)
			break
		}
	}
}

// Everything works on shapes alone.
func TestTransformerWithoutData(t *testing.T) {
	x := New(Meta, Float32, 2, 5, 4, 6)
	cos, sin := RoPETable(Meta, RoPEFrequencies(6, 1e4), 3, 5)
	tp := NewTape(true)
	defer tp.Close()
	leaf := &collector{grad: New(Meta, Float32, 2, 5, 4, 6)}
	q := RoPE(RMSNorm(tp.Watch(x, leaf), New(Meta, Float32, 6), 1e-6), cos, sin)
	k := New(Meta, Float32, 2, 7, 2, 6)
	y := ScaledDotProductAttention(q, k, k, AttentionOptions{
		Mask: New(Meta, Bool, 2, 1, 1, 7), Causal: true, Dropout: 0.1, Generator: NewGenerator(0),
	})
	if err := SwiGLU(y, y).Sum().Backward(t.Context()); err != nil || leaf.ready != 1 {
		t.Errorf("backward: %v, the leaf was ready %d times", err, leaf.ready)
	}
}
