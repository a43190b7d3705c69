// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// The operations of this file compute on rows in groups: the tokens of the experts of a
// mixture. Rows of group 0 come first, then those of group 1, and so on. counts, int64
// [groups], says how many rows each group has. Shapes do not depend on counts: there may
// be more rows than the groups have, and the ones at the end belong to none.
//
//	places, counts := tensor.GroupRows(chosen, numExperts)   // chosen [tokens, k]
//	rows := tensor.SpreadRows(x, places, tokens*k)           // x [tokens, width]
//	rows = tensor.GroupedLinear(rows, weight, nil, counts)   // weight [experts, out, width]
//	y := tensor.CombineRows(rows, places, scales)            // [tokens, out]

// GroupRows returns where each row is when rows are sorted by group: groups, int64 of any
// shape with numbers from 0 to numGroups-1, has the group of each row, places has its shape
// and counts is int64 [numGroups]. Rows of one group keep their order. A row of group -1
// has the place -1: it is in no group.
func GroupRows(groups *Tensor, numGroups int) (places, counts *Tensor) {
	const op = "group rows"
	present(op, groups)
	operands := []*Tensor{groups}
	if numGroups < 0 {
		fail(op, operands, "the number of groups, %d, is negative", numGroups)
	}
	ids := indices(op, operands, groups)
	places = result(op, Int64, ids.shape, ids)
	counts = result(op, Int64, []int{numGroups}, ids)
	shape := ids.shape
	verify(op, operands, func(f device.Fault) string {
		return fmt.Sprintf("group %d at position %v is not one of the %d groups, and not -1 for none", f.Value, positionIn(shape, f.Position), numGroups)
	}, func(c *device.Check) {
		fused(device.GroupRows{NumGroups: numGroups, Check: c}, places, counts, ids)
	})
	return places, counts
}

// LimitGroups returns groups, int64 [n, k], with -1 for the rows that a group has beyond
// limit. What stands in the first column is counted before what is in the second, and
// earlier rows before later ones.
func LimitGroups(groups *Tensor, numGroups, limit int) *Tensor {
	const op = "limit groups"
	present(op, groups)
	operands := []*Tensor{groups}
	if len(groups.shape) != 2 || numGroups < 0 || limit < 0 {
		fail(op, operands, "wants groups [n, k], and no negative number of groups (%d) or limit (%d)", numGroups, limit)
	}
	ids := indices(op, operands, groups)
	out := result(op, Int64, ids.shape, ids)
	fused(device.LimitGroups{NumGroups: numGroups, Limit: limit}, out, ids)
	return out
}

// SpreadRows returns numRows rows: row places[i][j] is row i of x, and rows that no place
// names are 0. x is [n, width], float32 or bfloat16, places int64 [n, k] from [GroupRows]:
// no place is there twice but -1, which is none, and what lies outside is left out.
func SpreadRows(x, places *Tensor, numRows int) *Tensor { return spreadRows(x, places, nil, numRows) }

func spreadRows(x, places, scales *Tensor, numRows int) *Tensor {
	const op = "spread rows"
	present(op, x, places)
	operands := []*Tensor{x, places, scales}
	wantPlaces(op, operands, x, places, scales)
	if numRows < 0 || places.shape[0] != x.shape[0] {
		fail(op, operands, "wants places for the %d rows, and no negative number of rows (%d)", x.shape[0], numRows)
	}
	src, places := x.Contiguous(), indices(op, operands, places)
	out := result(op, x.dtype, []int{numRows, x.shape[1]}, operands...)
	fused(device.SpreadRows{}, out, src, places, scales)
	saves := []*Tensor{places}
	if scales != nil {
		saves = append(saves, scales, src)
	}
	return out.record(op, []*Tensor{src, nil, scales}, saves, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, CombineRows(g, places, scales))
		}
		if scales != nil && b.needs(2) {
			b.give(2, combineWeights(src, g, places))
		}
	})
}

// CombineRows returns for each i the sum of the rows places[i][j] of y, each multiplied by
// scales[i][j]: the reverse of [SpreadRows]. y is [rows, width], float32 or bfloat16,
// places int64 [n, k], scales float32 [n, k] or nil for ones. The result is [n, width] of
// y's dtype; sums are made in float32, from j = 0 on. A place outside of y counts nothing.
func CombineRows(y, places, scales *Tensor) *Tensor {
	const op = "combine rows"
	present(op, y, places)
	operands := []*Tensor{y, places, scales}
	wantPlaces(op, operands, y, places, scales)
	rows, places := y.Contiguous(), indices(op, operands, places)
	if scales != nil {
		scales = scales.Contiguous()
	}
	out := result(op, y.dtype, []int{places.shape[0], y.shape[1]}, operands...)
	fused(device.CombineRows{}, out, rows, places, scales)
	saves := []*Tensor{places}
	if scales != nil {
		saves = append(saves, scales, rows)
	}
	numRows := y.shape[0]
	return out.record(op, []*Tensor{rows, nil, scales}, saves, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, spreadRows(g, places, scales, numRows))
		}
		if scales != nil && b.needs(2) {
			b.give(2, combineWeights(g, rows, places))
		}
	})
}

// combineWeights returns the products of the rows of g with the rows of y at their places,
// float32 [n, k].
func combineWeights(g, y, places *Tensor) *Tensor {
	const op = "combine weights"
	g, y = g.Contiguous(), y.Contiguous()
	out := result(op, Float32, places.shape, g, y, places)
	fused(device.CombineWeights{}, out, g, y, places)
	return out.record(op, []*Tensor{g, y}, []*Tensor{g, y, places}, func(b *backprop, dout *Tensor) {
		if b.needs(0) {
			b.give(0, CombineRows(y, places, dout))
		}
		if b.needs(1) {
			b.give(1, spreadRows(g, places, dout, y.shape[0]))
		}
	})
}

func wantPlaces(op string, operands []*Tensor, x, places, scales *Tensor) {
	if len(x.shape) != 2 || len(places.shape) != 2 || x.dtype != Float32 && x.dtype != BFloat16 {
		fail(op, operands, "wants rows [n, width] of float32 or bfloat16, and places [n, k]")
	}
	if scales != nil && (scales.dtype != Float32 || !slices.Equal(scales.shape, places.shape)) {
		fail(op, operands, "the scales must be float32%v", places.shape)
	}
}

// GroupedLinear multiplies the rows of each group by a weight of the group's own: row r of
// group e becomes x[r]·weight[e]ᵀ + bias[e]. x is [rows, in] with its rows in groups, weight
// [groups, out, in], bias float32 [groups, out] or nil, counts int64 [groups]. Rows that
// belong to no group become 0. Dtypes are those of [Linear]. A count that is negative, or
// larger than the rows that are left, fails with its group.
func GroupedLinear(x, weight, bias, counts *Tensor) *Tensor {
	const op = "grouped linear"
	present(op, x, weight, counts)
	operands := []*Tensor{x, weight, bias, counts}
	dtype := lowDType(op, operands[:2])
	if len(x.shape) != 2 || len(weight.shape) != 3 || x.shape[1] != weight.shape[2] {
		fail(op, operands, "wants rows [n, in] and weights [groups, out, in]")
	}
	groups, out := weight.shape[0], weight.shape[1]
	if counts.dtype != Int64 || !slices.Equal(counts.shape, []int{groups}) {
		fail(op, operands, "the counts must be int64[%d]", groups)
	}
	if bias != nil && (bias.dtype != Float32 || !slices.Equal(bias.shape, []int{groups, out})) {
		fail(op, operands, "the bias must be float32[%d %d]", groups, out)
	}
	x, counts = x.Contiguous(), counts.Detach().Contiguous()
	if bias != nil {
		bias = bias.Contiguous()
	}
	if weight.strides[2] != 1 && weight.strides[1] != 1 || weight.strides[0] < out*weight.shape[2] {
		weight = weight.Contiguous()
	}
	y := result(op, dtype, []int{x.shape[0], out}, operands...)
	rows := x.shape[0]
	verify(op, operands, func(f device.Fault) string {
		return fmt.Sprintf("the count %d of group %d is negative, or more than are left of the %d rows", f.Value, f.Position, rows)
	}, func(c *device.Check) {
		fused(device.GroupedProduct{Check: c}, y, x, weight.detach().Transpose(1, 2), bias, counts)
	})
	return y.record(op, []*Tensor{x, weight, bias}, []*Tensor{x, weight, counts}, func(b *backprop, g *Tensor) {
		g = g.Contiguous()
		if b.needs(0) {
			b.give(0, b.groupedProduct(g, weight.Transpose(1, 2), counts, x.dtype))
		}
		if b.needs(1) {
			b.later(1, []*Tensor{x, g, counts}, func(b *backprop, to int) {
				if dst, beta, ok := b.directTo(to); ok {
					fused(device.GroupedWeightGrad{Beta: beta}, dst, g, x, counts)
				} else {
					b.giveTo(to, groupedOuter(g, x, counts, weight.dtype))
				}
			})
		}
		if bias != nil && b.needs(2) {
			b.give(2, groupSums(g, counts))
		}
	})
}

// groupedProduct returns the gradient of the rows of a [GroupedLinear] in a dtype.
func (b *backprop) groupedProduct(g, weight, counts *Tensor, dtype DType) *Tensor {
	if b.create {
		return GroupedLinear(g, weight, nil, counts)
	}
	out := result("grouped linear", dtype, []int{g.shape[0], weight.shape[1]}, g, weight, counts)
	fused(device.GroupedProduct{}, out, g, weight.detach().Transpose(1, 2), nil, counts)
	return out
}

// groupedOuter returns aᵀ·b of the rows of each group, [groups, m, n]: the gradient of the
// weights of [GroupedLinear].
func groupedOuter(a, b, counts *Tensor, dtype DType) *Tensor {
	const op = "grouped weight grad"
	a, b = a.Contiguous(), b.Contiguous()
	out := result(op, dtype, []int{counts.shape[0], a.shape[1], b.shape[1]}, a, b, counts)
	fused(device.GroupedWeightGrad{}, out, a, b, counts)
	return out.record(op, []*Tensor{a, b}, []*Tensor{a, b, counts}, func(p *backprop, g *Tensor) {
		if p.needs(0) {
			p.give(0, GroupedLinear(b, g, nil, counts))
		}
		if p.needs(1) {
			p.give(1, GroupedLinear(a, g.Transpose(1, 2), nil, counts))
		}
	})
}

// groupSums returns the sum of the rows of each group, float32 [groups, n].
func groupSums(x, counts *Tensor) *Tensor {
	const op = "group sums"
	x = x.Contiguous()
	out := result(op, Float32, []int{counts.shape[0], x.shape[1]}, x, counts)
	fused(device.GroupSums{}, out, x, counts)
	return out.record(op, []*Tensor{x}, []*Tensor{x, counts}, func(b *backprop, g *Tensor) {
		zero := New(x.Device(), Float32, x.shape[0], 1)
		none := New(x.Device(), Float32, counts.shape[0], x.shape[1], 1)
		b.give(0, GroupedLinear(zero, b.tape.Const(none), g, counts)) // each row of a group gets the group's
	})
}
