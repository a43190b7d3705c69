// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// groups runs what computes on rows in groups.
func (c *CPU) groups(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.GroupRows:
		groups := a[2].Int64s()
		if bad := kernel.GroupRows(a[0].Int64s(), a[1].Int64s(), groups); bad >= 0 {
			op.Check.Note(device.OpName(op), bad, groups[bad])
		}
	case device.LimitGroups:
		kernel.LimitGroups(a[0].Int64s(), a[1].Int64s(), a[1].Shape[0], a[1].Shape[1], op.NumGroups, op.Limit)
	case device.SpreadRows:
		kernel.SpreadRows(c.threads, placed(a[0], a[2], a[3]), mixedOf(a[0]), mixedOf(a[1]))
	case device.CombineRows:
		kernel.CombineRows(c.threads, placed(a[1], a[2], a[3]), mixedOf(a[0]), mixedOf(a[1]))
	case device.CombineWeights:
		kernel.CombineWeights(c.threads, placed(a[2], a[3], device.Array{}), a[0].Float32s(), mixedOf(a[1]), mixedOf(a[2]))
	case device.GroupedProduct:
		noteCounts(op, a[4].Int64s(), a[1].Shape[0])
		c.groupedProduct(a[0], a[1], a[2], a[3], a[4])
	case device.GroupedWeightGrad:
		m, n := a[0].Shape[1], a[0].Shape[2]
		g := kernel.Groups{Counts: a[3].Int64s(), Rows: a[1].Shape[0], Low: multipliesLow(a[0], a[1], a[2])}
		out := mixedOf(a[0])
		out.Stride = n
		kernel.GemmGroupsWeight(c.threads, g, m, n, mixed(a[1]), mixed(a[2]), op.Beta, out, m*n)
	case device.GroupSums:
		g := kernel.Groups{Counts: a[2].Int64s(), Rows: a[1].Shape[0]}
		kernel.GroupSums(c.threads, g, a[1].Shape[1], a[0].Float32s(), mixedOf(a[1]))
	default:
		return false
	}
	return true
}

// groupedProduct multiplies with matrices that are dense by rows or by columns, and
// copies others.
func (c *CPU) groupedProduct(out, x, weight, bias, counts device.Array) {
	weight, free := c.denseMatrices(weight)
	defer free()
	step, regular := batchStride(weight)
	if !regular { // a view that no operation of package tensor makes
		return
	}
	g := kernel.Groups{Counts: counts.Int64s(), Rows: x.Shape[0], Low: multipliesLow(out, x, weight)}
	kernel.GemmGroups(c.threads, g, out.Shape[1], x.Shape[1], mixed(x), mixed(weight), step, bias.Float32s(), mixed(out))
}

// placed describes rows by their places.
func placed(matrix, places, scales device.Array) kernel.Placed {
	return kernel.Placed{Places: places.Int64s(), Scales: scales.Float32s(), K: places.Shape[1], Rows: matrix.Shape[0], Width: matrix.Shape[1]}
}

// noteCounts notes the first count that is negative, or larger than the rows that are
// left for it.
func noteCounts(op device.GroupedProduct, counts []int64, rows int) {
	left := int64(rows)
	for i, n := range counts {
		if n < 0 || n > left {
			op.Check.Note(device.OpName(op), i, n)
			return
		}
		left -= n
	}
}
