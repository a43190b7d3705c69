// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
)

// Gather copies rows of a table.
func (c *CPU) Gather(dst, table, ids device.Array, check *device.Check) {
	if trace.On() {
		defer traced("gather rows", 0, dst, table, ids).End()
	}
	defer hold(dst, table, ids)
	numRows, width := int64(table.Shape[0]), table.Shape[1]
	list := ids.Int64s()
	for pos, id := range list {
		if id < 0 || id >= numRows {
			check.Note("embedding", pos, id)
			return
		}
	}
	kernel.Embedding(c.threads, dst.Float32s(), table.Float32s(), list, width)
}

// ScatterAdd adds rows into a table.
func (c *CPU) ScatterAdd(dst, g, ids device.Array) {
	if trace.On() {
		defer traced("scatter add", 0, dst, g, ids).End()
	}
	defer hold(dst, g, ids)
	kernel.EmbeddingBackward(c.threads, dst.Float32s(), g.Float32s(), ids.Int64s(), dst.Shape[1])
}

// embedding runs what belongs to tables of rows.
func (c *CPU) embedding(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.GroupIDs:
		s := kernel.GroupIDs(a[4].Int64s(), op.Skip)
		copy(a[0].Int64s(), s.IDs)
		copy(device.Elems[int32](a[1]), s.Order)
		starts := device.Elems[int32](a[2])
		for i := copy(starts, s.Starts); i < len(starts); i++ {
			starts[i] = int32(len(s.Order))
		}
		a[3].Int64s()[0] = int64(len(s.IDs))
	case device.SumSegments:
		kernel.SumSegments(c.threads, a[0].Float32s(), kernel.RowsOf{Data: a[1].Float32s()}, segments(a[2:]), a[0].Shape[1], false)
	case device.EmbeddingBag:
		lists, width := bags(op.BagParams, a[3], a[4], a[5]), a[2].Shape[1]
		if op.Mode == device.BagMax {
			kernel.MaxBags(c.threads, a[0].Float32s(), device.Elems[int32](a[1]), a[2].Float32s(), lists, width)
			break
		}
		kernel.SumBags(c.threads, a[0].Float32s(), a[2].Float32s(), lists, width, op.Mode == device.BagMean)
	case device.EmbeddingBagBounds:
		bagBounds(op, a[0].Int64s(), a[1].Int64s())
	case device.EmbeddingBagGrad:
		kernel.SumSegments(c.threads, a[0].Float32s(), bagRows(op.BagParams, a), kernel.GroupIDs(a[2].Int64s(), op.Padding), a[0].Shape[1], true)
	case device.EmbeddingBagRows:
		kernel.SumSegments(c.threads, a[0].Float32s(), bagRows(op.BagParams, a), segments(a[6:]), a[0].Shape[1], false)
	case device.EmbeddingBagWeights:
		kernel.BagWeights(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), bags(op.BagParams, a[3], a[4], device.Array{}), a[1].Shape[1])
	case device.EmbeddingBagScales:
		rows := bags(op.BagParams, a[2], a[3], device.Array{}).Rows(nil, op.Mode == device.BagMean)
		bagOf, scales := a[0].Int64s(), a[1].Float32s()
		for pos, id := range a[2].Int64s() {
			bagOf[pos], scales[pos] = int64(rows.Index[pos]), 0
			if id != op.Padding {
				scales[pos] = 1
				if rows.Scale != nil {
					scales[pos] = rows.Scale[pos]
				}
			}
		}
	default:
		return false
	}
	return true
}

// segments are those that GroupIDs has written: unique, order and starts.
func segments(a []device.Array) kernel.Segments {
	unique := a[0].Int64s()
	n := len(unique)
	starts := device.Elems[int32](a[2])[:n+1]
	return kernel.Segments{IDs: unique, Order: device.Elems[int32](a[1])[:starts[n]], Starts: starts}
}

func bags(p device.BagParams, ids, bounds, weights device.Array) kernel.Bags {
	return kernel.Bags{IDs: ids.Int64s(), Bounds: bounds.Int64s(), Padding: p.Padding, Weights: weights.Float32s()}
}

// bagRows says where the gradients of positions come from; a is as of EmbeddingBagGrad.
func bagRows(p device.BagParams, a []device.Array) kernel.RowsOf {
	rows := bags(p, a[2], a[3], a[4]).Rows(a[1].Float32s(), p.Mode == device.BagMean)
	rows.Only = device.Elems[int32](a[5])
	return rows
}

// bagBounds copies offsets; from a bad one on, bags are empty.
func bagBounds(op device.EmbeddingBagBounds, bounds, offsets []int64) {
	n := int64(op.NumIDs)
	at := copy(bounds, offsets)
	if at < len(bounds) {
		bounds[at] = n
	}
	last := int64(0)
	for i, v := range bounds {
		if v < last || v > n || i == 0 && v != 0 {
			op.Check.Note(device.OpName(op), i, v)
			v = last
			bounds[i] = v
		}
		last = v
	}
	if last != n {
		op.Check.Note(device.OpName(op), len(bounds), last)
	}
}
