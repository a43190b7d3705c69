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

// share returns how many of n elements one thread takes: n itself when the
// caller should do all. Each thread has one run of elements, and the same one
// for every operation of a size, so that it finds in its own cache what it
// wrote there a moment ago.
func share(p *work.Pool, n int) int {
	t := parts(p, n, n)
	if t <= 1 {
		return n
	}
	return ((n+t-1)/t + lineElems - 1) &^ (lineElems - 1)
}

// pieces is how many spans of the given size cover n.
func pieces(n, span int) int { return (n + span - 1) / span }

// Shares are elementwise, so that they may depend on the number of threads. The
// serial branch of each form below has no closure, so it does not allocate.

func unary(p *work.Pool, f func(dst, a []float32), dst, a []float32) {
	n := len(dst)
	a = a[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			unary(nil, f, dst[lo:hi], a[lo:hi])
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		f(dst[lo:hi], a[lo:hi])
	}
}

func binary(p *work.Pool, f func(dst, a, b []float32), dst, a, b []float32) {
	n := len(dst)
	a, b = a[:n], b[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			binary(nil, f, dst[lo:hi], a[lo:hi], b[lo:hi])
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		f(dst[lo:hi], a[lo:hi], b[lo:hi])
	}
}

func scalar(p *work.Pool, f func(dst, a []float32, s float32), dst, a []float32, s float32) {
	n := len(dst)
	a = a[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			scalar(nil, f, dst[lo:hi], a[lo:hi], s)
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		f(dst[lo:hi], a[lo:hi], s)
	}
}

// overRows calls fn for runs of rows, each at most callElems elements, or one
// row; on the caller alone when the matrix is small.
func overRows(p *work.Pool, rows, cols int, fn func(lo, hi int)) {
	most := max(1, callElems/max(cols, 1))
	t := parts(p, rows, rows*cols)
	if t <= 1 {
		inRuns(0, rows, most, fn)
		return
	}
	p.Run(t, func(i int) { inRuns(i*rows/t, (i+1)*rows/t, most, fn) })
}

// inRuns calls fn for runs of at most most items.
func inRuns(lo, hi, most int, fn func(lo, hi int)) {
	for ; lo < hi; lo += most {
		fn(lo, min(lo+most, hi))
	}
}

// overItems shares n items, elems elements in all, among the threads: each has
// one run of them.
func overItems(p *work.Pool, n, elems int, fn func(lo, hi int)) {
	t := parts(p, n, elems)
	if t <= 1 {
		fn(0, n)
		return
	}
	p.Run(t, func(i int) { fn(i*n/t, (i+1)*n/t) })
}

// parts is among how many threads n items, elems elements in all, are shared.
func parts(p *work.Pool, n, elems int) int { return min(threads(p), elems/soloElems, n) }

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
