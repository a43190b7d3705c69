// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/work"
)

// The operations on rows of bfloat16 compute in float32: a few rows at a time
// are widened into scratch that stays in the first-level cache, the kernel of
// float32 does them there, and its result is rounded once.

// tileBF16 is the number of elements that are widened at a time, unless a row
// is longer.
const tileBF16 = 4 << 10

// overRowsBF16 calls fn for runs of rows, each with as many buffers of as many
// floats as asked for.
func overRowsBF16(p *work.Pool, rows, cols, buffers int, fn func(lo, hi int, buf [][]float32)) {
	most := max(1, tileBF16/max(cols, 1))
	t := max(1, parts(p, rows, rows*cols))
	part := func(i int) {
		size := roundUp(most*cols, lineElems)
		s := scratchList.get(buffers * size)
		defer scratchList.put(s)
		var few [5][]float32
		inRuns(i*rows/t, (i+1)*rows/t, most, func(lo, hi int) {
			for j := range buffers {
				few[j] = s.floats[j*size:][:(hi-lo)*cols]
			}
			fn(lo, hi, few[:buffers])
		})
	}
	if t == 1 {
		part(0)
		return
	}
	p.Run(t, part)
}

// widen returns the floats of rows [lo, hi) in buf.
func widenBF16(buf []float32, x []uint16, lo, hi, cols int) []float32 {
	for at := 0; at < len(buf); at += callElems {
		end := min(at+callElems, len(buf))
		fromBF16(buf[at:end], x[lo*cols+at:lo*cols+end])
	}
	return buf
}

func narrowBF16(dst []uint16, buf []float32, lo, cols int) {
	for at := 0; at < len(buf); at += callElems {
		end := min(at+callElems, len(buf))
		toBF16(dst[lo*cols+at:lo*cols+end], buf[at:end])
	}
}

// SumRowsBF16 computes the sums of the columns of x [rows, cols] into dst
// [cols], in float32.
func SumRowsBF16(p *work.Pool, dst []float32, x []uint16, rows, cols int) {
	dst, x = dst[:cols], x[:rows*cols]
	clear(dst)
	if rows == 0 || cols == 0 {
		return
	}
	// Blocks of rows as SumRows has them; a strip of columns bounds what is
	// widened at once.
	perBlock, blocks := blocking(rows, cols)
	const strip = 512
	strips := pieces(cols, strip)
	s := scratchList.get(blocks * cols)
	defer scratchList.put(s)
	partial := s.floats[:blocks*cols]
	clear(partial)
	overItems(p, blocks*strips, rows*cols, func(first, end int) {
		const rowsAtOnce = tileBF16 / strip
		var buf [rowsAtOnce * strip]float32
		var sums [strip]float32
		for i := first; i < end; i++ {
			b, lo := i/strips, i%strips*strip
			hi := min(lo+strip, cols)
			w := hi - lo
			to := partial[b*cols+lo : b*cols+hi]
			for top, bottom := b*perBlock, min((b+1)*perBlock, rows); top < bottom; top += rowsAtOnce {
				n := min(rowsAtOnce, bottom-top)
				for r := range n {
					fromBF16(buf[r*w:(r+1)*w], x[(top+r)*cols+lo:(top+r)*cols+hi])
				}
				vec().columnSums(sums[:w], buf[:n*w], n, w)
				vec().add(to, to, sums[:w])
			}
		}
	})
	for b := range blocks {
		binary(p, vec().add, dst, dst, partial[b*cols:(b+1)*cols])
	}
}

// LayerNormBF16 is [LayerNorm] of bfloat16 with parameters and statistics of
// float32.
func LayerNormBF16(p *work.Pool, dst []uint16, mean, rstd []float32, x []uint16, gamma, beta []float32, rows, cols int, eps float32) {
	dst, mean, rstd, x = dst[:rows*cols], mean[:rows], rstd[:rows], x[:rows*cols]
	overRowsBF16(p, rows, cols, 1, func(lo, hi int, buf [][]float32) {
		y := widenBF16(buf[0], x, lo, hi, cols)
		LayerNorm(nil, y, mean[lo:hi], rstd[lo:hi], y, gamma, beta, hi-lo, cols, eps)
		narrowBF16(dst, y, lo, cols)
	})
}

// CrossEntropyBF16 is [CrossEntropy] of logits of bfloat16.
func CrossEntropyBF16(p *work.Pool, loss, lse []float32, logits []uint16, targets []int64, rows, classes int) {
	loss, lse, targets, logits = loss[:rows], lse[:rows], targets[:rows], logits[:rows*classes]
	overRowsBF16(p, rows, classes, 1, func(lo, hi int, buf [][]float32) {
		x := widenBF16(buf[0], logits, lo, hi, classes)
		CrossEntropy(nil, loss[lo:hi], lse[lo:hi], x, targets[lo:hi], hi-lo, classes)
	})
}

// MaxAndSumExpBF16 is [MaxAndSumExp] of logits of bfloat16.
func MaxAndSumExpBF16(p *work.Pool, top, sum []float32, logits []uint16, rows, classes int) {
	top, sum, logits = top[:rows], sum[:rows], logits[:rows*classes]
	overRowsBF16(p, rows, classes, 1, func(lo, hi int, buf [][]float32) {
		x := widenBF16(buf[0], logits, lo, hi, classes)
		MaxAndSumExp(nil, top[lo:hi], sum[lo:hi], x, hi-lo, classes)
	})
}

// CrossEntropyBackwardBF16 is [CrossEntropyBackward] of bfloat16.
func CrossEntropyBackwardBF16(p *work.Pool, dlogits, logits []uint16, lse []float32, targets []int64, rowScale []float32, rows, classes int) {
	n := rows * classes
	dlogits, logits, lse, targets = dlogits[:n], logits[:n], lse[:rows], targets[:rows]
	overRowsBF16(p, rows, classes, 1, func(lo, hi int, buf [][]float32) {
		x := widenBF16(buf[0], logits, lo, hi, classes)
		scale := rowScale
		if len(scale) > 1 {
			scale = scale[lo:hi]
		}
		CrossEntropyBackward(nil, x, x, lse[lo:hi], targets[lo:hi], scale, hi-lo, classes)
		narrowBF16(dlogits, x, lo, classes)
	})
}

// LayerNormBackwardBF16 is [LayerNormBackward] of bfloat16: g, x and dx are,
// the rest is float32. No result may be nil.
func LayerNormBackwardBF16(p *work.Pool, dx []uint16, dgamma, dbeta []float32, g, x []uint16, mean, rstd, gamma []float32, rows, cols int) {
	n := rows * cols
	dx, dgamma, dbeta, g, x, mean, rstd = dx[:n], dgamma[:cols], dbeta[:cols], g[:n], x[:n], mean[:rows], rstd[:rows]
	clear(dgamma)
	clear(dbeta)
	if n == 0 {
		return
	}
	// The sums over rows are cut as those of float32, by shape alone.
	perBlock, blocks := blocking(rows, cols)
	f := vec().layerNormBackward
	if cols > maxRowElems {
		f = vectorTables[portable].layerNormBackward
	}
	sums := scratchList.get(2 * blocks * cols)
	defer scratchList.put(sums)
	clear(sums.floats[:2*blocks*cols])
	most := max(1, tileBF16/cols)
	size := roundUp(most*cols, lineElems)
	overItems(p, blocks, n, func(first, end int) {
		s := scratchList.get(2 * size)
		defer scratchList.put(s)
		for b := first; b < end; b++ {
			dg, db := sums.floats[2*b*cols:(2*b+1)*cols], sums.floats[(2*b+1)*cols:(2*b+2)*cols]
			inRuns(b*perBlock, min((b+1)*perBlock, rows), most, func(lo, hi int) {
				wide := (hi - lo) * cols
				gw, xw := widenBF16(s.floats[:wide], g, lo, hi, cols), widenBF16(s.floats[size:][:wide], x, lo, hi, cols)
				f(gw, dg, db, gw, xw, mean[lo:hi], rstd[lo:hi], gamma)
				narrowBF16(dx, gw, lo, cols)
			})
		}
	})
	for b := range blocks {
		binary(p, vec().add, dgamma, dgamma, sums.floats[2*b*cols:(2*b+1)*cols])
		binary(p, vec().add, dbeta, dbeta, sums.floats[(2*b+1)*cols:(2*b+2)*cols])
	}
}

// SwiGLUBF16 is [SwiGLU] of bfloat16.
func SwiGLUBF16(p *work.Pool, dst, gate, up []uint16) {
	n := len(dst)
	gate, up = gate[:n], up[:n]
	overRowsBF16(p, n, 1, 2, func(lo, hi int, buf [][]float32) {
		x, y := widenBF16(buf[0], gate, lo, hi, 1), widenBF16(buf[1], up, lo, hi, 1)
		SwiGLU(nil, x, x, y)
		narrowBF16(dst, x, lo, 1)
	})
}

// SwiGLUBackwardBF16 is [SwiGLUBackward] of bfloat16.
func SwiGLUBackwardBF16(p *work.Pool, dgate, dup, gate, up, g []uint16) {
	n := len(dgate)
	dup, gate, up, g = dup[:n], gate[:n], up[:n], g[:n]
	overRowsBF16(p, n, 1, 5, func(lo, hi int, buf [][]float32) {
		SwiGLUBackward(nil, buf[0], buf[1], widenBF16(buf[2], gate, lo, hi, 1), widenBF16(buf[3], up, lo, hi, 1), widenBF16(buf[4], g, lo, hi, 1))
		narrowBF16(dgate, buf[0], lo, 1)
		narrowBF16(dup, buf[1], lo, 1)
	})
}
