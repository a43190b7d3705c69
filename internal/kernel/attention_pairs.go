// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

// Where the processor multiplies pairs of bfloat16, attention packs its operands
// as they are and multiplies them so; scores, softmax and all sums are float32,
// and the weights are rounded to bfloat16 for the second product, as by the other
// processors' library. The tasks are those of attention.

// attentionPairs is one call of AttentionBF16 or AttentionBackwardBF16. Of the
// embedded attention it uses the shape, lse and the tasks.
type attentionPairs struct {
	attention
	out, q, k, v     HeadsBF16
	dq, dk, dv, dout HeadsBF16 // backward only
}

// takesPairs reports whether attentionPairs does a call: rows are read as pairs
// of channels, and there is neither a mask, nor dropout, nor a bound of scores.
func takesPairs(s *AttentionShape, operands ...HeadsBF16) bool {
	ok := usePairs && useISA == avx512 && !s.empty() && s.Dim%2 == 0 && s.Mask.Data == nil && s.Dropout == 0 && s.SoftCap == 0
	for i := range operands {
		ok = ok && operands[i].Time%2 == 0
	}
	return ok
}

func (x *HeadsBF16) base(b, h int) int { return b*x.Batch + h*x.Head }

// row returns position t of a head as pairs.
func (x *HeadsBF16) row(b, h, t int) *float32 {
	return (*float32)(unsafe.Pointer(&x.Data[x.base(b, h)+t*x.Time]))
}

// check panics when the slice is shorter than the shape needs.
func (x *HeadsBF16) check(s *AttentionShape, heads, time int) {
	if time > 0 && heads > 0 {
		_ = x.Data[:(s.Batch-1)*x.Batch+(time-1)*x.Time+(heads-1)*x.Head+s.Dim]
	}
}

// pairsTask is the state of a task.
type pairsTask struct {
	headTask
	pairs int // of channels
	wide  int // distance of rows of float32 of Dim elements
}

func newPairsTask(s *AttentionShape) pairsTask {
	t := pairsTask{headTask: newHeadTask(s), pairs: s.Dim / 2}
	t.wide = t.vectors * t.nr
	return t
}

// columnsLength and rowsLength are the sizes of packed operands of n positions.
func (t *pairsTask) columnsLength() int { return roundUp(t.keyPad*t.pairs, 16) }

func (t *pairsTask) rowsLength(n int) int { return roundUp(t.wide*((n+1)/2), 16) }

// packColumns packs the keys as the columns of B: panels of nr keys.
func (t *pairsTask) packColumns(x *HeadsBF16, base int) []float32 {
	dst := t.cut(t.keyPad * t.pairs)
	for j := 0; j < t.KeyTime; j += t.nr {
		packTransposedHalves(&dst[j*t.pairs], t.nr, &x.Data[base+j*x.Time], x.Time, min(t.nr, t.KeyTime-j), t.Dim, t.nr)
	}
	return dst
}

// packRows packs n positions as the rows of B: panels of nr channels.
func (t *pairsTask) packRows(dst []float32, x *HeadsBF16, base, n int) {
	for d := 0; d < t.Dim; d += t.nr {
		packPairsHalves(&dst[d*((n+1)/2)], t.nr, &x.Data[base+d], x.Time, n, min(t.nr, t.Dim-d), t.nr)
	}
}

// multiplyKeys sets rows of scores to scale·x·keysᵀ for the first visible keys.
func (t *pairsTask) multiplyKeys(scores []float32, rows int, x *float32, step int, keys []float32, visible int, scale float32) {
	for j := 0; j < visible; j += t.nr {
		tilePairs(rows, min(t.nr, visible-j), t.pairs, x, step/2, 1, &keys[j*t.pairs], t.nr, &scores[j], 4*t.scores, scale, 0, nil, 0)
	}
}

// addRows computes y = weights·packed + beta·y, where packed has n positions of
// which the product takes k pairs from pair first on; pair l of weight i is at
// i + l·t.scores.
func (t *pairsTask) addRows(y []float32, rows int, weights *float32, packed []float32, n, first, k int, beta float32) {
	for d := 0; d < t.Dim; d += t.nr {
		b := &packed[d*((n+1)/2)+first*t.nr]
		tilePairs(rows, min(t.nr, t.Dim-d), k, weights, 1, t.scores, b, t.nr, &y[d], 4*t.wide, 1, beta, nil, 0)
	}
}

// multiplyRows computes rows of y, from an index on, as weights·packed, where
// packed has n positions of which the product takes the first k; the weights lie
// by rows, t.scores apart.
func (t *pairsTask) multiplyRows(y *HeadsBF16, at, rows int, weights []uint16, packed []float32, n, k int) {
	for d := 0; d < t.Dim; d += t.nr {
		c := (*float32)(unsafe.Pointer(&y.Data[at+d]))
		tilePairs(rows, min(t.nr, t.Dim-d), (k+1)/2, asPairs(weights), t.scores/2, 1, &packed[d*((n+1)/2)], t.nr, c, 2*y.Time, 1, 0, nil, 1)
	}
}

// round rounds rows of weights to bfloat16, t.scores apart as the weights are.
func (t *pairsTask) round(dst []uint16, weights []float32, rows, n int) {
	for r := range rows {
		toBF16(dst[r*t.scores:][:n], weights[r*t.scores:][:n])
	}
}

// store rounds rows of y to positions of a head from one on.
func (t *pairsTask) store(x *HeadsBF16, at int, y []float32, rows int) {
	for r := range rows {
		toBF16(x.Data[at+r*x.Time:][:t.Dim], y[r*t.wide:][:t.Dim])
	}
}

// halves cuts n elements of sixteen bits; n is even.
func (t *pairsTask) halves(n int) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(t.cut(n/2)))), n)
}

// asPairs returns the address of bfloat16 as that of pairs.
func asPairs(x []uint16) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(x))) }

// forward is attention.forward of pairs.
func (x *attentionPairs) forward(i int) {
	s, out, q, k, v := &x.AttentionShape, &x.out, &x.q, &x.k, &x.v
	b, h0, hk := x.task(i)
	t := newPairsTask(s)
	mem := scratchList.get(t.columnsLength() + t.rowsLength(s.KeyTime) + 2*roundUp(t.mr*t.scores, 16) + 2*roundUp(s.Time+t.mr, 16))
	defer scratchList.put(mem)
	t.rest = mem.floats
	keys := t.packColumns(k, k.base(b, hk))
	values := t.cut(t.rowsLength(s.KeyTime))
	t.packRows(values, v, v.base(b, hk), s.KeyTime)
	scores, weights := t.cut(t.mr*t.scores), t.halves(t.mr*t.scores)
	top, sum := t.cut(s.Time+t.mr), t.cut(s.Time+t.mr)
	var inverse [16]float32
	for h := h0; h < h0+x.span; h++ {
		for i := 0; i < s.Time; i += t.mr {
			rows := min(t.mr, s.Time-i)
			visible := s.visible(i + rows - 1)
			t.multiplyKeys(scores, rows, q.row(b, h, i), q.Time, keys, visible, s.Scale)
			n, step := t.visibleAt(i)
			end := roundUp(visible, t.nr)
			softmaxRows(&scores[0], t.scores, rows, n, step, end, &top[i], &sum[i])
			for r := range rows {
				inverse[r] = x.weight(scores[r*t.scores:][:visible], top[i+r], &sum[i+r])
			}
			scaleRows(&scores[0], t.scores, rows, visible, &inverse[0])
			t.round(weights, scores, rows, end)
			t.multiplyRows(out, out.base(b, h)+i*out.Time, rows, weights, values, s.KeyTime, visible)
		}
		x.keepLSE(b, h, top, sum)
	}
}

// backward is attention.backward of pairs. The weights and their gradients are
// also kept as pairs of queries, which is how dv and dk sum over them.
func (x *attentionPairs) backward(i int) {
	s, out, q, k, v, dout := &x.AttentionShape, &x.out, &x.q, &x.k, &x.v, &x.dout
	b, h0, hk := x.task(i)
	t := newPairsTask(s)
	block := min(roundUp(s.Time, t.mr), max(1, gradientBlock/t.scores/t.mr)*t.mr)
	tiles, rowsOfDim := roundUp(t.mr*t.scores, 16), roundUp(t.mr*t.wide, 16)
	mem := scratchList.get(2*t.columnsLength() + t.rowsLength(s.KeyTime) + 2*t.rowsLength(s.Time) + 3*tiles + 2*rowsOfDim +
		2*roundUp(block/2*t.scores, 16) + 2*roundUp(s.KeyTime*t.wide, 16) + 16)
	defer scratchList.put(mem)
	t.rest = mem.floats
	keyColumns, valueColumns := t.packColumns(k, k.base(b, hk)), t.packColumns(v, v.base(b, hk))
	keyRows := t.cut(t.rowsLength(s.KeyTime))
	t.packRows(keyRows, k, k.base(b, hk), s.KeyTime)
	queryRows, doutRows := t.cut(t.rowsLength(s.Time)), t.cut(t.rowsLength(s.Time))
	p, g, low := t.cut(t.mr*t.scores), t.cut(t.mr*t.scores), t.halves(t.mr*t.scores)
	pPairs, gPairs := t.cut(block/2*t.scores), t.cut(block/2*t.scores)
	wideOut, wideDout := t.cut(t.mr*t.wide), t.cut(t.mr*t.wide)
	dk, dv := t.cut(s.KeyTime*t.wide), t.cut(s.KeyTime*t.wide)
	delta := t.cut(t.mr)
	for h := h0; h < h0+x.span; h++ {
		t.packRows(queryRows, q, q.base(b, h), s.Time)
		t.packRows(doutRows, dout, dout.base(b, h), s.Time)
		lse := x.lse[(b*s.Heads+h)*s.Time:]
		for i0 := 0; i0 < s.Time; i0 += block {
			i1 := min(s.Time, i0+block)
			for i := i0; i < i1; i += t.mr {
				rows := min(t.mr, i1-i)
				visible := s.visible(i + rows - 1)
				t.multiplyKeys(p, rows, q.row(b, h, i), q.Time, keyColumns, visible, s.Scale)
				t.multiplyKeys(g, rows, dout.row(b, h, i), dout.Time, valueColumns, visible, 1)
				for r := range rows {
					fromBF16(wideOut[r*t.wide:][:s.Dim], out.Data[out.base(b, h)+(i+r)*out.Time:][:s.Dim])
					fromBF16(wideDout[r*t.wide:][:s.Dim], dout.Data[dout.base(b, h)+(i+r)*dout.Time:][:s.Dim])
				}
				dotRows(&delta[0], &wideDout[0], t.wide, &wideOut[0], t.wide, rows, s.Dim)
				n, step := t.visibleAt(i)
				// The tiles below read whole tiles of keys: clear that far.
				end := min(t.keyPad, roundUp(roundUp(visible, t.mr), t.nr))
				gradientRows(&p[0], &g[0], t.scores, rows, n, step, end, &lse[i], &delta[0], s.Scale)
				t.round(low, g, rows, roundUp(visible, t.nr))
				t.multiplyRows(&x.dq, x.dq.base(b, h)+i*x.dq.Time, rows, low, keyRows, s.KeyTime, visible)
				for j, at := 0, (i-i0)/2*t.scores; j < end; j += t.nr {
					packPairs(&pPairs[at+j], t.scores, &p[j], t.scores, rows, t.nr, t.nr)
					packPairs(&gPairs[at+j], t.scores, &g[j], t.scores, rows, t.nr, t.nr)
				}
			}
			for j := 0; j < s.KeyTime; j += t.mr {
				// The first query that sees key j; nobody sees it before.
				first := 0
				if s.Causal {
					first = max(0, j-(s.KeyTime-s.Time))
				}
				if first >= i1 {
					break
				}
				beta := float32(0)
				if first < i0 || h > h0 {
					beta = 1
				}
				// A tile of queries begins with a pair, so that its first pair of
				// them has been written; the one that does not see j has weight 0.
				pair := max(first, i0) / 2
				rows, at, n := min(t.mr, s.KeyTime-j), (pair-i0/2)*t.scores+j, (i1+1)/2-pair
				t.addRows(dv[j*t.wide:], rows, &pPairs[at], doutRows, s.Time, pair, n, beta)
				t.addRows(dk[j*t.wide:], rows, &gPairs[at], queryRows, s.Time, pair, n, beta)
			}
		}
	}
	t.store(&x.dk, x.dk.base(b, hk), dk, s.KeyTime)
	t.store(&x.dv, x.dv.base(b, hk), dv, s.KeyTime)
}
