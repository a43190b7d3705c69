// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"

	"github.com/cohort-ml/cohort/dist"
)

// Placement says how a tensor lies on one axis of a mesh. Placements are comparable by ==.
// The zero value is [Replicate].
type Placement struct {
	kind   kind
	dim    int
	factor int // of a strided shard, at least 2
	op     dist.ReduceOp
}

type kind uint8

const (
	replicate kind = iota
	shard          // strided if the factor is at least 2
	partial
	varying
)

// Replicate says that all ranks of the axis hold the same values.
func Replicate() Placement { return Placement{} }

// Shard says that the axis cuts dim, counted from 0, into one chunk for each rank.
func Shard(dim int) Placement { return Placement{kind: shard, dim: dim} }

// StridedShard says that the axis cuts dim after numPieces pieces were made of it, each piece
// into one chunk for each rank. A rank holds its chunk of each piece that no later axis of
// the mesh cuts off. It is PyTorch's _StridedShard, whose split_factor is numPieces. With
// numPieces 1 it is [Shard].
func StridedShard(dim, numPieces int) Placement {
	if numPieces == 1 {
		return Shard(dim)
	}
	if numPieces < 1 {
		numPieces = -1 // which Validate refuses, and nothing else has
	}
	return Placement{kind: shard, dim: dim, factor: numPieces}
}

// Partial says that the value is the reduction by op of what the ranks of the axis hold, and
// that the reduction has not taken place. op is dist.Sum, Avg, Min, Max or Product.
func Partial(op dist.ReduceOp) Placement { return Placement{kind: partial, op: op} }

// Varying says that each rank of the axis has a value of its own, such as the activations of
// its own samples. No rank's value is a part of another tensor, so there is nothing to gather.
func Varying() Placement { return Placement{kind: varying} }

// IsReplicate reports whether p is [Replicate].
func (p Placement) IsReplicate() bool { return p.kind == replicate }

// IsVarying reports whether p is [Varying].
func (p Placement) IsVarying() bool { return p.kind == varying }

// IsShard reports whether the axis cuts the tensor, by a [Shard] or a [StridedShard], and
// along which dim.
func (p Placement) IsShard() (dim int, ok bool) { return p.dim, p.kind == shard }

// NumPieces returns the number of pieces of a [StridedShard], and 1 for all other placements.
func (p Placement) NumPieces() int {
	if p.factor == 0 {
		return 1
	}
	return p.factor
}

// IsPartial reports whether a reduction is owed on the axis, and by which operation.
func (p Placement) IsPartial() (op dist.ReduceOp, ok bool) { return p.op, p.kind == partial }

// String returns the placement as errors show it: "Replicate", "Shard(0)",
// "StridedShard(0, 2)", "Partial(sum)" or "Varying".
func (p Placement) String() string {
	switch {
	case p.kind == shard && p.factor != 0:
		return fmt.Sprintf("StridedShard(%d, %d)", p.dim, p.factor)
	case p.kind == shard:
		return fmt.Sprintf("Shard(%d)", p.dim)
	case p.kind == partial:
		return fmt.Sprintf("Partial(%v)", p.op)
	case p.kind == varying:
		return "Varying"
	}
	return "Replicate"
}

// check returns what is wrong with p for a tensor of numDims dims, "" if nothing.
func (p Placement) check(numDims int) string {
	switch p.kind {
	case shard:
		if p.dim < 0 || p.dim >= numDims {
			return fmt.Sprintf("the tensor has %d dims, and dims count from 0", numDims)
		}
		if p.factor < 0 || p.factor > maxPieces {
			return fmt.Sprintf("the number of pieces must be from 1 to %d", maxPieces)
		}
	case partial:
		switch p.op {
		case dist.Sum, dist.Avg, dist.Min, dist.Max, dist.Product:
		default:
			return "a partial value is reduced by sum, avg, min, max or product"
		}
	}
	return ""
}

// checkBeside returns what is wrong with p beside the placements of other axes, "" if nothing.
// A sum and a maximum that are both owed have no order, and the results of the orders differ.
func (p Placement) checkBeside(others []Placement) string {
	for _, q := range others {
		if p.kind == partial && q.kind == partial && p.op != q.op && !(p.isMean() && q.isMean()) {
			return fmt.Sprintf("another axis is %v, and the result depends on which reduction comes first: pay one of them off before", q)
		}
	}
	return ""
}

// isMean reports whether p is a partial sum or a partial average, which may be mixed.
func (p Placement) isMean() bool {
	return p.kind == partial && (p.op == dist.Sum || p.op == dist.Avg)
}
