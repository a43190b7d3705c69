// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

const (
	// lineElems is a cache line of float32: spans start on a multiple of it.
	lineElems = 16
	// soloElems is the size below which a loop is not worth a second thread:
	// 32 KiB take about a microsecond, as long as handing a piece over.
	soloElems = 8 << 10
	// callElems bounds one call of an elementwise kernel. The slowest of them
	// takes a nanosecond an element.
	callElems = 32 << 10
	// maxRowElems bounds a row that assembly may take in one call; a longer
	// one is done by the portable twin, which can be preempted.
	maxRowElems = 256 << 10
)

// threads is the number of threads of a pool, which may be nil.
func threads(p *work.Pool) int {
	if p == nil {
		return 1
	}
	return p.NumThreads()
}

// spanOf returns how many elements of n one thread takes at a time: n itself
// when the caller should do all (in calls of callElems).
func spanOf(p *work.Pool, n int) int {
	t := threads(p)
	if t == 1 || n < 2*soloElems {
		return n
	}
	span := (n/(4*t) + lineElems - 1) &^ (lineElems - 1)
	return min(max(span, soloElems), callElems)
}

// pieces is how many spans of the given size cover n.
func pieces(n, span int) int { return (n + span - 1) / span }

// Spans are elementwise, so that they may depend on the number of threads. The
// serial branch of each form below has no closure, so it does not allocate.

func unary(p *work.Pool, f func(dst, a []float32), dst, a []float32) {
	n := len(dst)
	a = a[:n]
	span := spanOf(p, n)
	if span == n {
		for lo := 0; lo < n; lo += callElems {
			hi := min(lo+callElems, n)
			f(dst[lo:hi], a[lo:hi])
		}
		return
	}
	p.Run(pieces(n, span), func(i int) {
		lo, hi := i*span, min((i+1)*span, n)
		f(dst[lo:hi], a[lo:hi])
	})
}

func binary(p *work.Pool, f func(dst, a, b []float32), dst, a, b []float32) {
	n := len(dst)
	a, b = a[:n], b[:n]
	span := spanOf(p, n)
	if span == n {
		for lo := 0; lo < n; lo += callElems {
			hi := min(lo+callElems, n)
			f(dst[lo:hi], a[lo:hi], b[lo:hi])
		}
		return
	}
	p.Run(pieces(n, span), func(i int) {
		lo, hi := i*span, min((i+1)*span, n)
		f(dst[lo:hi], a[lo:hi], b[lo:hi])
	})
}

func scalar(p *work.Pool, f func(dst, a []float32, s float32), dst, a []float32, s float32) {
	n := len(dst)
	a = a[:n]
	span := spanOf(p, n)
	if span == n {
		for lo := 0; lo < n; lo += callElems {
			hi := min(lo+callElems, n)
			f(dst[lo:hi], a[lo:hi], s)
		}
		return
	}
	p.Run(pieces(n, span), func(i int) {
		lo, hi := i*span, min((i+1)*span, n)
		f(dst[lo:hi], a[lo:hi], s)
	})
}

// rowSpan returns how many rows one thread takes at a time, all of them when
// the caller should do the loop alone.
func rowSpan(p *work.Pool, rows, cols int) int {
	t := threads(p)
	if t == 1 || rows*cols < 2*soloElems || rows < 2 {
		return rows
	}
	most := max(1, callElems/max(cols, 1))
	return max(1, min((rows+4*t-1)/(4*t), most))
}

// overRows calls fn for runs of rows, on the caller alone when the matrix is
// small. One run is at most callElems elements, or one row.
func overRows(p *work.Pool, rows, cols int, fn func(lo, hi int)) {
	if rows == 0 {
		return
	}
	span := rowSpan(p, rows, cols)
	if span == rows {
		most := max(1, callElems/max(cols, 1))
		for lo := 0; lo < rows; lo += most {
			fn(lo, min(lo+most, rows))
		}
		return
	}
	p.Run(pieces(rows, span), func(i int) { fn(i*span, min((i+1)*span, rows)) })
}

// blocking cuts the rows of a sum into blocks by shape alone, so that a sum is
// the same whatever the number of threads: sixteen blocks where the matrix is
// large enough, more where a block would be too long for one call (of strips of
// columns) or for the precision of a running sum.
func blocking(rows, cols int) (rowsPerBlock, numBlocks int) {
	const usual, fewestRows, mostRows = 16, 8, 1024
	if rows == 0 {
		return 1, 0
	}
	n := min(usual, max(1, rows*cols/soloElems), max(1, rows/fewestRows))
	n = max(n, pieces(rows, mostRows))
	rowsPerBlock = (rows + n - 1) / n
	return rowsPerBlock, pieces(rows, rowsPerBlock)
}
