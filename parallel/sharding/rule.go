// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// operation is one operation on one axis of the mesh. Shapes are those of this rank.
type operation struct {
	name string
	out  []int
	in   []operand // by position; an absent one has no shape
	dims []int
	was  mesh.Placement // of a result that was seen as that of a part of the operation
}

// operand is an operand on one axis.
type operand struct {
	present bool
	shape   []int
	at      mesh.Placement
	label   string // the name of a parameter, "" for none
}

// reset makes o the operation, before its operands have placements.
func (o *operation) reset(op tensor.Operation) {
	o.name, o.out, o.dims, o.in = op.Name, op.Out.Shape(), op.Dims, o.in[:0]
	for _, t := range op.Operands {
		if t == nil {
			o.in = append(o.in, operand{})
			continue
		}
		o.in = append(o.in, operand{present: true, shape: t.Shape(), label: t.Name()})
	}
}

// place takes the placements of the operands on one axis.
func (o *operation) place(types []Type, axis int) {
	for i := range o.in {
		if o.in[i].present {
			o.in[i].at = types[i][axis]
		}
	}
}

// rule says what an operation makes of operands that are not whole. What it makes
// of replicated and varying ones is the same for all operations.
type rule struct {
	// partial returns what is wrong with the partial operands, "" if the operation
	// keeps them partial.
	partial func(o *operation) (problem string)
	// moves says that the operation computes nothing, so that it keeps partial values
	// of every reduction. Others keep sums and averages.
	moves bool
	// shard returns the placement of the result of sharded operands.
	shard func(o *operation) (at mesh.Placement, problem string)
	// biased says that the third operand is added to what the first two make.
	biased bool
	// constant says that the result depends on the shape of the operand alone.
	constant bool
}

// unknown is the rule of an operation that package tensor does not have.
var unknown = rule{partial: notLinear, shard: whole}

// result returns the placement of the result on the present axis, and what is wrong,
// "" if nothing. The word AXIS stands for the axis.
func (o *operation) result() (at mesh.Placement, problem string) {
	r, known := rules[o.name]
	if !known {
		r = unknown
	}
	if r.constant {
		return mesh.Replicate(), ""
	}
	partial, shard, varying := -1, -1, -1
	for i, in := range o.in {
		if !in.present {
			continue
		}
		if _, ok := in.at.IsPartial(); ok && partial < 0 {
			partial = i
		}
		if _, ok := in.at.IsShard(); ok && shard < 0 {
			shard = i
		}
		if in.at.IsVarying() && varying < 0 {
			varying = i
		}
	}
	switch {
	case partial == 2 && shard >= 0 && r.biased:
		return r.shard(o)
	case partial >= 0:
		return o.ofPartial(r, partial)
	case shard >= 0 && varying >= 0:
		return at, o.differ(shard, varying, "gather it first")
	case shard >= 0:
		return r.shard(o)
	case varying >= 0:
		return mesh.Varying(), ""
	}
	return mesh.Replicate(), ""
}

// ofPartial is result with a partial operand.
func (o *operation) ofPartial(r rule, first int) (at mesh.Placement, problem string) {
	at = o.in[first].at
	if op, _ := at.IsPartial(); !r.moves && op != dist.Sum && op != dist.Avg {
		return at, notLinear(o)
	}
	return at, r.partial(o)
}

// isPartial reports whether an operand is present and partial.
func (o *operation) isPartial(i int) bool {
	_, ok := o.in[i].at.IsPartial()
	return o.in[i].present && ok
}

// operand names an operand in a message.
func (o *operation) operand(i int) string {
	s := o.ordinal(i) + " operand"
	if o.in[i].label != "" {
		s += " (" + o.in[i].label + ")"
	}
	return s
}

func (o *operation) ordinal(i int) string {
	if len(o.in) == 1 {
		return "the only"
	}
	if names := []string{"the first", "the second", "the third", "the fourth"}; i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("number %d", i+1)
}

// differ says that two operands do not fit together.
func (o *operation) differ(i, j int, what string) string {
	second := o.ordinal(j)
	if o.in[j].label != "" {
		second += " (" + o.in[j].label + ")"
	}
	return fmt.Sprintf("%s is %v over AXIS, %s %v: %s", o.operand(i), o.in[i].at, second, o.in[j].at, what)
}

// notLinear refuses partial operands.
func notLinear(o *operation) string {
	for i := range o.in {
		if o.isPartial(i) {
			return fmt.Sprintf("%s is %v over AXIS, and the operation is not linear: reduce it first", o.operand(i), o.in[i].at)
		}
	}
	return ""
}

// addsOnce refuses a partial operand to which every rank would add the same.
func addsOnce(o *operation) string {
	return fmt.Sprintf("%s is %v over AXIS, and each rank would add the number once: reduce it first", o.operand(0), o.in[0].at)
}

// linearIn keeps one operand partial. The others must be replicated.
func linearIn(i int) func(o *operation) string {
	return func(o *operation) string {
		if !o.isPartial(i) {
			return notLinear(o)
		}
		for j := range o.in {
			if j != i && o.in[j].present && !o.in[j].at.IsReplicate() {
				return o.differ(i, j, "reduce it first")
			}
		}
		return ""
	}
}

// additive keeps the named operands partial together: all of them are, by one
// operation. The others must be replicated.
func additive(which ...int) func(o *operation) string {
	return func(o *operation) string {
		first := slices.IndexFunc(which, o.isPartial)
		if first < 0 {
			return notLinear(o)
		}
		first = which[first]
		for j := range o.in {
			summand := slices.Contains(which, j)
			if !o.in[j].present || summand && o.in[j].at == o.in[first].at || !summand && o.in[j].at.IsReplicate() {
				continue
			}
			if j < first {
				return o.differ(j, first, "reduce the second first")
			}
			return o.differ(first, j, "reduce it first")
		}
		return ""
	}
}

// allAdditive is additive of all operands.
func allAdditive(o *operation) string {
	which := make([]int, len(o.in))
	for i := range which {
		which[i] = i
	}
	return additive(which...)(o)
}

// bilinear keeps a partial first or second operand beside a replicated other one. A
// third one is added to the product, so it must be partial too.
func bilinear(o *operation) string {
	i, j := 0, 1
	if !o.isPartial(i) {
		i, j = 1, 0
	}
	if !o.isPartial(i) {
		return notLinear(o) // the bias alone
	}
	if !o.in[j].at.IsReplicate() {
		return o.differ(i, j, "reduce it first")
	}
	if len(o.in) > 2 && o.in[2].present && o.in[2].at != o.in[i].at {
		return o.differ(i, 2, "reduce the product first, and add the bias then")
	}
	return ""
}

// whole refuses shards.
func whole(o *operation) (mesh.Placement, string) {
	for i, in := range o.in {
		if _, ok := in.at.IsShard(); in.present && ok {
			return in.at, fmt.Sprintf("%s is %v over AXIS, and the operation needs all of it: gather it first", o.operand(i), in.at)
		}
	}
	return mesh.Replicate(), ""
}

// needs refuses an operation on the shards of a dim that it needs whole.
func (o *operation) needs(i int) (mesh.Placement, string) {
	dim, _ := o.in[i].at.IsShard()
	return o.in[i].at, fmt.Sprintf("%s is %v over AXIS, and the operation needs all of dim %d: gather it first", o.operand(i), o.in[i].at, dim)
}

// moved returns a shard's placement with another dim.
func moved(p mesh.Placement, dim int) mesh.Placement { return mesh.StridedShard(dim, p.NumPieces()) }

// elementwise keeps the sharded dim of operands that are broadcast together.
func elementwise(o *operation) (mesh.Placement, string) {
	first, at := -1, mesh.Placement{}
	for i, in := range o.in {
		dim, ok := in.at.IsShard()
		if !ok || !in.present {
			continue
		}
		p := moved(in.at, dim+len(o.out)-len(in.shape))
		switch {
		case first < 0:
			first, at = i, p
		case p == at:
		case !sameButOnes(o.out, p, at):
			return p, o.differ(first, i, "redistribute one of them")
		default:
			if d, _ := at.IsShard(); dim+len(o.out)-len(in.shape) > d {
				at = p
			}
		}
	}
	dim, _ := at.IsShard()
	for i, in := range o.in {
		if !in.present || in.at == o.in[first].at {
			continue
		}
		if own := dim - len(o.out) + len(in.shape); in.at.IsReplicate() && own >= 0 && in.shape[own] != 1 {
			return at, o.differ(first, i, "take this rank's part of the other, or gather the shard")
		}
	}
	return at, ""
}

// alike keeps the dim of the only sharded operand, or of several that are sharded
// alike. Replicated ones are small parameters of the operation. It needs the dims
// from -numWhole on whole.
func alike(numWhole int) func(o *operation) (mesh.Placement, string) {
	return func(o *operation) (mesh.Placement, string) {
		x := o.in[0]
		dim, ok := x.at.IsShard()
		if !ok {
			return whole(o)
		}
		for i, in := range o.in[1:] {
			if _, ok := in.at.IsShard(); in.present && ok && in.at != x.at {
				return x.at, o.differ(0, i+1, "redistribute one of them")
			}
		}
		if dim >= len(x.shape)-numWhole {
			return o.needs(0)
		}
		return o.rows(0), ""
	}
}

// rows returns the placement of a result whose leading dims are those of operand
// i, or one that holds all of them.
func (o *operation) rows(i int) mesh.Placement {
	x := o.in[i]
	dim, _ := x.at.IsShard()
	if dim == 0 || dim < len(o.out) && slices.Equal(x.shape[:dim+1], o.out[:dim+1]) {
		return x.at
	}
	return mesh.StridedShard(0, product(x.shape[:dim])*x.at.NumPieces())
}

func product(sizes []int) int {
	n := 1
	for _, s := range sizes {
		n *= s
	}
	return n
}
