// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Sums are the log-sum-exps of attention: that of (batch b, head h, query t) is
// Data[b*Batch + h*Head + t].
type Sums struct {
	Data        []float32
	Batch, Head int
}

// MergeShape is the size of the operands of [MergeAttention].
type MergeShape struct{ Batch, Time, Heads, Dim int }

// MergeAttention makes the attentions of the same queries to different keys one. out
// and part are softmax(s)·v over the keys of each, lse and partLSE the logs of their
// sums of exponentials. The result goes to out and lse:
//
//	lse' = log(exp(lse) + exp(partLSE))
//	out' = exp(lse - lse')·out + exp(partLSE - lse')·part
//
// A log-sum-exp of -Inf stands for no keys.
func MergeAttention(p *work.Pool, s MergeShape, out Heads, lse Sums, part Heads, partLSE Sums) {
	s.check(part.Batch, part.Time, part.Head, len(part.Data))
	merge(p, s, out, lse, partLSE, func(b, t, h int, _ []float32) []float32 {
		return part.Data[part.base(b, h)+t*part.Time:][:s.Dim]
	})
}

// MergeAttentionBF16 is [MergeAttention] with a part of bfloat16.
func MergeAttentionBF16(p *work.Pool, s MergeShape, out Heads, lse Sums, part HeadsBF16, partLSE Sums) {
	s.check(part.Batch, part.Time, part.Head, len(part.Data))
	merge(p, s, out, lse, partLSE, func(b, t, h int, wide []float32) []float32 {
		fromBF16(wide, part.Data[part.base(b, h)+t*part.Time:][:s.Dim])
		return wide
	})
}

// merge does the rows of the result; row returns a row of the part, in wide or not.
func merge(p *work.Pool, s MergeShape, out Heads, lse, partLSE Sums, row func(b, t, h int, wide []float32) []float32) {
	s.check(out.Batch, out.Time, out.Head, len(out.Data))
	s.check(lse.Batch, 1, lse.Head, len(lse.Data)+s.Dim-1)
	s.check(partLSE.Batch, 1, partLSE.Head, len(partLSE.Data)+s.Dim-1)
	n := s.Batch * s.Time
	if n == 0 || s.Heads == 0 || s.Dim == 0 {
		return
	}
	overItems(p, n, n*s.Heads*s.Dim, func(lo, hi int) {
		mem := scratchList.get(roundUp(s.Dim, lineElems))
		defer scratchList.put(mem)
		wide := mem.floats[:s.Dim]
		for i := lo; i < hi; i++ {
			b, t := i/s.Time, i%s.Time
			for h := range s.Heads {
				sum, other := &lse.Data[b*lse.Batch+h*lse.Head+t], partLSE.Data[b*partLSE.Batch+h*partLSE.Head+t]
				if other == negInf {
					continue // nothing is added; both may be so
				}
				x := out.Data[out.base(b, h)+t*out.Time:][:s.Dim]
				y := row(b, t, h, wide)
				if *sum == negInf {
					copy(x, y)
					*sum = other
					continue
				}
				top := math.Max(float64(*sum), float64(other))
				mine, theirs := math.Exp(float64(*sum)-top), math.Exp(float64(other)-top)
				vec().mulScalar(x, x, float32(mine/(mine+theirs)))
				vec().addScaled(x, x, y, float32(theirs/(mine+theirs)))
				*sum = float32(top + math.Log(mine+theirs))
			}
		}
	})
}

// check panics when an operand is shorter than its distances say.
func (s MergeShape) check(batch, time, head, length int) {
	if s.Batch == 0 || s.Time == 0 || s.Heads == 0 || s.Dim == 0 {
		return
	}
	if need := (s.Batch-1)*batch + (s.Time-1)*time + (s.Heads-1)*head + s.Dim; length < need || batch < 0 || time < 0 || head < 0 {
		panic(fmt.Sprintf("kernel: merge of attentions %+v: an operand needs %d elements, the slice has %d", s, need, length))
	}
}
