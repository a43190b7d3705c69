// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// HeadsBF16 is [Heads] of bfloat16.
type HeadsBF16 struct {
	Data              []uint16
	Batch, Time, Head int
}

// Attention of bfloat16 without instructions for pairs of it, or with a mask, dropout
// or a bound of scores, is computed in float32: operands are widened into scratch, where the
// rows of a head lie densely, and results are rounded once.

// AttentionBF16 is [Attention] of bfloat16; lse is float32.
func AttentionBF16(p *work.Pool, s AttentionShape, out, q, k, v HeadsBF16, lse []float32) {
	if takesPairs(&s, q) {
		x := &attentionPairs{attention: attention{AttentionShape: s, lse: lse, span: s.group()}, out: out, q: q, k: k, v: v}
		if s.Batch*s.Heads < 2*threads(p)*x.span {
			x.span = 1 // too few tasks: pack keys again instead
		}
		x.check(lse != nil)
		runHeads(p, s.Batch*s.Heads/x.span, x.forward)
		return
	}
	w := newWideHeads(&s, 2, 2)
	defer scratchList.put(w.mem)
	wideQ, wideOut := w.cut(s.Heads, s.Time), w.cut(s.Heads, s.Time)
	wideK, wideV := w.cut(w.keyHeads, s.KeyTime), w.cut(w.keyHeads, s.KeyTime)
	w.widen(p, []headsPair{{wideQ, q, s.Heads, s.Time}, {wideK, k, w.keyHeads, s.KeyTime}, {wideV, v, w.keyHeads, s.KeyTime}})
	Attention(p, s, wideOut, wideQ, wideK, wideV, lse)
	w.narrow(p, []headsPair{{wideOut, out, s.Heads, s.Time}})
}

// AttentionBackwardBF16 is [AttentionBackward] of bfloat16.
func AttentionBackwardBF16(p *work.Pool, s AttentionShape, dq, dk, dv HeadsBF16, dout, out, q, k, v HeadsBF16, lse []float32) {
	if takesPairs(&s, q, dout) {
		x := &attentionPairs{attention{AttentionShape: s, lse: lse, span: s.group()}, out, q, k, v, dq, dk, dv, dout}
		x.check(true)
		dq.check(&s, s.Heads, s.Time)
		dout.check(&s, s.Heads, s.Time)
		dk.check(&s, s.Heads/x.span, s.KeyTime)
		dv.check(&s, s.Heads/x.span, s.KeyTime)
		runHeads(p, s.Batch*s.Heads/x.span, x.backward)
		return
	}
	w := newWideHeads(&s, 4, 4)
	defer scratchList.put(w.mem)
	var queries, keys [4]Heads
	for i := range 4 {
		queries[i], keys[i] = w.cut(s.Heads, s.Time), w.cut(w.keyHeads, s.KeyTime)
	}
	query := func(wide Heads, x HeadsBF16) headsPair { return headsPair{wide, x, s.Heads, s.Time} }
	key := func(wide Heads, x HeadsBF16) headsPair { return headsPair{wide, x, w.keyHeads, s.KeyTime} }
	w.widen(p, []headsPair{query(queries[1], dout), query(queries[2], out), query(queries[3], q), key(keys[2], k), key(keys[3], v)})
	AttentionBackward(p, s, queries[0], keys[0], keys[1], queries[1], queries[2], queries[3], keys[2], keys[3], lse)
	w.narrow(p, []headsPair{query(queries[0], dq), key(keys[0], dk), key(keys[1], dv)})
}

// check panics when a slice is shorter than the shape needs.
func (x *attentionPairs) check(withLSE bool) {
	s := &x.AttentionShape
	x.out.check(s, s.Heads, s.Time)
	x.q.check(s, s.Heads, s.Time)
	x.k.check(s, s.Heads/s.group(), s.KeyTime)
	x.v.check(s, s.Heads/s.group(), s.KeyTime)
	if withLSE {
		_ = x.lse[:s.Batch*s.Heads*s.Time]
	}
}

// wideHeads is the scratch of one call.
type wideHeads struct {
	*AttentionShape
	keyHeads int
	mem      *scratch
	rest     []float32
}

func newWideHeads(s *AttentionShape, queries, keys int) *wideHeads {
	w := &wideHeads{AttentionShape: s, keyHeads: s.Heads / max(1, s.group())}
	length := func(heads, time int) int { return roundUp(s.Batch*heads*time*s.Dim, lineElems) }
	w.mem = scratchList.get(queries*length(s.Heads, s.Time) + keys*length(w.keyHeads, s.KeyTime))
	w.rest = w.mem.floats
	return w
}

// cut takes an operand [batch, heads, time, dim] of the scratch.
func (w *wideHeads) cut(heads, time int) Heads {
	n := w.Batch * heads * time * w.Dim
	x := Heads{Data: w.rest[:n:n], Batch: heads * time * w.Dim, Time: w.Dim, Head: time * w.Dim}
	w.rest = w.rest[roundUp(n, lineElems):]
	return x
}

// headsPair is an operand in both formats.
type headsPair struct {
	wide        Heads
	low         HeadsBF16
	heads, time int
}

func (w *wideHeads) widen(p *work.Pool, pairs []headsPair) {
	w.each(p, pairs, func(wide []float32, low []uint16) { fromBF16(wide, low) })
}

func (w *wideHeads) narrow(p *work.Pool, pairs []headsPair) {
	w.each(p, pairs, func(wide []float32, low []uint16) { toBF16(low, wide) })
}

// each calls fn for every row of the operands; a task is what a batch entry has
// of one of them.
func (w *wideHeads) each(p *work.Pool, pairs []headsPair, fn func(wide []float32, low []uint16)) {
	task := func(i int) {
		x, b := &pairs[i/w.Batch], i%w.Batch
		for h := range x.heads {
			for t := range x.time {
				at, from := b*x.wide.Batch+h*x.wide.Head+t*x.wide.Time, b*x.low.Batch+h*x.low.Head+t*x.low.Time
				fn(x.wide.Data[at:at+w.Dim], x.low.Data[from:from+w.Dim])
			}
		}
	}
	runHeads(p, len(pairs)*w.Batch, task)
}
