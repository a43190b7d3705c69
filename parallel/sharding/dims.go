// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/mesh"
)

// onDim makes a shard rule of one that says where the sharded dim of the only
// sharded operand goes, -1 if the operation needs all of the dim.
func onDim(to func(o *operation, dim int) int) func(o *operation) (mesh.Placement, string) {
	return func(o *operation) (mesh.Placement, string) {
		x := o.in[0]
		dim, ok := x.at.IsShard()
		if !ok {
			return whole(o)
		}
		d := to(o, dim)
		if d < 0 {
			return o.needs(0)
		}
		return moved(x.at, d), ""
	}
}

// averaged is a mean, of which the sum has been seen.
func averaged(o *operation) (mesh.Placement, string) {
	if _, isPartial := o.was.IsPartial(); isPartial {
		return o.was, fmt.Sprintf("%s is %v over AXIS, and the mean would be over this rank's part of the dim, whose size may differ from the others': sum, reduce the sum, and divide by the whole size", o.operand(0), o.in[0].at)
	}
	return o.was, ""
}

// perRow treats each row by itself, where a row is the last dim of logits and one
// element of the targets. What is computed of all rows is each rank's own.
func perRow(o *operation) (mesh.Placement, string) {
	switch x := o.in[0]; {
	case len(o.out) == 0:
		return mesh.Varying(), ""
	case slices.Equal(o.out, x.shape):
		return elementwise(o)
	}
	return alike(1)(o)
}

// permuted moves the dim as permute does.
func permuted(o *operation, dim int) int { return o.dims[dim] }

// narrowed needs the dim that is cut.
func narrowed(o *operation, dim int) int {
	if dim == o.dims[0] {
		return -1
	}
	return dim
}

// squeezed moves the dims behind the one that disappears.
func squeezed(o *operation, dim int) int {
	switch {
	case dim == o.dims[0]:
		return -1
	case dim > o.dims[0]:
		return dim - 1
	}
	return dim
}

// unsqueezed moves the dims behind the new one.
func unsqueezed(o *operation, dim int) int {
	if dim >= o.dims[0] {
		return dim + 1
	}
	return dim
}

// expanded aligns the last dims. A sharded dim is not repeated.
func expanded(o *operation, dim int) int {
	d := dim + len(o.out) - len(o.in[0].shape)
	if o.out[d] != o.in[0].shape[dim] {
		return -1
	}
	return d
}

// diagonally needs the two dims that disappear.
func diagonally(o *operation, dim int) int {
	if slices.Contains(o.dims, dim) {
		return -1
	}
	d := dim
	for _, gone := range o.dims {
		if gone < dim {
			d--
		}
	}
	return d
}

// reduced keeps a dim that is not reduced. The sum over the parts of a dim is
// partial.
func reduced(isSum bool) func(o *operation) (mesh.Placement, string) {
	return func(o *operation) (mesh.Placement, string) {
		x := o.in[0]
		dim, _ := x.at.IsShard()
		switch {
		case len(o.out) != len(x.shape):
			return o.needs(0)
		case x.shape[dim] == 1:
			return x.at, fmt.Sprintf("%s is %v over AXIS and has one element in that dim on this rank, so that a reduction over the dim cannot be told from one over others: gather it first", o.operand(0), x.at)
		case o.out[dim] != 1:
			return x.at, ""
		case isSum:
			return sum, ""
		}
		return o.needs(0)
	}
}

// reshaped follows a sharded dim through a reshape. Dims of operand and result are
// taken together until the products of their sizes agree. In such a run the axis cuts
// after a number of pieces, which both have.
func reshaped(o *operation) (mesh.Placement, string) {
	x := o.in[0]
	dim, _ := x.at.IsShard()
	from, to := x.shape, o.out
	if len(from) == 3 && len(to) == 2 && dim == 1 && from[1] == 1 && from[2] == to[1] {
		// Tokens, of which this rank has one of each sample, and not heads: those have four dims.
		return mesh.StridedShard(0, from[0]*x.at.NumPieces()), ""
	}
	if len(from) == 4 && len(to) == 2 && dim == 2 && from[2] == 1 && from[3] == to[1] {
		// Rows of heads, of which this rank has one, for a norm of their channels.
		return mesh.StridedShard(0, from[0]*from[1]*x.at.NumPieces()), ""
	}
	i, j := 0, 0
	for i < len(from) {
		iStart, jStart := i, j
		p, q := from[i], 1
		i++
		if j < len(to) {
			q = to[j]
			j++
		}
		for p != q && (i < len(from) || j < len(to)) {
			if p < q && i < len(from) || j == len(to) {
				p *= from[i]
				i++
			} else {
				q *= to[j]
				j++
			}
		}
		if dim >= iStart && dim < i {
			for numPieces := product(from[iStart:dim]) * x.at.NumPieces(); j < len(to) && to[j] == 1 && product(to[jStart:j]) <= numPieces; j++ {
				// The part of the dim that is cut may be one element.
			}
			return o.cutAfter(product(from[iStart:dim])*x.at.NumPieces(), jStart, j)
		}
	}
	return o.needs(0)
}

// cutAfter returns the placement of a result that an axis cuts after a number of
// pieces of its dims from first to before end. Before dims of one element it is a guess,
// which sameButOnes takes back.
func (o *operation) cutAfter(numPieces, first, end int) (mesh.Placement, string) {
	before := 1
	for k := first; k < end; k++ {
		size := o.out[k]
		if before == numPieces {
			return mesh.Shard(k), ""
		}
		if before < numPieces && numPieces < before*size && numPieces%before == 0 {
			return mesh.StridedShard(k, numPieces/before), ""
		}
		before *= size
	}
	return o.needs(0)
}

// sameButOnes reports whether two shards of a value differ only by dims of which this rank has one
// element: after a reshape nobody can tell which of them is cut. [1 3 16] may be one of two
// samples, or three of six tokens.
func sameButOnes(shape []int, p, q mesh.Placement) bool {
	a, isShard := p.IsShard()
	b, isToo := q.IsShard()
	if !isShard || !isToo || p.NumPieces() != 1 || q.NumPieces() != 1 {
		return false
	}
	for d := min(a, b); d < max(a, b); d++ {
		if shape[d] != 1 {
			return false
		}
	}
	return true
}

// joined is cat: all operands are sharded alike, along another dim.
func joined(o *operation) (mesh.Placement, string) {
	for i, in := range o.in {
		if in.at != o.in[0].at {
			return in.at, o.differ(0, i, "redistribute one of them")
		}
	}
	dim, _ := o.in[0].at.IsShard()
	if o.out[dim] != o.in[0].shape[dim] {
		return o.needs(0)
	}
	return o.in[0].at, ""
}

// gathered is gather along a dim: both operands are sharded alike, along another.
func gathered(o *operation) (mesh.Placement, string) {
	t, ids := o.in[0], o.in[1]
	if t.at != ids.at {
		return t.at, o.differ(0, 1, "redistribute one of them")
	}
	dim, _ := t.at.IsShard()
	if t.shape[dim] != ids.shape[dim] || slices.Equal(t.shape, ids.shape) {
		return o.needs(0)
	}
	return t.at, ""
}

// multiplied is a matrix product.
func multiplied(o *operation) (mesh.Placement, string) {
	t, u := o.in[0], o.in[1]
	n := len(o.out)
	td, tok := t.at.IsShard()
	ud, uok := u.at.IsShard()
	td, ud = td+n-len(t.shape), ud+n-len(u.shape) // dims of the result, or that of the sum
	switch {
	case tok && uok && td == n-1 && ud == n-2:
		return sum, ""
	case tok && !uok && td == n-2:
		return moved(t.at, td), ""
	case uok && !tok && ud == n-1:
		return moved(u.at, ud), ""
	case tok && td < n-2 || uok && ud < n-2:
		return elementwise(o)
	case tok && uok:
		return t.at, o.differ(0, 1, "redistribute one of them")
	case tok:
		return o.needs(0)
	}
	return o.needs(1)
}

// projected is a linear layer whose weight has its outputs and inputs in these
// dims.
func projected(outputs, inputs int) func(o *operation) (mesh.Placement, string) {
	return func(o *operation) (mesh.Placement, string) {
		x, w, bias := o.in[0], o.in[1], o.in[2]
		xd, xok := x.at.IsShard()
		wd, wok := w.at.IsShard()
		_, biasok := bias.at.IsShard()
		last := len(x.shape) - 1
		switch {
		case xok && !wok && xd < last:
			if bias.present && !bias.at.IsReplicate() {
				return x.at, o.differ(0, 2, "each rank adds the whole bias to its rows")
			}
			return o.rows(0), ""
		case wok && !xok && wd == outputs:
			if bias.present && !biasok {
				return w.at, o.differ(1, 2, "shard the bias as the outputs")
			}
			return moved(w.at, len(o.out)-1), ""
		case xok && wok && xd == last && wd == inputs:
			if bias.present && !isSum(bias.at) {
				return sum, o.differ(1, 2, "reduce the product first, and add the bias then")
			}
			return sum, ""
		case xok && wok:
			return x.at, o.differ(0, 1, "redistribute one of them")
		case xok:
			return o.needs(0)
		case wok:
			return o.needs(1)
		}
		return o.needs(2)
	}
}

// grouped is a linear layer of rows in groups: x [rows, in], weight [groups, out, in],
// bias [groups, out], and the number of rows of each group.
func grouped(o *operation) (mesh.Placement, string) {
	x, w, bias, counts := o.in[0], o.in[1], o.in[2], o.in[3]
	xd, xok := x.at.IsShard()
	wd, wok := w.at.IsShard()
	bd, biasok := bias.at.IsShard()
	switch {
	case !counts.at.IsReplicate():
		return o.needs(3)
	case wok && !xok && wd == 1:
		if bias.present && !(biasok && bd == 1) {
			return w.at, o.differ(1, 2, "shard the bias as the outputs")
		}
		return w.at, ""
	case xok && wok && xd == 1 && wd == 2:
		if bias.present && !isSum(bias.at) {
			return sum, o.differ(1, 2, "reduce the product first, and add the bias then")
		}
		return sum, ""
	case xok:
		return o.needs(0)
	case wok:
		return o.needs(1)
	}
	return o.needs(2)
}

// placed moves rows to places, or adds them up: x [rows, width] may be sharded along the
// width.
func placed(o *operation) (mesh.Placement, string) {
	if dim, ok := o.in[0].at.IsShard(); !ok || dim != 1 {
		return whole(o)
	}
	for i, in := range o.in[1:] {
		if in.present && !in.at.IsReplicate() {
			return in.at, o.differ(0, i+1, "gather the second first")
		}
	}
	return o.in[0].at, ""
}

func isSum(p mesh.Placement) bool { return p == sum }

// convolved is a convolution: images [batch, in, …], weight [out, in, …].
func convolved(o *operation) (mesh.Placement, string) {
	x, w, bias := o.in[0], o.in[1], o.in[2]
	xd, xok := x.at.IsShard()
	wd, wok := w.at.IsShard()
	_, biasok := bias.at.IsShard()
	switch {
	case xok && !wok && xd == 0 && bias.at.IsReplicate():
		return x.at, ""
	case wok && !xok && wd == 0 && (biasok || !bias.present):
		return moved(w.at, 1), ""
	case xok && wok && xd == 1 && wd == 1 && (!bias.present || isSum(bias.at)):
		return sum, ""
	}
	return whole(o)
}

// looked is a look-up of rows: a table [rows, width] and ids.
func looked(o *operation) (mesh.Placement, string) {
	table, ids := o.in[0], o.in[1]
	td, tok := table.at.IsShard()
	_, iok := ids.at.IsShard()
	switch {
	case tok && iok:
		return table.at, o.differ(0, 1, "redistribute one of them")
	case iok:
		return o.rows(1), ""
	case td == 1:
		return moved(table.at, len(o.out)-1), ""
	}
	return o.needs(0)
}

// attended is attention: q, k and v [batch, time, heads, dim] are sharded alike, by
// samples or heads. The second result has its heads in dim 1.
func attended(o *operation) (mesh.Placement, string) {
	q := o.in[0]
	dim, ok := q.at.IsShard()
	for i := 1; i < 3; i++ {
		if o.in[i].at != q.at {
			return q.at, o.differ(0, i, "redistribute one of them")
		}
	}
	if !ok {
		return whole(o)
	}
	if dim != 0 && dim != 2 {
		return o.needs(0)
	}
	of := map[int]int{0: 0, 2: 1}[dim] // of the mask, which is seen expanded: one of all heads would not fit
	if len(o.out) == 3 {
		return moved(q.at, of), ""
	}
	return q.at, ""
}
