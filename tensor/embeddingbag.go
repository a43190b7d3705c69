// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// BagMode is how EmbeddingBag makes one row of those of a bag.
type BagMode int

// The modes; the mean is PyTorch's default. An empty bag gives 0.
const (
	BagMean BagMode = iota
	BagSum
	BagMax
)

func (m BagMode) String() string { return [...]string{"mean", "sum", "max"}[m] }

// EmbeddingBagOptions are those of PyTorch's embedding_bag.
type EmbeddingBagOptions struct {
	Mode BagMode
	// PerSampleWeights multiplies each row; float32 of the ids' shape, for BagSum.
	PerSampleWeights *Tensor
	// PaddingIdx, if not nil, is an id that does not count and gets no gradient.
	PaddingIdx *int
	// IncludeLastOffset says that the last of the offsets is the end of the last
	// bag, so that there is one bag less.
	IncludeLastOffset bool
}

// EmbeddingBag looks up the rows of table [numRows, width] that the int64 ids
// name and makes one row of each bag, without the rows in between: ids [n] and
// offsets [bags], where each bag begins, or ids [bags, n] and no offsets, give
// [bags, width]. Ids and offsets out of range fail with position and value.
// A table that takes its gradient by rows ([RowLeaf]) gets each used row once.
func EmbeddingBag(table, ids, offsets *Tensor, o EmbeddingBagOptions) *Tensor {
	present("embedding bag", table, ids)
	operands := []*Tensor{table, ids, offsets, o.PerSampleWeights}
	wantDTypeOf("embedding bag", "table", operands, table, Float32)
	if len(table.shape) != 2 {
		fail("embedding bag", operands, "the table must have two dims")
	}
	if o.Mode < BagMean || o.Mode > BagMax {
		fail("embedding bag", operands, "there is no mode %d", int(o.Mode))
	}
	weights := o.PerSampleWeights
	if weights != nil {
		if isHalf(weights.dtype) {
			weights = weights.To(Float32)
		}
		wantDTypeOf("embedding bag", "weights", operands, weights, Float32)
		if o.Mode != BagSum || !slices.Equal(weights.shape, ids.shape) {
			fail("embedding bag", operands, "weights go with mode sum and have the shape of the ids")
		}
		weights = weights.Reshape(weights.NumElems()).Contiguous()
	}
	bounds := bagBounds(operands, ids, offsets, o.IncludeLastOffset)
	flat := indices("embedding bag", operands, ids).Reshape(ids.NumElems())
	checkIndices("embedding bag", operands, flat, 0, table.shape[0])
	b := &bags{table: table.Contiguous(), ids: flat, bounds: bounds, weights: weights, mode: o.Mode, padding: -1}
	if o.PaddingIdx != nil {
		b.padding = int64(*o.PaddingIdx)
		if b.padding < 0 || b.padding >= int64(table.shape[0]) {
			fail("embedding bag", operands, "PaddingIdx %d is not one of the table's %d rows", b.padding, table.shape[0])
		}
	}
	return b.forward()
}

// bagBounds returns where the bags begin and, at last, where the last one ends.
func bagBounds(operands []*Tensor, ids, offsets *Tensor, withLast bool) *Tensor {
	n := ids.NumElems()
	if offsets == nil {
		if len(ids.shape) != 2 || withLast {
			fail("embedding bag", operands, "wants ids of two dims, or offsets that say where bags begin")
		}
		return ArangeOf(ids.Device(), Int64, 0, float64(ids.shape[0]+1), 1).MulScalar(float64(ids.shape[1]))
	}
	if len(ids.shape) != 1 || len(offsets.shape) != 1 || withLast && offsets.shape[0] == 0 {
		fail("embedding bag", operands, "with offsets, the ids and they must have one dim")
	}
	numBounds := offsets.shape[0]
	if !withLast {
		numBounds++
	}
	bounds := alloc(nil, offsets.Device(), Int64, []int{numBounds}, false)
	say := func(f device.Fault) string {
		if f.Position == numBounds {
			return fmt.Sprintf("the last offset is %d, there are %d ids", f.Value, n)
		}
		return fmt.Sprintf("offset %d at position %d: they begin with 0, do not fall and do not exceed the %d ids", f.Value, f.Position, n)
	}
	src := indices("embedding bag", operands, offsets)
	verify("embedding bag", operands, say, func(c *device.Check) {
		fused(device.EmbeddingBagBounds{NumIDs: n, WithLast: withLast, Check: c}, bounds, src)
	})
	return bounds
}

// bags is one call of EmbeddingBag.
type bags struct {
	table   *Tensor
	ids     *Tensor // int64 [n]
	bounds  *Tensor // int64 [bags+1]
	weights *Tensor // [n], nil for none
	mode    BagMode
	padding int64 // -1 for none
	owner   *Tensor
}

func (b *bags) params() device.BagParams {
	return device.BagParams{Mode: device.BagMode(b.mode), Padding: b.padding}
}

func (b *bags) forward() *Tensor {
	width := b.table.shape[1]
	shape := []int{b.bounds.shape[0] - 1, width}
	out := result("embedding bag", Float32, shape, b.table, b.ids, b.weights, b.bounds)
	// The table itself may change before the backward pass, as where several processes
	// step on it: but for the weights' gradient, only its shape is used then.
	saves := []*Tensor{b.ids, b.bounds}
	if b.mode == BagMax {
		b.owner = result("embedding bag", Int32, shape, b.table, b.ids)
		saves = append(saves, b.owner)
	}
	if b.weights != nil {
		saves = append(saves, b.weights, b.table)
	}
	fused(device.EmbeddingBag{BagParams: b.params()}, out, b.owner, b.table, b.ids, b.bounds, b.weights)
	return out.record("embedding bag", []*Tensor{b.table, b.weights}, saves, func(bp *backprop, g *Tensor) {
		if bp.create {
			bp.composite(g, b.definition)
			return
		}
		g = g.Contiguous()
		if bp.needs(0) {
			b.tableGrad(bp, g)
		}
		if b.weights != nil && bp.needs(1) {
			dw := result("embedding bag", Float32, b.weights.shape, g)
			fused(device.EmbeddingBagWeights{BagParams: b.params()}, dw, b.table, g, b.ids, b.bounds)
			bp.give(1, dw)
		}
	})
}

// tableGrad gives the table its gradient: by rows if it takes it so, else right
// into its buffer.
func (b *bags) tableGrad(bp *backprop, g *Tensor) {
	if leaf, ok := bp.rows(0); ok {
		leaf.AddRows(groupRows(g, b.ids, b.table.shape[0], b.padding, func(dst, unique, order, starts *Tensor) {
			fused(device.EmbeddingBagRows{BagParams: b.params()}, append(b.gradOperands(dst, g), unique, order, starts)...)
		}))
		return
	}
	dst, beta, direct := bp.direct(0)
	if !direct {
		dst = result("embedding bag", Float32, b.table.shape, g)
	}
	if beta == 0 {
		dst.Device().Fill(dst.array(), 0)
	}
	fused(device.EmbeddingBagGrad{BagParams: b.params()}, b.gradOperands(dst, g)...)
	if !direct {
		bp.give(0, dst)
	}
}

func (b *bags) gradOperands(dst, g *Tensor) []*Tensor {
	return []*Tensor{dst, g, b.ids, b.bounds, b.weights, b.owner}
}

// definition is EmbeddingBag in recorded operations.
func (b *bags) definition() *Tensor {
	numBags, width := b.bounds.shape[0]-1, b.table.shape[1]
	n := b.ids.NumElems()
	if b.mode == BagMax {
		found := b.owner.GeScalar(0)
		at := Where(found, b.owner, scalarOf(b.owner, 0)).To(Int64).Reshape(numBags * width)
		rows := zerosLike(at)
		if n > 0 {
			rows = Where(found.Reshape(numBags*width), b.ids.selectSlices(0, at), rows)
		}
		return b.table.gatherElems(0, rows.Reshape(numBags, width)).Mul(found.To(Float32))
	}
	bagOf, scale := result("embedding bag", Int64, []int{n}, b.ids), result("embedding bag", Float32, []int{n, 1}, b.ids)
	fused(device.EmbeddingBagScales{BagParams: b.params()}, bagOf, scale, b.ids, b.bounds)
	rows := gather(b.table, b.ids, -1).Mul(scale)
	if b.weights != nil {
		rows = rows.Mul(b.weights.Unsqueeze(1))
	}
	return rows.sumSlices([]int{numBags, width}, 0, bagOf)
}
