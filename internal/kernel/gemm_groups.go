// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/work"
)

// Groups are products that share the rows of one operand: the experts of a
// mixture, of which each has a matrix and some of the rows. Group i has Counts[i]
// rows, after those of group i-1. Rows that no group has are at the end.
type Groups struct {
	Counts []int64
	Rows   int  // of all groups, and those that none has
	Low    bool // operands are rounded to bfloat16, as by [GemmBF16]
}

// soloRows is how many rows a group may have to be computed by one thread, beside
// others. All threads share the work of a larger one.
const soloRows = 512

// arithmetic returns how the products multiply.
func (g Groups) arithmetic() arithmetic {
	if g.Low {
		return bf16Arithmetic()
	}
	return exact
}

// spans calls fn for each group that has rows, with its first row and their
// number, and returns how many rows the groups have together.
func (g Groups) spans(fn func(group, first, rows int)) int {
	first := 0
	for i, n := range g.Counts {
		n = min(max(n, 0), int64(g.Rows-first)) // the caller has noted one that does not fit
		fn(i, first, int(n))
		first += int(n)
	}
	return first
}

// each runs fn once for each group: large ones with all threads, one after
// another, and the others at the same time.
func (g Groups) each(p *work.Pool, fn func(p *work.Pool, group, first, rows int)) int {
	type span struct{ group, first, rows int }
	small := make([]span, 0, len(g.Counts))
	used := g.spans(func(group, first, rows int) {
		if rows > soloRows {
			fn(p, group, first, rows)
			return
		}
		small = append(small, span{group, first, rows})
	})
	if p == nil || len(small) < p.NumThreads() {
		for _, s := range small {
			fn(p, s.group, s.first, s.rows)
		}
		return used
	}
	p.Run(len(small), func(i int) { fn(nil, small[i].group, small[i].first, small[i].rows) })
	return used
}

// GemmGroups computes C = A·B for each group: rows of A [rows, k] and C [rows, n]
// are the group's, and B is k×n, the group's own, stepB elements after that of the
// group before. bias [groups, n] is added to the rows if it is not nil. Rows that no group
// has become 0. What holds for shapes, threads and short slices is as in [Gemm].
func GemmGroups(p *work.Pool, g Groups, n, k int, a, b Mixed, stepB int, bias []float32, c Mixed) {
	used := g.each(p, func(p *work.Pool, group, first, rows int) {
		if rows == 0 {
			return
		}
		var own []float32
		if bias != nil {
			own = bias[group*n:][:n]
		}
		groupProduct(p, g.arithmetic(), rows, n, k, a.from(first*a.Stride), b.from(group*stepB), c.from(first*c.Stride), own)
	})
	for i := used; i < g.Rows; i++ {
		if c.BF16 != nil {
			clear(c.BF16[i*c.Stride:][:n])
		} else {
			clear(c.F32[i*c.Stride:][:n])
		}
	}
}

// GemmGroupsWeight computes the gradient of the matrices of [GemmGroups]: C_i =
// Aᵀ·B + beta·C_i with the rows of group i of A [rows, m] and B [rows, n]. C_i is
// m×n, stepC elements after that of the group before; one of a group without rows is
// multiplied by beta.
func GemmGroupsWeight(p *work.Pool, g Groups, m, n int, a, b Mixed, beta float32, c Mixed, stepC int) {
	g.each(p, func(p *work.Pool, group, first, rows int) {
		if rows == 0 && stepC == m*n && (beta == 0 || beta == 1) {
			clearGroup(c.from(group*stepC), m*n, beta)
			return
		}
		left := a.from(first * a.Stride)
		left.Trans = true
		gemm(p, g.arithmetic(), m, n, rows, 1, left, b.from(first*b.Stride), beta, c.from(group*stepC), nil)
	})
}

// clearGroup is the gradient of a matrix of n elements that no row is multiplied by.
func clearGroup(c Mixed, n int, beta float32) {
	switch {
	case beta == 1:
	case c.BF16 != nil:
		clear(c.BF16[:n])
	default:
		clear(c.F32[:n])
	}
}

// directRows is how many rows a group may have to be multiplied by its matrix where that
// lies. Packing the matrix would take as long as multiplying some twenty rows by it.
const directRows = 96

// groupProduct computes C = A·B + bias for one group.
func groupProduct(p *work.Pool, how arithmetic, m, n, k int, a, b, c Mixed, bias []float32) {
	checkGemm(1, m, n, k, a, 0, b, 0, c, 0, bias)
	if n == 0 {
		return
	}
	if k == 0 {
		scaleMatrix(m, n, 0, c, bias)
		return
	}
	g := getProduct()
	g.how, g.m, g.n, g.k, g.alpha, g.a, g.b, g.c, g.bias = how, m, n, k, 1, a, b, c, bias
	// The transpose of the product reads the matrix row by row. Where rows lie a multiple
	// of 2 KiB apart, a few of them fill all of their sets in the first-level cache.
	g.direct = how == exact && b.Trans && m <= directRows && m >= fewestRows && n >= 2*m && b.Stride%512 != 0
	g.swapNarrow()
	g.compute(p)
	g.release()
}
