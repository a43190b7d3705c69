// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// Heads is q, k, v or an output of attention: element (batch b, time t, head h,
// channel d) is Data[b*Batch + t*Time + h*Head + d].
type Heads struct {
	Data              []float32
	Batch, Time, Head int
}

// AttentionMask is added to the scaled scores: the one of (batch b, head h,
// query t, key j) is Data[b*Batch + h*Head + t*Time + j]. A distance of 0
// repeats it; nil Data is no mask.
type AttentionMask struct {
	Data              []float32
	Batch, Head, Time int
}

// AttentionShape is the size of an attention. q and out have Time positions, k
// and v KeyTime.
type AttentionShape struct {
	Batch, Heads, Time, KeyTime, Dim int
	// KeyHeads is the number of heads of k and v, which divides Heads: as many
	// neighbouring heads of q as fit share one (Ainslie et al. 2023). 0 is
	// Heads.
	KeyHeads int
	// Causal lets a query see the keys up to its own position. With KeyTime >
	// Time the queries are the last Time positions (the first ones are a
	// cache); a query that sees no key has output 0 and log-sum-exp -Inf.
	Causal bool
	// Scale multiplies q·kᵀ; usually 1/√Dim.
	Scale float32
	// SoftCap c takes each scaled score x to c·tanh(x/c), before the mask (Gemma 2); 0
	// leaves them.
	SoftCap float32
	// Mask is added after Scale. A query whose keys all have -Inf sees none.
	Mask AttentionMask
	// Dropout is the share of probabilities that are set to zero; the others
	// grow by 1/(1-Dropout). Which ones is a function of Random, Stream and the
	// position in [Batch, Heads, Time, KeyTime], or in the whole attention of which
	// this is a part.
	Dropout float32
	Random  random.Philox
	Stream  uint64
	Part    AttentionPart
}

// AttentionPart says of which attention another one is a part: how many heads,
// queries and keys the whole has (0 for as many as the part), and with which of
// them the part begins.
type AttentionPart struct {
	Heads, Time, KeyTime int
	Head, Query, Key     int
}

// place returns the position of the probability of (b, h, t) and the first key, by
// which dropout decides.
func (s *AttentionShape) place(b, h, t int) uint64 {
	whole := func(n, part int) uint64 {
		if n == 0 {
			return uint64(part)
		}
		return uint64(n)
	}
	row := (uint64(b)*whole(s.Part.Heads, s.Heads)+uint64(h+s.Part.Head))*whole(s.Part.Time, s.Time) + uint64(t+s.Part.Query)
	return row*whole(s.Part.KeyTime, s.KeyTime) + uint64(s.Part.Key)
}

// visible returns how many keys query t sees.
func (s *AttentionShape) visible(t int) int {
	if !s.Causal {
		return s.KeyTime
	}
	return min(s.KeyTime, max(0, t+1+s.KeyTime-s.Time))
}

// group returns how many heads of q share one of k and v.
func (s *AttentionShape) group() int {
	if s.KeyHeads == 0 {
		return 1
	}
	return s.Heads / s.KeyHeads
}

// empty tells that there are no scores: results are zero where there are any.
func (s *AttentionShape) empty() bool {
	return s.Batch == 0 || s.Heads == 0 || s.Time == 0 || s.KeyTime == 0 || s.Dim == 0
}

func (s *AttentionShape) clear(x *Heads, heads, time int) {
	for i := range s.Batch * heads * time {
		at := x.base(i/time/heads, i/time%heads) + i%time*x.Time
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

// Attention computes out = softmax(scale·q·kᵀ + mask)·v for each batch and
// head. lse[(b·Heads+h)·Time+t] gets the log of the sum of the exponentials of
// the row, for AttentionBackward; it may be nil.
func Attention(p *work.Pool, s AttentionShape, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, true, []Heads{out, q}, []Heads{k, v})
	if s.empty() {
		s.clear(&out, s.Heads, s.Time)
		for i := range min(len(lse), s.Batch*s.Heads*s.Time) {
			lse[i] = float32(math.Inf(-1))
		}
		return
	}
	x := &attention{AttentionShape: s, out: out, q: q, k: k, v: v, lse: lse, span: s.group(), ahead: threads(p)}
	if s.Batch*s.Heads < 2*threads(p)*x.span {
		x.span = 1 // too few tasks: pack keys again instead
	}
	if s.Time <= fewQueries && directValues(&s) {
		runHeads(p, s.Batch*s.Heads/x.span, x.decode)
		return
	}
	runHeads(p, s.Batch*s.Heads/x.span, x.forward)
}

// AttentionBackward computes the gradients dq, dk and dv of Attention from
// dout, the gradient of out; lse is what Attention stored. The gradients are
// overwritten; they must not overlap an operand.
func AttentionBackward(p *work.Pool, s AttentionShape, dq, dk, dv Heads, dout, out, q, k, v Heads, lse []float32) {
	checkAttention(&s, lse, false, []Heads{dq, dout, out, q}, []Heads{dk, dv, k, v})
	if s.empty() {
		keyHeads := s.Heads / max(1, s.group())
		s.clear(&dq, s.Heads, s.Time)
		s.clear(&dk, keyHeads, s.KeyTime)
		s.clear(&dv, keyHeads, s.KeyTime)
		return
	}
	x := &attention{s, out, q, k, v, dq, dk, dv, dout, lse, s.group(), threads(p)}
	runHeads(p, s.Batch*s.Heads/x.span, x.backward)
}

func checkAttention(s *AttentionShape, lse []float32, lseMayBeNil bool, queries, keys []Heads) {
	if s.Batch < 0 || s.Heads < 0 || s.Time < 0 || s.KeyTime < 0 || s.Dim < 0 || s.KeyHeads < 0 {
		panic(fmt.Sprintf("kernel: attention of shape %s: a size is negative", s.String()))
	}
	if s.KeyHeads > 0 && s.Heads%s.KeyHeads != 0 {
		panic(fmt.Sprintf("kernel: attention of shape %s: the heads of the keys do not divide those of the queries", s.String()))
	}
	if s.Batch == 0 || s.Heads == 0 || s.Dim == 0 {
		return
	}
	if need := s.Batch * s.Heads * s.Time; len(lse) < need && !(lse == nil && lseMayBeNil) {
		panic(fmt.Sprintf("kernel: attention of shape %s: lse needs %d elements, the slice has %d", s.String(), need, len(lse)))
	}
	check := func(x Heads, heads, time, length int) {
		if time == 0 || heads == 0 || length == 0 {
			return
		}
		need := (s.Batch-1)*x.Batch + (time-1)*x.Time + (heads-1)*x.Head + length
		if x.Batch < 0 || x.Time < 0 || x.Head < 0 || len(x.Data) < need {
			panic(fmt.Sprintf("kernel: attention of shape %s: an operand with distances %d (batch), %d (time), %d (head) needs %d elements, the slice has %d",
				s.String(), x.Batch, x.Time, x.Head, need, len(x.Data)))
		}
	}
	for _, x := range queries {
		check(x, s.Heads, s.Time, s.Dim)
	}
	for _, x := range keys {
		check(x, s.Heads/s.group(), s.KeyTime, s.Dim)
	}
	if m := s.Mask; m.Data != nil {
		check(Heads{m.Data, m.Batch, m.Time, m.Head}, s.Heads, s.Time, s.KeyTime)
	}
}

// AttentionDropout writes what an attention multiplies its probabilities by, 0 or
// 1/(1-Dropout), to keep [Batch, Heads, Time, KeyTime].
func AttentionDropout(s AttentionShape, keep []float32) {
	for i := range s.Batch * s.Heads * s.Time {
		row := keep[i*s.KeyTime:][:s.KeyTime]
		DropoutScales(row, s.Random, s.Stream, s.place(i/s.Time/s.Heads, i/s.Time%s.Heads, i%s.Time), s.Dropout)
	}
}

// String is for messages.
func (s *AttentionShape) String() string {
	return fmt.Sprintf("[batch %d, heads %d (keys %d), time %d (keys %d), dim %d, causal %t]",
		s.Batch, s.Heads, s.Heads/max(1, s.group()), s.Time, s.KeyTime, s.Dim, s.Causal)
}
