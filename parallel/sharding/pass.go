// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// Axis is an axis of the mesh as a pass sees it.
type Axis struct {
	Name string
	// Data says that each rank of the axis has samples of its own. Otherwise the
	// ranks of the axis compute parts of the same samples.
	Data bool
}

// unknown returns the placement of a value of which nothing is known.
func (a Axis) unknown() mesh.Placement {
	if a.Data {
		return mesh.Varying()
	}
	return mesh.Replicate()
}

// Type has a placement for each axis, in the order of the axes.
type Type []mesh.Placement

// Uniform returns the type with one placement on all axes.
func Uniform(axes []Axis, p mesh.Placement) Type {
	return slices.Repeat(Type{p}, len(axes))
}

// Parameter says how a parameter lies where the model reads it, and what the
// strategy does with its gradient.
type Parameter struct {
	Name string
	// Value is the type of what the model reads.
	Value Type
	// Gradient is what the strategy takes the gradient for: Partial(sum) where it
	// sums over the axis, Replicate where it leaves the gradient alone. Nil for a
	// frozen parameter.
	Gradient Type
}

// Pass has the types of the values of one pass. It is the observer of the tape. A
// nil Pass checks nothing, so that wrappers need not ask whether a pass is checked.
type Pass struct {
	axes    []Axis
	params  map[*tensor.Tensor]*Parameter // by what the model reads
	owed    map[string]Type               // of the gradients, by name
	flows   []flow
	came    []*value           // from other ranks
	refused map[string]refusal // operations
	checked bool               // Backward has been called
	op      operation
}

// value is what a Pass knows of a tensor.
type value struct {
	pass *Pass
	at   Type
	// needs says that a gradient flows into it.
	needs bool
	param *Parameter
	given *Boundary // by the wrapper that made it
	// grad is the type of its gradient, nil while none has come.
	grad     Type
	gradFrom string // the operation that the first part of it came from
	// comes says that the gradient of the value comes from another rank, as a backward pass begins.
	comes bool
	// goes is what the gradient must be that goes to another rank; nil for others.
	goes Type
}

// flow is one step that gradients take.
type flow struct {
	op  string
	out *value
	in  []*value // nil for those without gradient
}

// Begin makes a Pass for the mesh of the axes the observer of a tape. If the tape
// has a Pass for the same axes already, Begin returns that. If the tape has any other
// observer, Begin returns nil: the strategy checks another pass.
func Begin(tape *tensor.Tape, axes ...Axis) *Pass {
	switch o := tape.Observer().(type) {
	case nil:
	case *Pass:
		if slices.Equal(o.axes, axes) {
			return o
		}
		return nil
	default:
		return nil
	}
	p := &Pass{axes: axes, params: map[*tensor.Tensor]*Parameter{}, owed: map[string]Type{}}
	tape.Observe(p)
	return p
}

// Of returns the Pass that checks a tape, nil for none.
func Of(tape *tensor.Tape) *Pass {
	if tape == nil {
		return nil
	}
	p, _ := tape.Observer().(*Pass)
	return p
}

// Param says that t, under no tape, stands for a parameter in the pass. What the
// tape watches of it has the parameter's type.
func (p *Pass) Param(t *tensor.Tensor, param Parameter) {
	if p == nil {
		return
	}
	p.wantAxes("parameter "+param.Name, param.Value)
	if param.Gradient != nil {
		p.wantAxes("gradient of "+param.Name, param.Gradient)
	}
	p.params[t] = &param
}

// refusal is why an operation is an error.
type refusal struct{ axis, why string }

// Refuse makes operations, by the names in messages, errors in the pass: they would see only a
// part of what they need over an axis, and types do not tell. A strategy that cuts a dim of the
// samples refuses what mixes its elements, but for its own modules: see [Pass.Allow].
func (p *Pass) Refuse(axis, why string, operations ...string) {
	if p == nil {
		return
	}
	if p.refused == nil {
		p.refused = map[string]refusal{}
	}
	for _, name := range operations {
		p.refused[name] = refusal{axis, why}
	}
}

// Allow runs fn, in which nothing is refused.
func (p *Pass) Allow(fn func()) {
	if p == nil {
		fn()
		return
	}
	refused := p.refused
	p.refused = nil
	defer func() { p.refused = refused }()
	fn()
}

// Owes returns what the gradient of a parameter owes on this rank, before the
// strategy pays: nil for one that gets no gradient in the pass. It is known once the
// backward pass has begun.
func (p *Pass) Owes(name string) Type {
	if p == nil {
		return nil
	}
	return p.owed[name]
}

// Checked reports whether a backward pass has begun, and with it whether all of the
// forward pass was checked.
func (p *Pass) Checked() bool { return p != nil && p.checked }

// Axes returns the axes, in the order of the placements of each type.
func (p *Pass) Axes() []Axis {
	if p == nil {
		return nil
	}
	return slices.Clone(p.axes)
}

// Boundary is what a wrapper says of a value that it hands on.
type Boundary struct {
	// Type is that of the value.
	Type Type
	// GradTakes is what the gradient of the value must be when it comes back to the
	// wrapper, and GradGives what the wrapper makes of it for its inputs. Nil is
	// what follows from the types of the values.
	GradTakes, GradGives Type
}

// Take fails unless x has the type that a wrapper takes. who is the wrapper in the
// error: "column parallel linear".
func (p *Pass) Take(who string, x *tensor.Tensor, want Type) {
	if p == nil || p.checked {
		return
	}
	p.wantAxes(who, want)
	for i, at := range p.typeOf(x) {
		if at == want[i] {
			continue
		}
		if v := p.valueOf(x); v != nil && sameButOnes(x.Shape(), at, want[i]) {
			v.at = slices.Clone(v.at) // the wrapper knows better
			v.at[i] = want[i]
		} else {
			fail(who, p.axes[i].Name, []*tensor.Tensor{x}, "it takes %v over axis %q, and got %v", want[i], p.axes[i].Name, at)
		}
	}
}

// Give says what a wrapper gives: x has a type, whatever it was computed from. The
// wrapper calls it before tensor.Record with x as the result, or after the module
// whose result x is.
func (p *Pass) Give(x *tensor.Tensor, b Boundary) {
	if p == nil || p.checked {
		return
	}
	p.wantAxes("what a wrapper gives", b.Type)
	v := &value{pass: p, at: slices.Clone(b.Type), given: &b}
	if old := p.valueOf(x); old != nil {
		v.needs = old.needs
		if old.needs {
			p.flows = append(p.flows, flow{"boundary", v, []*value{old}})
		}
	}
	x.SetNote(&tensor.Note{Value: v})
}

// GradOf returns the type of the gradient of a value of a type where no wrapper says another: of
// a value that is replicated over samples it is a part of a sum, and of a part of a sum it is whole.
func (p *Pass) GradOf(at Type) Type {
	grad := slices.Clone(at)
	for i, a := range p.axes {
		_, isPartial := at[i].IsPartial()
		switch {
		case isPartial:
			grad[i] = mesh.Replicate()
		case a.Data && at[i].IsReplicate():
			grad[i] = sum
		}
	}
	return grad
}

// Came says that x, a leaf of the pass, has come from another rank with its type, as between the
// stages of a pipeline. Its gradient goes back there, and must be [Pass.GradOf] the type.
func (p *Pass) Came(x *tensor.Tensor, at Type) {
	if p == nil || p.checked {
		return
	}
	p.wantAxes("what comes from another rank", at)
	v := &value{pass: p, at: slices.Clone(at), needs: x.NeedsGrad()}
	if v.given = (&Boundary{Type: v.at}); v.needs {
		v.goes = p.GradOf(at)
		p.came = append(p.came, v)
	}
	x.SetNote(&tensor.Note{Value: v})
}

// Went says that x has gone to another rank, from which its gradient comes: a backward pass begins
// from it.
func (p *Pass) Went(x *tensor.Tensor) {
	if p == nil || p.checked {
		return
	}
	if v := p.valueOf(x); v != nil {
		v.comes = true
	}
}

// TypeOf returns the type of a value in the pass, nil if the pass is not checked.
func (p *Pass) TypeOf(x *tensor.Tensor) Type {
	if p == nil {
		return nil
	}
	return slices.Clone(p.typeOf(x))
}

// wantAxes panics for a type of another mesh, which is a mistake in the strategy.
func (p *Pass) wantAxes(what string, t Type) {
	if len(t) != len(p.axes) {
		panic(fmt.Sprintf("sharding: %s: %d placements for the %d axes of the mesh", what, len(t), len(p.axes)))
	}
}

// valueOf returns what is known of a tensor, nil for nothing.
func (p *Pass) valueOf(t *tensor.Tensor) *value {
	if n := t.Note(); n != nil {
		if v, ok := n.Value.(*value); ok && v.pass == p {
			return v
		}
	}
	return nil
}

// typeOf returns the type of a tensor: of an unknown one, what the axes say.
func (p *Pass) typeOf(t *tensor.Tensor) Type {
	if v := p.valueOf(t); v != nil {
		return v.at
	}
	if param := p.params[t]; param != nil {
		return param.Value
	}
	at := make(Type, len(p.axes))
	for i, a := range p.axes {
		at[i] = a.unknown()
	}
	return at
}

// Watched implements [tensor.Observer].
func (p *Pass) Watched(out, from *tensor.Tensor, leaf tensor.Leaf) {
	param := p.params[from]
	if param == nil || p.checked {
		return // a constant; what is known of from, out has with its note
	}
	out.SetNote(&tensor.Note{Value: &value{pass: p, at: param.Value, needs: leaf != nil, param: param}})
}

// Computed implements [tensor.Observer]: it gives the result its type.
func (p *Pass) Computed(op tensor.Operation) {
	if p.checked || !op.Out.Tape().Recording() {
		return // gradients, and the second run of what was checked in its first
	}
	if r, found := p.refused[op.Name]; found {
		fail(op.Name, r.axis, op.Operands, "%s", r.why)
	}
	v := p.valueOf(op.Out)
	if v != nil && v.given != nil {
		return // a wrapper has said so
	}
	if len(op.Operands) == 1 && op.Operands[0] != nil && v != nil && v == p.valueOf(op.Operands[0]) {
		v = &value{pass: p, at: v.at} // a wrapper hands its operand on
		op.Out.SetNote(&tensor.Note{Value: v})
		return
	}
	types := make([]Type, len(op.Operands))
	for i, t := range op.Operands {
		if t != nil {
			types[i] = p.typeOf(t)
		}
	}
	o := &p.op
	o.reset(op)
	at := make(Type, len(p.axes))
	for a := range p.axes {
		o.place(types, a)
		if v != nil {
			o.was = v.at[a]
		}
		var problem string
		if at[a], problem = o.result(); problem != "" {
			fail(op.Name, p.axes[a].Name, op.Operands, "%s", strings.ReplaceAll(problem, "AXIS", fmt.Sprintf("axis %q", p.axes[a].Name)))
		}
	}
	if v != nil {
		v.at = at // the operation is made of others, of which this is the result
		return
	}
	op.Out.SetNote(&tensor.Note{Value: &value{pass: p, at: at}})
}

// Recorded implements [tensor.Observer].
func (p *Pass) Recorded(op string, out *tensor.Tensor, inputs []*tensor.Tensor) {
	v := p.valueOf(out)
	if p.checked || v == nil {
		return
	}
	f := flow{op: op, out: v, in: make([]*value, len(inputs))}
	for i, t := range inputs {
		if t == nil {
			continue
		}
		if in := p.valueOf(t); in != nil && in.needs && in != v {
			f.in[i] = in
			v.needs = true
		}
	}
	if v.needs {
		p.flows = append(p.flows, f)
	}
}

// Error is a value whose type an operation, a wrapper or a strategy cannot take.
type Error struct {
	Op   string // the operation or the wrapper
	Axis string
	Err  *tensor.Error // what is wrong, with the shapes and the line
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the failure, by which nn.Ctx.Recover adds the module's name.
func (e *Error) Unwrap() error { return e.Err }

// fail ends the operation.
func fail(op, axis string, operands []*tensor.Tensor, format string, args ...any) {
	panic(&Error{Op: op, Axis: axis, Err: tensor.NewError(op, operands, format, args...)})
}

// sum is what gradients owe.
var sum = mesh.Partial(dist.Sum)
