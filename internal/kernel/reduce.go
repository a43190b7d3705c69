// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// sumBlock is the fixed partition of a flat sum, in elements.
const sumBlock = 16 << 10

// Sum returns the sum of x, accumulated in float64.
func Sum(p *work.Pool, x []float32) float32 { return float32(blockSum(p, vec().sum, x)) }

// SumSquares returns the sum of the squares of x, accumulated in float64.
func SumSquares(p *work.Pool, x []float32) float64 { return blockSum(p, vec().sumSquares, x) }

func blockSum(p *work.Pool, f func(x []float32) float64, x []float32) float64 {
	n := len(x)
	if threads(p) == 1 || n < 2*sumBlock {
		var total float64
		for lo := 0; lo < n; lo += sumBlock {
			total += f(x[lo:min(lo+sumBlock, n)])
		}
		return total
	}
	blocks := pieces(n, sumBlock)
	s := scratchList.get(2 * blocks)
	defer scratchList.put(s)
	partial := unsafe.Slice((*float64)(s.block.Pointer()), blocks)
	overItems(p, blocks, n, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			partial[i] = f(x[i*sumBlock : min((i+1)*sumBlock, n)])
		}
	})
	var total float64
	for _, v := range partial {
		total += v
	}
	return total
}

// SumRows computes the sums of the columns of x [rows, cols] (the sum over
// its rows) into dst [cols], or adds them to it.
func SumRows(p *work.Pool, dst, x []float32, rows, cols int, accumulate bool) {
	dst, x = dst[:cols], x[:rows*cols]
	if rows == 0 || cols == 0 {
		if !accumulate {
			clear(dst)
		}
		return
	}
	perBlock, blocks := blocking(rows, cols)
	s := scratchList.get(blocks * cols)
	defer scratchList.put(s)
	partial := s.floats
	// A strip bounds one call to callElems elements and gives wide, short
	// matrices pieces to share.
	strip := max(callElems/perBlock, 256) &^ (lineElems - 1)
	strips := pieces(cols, strip)
	overItems(p, blocks*strips, rows*cols, func(first, end int) {
		for i := first; i < end; i++ {
			b, lo := i/strips, i%strips*strip
			hi := min(lo+strip, cols)
			top, bottom := b*perBlock, min((b+1)*perBlock, rows)
			vec().columnSums(partial[b*cols+lo:b*cols+hi], x[top*cols+lo:(bottom-1)*cols+hi], bottom-top, cols)
		}
	})
	for b := range blocks {
		part := partial[b*cols : (b+1)*cols]
		if b == 0 && !accumulate {
			copy(dst, part)
			continue
		}
		binary(p, vec().add, dst, dst, part)
	}
}

// SumCols computes the sum of each row of x [rows, cols] into dst [rows].
func SumCols(p *work.Pool, dst, x []float32, rows, cols int) {
	dst, x = dst[:rows], x[:rows*cols]
	if cols >= 2*sumBlock {
		for r := range rows {
			dst[r] = Sum(p, x[r*cols:(r+1)*cols])
		}
		return
	}
	overRows(p, rows, cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			dst[r] = float32(vec().sum(x[r*cols : (r+1)*cols]))
		}
	})
}

// MaxCols computes the greatest element of each row of x [rows, cols] into
// dst [rows]: NaN if the row has one, -Inf for rows of no columns.
func MaxCols(p *work.Pool, dst, x []float32, rows, cols int) {
	dst, x = dst[:rows], x[:rows*cols]
	overRows(p, rows, cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			best := negInf
			for at := r * cols; at < (r+1)*cols; at += callElems {
				best = max(best, vec().maximum(x[at:min(at+callElems, (r+1)*cols)]))
			}
			dst[r] = best
		}
	})
}
