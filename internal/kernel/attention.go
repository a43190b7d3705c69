// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Heads is q, k, v or an output of attention: element (batch b, time t, head h,
// channel d) is Data[b*Batch + t*Time + h*Head + d].
type Heads struct {
	Data              []float32
	Batch, Time, Head int
}

// AttentionShape is the size of an attention. q and out have Time positions, k
// and v KeyTime.
type AttentionShape struct {
	Batch, Heads, Time, KeyTime, Dim int
	// Causal lets a query see the keys up to its own position. With KeyTime >
	// Time the queries are the last Time positions (the first ones are a
	// cache); a query that sees no key has output 0 and log-sum-exp -Inf.
	Causal bool
	// Scale multiplies q·kᵀ; usually 1/√Dim.
	Scale float32
}

// visible returns how many keys query t sees.
func (s *AttentionShape) visible(t int) int {
	if !s.Causal {
		return s.KeyTime
	}
	return min(s.KeyTime, max(0, t+1+s.KeyTime-s.Time))
}

// empty tells that there are no scores: results are zero where there are any.
func (s *AttentionShape) empty() bool {
	return s.Batch == 0 || s.Heads == 0 || s.Time == 0 || s.KeyTime == 0 || s.Dim == 0
}

func (s *AttentionShape) clear(x *Heads, time int) {
	for i := range s.Batch * s.Heads * time {
		at := x.base(i/time/s.Heads, i/time%s.Heads) + i%time*x.Time
		clear(x.Data[at:][:s.Dim])
	}
}

func runHeads(p *work.Pool, n int, head func(i int)) {
	if p == nil {
		for i := range n {
			head(i)
		}
		return
	}
	p.Run(n, head)
}

// Attention computes out = softmax(scale·q·kᵀ)·v for each batch and head.
// lse[(b·Heads+h)·Time+t] gets the log of the sum of the exponentials of the
// row, for AttentionBackward; it may be nil.
func Attention(p *work.Pool, s AttentionShape, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, true, []Heads{out, q}, []Heads{k, v})
	if s.empty() {
		s.clear(&out, s.Time)
		for i := range min(len(lse), s.Batch*s.Heads*s.Time) {
			lse[i] = float32(math.Inf(-1))
		}
		return
	}
	x := &attention{AttentionShape: s, out: out, q: q, k: k, v: v, lse: lse}
	runHeads(p, s.Batch*s.Heads, x.forward)
}

// AttentionBackward computes the gradients dq, dk and dv of Attention from
// dout, the gradient of out; lse is what Attention stored. The gradients are
// overwritten; they must not overlap an operand.
func AttentionBackward(p *work.Pool, s AttentionShape, dq, dk, dv Heads, dout, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, false, []Heads{dq, dout, out, q}, []Heads{dk, dv, k, v})
	if s.empty() {
		s.clear(&dq, s.Time)
		s.clear(&dk, s.KeyTime)
		s.clear(&dv, s.KeyTime)
		return
	}
	x := &attention{s, out, q, k, v, dq, dk, dv, dout, lse}
	runHeads(p, s.Batch*s.Heads, x.backward)
}

func checkAttention(s *AttentionShape, lse []float32, lseMayBeNil bool, queries, keys []Heads) {
	if s.Batch < 0 || s.Heads < 0 || s.Time < 0 || s.KeyTime < 0 || s.Dim < 0 {
		panic(fmt.Sprintf("kernel: attention of shape %+v: a size is negative", *s))
	}
	if s.Batch == 0 || s.Heads == 0 || s.Dim == 0 {
		return
	}
	if need := s.Batch * s.Heads * s.Time; len(lse) < need && !(lse == nil && lseMayBeNil) {
		panic(fmt.Sprintf("kernel: attention of shape %+v: lse needs %d elements, the slice has %d", *s, need, len(lse)))
	}
	check := func(x Heads, time int) {
		if time == 0 {
			return
		}
		need := (s.Batch-1)*x.Batch + (time-1)*x.Time + (s.Heads-1)*x.Head + s.Dim
		if x.Batch < 0 || x.Time < 0 || x.Head < 0 || len(x.Data) < need {
			panic(fmt.Sprintf("kernel: attention of shape %+v: an operand with distances %d (batch), %d (time), %d (head) needs %d elements, the slice has %d",
				*s, x.Batch, x.Time, x.Head, need, len(x.Data)))
		}
	}
	for _, x := range queries {
		check(x, s.Time)
	}
	for _, x := range keys {
		check(x, s.KeyTime)
	}
}
