// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// lowHeads returns x in bfloat16 and rounds x itself.
func lowHeads(x *Heads) HeadsBF16 {
	low := HeadsBF16{make([]uint16, len(x.Data)), x.Batch, x.Time, x.Head}
	ToBF16(nil, low.Data, x.Data)
	FromBF16(nil, x.Data, low.Data)
	return low
}

func wideHeadsOf(x *HeadsBF16) Heads {
	wide := Heads{make([]float32, len(x.Data)), x.Batch, x.Time, x.Head}
	FromBF16(nil, wide.Data, x.Data)
	return wide
}

// TestAttentionBF16 holds attention of bfloat16 against the definition in
// float64 on the rounded operands, with and without products of pairs.
func TestAttentionBF16(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	shapes := []AttentionShape{
		{Batch: 2, Heads: 3, Time: 40, KeyTime: 40, Dim: 32},
		{Batch: 1, Heads: 2, Time: 1, KeyTime: 1, Dim: 2},
		{Batch: 1, Heads: 1, Time: 1, KeyTime: 77, Dim: 64},
		{Batch: 2, Heads: 6, KeyHeads: 2, Time: 41, KeyTime: 45, Dim: 34},
		{Batch: 2, Heads: 2, Time: 3, KeyTime: 0, Dim: 4},
		{Batch: 2, Heads: 2, Time: 0, KeyTime: 3, Dim: 4},
		{Batch: 2, Heads: 1, Time: 13, KeyTime: 50, Dim: 7},
		{Batch: 1, Heads: 2, Time: 50, KeyTime: 13, Dim: 20},
		{Batch: 1, Heads: 1, Time: 131, KeyTime: 131, Dim: 32},
		{Batch: 1, Heads: 1, Time: 200, KeyTime: 600, Dim: 80}, // several blocks of queries
	}
	forEachBF16(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		for _, s := range shapes {
			s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
			for _, s.Causal = range []bool{false, true} {
				checkAttentionBF16(t, r, p, s)
			}
		}
		s := shapes[0]
		s.Scale, s.Dropout, s.Random = 0.2, 0.3, random.Philox{Key: 7}
		checkAttentionBF16(t, r, p, s)
		s.Dropout, s.Mask = 0, AttentionMask{Data: uniform(r, s.KeyTime, -2, 2)}
		checkAttentionBF16(t, r, p, s)
	})
}

func checkAttentionBF16(t *testing.T, r *rand.Rand, p *work.Pool, s AttentionShape) {
	t.Helper()
	keys := s.keysOnly()
	wideQ, wideK, wideV := newHeads(r, &s, s.Time, 2), newHeads(r, keys, s.KeyTime, 0), newHeads(r, keys, s.KeyTime, 4)
	wideDout := newHeads(r, &s, s.Time, 6)
	q, k, v, dout := lowHeads(&wideQ), lowHeads(&wideK), lowHeads(&wideV), lowHeads(&wideDout)
	want := attentionOracleOf(&s, &wideQ, &wideK, &wideV, &wideDout)
	empty := func(s *AttentionShape, time, gap int) HeadsBF16 {
		x := newHeads(nil, s, time, gap)
		return lowHeads(&x)
	}
	var first []float32
	for _, pool := range []*work.Pool{nil, p} {
		out, dq := empty(&s, s.Time, 2), empty(&s, s.Time, 0)
		dk, dv := empty(keys, s.KeyTime, 0), empty(keys, s.KeyTime, 7)
		lse := make([]float32, s.Batch*s.Heads*s.Time)
		AttentionBF16(pool, s, out, q, k, v, lse)
		AttentionBackwardBF16(pool, s, dq, dk, dv, dout, out, q, k, v, lse)
		var all []float32
		for _, c := range []struct {
			what  string
			x     HeadsBF16
			shape *AttentionShape
			time  int
			want  []float32
		}{{"out", out, &s, s.Time, want.out}, {"dq", dq, &s, s.Time, want.dq}, {"dk", dk, keys, s.KeyTime, want.dk}, {"dv", dv, keys, s.KeyTime, want.dv}} {
			wide := wideHeadsOf(&c.x)
			got := wide.dense(c.shape, c.time)
			all = append(all, got...)
			scale := 0.5
			for _, w := range c.want {
				scale = max(scale, math.Abs(float64(w)))
			}
			for i, w := range c.want {
				if d := math.Abs(float64(got[i] - w)); !(d <= scale/64) {
					t.Fatalf("%s, mask %t, dropout %g: %s: element %d is %g, want %g", &s, s.Mask.Data != nil, s.Dropout, c.what, i, got[i], w)
				}
			}
			// What lies between the rows is left alone.
			row := c.shape.Heads * s.Dim
			for at, h := range c.x.Data {
				if c.x.Time > row && at%c.x.Time >= row && h&0x7fff <= 0x7f80 {
					t.Fatalf("%s: %s was written at %d, outside of its rows", &s, c.what, at)
				}
			}
		}
		compare(t, fmt.Sprintf("%s: lse", &s), lse, want.lse, 1e-5)
		if first == nil {
			first = all
		} else if !slices.EqualFunc(all, first, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			t.Fatalf("%s: the result depends on the number of threads", &s)
		}
	}
}

func TestAttentionBF16ChecksItsOperands(t *testing.T) {
	s := AttentionShape{Batch: 2, Heads: 2, Time: 3, KeyTime: 3, Dim: 4, Scale: 1}
	wide := newHeads(nil, &s, 3, 0)
	x := lowHeads(&wide)
	short := x
	short.Data = x.Data[: len(x.Data)-1 : len(x.Data)-1]
	lse := make([]float32, 12)
	forEachBF16(t, func(t *testing.T) {
		for name, call := range map[string]func(){
			"q":    func() { AttentionBF16(nil, s, x, short, x, x, nil) },
			"v":    func() { AttentionBF16(nil, s, x, x, x, short, nil) },
			"out":  func() { AttentionBF16(nil, s, short, x, x, x, nil) },
			"lse":  func() { AttentionBF16(nil, s, x, x, x, x, lse[:11:11]) },
			"dk":   func() { AttentionBackwardBF16(nil, s, x, short, x, x, x, x, x, x, lse) },
			"dout": func() { AttentionBackwardBF16(nil, s, x, x, x, short, x, x, x, x, lse) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("a short %s was taken", name)
					}
				}()
				call()
			}()
		}
	})
}
