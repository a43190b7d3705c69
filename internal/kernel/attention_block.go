// SPDX-License-Identifier: Apache-2.0

package kernel

// One task of attention is one head of one batch entry. It packs the operands
// that tiles read as B once, and then goes down the queries a tile of rows at a
// time: their scores against the keys they see, at most, lie in the first- or
// second-level cache between the two products. Nothing of size Time·KeyTime is
// ever stored, as in FlashAttention (Dao et al., 2022); but whole rows are, so
// that the softmax needs no rescaling.

// gradientBlock bounds the elements of the two blocks of scores that the
// backward pass holds at once, so that they stay in the second-level cache.
const gradientBlock = 64 << 10

// attention is one call of Attention or AttentionBackward.
type attention struct {
	AttentionShape
	out, q, k, v     Heads
	dq, dk, dv, dout Heads // backward only
	lse              []float32
	span             int // heads of q that a task does; they share keys and values
	ahead            int // how many tasks later the next one of a thread is likely to be
}

// task returns the batch entry of task i, its first head of q, and its head of
// k and v.
func (x *attention) task(i int) (batch, head, keyHead int) {
	head = i * x.span % x.Heads
	return i * x.span / x.Heads, head, head / x.group()
}

// headTask is the state of a task: its shape and its scratch.
type headTask struct {
	*AttentionShape
	mr, nr  int
	rest    []float32 // of the scratch
	keyPad  int       // KeyTime in whole panels
	scores  int       // distance of rows of scores
	vectors int       // Dim in panels
}

func newHeadTask(s *AttentionShape) headTask {
	t := headTask{AttentionShape: s}
	t.mr, t.nr, _ = tileShape()
	t.keyPad = roundUp(s.KeyTime, t.nr)
	// Rows whose distance is a multiple of 4 KiB would share a cache set.
	t.scores = t.keyPad + 16
	t.vectors = (s.Dim + t.nr - 1) / t.nr
	return t
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// cut takes n elements of the scratch, in whole cache lines.
func (t *headTask) cut(n int) []float32 {
	n = roundUp(n, 16)
	part := t.rest[:n:n]
	t.rest = t.rest[n:]
	return part
}

// rowsLength and columnsLength are the sizes of packed operands of n positions.
func (t *headTask) rowsLength(n int) int { return roundUp(t.vectors*t.nr*n, 16) }

func (t *headTask) columnsLength() int { return roundUp(t.keyPad*t.Dim, 16) }

// packRows packs n positions as the rows of B: panels of nr channels.
func (t *headTask) packRows(x *Heads, base, n int) []float32 {
	dst := t.cut(t.vectors * t.nr * n)
	t.packRowsTo(dst, x, base, n)
	return dst
}

func (t *headTask) packRowsTo(dst []float32, x *Heads, base, n int) {
	for d := 0; d < t.Dim && n > 0; d += t.nr {
		packRows(&dst[d*n], t.nr, &x.Data[base+d], x.Time, n, min(t.nr, t.Dim-d), t.nr)
	}
}

// packColumns packs the keys as the columns of B: panels of nr keys.
func (t *headTask) packColumns(x *Heads, base int) []float32 {
	dst := t.cut(t.keyPad * t.Dim)
	for j := 0; j < t.KeyTime; j += t.nr {
		packTransposed(&dst[j*t.Dim], t.nr, &x.Data[base+j*x.Time], x.Time, min(t.nr, t.KeyTime-j), t.Dim, t.nr)
	}
	return dst
}

// base returns where head h of batch entry b starts.
func (x *Heads) base(b, h int) int { return b*x.Batch + h*x.Head }

// visibleAt returns how many keys query i sees, below 0 if it lies before all
// of them, and by how much each later query sees more.
func (t *headTask) visibleAt(i int) (n, step int) {
	if t.Causal {
		return i + 1 + t.KeyTime - t.Time, 1
	}
	return t.KeyTime, 0
}

// multiplyKeys sets rows of scores to scale·x·keysᵀ for the first visible keys.
func (t *headTask) multiplyKeys(scores []float32, rows int, x *Heads, at int, keys []float32, visible int, scale float32) {
	for j := 0; j < visible; j += t.nr {
		tile(rows, min(t.nr, visible-j), t.Dim, &x.Data[at], x.Time, 1, &keys[j*t.Dim], t.nr, &scores[j], t.scores, scale, 0, nil)
	}
}

// multiplyRows computes y = weights·packed + beta·y, where packed has n
// positions of which the product takes k from the first one on; weight (i, l)
// is at i·row + l·col.
func (t *headTask) multiplyRows(y *Heads, at, rows int, weights []float32, row, col int, packed []float32, n, first, k int, beta float32) {
	for d := 0; d < t.Dim; d += t.nr {
		b := &packed[0]
		if k > 0 {
			b = &packed[d*n+first*t.nr]
		}
		tile(rows, min(t.nr, t.Dim-d), k, &weights[0], row, col, b, t.nr, &y.Data[at+d], y.Time, 1, beta, nil)
	}
}

// prefetchLimit is the largest part of the second-level cache, in elements, that
// the operands of a next task may take.
const prefetchLimit = 128 << 10

// prefetch fetches a part of the operands of the task that this thread is likely
// to do next: as many positions of each as the queries from first on are of all.
// The rows of a head are short and far apart, so that the processor does not
// foresee them.
func (x *attention) prefetch(i, first, rows int, queries, keys []*Heads) {
	next := i + x.ahead
	if next*x.span >= x.Batch*x.Heads || (len(queries)*x.Time+len(keys)*x.KeyTime)*x.Dim > prefetchLimit {
		return
	}
	b, h, hk := x.task(next)
	for _, a := range queries {
		transformer().prefetch(&a.Data[a.base(b, h)+first*a.Time], a.Time, rows, x.Dim)
	}
	lo, hi := first*x.KeyTime/x.Time, (first+rows)*x.KeyTime/x.Time
	for _, a := range keys {
		if lo < hi {
			transformer().prefetch(&a.Data[a.base(b, hk)+lo*a.Time], a.Time, hi-lo, x.Dim)
		}
	}
}

// forward does a task: the packed keys and values serve all of its heads.
func (x *attention) forward(task int) {
	s, out, q, k, v := &x.AttentionShape, &x.out, &x.q, &x.k, &x.v
	b, h0, hk := x.task(task)
	t := newHeadTask(s)
	mem := scratchList.get(t.columnsLength() + t.rowsLength(s.KeyTime) + roundUp(t.mr*t.scores, 16) +
		2*roundUp(s.Time+t.mr, 16) + roundUp(t.keyPad, 16) + 16)
	defer scratchList.put(mem)
	t.rest = mem.floats
	keys := t.packColumns(k, k.base(b, hk))
	values := t.packRows(v, v.base(b, hk), s.KeyTime)
	scores := t.cut(t.mr * t.scores)
	// The rows of all queries, for one logarithm in the end.
	top, sum := t.cut(s.Time+t.mr), t.cut(s.Time+t.mr)
	keep := t.cut(t.keyPad)
	var inverse [16]float32
	queries, keyed := [...]*Heads{q, out}, [...]*Heads{k, v}
	for h := h0; h < h0+x.span; h++ {
		for i := 0; i < s.Time; i += t.mr {
			rows := min(t.mr, s.Time-i)
			visible := s.visible(i + rows - 1)
			if h == h0 {
				x.prefetch(task, i, rows, queries[:], keyed[:])
			}
			t.multiplyKeys(scores, rows, q, q.base(b, h)+i*q.Time, keys, visible, s.Scale)
			x.capScores(scores, nil, t.scores, i, rows)
			x.addMask(scores, t.scores, b, h, i, rows)
			n, step := t.visibleAt(i)
			softmaxRows(&scores[0], t.scores, rows, n, step, roundUp(visible, t.nr), &top[i], &sum[i])
			for r := range rows {
				inverse[r] = x.weight(scores[r*t.scores:][:visible], top[i+r], &sum[i+r])
			}
			scaleRows(&scores[0], t.scores, rows, visible, &inverse[0])
			x.dropRows(scores, t.scores, b, h, i, rows, keep)
			t.multiplyRows(out, out.base(b, h)+i*out.Time, rows, scores, t.scores, 1, values, s.KeyTime, 0, visible, 0)
		}
		x.keepLSE(b, h, top, sum)
	}
}

// keepLSE stores the log-sum-exps of a head from the maxima and sums of its
// rows.
func (x *attention) keepLSE(b, h int, top, sum []float32) {
	if x.lse == nil {
		return
	}
	lse := x.lse[(b*x.Heads+h)*x.Time:][:x.Time]
	vec().log(lse, sum[:x.Time])
	vec().add(lse, lse, top[:x.Time])
}

// weight returns what the exponentials of a row, whose maximum is top, are to
// be multiplied by: 1/sum. A row without a key or with -Inf alone becomes 0.
func (x *attention) weight(row []float32, top float32, sum *float32) float32 {
	if top == negInf {
		clear(row)
		*sum = 0
		return 0
	}
	return 1 / *sum
}

// backward computes the gradients of a task. With p the softmax, m what dropout
// multiplies it by and g = (dout·vᵀ)∘m: dv = (p∘m)ᵀ·dout,
// ds = p∘(g - rowsum(dout∘out))·scale, dq = ds·k, dk = dsᵀ·q. The heads that
// share keys add up in dk and dv.
func (x *attention) backward(task int) {
	s, out, q, k, v := &x.AttentionShape, &x.out, &x.q, &x.k, &x.v
	dq, dk, dv, dout := &x.dq, &x.dk, &x.dv, &x.dout
	b, h0, hk := x.task(task)
	t := newHeadTask(s)
	block := min(roundUp(s.Time, t.mr), max(1, gradientBlock/t.scores/t.mr)*t.mr)
	keepLength := 0
	if s.Dropout > 0 {
		keepLength = roundUp(t.mr*t.scores, 16)
	}
	slopesLength := 0
	if s.SoftCap != 0 {
		slopesLength = roundUp(t.mr*t.scores, 16)
	}
	mem := scratchList.get(2*t.columnsLength() + t.rowsLength(s.KeyTime) + 2*t.rowsLength(s.Time) + 2*roundUp(block*t.scores, 16) + 16 + keepLength + slopesLength)
	defer scratchList.put(mem)
	t.rest = mem.floats
	keyColumns, valueColumns := t.packColumns(k, k.base(b, hk)), t.packColumns(v, v.base(b, hk))
	keyRows := t.packRows(k, k.base(b, hk), s.KeyTime)
	queryRows, doutRows := t.cut(t.rowsLength(s.Time)), t.cut(t.rowsLength(s.Time))
	p, g := t.cut(block*t.scores), t.cut(block*t.scores)
	delta, keep, slopes := t.cut(t.mr), t.cut(keepLength), t.cut(slopesLength)
	queries, keyed := [...]*Heads{q, dout, out}, [...]*Heads{k, v}
	for h := h0; h < h0+x.span; h++ {
		t.packRowsTo(queryRows, q, q.base(b, h), s.Time)
		t.packRowsTo(doutRows, dout, dout.base(b, h), s.Time)
		lse := x.lse[(b*s.Heads+h)*s.Time:]
		for i0 := 0; i0 < s.Time; i0 += block {
			i1 := min(s.Time, i0+block)
			for i := i0; i < i1; i += t.mr {
				rows := min(t.mr, i1-i)
				visible := s.visible(i + rows - 1)
				if h == h0 {
					x.prefetch(task, i, rows, queries[:], keyed[:])
				}
				pi, gi := p[(i-i0)*t.scores:], g[(i-i0)*t.scores:]
				doutAt := dout.base(b, h) + i*dout.Time
				t.multiplyKeys(pi, rows, q, q.base(b, h)+i*q.Time, keyColumns, visible, s.Scale)
				t.multiplyKeys(gi, rows, dout, doutAt, valueColumns, visible, 1)
				dotRows(&delta[0], &dout.Data[doutAt], dout.Time, &out.Data[out.base(b, h)+i*out.Time], out.Time, rows, s.Dim)
				x.capScores(pi, slopes, t.scores, i, rows)
				x.addMask(pi, t.scores, b, h, i, rows)
				x.dropGradients(gi, keep, t.scores, b, h, i, rows)
				n, step := t.visibleAt(i)
				// The tiles below read whole tiles of keys: clear that far.
				end := min(t.keyPad, roundUp(roundUp(visible, t.mr), t.nr))
				gradientRows(&pi[0], &gi[0], t.scores, rows, n, step, end, &lse[i], &delta[0], s.Scale)
				x.clearUnseen(pi, gi, t.scores, end, lse[i:i+rows])
				x.capGradients(gi, slopes, t.scores, i, rows)
				x.dropAgain(pi, keep, t.scores, rows)
				t.multiplyRows(dq, dq.base(b, h)+i*dq.Time, rows, gi, t.scores, 1, keyRows, s.KeyTime, 0, visible, 0)
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
				first = max(first, i0)
				rows := min(t.mr, s.KeyTime-j)
				at := (first-i0)*t.scores + j
				t.multiplyRows(dv, dv.base(b, hk)+j*dv.Time, rows, p[at:], 1, t.scores, doutRows, s.Time, first, i1-first, beta)
				t.multiplyRows(dk, dk.base(b, hk)+j*dk.Time, rows, g[at:], 1, t.scores, queryRows, s.Time, first, i1-first, beta)
			}
		}
	}
}
