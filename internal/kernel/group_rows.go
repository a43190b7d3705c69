// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// GroupRows writes to places the place of each row in the order of its group: rows of
// group 0 first, each group's in their order. counts gets the number of rows of each
// group. A row whose group is negative has the place -1, and so has one whose group is
// not one of counts, the first of which is returned; -1 for none.
func GroupRows(places, counts, groups []int64) (bad int) {
	bad = -1
	clear(counts)
	for i, g := range groups {
		switch {
		case g >= 0 && g < int64(len(counts)):
			counts[g]++
		case g != -1 && bad < 0:
			bad = i
		}
	}
	next := make([]int64, len(counts))
	sum := int64(0)
	for g, n := range counts {
		next[g] = sum
		sum += n
	}
	for i, g := range groups {
		places[i] = -1
		if g >= 0 && g < int64(len(counts)) {
			places[i] = next[g]
			next[g]++
		}
	}
	return bad
}

// LimitGroups copies groups [n, k] and puts -1 for rows that a group has beyond limit.
// The first column comes before the next, and earlier rows before later ones.
func LimitGroups(out, groups []int64, n, k, numGroups, limit int) {
	have := make([]int, numGroups)
	for j := range k {
		for i := j; i < n*k; i += k {
			g := groups[i]
			if g >= 0 && g < int64(numGroups) {
				if have[g]++; have[g] > limit {
					g = -1
				}
			}
			out[i] = g
		}
	}
}

// Placed says where the rows of a matrix [rows, width] belong: row Places[i·K+j] to
// item i, times Scales[i·K+j] (nil is 1). -1 is none.
type Placed struct {
	Places []int64
	Scales []float32
	K      int
	Rows   int // of the matrix with the places
	Width  int
}

func (p *Placed) numItems() int {
	if p.K == 0 {
		return 0
	}
	return len(p.Places) / p.K
}

// each calls fn for the places of item i that are there.
func (p *Placed) each(i int, fn func(at int, scale float32)) {
	for j := i * p.K; j < (i+1)*p.K; j++ {
		at, scale := p.Places[j], float32(1)
		if at < 0 || at >= int64(p.Rows) {
			continue
		}
		if p.Scales != nil {
			scale = p.Scales[j]
		}
		fn(int(at), scale)
	}
}

// SpreadRows copies the rows of x [items, width] to their places in dst [rows, width], each
// times its scale; the other rows become 0. Both are float32 or both bfloat16.
func SpreadRows(p *work.Pool, to Placed, dst, x Mixed) {
	width, n := to.Width, to.numItems()
	named := 0
	for _, at := range to.Places {
		if at >= 0 && at < int64(to.Rows) {
			named++
		}
	}
	if named < to.Rows {
		clear(dst.F32[:min(len(dst.F32), to.Rows*width)])
		clear(dst.BF16[:min(len(dst.BF16), to.Rows*width)])
	}
	scale := vec().mulScalar
	if dst.BF16 == nil {
		overRows(p, n, to.K*width, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				row := x.F32[i*width:][:width]
				to.each(i, func(at int, s float32) {
					if to.Scales == nil {
						copy(dst.F32[at*width:][:width], row)
						return
					}
					scale(dst.F32[at*width:][:width], row, s)
				})
			}
		})
		return
	}
	overRowsBF16(p, n, to.K*width, 2, func(lo, hi int, buf [][]float32) {
		for i := lo; i < hi; i++ {
			row := x.BF16[i*width:][:width]
			if to.Scales == nil {
				to.each(i, func(at int, _ float32) { copy(dst.BF16[at*width:][:width], row) })
				continue
			}
			wide, scaled := buf[0][:width], buf[1][:width]
			fromBF16(wide, row)
			to.each(i, func(at int, s float32) {
				scale(scaled, wide, s)
				toBF16(dst.BF16[at*width:][:width], scaled)
			})
		}
	})
}

// CombineRows adds up the rows of y [rows, width] of each item, each times its scale, in
// dst [items, width]. Both are float32 or both bfloat16; sums are float32.
func CombineRows(p *work.Pool, from Placed, dst, y Mixed) {
	width := from.Width
	scale, addScaled := vec().mulScalar, vec().addScaled
	overRowsBF16(p, from.numItems(), max(1, from.K)*width, 2, func(lo, hi int, buf [][]float32) {
		for i := lo; i < hi; i++ {
			sum := buf[0][:width]
			if dst.BF16 == nil {
				sum = dst.F32[i*width:][:width]
			}
			first := true
			from.each(i, func(at int, s float32) {
				var row []float32
				if y.BF16 != nil {
					row = buf[1][:width]
					fromBF16(row, y.BF16[at*width:])
				} else {
					row = y.F32[at*width:][:width]
				}
				if first {
					scale(sum, row, s)
				} else {
					addScaled(sum, sum, row, s)
				}
				first = false
			})
			if first {
				clear(sum)
			}
			if dst.BF16 != nil {
				toBF16(dst.BF16[i*width:][:width], sum)
			}
		}
	})
}

// CombineWeights writes the products of the rows of g [items, width] with the rows of y at
// their places to dst [items, K]: the gradient of the scales of [CombineRows].
func CombineWeights(p *work.Pool, from Placed, dst []float32, g, y Mixed) {
	width := from.Width
	mul, sum := vec().mul, vec().sum
	overRowsBF16(p, from.numItems(), max(1, from.K)*width, 3, func(lo, hi int, buf [][]float32) {
		for i := lo; i < hi; i++ {
			wide := func(m Mixed, row int, buf []float32) []float32 {
				if m.BF16 == nil {
					return m.F32[row*width:][:width]
				}
				fromBF16(buf[:width], m.BF16[row*width:])
				return buf[:width]
			}
			gi := wide(g, i, buf[0])
			for j := i * from.K; j < (i+1)*from.K; j++ {
				dst[j] = 0
				if at := from.Places[j]; at >= 0 && at < int64(from.Rows) {
					product := buf[2][:width]
					mul(product, gi, wide(y, int(at), buf[1]))
					dst[j] = float32(sum(product))
				}
			}
		}
	})
}

// GroupSums adds up the rows of each group of x [rows, width] in dst [groups, width].
func GroupSums(p *work.Pool, g Groups, width int, dst []float32, x Mixed) {
	g.spans(func(group, first, rows int) {
		to := dst[group*width:][:width]
		switch {
		case rows == 0:
			clear(to)
		case x.BF16 != nil:
			SumRowsBF16(p, to, x.BF16[first*width:], rows, width)
		default:
			SumRows(p, to, x.F32[first*width:][:rows*width], rows, width, false)
		}
	})
}
