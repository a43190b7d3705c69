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

// Attention computes out = softmax(scale·q·kᵀ)·v for each batch and head.
// lse[(b·Heads+h)·Time+t] gets the log of the sum of the exponentials of the
// row, for AttentionBackward; it may be nil.
func Attention(p *work.Pool, s AttentionShape, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, true, []Heads{out, q}, []Heads{k, v})
	run(p, s.Batch*s.Heads, func(i int) {
		b, h := i/s.Heads, i%s.Heads
		probs := make([]float32, s.KeyTime)
		for t := range s.Time {
			n := s.visible(t)
			o := out.row(b, h, t, s.Dim)
			clear(o)
			l := attentionRow(&s, probs[:n], q.row(b, h, t, s.Dim), k, b, h)
			if lse != nil {
				lse[i*s.Time+t] = l
			}
			for j, pr := range probs[:n] {
				w := float32(math.Exp(float64(pr - l)))
				for d, x := range v.row(b, h, j, s.Dim) {
					o[d] += w * x
				}
			}
		}
	})
}

// AttentionBackward computes the gradients dq, dk and dv of Attention from
// dout, the gradient of out; lse is what Attention stored. The gradients are
// overwritten.
func AttentionBackward(p *work.Pool, s AttentionShape, dq, dk, dv Heads, dout, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, false, []Heads{dq, dout, out, q}, []Heads{dk, dv, k, v})
	run(p, s.Batch*s.Heads, func(i int) {
		b, h := i/s.Heads, i%s.Heads
		probs := make([]float32, s.KeyTime)
		for j := range s.KeyTime {
			clear(dk.row(b, h, j, s.Dim))
			clear(dv.row(b, h, j, s.Dim))
		}
		for t := range s.Time {
			n := s.visible(t)
			qt, g := q.row(b, h, t, s.Dim), dout.row(b, h, t, s.Dim)
			attentionRow(&s, probs[:n], qt, k, b, h)
			var delta float32
			for d, x := range out.row(b, h, t, s.Dim) {
				delta += x * g[d]
			}
			dqt := dq.row(b, h, t, s.Dim)
			clear(dqt)
			for j, x := range probs[:n] {
				pr := float32(math.Exp(float64(x - lse[i*s.Time+t])))
				var dp float32
				dvj, vj := dv.row(b, h, j, s.Dim), v.row(b, h, j, s.Dim)
				for d := range g {
					dp += g[d] * vj[d]
					dvj[d] += pr * g[d]
				}
				ds := pr * (dp - delta) * s.Scale
				dkj, kj := dk.row(b, h, j, s.Dim), k.row(b, h, j, s.Dim)
				for d := range g {
					dqt[d] += ds * kj[d]
					dkj[d] += ds * qt[d]
				}
			}
		}
	})
}

// attentionRow sets scores to scale·q·kᵀ and returns their log-sum-exp.
func attentionRow(s *AttentionShape, scores, q []float32, k Heads, b, h int) float32 {
	top := math.Inf(-1)
	for j := range scores {
		var x float32
		for d, kd := range k.row(b, h, j, s.Dim) {
			x += q[d] * kd
		}
		scores[j] = x * s.Scale
		top = max(top, float64(scores[j]))
	}
	if math.IsInf(top, -1) {
		return float32(top)
	}
	var sum float64
	for _, x := range scores {
		sum += math.Exp(float64(x) - top)
	}
	return float32(top + math.Log(sum))
}

func (x *Heads) row(b, h, t, dim int) []float32 {
	at := b*x.Batch + h*x.Head + t*x.Time
	return x.Data[at : at+dim]
}

func run(p *work.Pool, n int, fn func(i int)) {
	if p == nil {
		for i := range n {
			fn(i)
		}
		return
	}
	p.Run(n, fn)
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
