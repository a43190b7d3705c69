// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"testing"
)

// blockCase is an attention that is computed whole, and in blocks.
type blockCase struct {
	name    string
	dtype   DType
	causal  bool
	mask    bool
	dropout float64
	bound   float64
}

// TestAttentionBlocks: blocks of queries and keys give the result and the gradients of the
// whole attention. The oracle is the fused attention, whose own oracle is its definition in
// float64.
func TestAttentionBlocks(t *testing.T) {
	for _, c := range []blockCase{
		{"plain", Float32, false, false, 0, 2e-6},
		{"causal", Float32, true, false, 0, 2e-6},
		{"mask", Float32, false, true, 0, 2e-6},
		{"causal mask dropout", Float32, true, true, 0.3, 4e-6},
		{"dropout", Float32, false, false, 0.3, 4e-6},
		{"bfloat16", BFloat16, true, false, 0, 2e-2},
	} {
		t.Run(c.name, func(t *testing.T) { testAttentionBlocks(t, c) })
	}
}

func testAttentionBlocks(t *testing.T, c blockCase) {
	const batch, heads, keyHeads, dim, first, time = 2, 4, 2, 8, 7, 12
	rng := NewGenerator(11)
	draw := func(heads int) *Tensor {
		x := Zeros(batch, time, heads, dim)
		rng.Normal(x, 0, 1)
		return x.To(c.dtype)
	}
	q, k, v, g := draw(heads), draw(keyHeads), draw(keyHeads), draw(heads)
	var mask *Tensor
	if c.mask {
		mask = Zeros(time, time)
		rng.Normal(mask, 0, 1)
		// Query 9 sees no key of the first block, and query 4 none at all.
		mask.Narrow(0, 9, 1).Narrow(1, 0, first).Fill(math.Inf(-1))
		mask.Narrow(0, 4, 1).Fill(math.Inf(-1))
	}

	tp := NewTape(true)
	defer tp.Close()
	leaves := []*Tensor{tp.Leaf(q), tp.Leaf(k), tp.Leaf(v)}
	want := ScaledDotProductAttention(leaves[0], leaves[1], leaves[2], AttentionOptions{
		Causal: c.causal, Mask: mask, Dropout: c.dropout, Generator: NewGenerator(5),
	})
	grads, err := want.Grad(t.Context(), g, leaves)
	if err != nil {
		t.Fatal(err)
	}

	a := NewAttentionBlocks(dim, AttentionOptions{Dropout: c.dropout, Generator: NewGenerator(5), Part: AttentionPart{Time: time, KeyTime: time}})
	runs := [][2]int{{0, first}, {first, time - first}}
	block := func(i, j int) AttentionBlock {
		b := AttentionBlock{Query: runs[i][0], Key: runs[j][0], Causal: c.causal && i == j}
		if mask != nil {
			b.Mask = mask.Narrow(0, runs[i][0], runs[i][1]).Narrow(1, runs[j][0], runs[j][1])
		}
		return b
	}
	cut := func(x *Tensor, i int) *Tensor { return x.Narrow(1, runs[i][0], runs[i][1]) }
	each := func(f func(i, j int)) {
		for _, j := range []int{1, 0} {
			for i := range runs {
				if !c.causal || j <= i {
					f(i, j)
				}
			}
		}
	}
	sums := NewAttentionSums(Zeros(q.Shape()...), Zeros(batch, heads, time))
	each(func(i, j int) {
		out, lse := a.Forward(block(i, j), cut(q, i), cut(k, j), cut(v, j))
		sums.Add(runs[i][0], out, lse)
	})
	out := sums.Out.To(c.dtype)
	got := []*Tensor{Zeros(q.Shape()...), Zeros(k.Shape()...), Zeros(v.Shape()...)}
	each(func(i, j int) {
		dq, dk, dv := a.Backward(block(i, j), cut(g, i), cut(out, i), sums.LSE.Narrow(2, runs[i][0], runs[i][1]), cut(q, i), cut(k, j), cut(v, j))
		for n, d := range []*Tensor{dq, dk, dv} {
			got[n].AddAt(1, runs[[]int{i, j, j}[n]][0], d)
		}
	})
	for i, want := range append([]*Tensor{want}, grads...) {
		x := append([]*Tensor{out}, got...)[i]
		name := []string{"result", "gradient of q", "gradient of k", "gradient of v"}[i]
		w := want.To(Float32).Float32s()
		for j, x := range x.To(Float32).Float32s() {
			if !(math.Abs(float64(x-w[j])) <= c.bound*max(1, math.Abs(float64(w[j])))) {
				t.Fatalf("%s: element %d is %v, want %v", name, j, x, w[j])
			}
		}
	}
}

func TestAttentionBlocksMisuse(t *testing.T) {
	mustFail(t, "each block has its own mask", func() { NewAttentionBlocks(8, AttentionOptions{Causal: true}) })
	mustFail(t, "wants the numbers of queries and keys of the whole", func() {
		NewAttentionBlocks(8, AttentionOptions{Dropout: 0.5, Generator: NewGenerator(1)})
	})
	sums := NewAttentionSums(Zeros(1, 4, 2, 8), Zeros(1, 2, 4))
	mustFail(t, "wants a block of the result, from query 3 on", func() { sums.Add(3, Zeros(1, 2, 2, 8), Zeros(1, 2, 2)) })
}

// TestDropoutPart: a part drops what the whole drops there.
func TestDropoutPart(t *testing.T) {
	const seed = 3
	for _, dtype := range []DType{Float32, Float64, BFloat16} {
		x := Full(1, 2, 10, 6).To(dtype)
		whole := Dropout(x, 0.4, NewGenerator(seed))
		cuts := []Cut{{Dim: 1, Size: 10, Runs: [][2]int{{7, 9}, {1, 4}}}, {Dim: 2, Size: 6, Runs: [][2]int{{1, 6}}}}
		want := Cat(1, whole.Narrow(1, 7, 2), whole.Narrow(1, 1, 3)).Narrow(2, 1, 5).To(Float32).Float32s()
		got := DropoutPart(Full(1, 2, 5, 5).To(dtype), 0.4, NewGenerator(seed), cuts...).To(Float32).Float32s()
		for i, x := range got {
			if x != want[i] {
				t.Fatalf("%v: element %d is %v, want %v", dtype, i, x, want[i])
			}
		}
	}
	mustFail(t, "are not the part of dim 1", func() {
		DropoutPart(Zeros(2, 4), 0.4, NewGenerator(seed), Cut{Dim: 1, Size: 9, Runs: [][2]int{{0, 2}, {3, 5}}})
	})
}
