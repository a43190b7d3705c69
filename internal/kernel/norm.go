// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// LayerNorm normalises each row of x [rows, cols] to mean 0 and variance 1,
// scales it by gamma [cols] and shifts it by beta [cols]:
//
//	dst = (x - mean)·rstd·gamma + beta,   rstd = 1/√(var + eps)
//
// var being the biased variance, computed from the centred row. mean and rstd
// [rows] are kept for the backward pass. A nil gamma means ones, a nil beta
// zeros.
func LayerNorm(p *work.Pool, dst, mean, rstd, x, gamma, beta []float32, rows, cols int, eps float32) {
	n := rows * cols
	dst, mean, rstd, x = dst[:n], mean[:rows], rstd[:rows], x[:n]
	if cols == 0 {
		return
	}
	gamma, ones := orConstant(gamma, cols, 1)
	defer giveBack(ones)
	beta, zeros := orConstant(beta, cols, 0)
	defer giveBack(zeros)
	f := vec().layerNorm
	if cols > maxRowElems {
		f = vectorTables[portable].layerNorm
	}
	overRows(p, rows, cols, func(lo, hi int) {
		f(dst[lo*cols:hi*cols], mean[lo:hi], rstd[lo:hi], x[lo*cols:hi*cols], gamma, beta, eps)
	})
}

// LayerNormBackward computes the gradients of [LayerNorm] from that of its
// result, g [rows, cols]. dx, dgamma and dbeta are overwritten; each may be
// nil to skip it. A nil gamma means ones. dx may be g.
func LayerNormBackward(p *work.Pool, dx, dgamma, dbeta, g, x, mean, rstd, gamma []float32, rows, cols int) {
	n := rows * cols
	g, x, mean, rstd = g[:n], x[:n], mean[:rows], rstd[:rows]
	if cols == 0 {
		return
	}
	f := vec().layerNormBackward
	if cols > maxRowElems {
		f = vectorTables[portable].layerNormBackward
	}
	gamma, ones := orConstant(gamma, cols, 1)
	defer giveBack(ones)
	// The kernel always does all three; what is not wanted goes to scratch.
	perBlock, blocks := blocking(rows, cols)
	s := scratchList.get(2 * blocks * cols)
	defer scratchList.put(s)
	sums := s.floats[:2*blocks*cols]
	clear(sums)
	var spare *scratch
	if dx == nil {
		spare = scratchList.get(n)
		dx = spare.floats
	}
	defer giveBack(spare)
	dx = dx[:n]
	most := max(1, callElems/cols)
	overItems(p, blocks, n, func(first, end int) {
		for b := first; b < end; b++ {
			dg, db := sums[2*b*cols:(2*b+1)*cols], sums[(2*b+1)*cols:(2*b+2)*cols]
			bottom := min((b+1)*perBlock, rows)
			for lo := b * perBlock; lo < bottom; lo += most {
				hi := min(lo+most, bottom)
				f(dx[lo*cols:hi*cols], dg, db, g[lo*cols:hi*cols], x[lo*cols:hi*cols], mean[lo:hi], rstd[lo:hi], gamma)
			}
		}
	})
	for i, d := range [2][]float32{dgamma, dbeta} {
		if d == nil {
			continue
		}
		d = d[:cols]
		clear(d)
		for b := range blocks {
			at := (2*b + i) * cols
			binary(p, vec().add, d, d, sums[at:at+cols])
		}
	}
}

// orConstant returns v, or scratch filled with c when v is nil.
func orConstant(v []float32, n int, c float32) ([]float32, *scratch) {
	if v != nil {
		return v[:n], nil
	}
	s := scratchList.get(n)
	v = s.floats[:n]
	for i := range v {
		v[i] = c
	}
	return v, s
}

// giveBack puts scratch back if there is any.
func giveBack(s *scratch) {
	if s != nil {
		scratchList.put(s)
	}
}
