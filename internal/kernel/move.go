// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/work"
)

// Word is an element that is moved without a look at its value: the type of
// the size that the elements have.
type Word interface {
	uint8 | uint16 | int32 | int64
}

// Number is an element that is added as it is.
type Number interface {
	float32 | float64 | int64 | int32
}

// runElems is the part of a long run that one thread copies at a time.
const runElems = 64 << 10

// overRuns calls fn for parts of numRuns runs of n elements each: for several
// whole runs, or for the elements [from, to) of one.
func overRuns(p *work.Pool, numRuns, n int, fn func(lo, hi, from, to int)) {
	t := parts(p, max(numRuns, n), numRuns*n)
	switch {
	case t <= 1:
		fn(0, numRuns, 0, n)
	case numRuns >= 2*t:
		p.Run(t, func(i int) { fn(i*numRuns/t, (i+1)*numRuns/t, 0, n) })
	default:
		each := pieces(n, runElems)
		p.Run(numRuns*each, func(i int) {
			from := i % each * runElems
			fn(i/each, i/each+1, from, min(from+runElems, n))
		})
	}
}

// CopyRuns copies numRuns runs of n elements: run i starts at element
// i·dstStride of dst and i·srcStride of src. Joining and cutting tensors is that.
func CopyRuns[T Word](p *work.Pool, dst []T, dstStride int, src []T, srcStride, n, numRuns int) {
	if n == 0 || numRuns == 0 {
		return
	}
	overRuns(p, numRuns, n, func(lo, hi, from, to int) {
		for i := lo; i < hi; i++ {
			copyRun(dst[i*dstStride+from:i*dstStride+to], src[i*srcStride+from:i*srcStride+to])
		}
	})
}

// copyRun spares short runs the call of memmove.
func copyRun[T Word](dst, src []T) {
	switch len(src) {
	case 1:
		dst[0] = src[0]
	case 2:
		dst[0], dst[1] = src[0], src[1]
	default:
		copy(dst, src)
	}
}

// AddRuns is CopyRuns with a sum.
func AddRuns(p *work.Pool, dst []float32, dstStride int, src []float32, srcStride, n, numRuns int) {
	if n == 0 || numRuns == 0 {
		return
	}
	add := vec().add
	overRuns(p, numRuns, n, func(lo, hi, from, to int) {
		for i := lo; i < hi; i++ {
			d, s := dst[i*dstStride+from:i*dstStride+to], src[i*srcStride+from:i*srcStride+to]
			if len(s) < 8 {
				for j, x := range s {
					d[j] += x
				}
				continue
			}
			inRuns(0, len(s), callElems, func(lo, hi int) { add(d[lo:hi], d[lo:hi], s[lo:hi]) })
		}
	})
}

// FindBadIndex returns the first position whose index is not in [0, size), -1
// if there is none.
func FindBadIndex(p *work.Pool, ids []int64, size int) int {
	var first atomic.Int64
	first.Store(int64(len(ids)))
	overItems(p, len(ids), len(ids), func(lo, hi int) {
		for i, id := range ids[lo:hi] {
			if uint64(id) < uint64(size) {
				continue
			}
			for at := int64(lo + i); ; {
				if old := first.Load(); at >= old || first.CompareAndSwap(old, at) {
					return
				}
			}
		}
	})
	if at := int(first.Load()); at < len(ids) {
		return at
	}
	return -1
}

// The following see operands as [outer, dim, inner]: the dim that is indexed,
// those before it and those after it. Indices have been checked.

// IndexSelect copies slices: dst[o, i, :] = src[o, ids[i], :], where dst has
// len(ids) of them and src has size.
func IndexSelect[T Word](p *work.Pool, dst, src []T, ids []int64, outer, size, inner int) {
	n := len(ids)
	if outer*n*inner == 0 {
		return
	}
	overRuns(p, outer*n, inner, func(lo, hi, from, to int) {
		if inner == 1 {
			for o := lo / n; o*n < hi; o++ {
				first, last := max(lo, o*n), min(hi, (o+1)*n)
				row := src[o*size : (o+1)*size]
				out := dst[first:last]
				for i, id := range ids[first-o*n : last-o*n] {
					out[i] = row[id]
				}
			}
			return
		}
		for r := lo; r < hi; r++ {
			at := (r/n*size + int(ids[r%n])) * inner
			copyRun(dst[r*inner+from:r*inner+to], src[at+from:at+to])
		}
	})
}

// IndexAdd adds slices in the order of ids: dst[o, ids[i], :] += src[o, i, :].
func IndexAdd[T Number](p *work.Pool, dst, src []T, ids []int64, outer, size, inner int) {
	n := len(ids)
	if outer*n*inner == 0 {
		return
	}
	overFibres(p, outer, n, inner, func(o, from, to int) {
		for i, id := range ids {
			d := dst[(o*size+int(id))*inner+from:][:to-from]
			for k, x := range src[(o*n+i)*inner+from : (o*n+i)*inner+to] {
				d[k] += x
			}
		}
	})
}

// overFibres calls fn for parts of the fibres along the middle dim: for the
// elements [from, to) of the inner dim of one outer index.
func overFibres(p *work.Pool, outer, n, inner int, fn func(o, from, to int)) {
	t := min(threads(p), outer*n*inner/soloElems, outer*pieces(inner, lineElems))
	if t <= 1 {
		for o := range outer {
			fn(o, 0, inner)
		}
		return
	}
	// Threads share the outer dim, and the inner one where that is not enough.
	if outer >= 2*t {
		p.Run(t, func(i int) {
			for o := i * outer / t; o < (i+1)*outer/t; o++ {
				fn(o, 0, inner)
			}
		})
		return
	}
	each := min(pieces(t, outer), pieces(inner, lineElems))
	span := (pieces(inner, each) + lineElems - 1) &^ (lineElems - 1)
	each = pieces(inner, span)
	p.Run(outer*each, func(i int) {
		from := i % each * span
		fn(i/each, from, min(from+span, inner))
	})
}

// GatherElems picks elements along the middle dim: dst[o, i, k] = src[o,
// ids[o, i, k], k], where dst and ids are [outer, n, inner] and src is [outer,
// size, inner].
func GatherElems[T Word](p *work.Pool, dst, src []T, ids []int64, outer, n, size, inner int) {
	if outer*n*inner == 0 {
		return
	}
	overItems(p, outer, outer*n*inner, func(lo, hi int) {
		for o := lo; o < hi; o++ {
			from := src[o*size*inner : (o+1)*size*inner]
			to, at := dst[o*n*inner:(o+1)*n*inner], ids[o*n*inner:(o+1)*n*inner]
			if inner == 1 {
				for i, id := range at {
					to[i] = from[id]
				}
				continue
			}
			for i := range n {
				for k, id := range at[i*inner : (i+1)*inner] {
					to[i*inner+k] = from[int(id)*inner+k]
				}
			}
		}
	})
}

// ScatterElems is the reverse of GatherElems: dst[o, ids[o, i, k], k] = src[o,
// i, k], in the order of i.
func ScatterElems[T Word](p *work.Pool, dst, src []T, ids []int64, outer, n, size, inner int) {
	if outer*n*inner == 0 {
		return
	}
	overFibres(p, outer, n, inner, func(o, from, to int) {
		for i := range n {
			at := (o*n + i) * inner
			for k := from; k < to; k++ {
				dst[(o*size+int(ids[at+k]))*inner+k] = src[at+k]
			}
		}
	})
}

// ScatterAddElems is ScatterElems with a sum.
func ScatterAddElems[T Number](p *work.Pool, dst, src []T, ids []int64, outer, n, size, inner int) {
	if outer*n*inner == 0 {
		return
	}
	overFibres(p, outer, n, inner, func(o, from, to int) {
		for i := range n {
			at := (o*n + i) * inner
			for k := from; k < to; k++ {
				dst[(o*size+int(ids[at+k]))*inner+k] += src[at+k]
			}
		}
	})
}

// Triangle copies a batch of matrices and clears what lies above (upper false)
// or below diagonal number k of each.
func Triangle[T Word](p *work.Pool, dst, src []T, batch, rows, cols, k int, upper bool) {
	overRows(p, batch*rows, cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			d, s := dst[r*cols:(r+1)*cols], src[r*cols:(r+1)*cols]
			cut := min(max(r%rows+k, 0), cols) // the first column on or above the diagonal
			if upper {
				clear(d[:cut])
				copy(d[cut:], s[cut:])
				continue
			}
			cut = min(max(r%rows+k+1, 0), cols)
			copy(d[:cut], s[:cut])
			clear(d[cut:])
		}
	})
}

// CumSum computes running sums along the middle dim of [outer, n, inner], from
// its end on if reverse. They are kept in float64 or int64.
func CumSum[T Number, S float64 | int64](p *work.Pool, dst, src []T, outer, n, inner int, reverse bool) {
	if outer*n*inner == 0 {
		return
	}
	const strip = 256
	overFibres(p, outer, n, inner, func(o, from, to int) {
		if inner == 1 {
			sumAlong[T, S](dst[o*n:(o+1)*n], src[o*n:(o+1)*n], reverse)
			return
		}
		var run [strip]S
		for lo := from; lo < to; lo += strip {
			sums := run[:min(strip, to-lo)]
			clear(sums)
			for i := range n {
				if reverse {
					i = n - 1 - i
				}
				at := (o*n+i)*inner + lo
				d := dst[at : at+len(sums)]
				for k, x := range src[at : at+len(sums)] {
					sums[k] += S(x)
					d[k] = T(sums[k])
				}
			}
		}
	})
}

func sumAlong[T Number, S float64 | int64](dst, src []T, reverse bool) {
	sum := S(0)
	if reverse {
		for i := len(src) - 1; i >= 0; i-- {
			sum += S(src[i])
			dst[i] = T(sum)
		}
		return
	}
	for i, x := range src {
		sum += S(x)
		dst[i] = T(sum)
	}
}

// CumProd computes running products along each of rows rows, kept in float64
// or int64.
func CumProd[T Number, S float64 | int64](p *work.Pool, dst, src []T, rows, cols int) {
	overItems(p, rows, rows*cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			product := S(1)
			for i, x := range src[r*cols : (r+1)*cols] {
				product *= S(x)
				dst[r*cols+i] = T(product)
			}
		}
	})
}
