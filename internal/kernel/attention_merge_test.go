// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// keysFrom returns the positions from first up to end of keys or values.
func (x *Heads) keysFrom(first, end int) Heads {
	y := *x
	y.Data = x.Data[first*x.Time:]
	return y
}

// TestMergeAttention: the attentions to parts of the keys make the attention to all of
// them, with the masks and the dropout of the whole.
func TestMergeAttention(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	s := AttentionShape{Batch: 2, Heads: 6, KeyHeads: 2, Time: 21, KeyTime: 50, Dim: 20, Scale: 0.3}
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 1))
		keys := *s.keysOnly()
		q, k, v := newHeads(r, &s, s.Time, 3), newHeads(r, &keys, s.KeyTime, 0), newHeads(r, &keys, s.KeyTime, 5)
		mask := make([]float32, s.Time*s.KeyTime)
		for i := range mask {
			// Query 2 sees no key of the first part, and query 3 none at all.
			if r.IntN(3) == 0 || i/s.KeyTime == 2 && i%s.KeyTime < 20 || i/s.KeyTime == 3 {
				mask[i] = negInf
			}
		}
		for _, dropout := range []float32{0, 0.25} {
			whole := s
			whole.Dropout, whole.Random, whole.Stream = dropout, random.Philox{Key: 4}, 2
			whole.Mask = AttentionMask{Data: mask, Time: s.KeyTime}
			want, wantLSE := newHeads(nil, &s, s.Time, 0), make([]float32, s.Batch*s.Heads*s.Time)
			Attention(p, whole, want, q, k, v, wantLSE)

			out, lse := newHeads(nil, &s, s.Time, 4), make([]float32, len(wantLSE))
			Fill(nil, lse, negInf)
			sums := func(x []float32) Sums { return Sums{x, s.Heads * s.Time, s.Time} }
			for _, run := range [][2]int{{20, 50}, {0, 1}, {1, 20}} {
				part := whole
				part.KeyTime = run[1] - run[0]
				part.Part = AttentionPart{KeyTime: s.KeyTime, Key: run[0]}
				part.Mask.Data = mask[run[0]:]
				block, blockLSE := newHeads(nil, &s, s.Time, 2), make([]float32, len(lse))
				Attention(p, part, block, q, k.keysFrom(run[0], run[1]), v.keysFrom(run[0], run[1]), blockLSE)
				MergeAttention(p, MergeShape{s.Batch, s.Time, s.Heads, s.Dim}, out, sums(lse), block, sums(blockLSE))
			}
			got, expected := out.dense(&s, s.Time), want.dense(&s, s.Time)
			for i, x := range expected {
				row := i / s.Dim
				if math.IsInf(float64(wantLSE[row]), -1) {
					x = 0
					if got[i] != got[i] {
						got[i] = 0 // nothing was ever merged into it
					}
				}
				if math.Abs(float64(got[i]-x)) > 2e-6 {
					t.Fatalf("dropout %v: element %d is %v, want %v", dropout, i, got[i], x)
				}
				if l := wantLSE[row]; l != lse[row] && math.Abs(float64(l-lse[row])) > 1e-5 {
					t.Fatalf("log-sum-exp %d is %v, want %v", row, lse[row], l)
				}
			}
		}
	})
}

// TestDropoutMaskRows: the bits of rows of a larger tensor are those that the whole has
// there.
func TestDropoutMaskRows(t *testing.T) {
	ps := pools(t)
	rng, stream, keep := random.Philox{Key: 77}, uint64(5), uint32(3<<30)
	forEachISA(t, func(t *testing.T) {
		for _, length := range []int{0, 1, 7, 8, 64, 200, 1000} {
			const rows, stride = 37, 1111
			words := make([]uint32, rows*stride+3)
			rng.Uint32s(words, stream, 0)
			for _, first := range []int64{0, 3} {
				starts := make([]int64, rows)
				for i := range starts {
					starts[i] = first + int64((rows-1-i)*stride)
				}
				for _, p := range ps {
					mask := make([]uint8, (rows*length+7)/8)
					DropoutMaskRows(p, mask, starts, length, rng, stream, keep)
					for i := range 8 * len(mask) {
						want := i < rows*length && words[starts[i/length]+int64(i%length)] < keep
						if got := mask[i/8]>>(i%8)&1 == 1; got != want {
							t.Fatalf("length %d from %d: bit %d is %v, want %v", length, first, i, got, want)
						}
					}
				}
			}
		}
	})
}
