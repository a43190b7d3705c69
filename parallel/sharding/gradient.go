// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// Backward implements [tensor.Observer]: it computes what each gradient owes, and
// fails for one that the strategy does not pay off.
func (p *Pass) Backward(losses []*tensor.Tensor) {
	if p.checked {
		return
	}
	for _, loss := range losses {
		switch v := p.valueOf(loss); {
		case v == nil:
		case v.comes:
			v.grad, v.gradFrom = p.GradOf(v.at), "the stage that reads it"
		default:
			v.grad, v.gradFrom = p.ofLoss(loss, v.at), "the loss"
		}
	}
	for _, f := range slices.Backward(p.flows) {
		if f.out.grad != nil {
			p.flow(f)
		}
	}
	for _, v := range p.came {
		for i, want := range v.goes {
			if v.grad != nil && v.grad[i] != want {
				fail("gradient of a stage's input", p.axes[i].Name, nil, "it is %v over axis %q (from %s), and goes to a stage that takes %v: %s",
					v.grad[i], p.axes[i].Name, v.gradFrom, want, advice(v.grad[i]))
			}
		}
	}
	p.checked = true
	p.flows, p.params, p.came = nil, nil, nil // the pass goes on without it
}

// ofLoss returns the type of the gradient of the loss with respect to itself.
func (p *Pass) ofLoss(loss *tensor.Tensor, at Type) Type {
	grad := make(Type, len(at))
	for i, a := range p.axes {
		_, isPartial := at[i].IsPartial()
		switch {
		case isPartial:
			fail("backward", a.Name, []*tensor.Tensor{loss}, "the loss is %v over axis %q: reduce it first", at[i], a.Name)
		case a.Data && at[i].IsReplicate():
			grad[i] = sum // this rank's share of it
		case !a.Data && !at[i].IsReplicate():
			fail("backward", a.Name, []*tensor.Tensor{loss}, "the loss is %v over axis %q, whose ranks have the same samples: it must be Replicate there", at[i], a.Name)
		default:
			grad[i] = at[i]
		}
	}
	return grad
}

// flow takes the gradient of a result to the operands.
func (p *Pass) flow(f flow) {
	grad := f.out.grad
	var gives Type
	if b := f.out.given; b != nil {
		for i, want := range b.GradTakes {
			if grad[i] != want {
				fail(f.op, p.axes[i].Name, nil, "its wrapper takes a gradient that is %v over axis %q, and got %v from %s", want, p.axes[i].Name, grad[i], f.out.gradFrom)
			}
		}
		gives = b.GradGives
	}
	for _, in := range f.in {
		if in == nil {
			continue
		}
		g := slices.Clone(gives)
		if g == nil {
			g = make(Type, len(p.axes))
			for i := range p.axes {
				g[i] = back(in.at[i], f.out.at[i], grad[i])
			}
		}
		p.give(in, f.op, g)
	}
}

// back returns the placement of an operand's gradient, from those of the operand,
// of the result and of the result's gradient.
func back(operand, result, grad mesh.Placement) mesh.Placement {
	_, isPartial := operand.IsPartial()
	switch {
	case isPartial:
		return grad // each rank's part has the gradient of the whole
	case !operand.IsReplicate():
		return operand
	case result.IsReplicate():
		return grad
	}
	return sum // this rank's part
}

// give adds to the gradient of a value.
func (p *Pass) give(v *value, from string, g Type) {
	if v.grad == nil {
		v.grad, v.gradFrom = g, from
	}
	for i, at := range g {
		if at != v.grad[i] {
			name := "a value"
			if v.param != nil {
				name = v.param.Name
			}
			fail("gradient of "+name, p.axes[i].Name, nil, "over axis %q the part from %s is %v and that from %s is %v: reduce the partial one where it is made",
				p.axes[i].Name, v.gradFrom, v.grad[i], from, at)
		}
	}
	if v.param != nil {
		p.leaf(v, from)
	}
}

// leaf checks the gradient of a parameter against what its strategy takes.
func (p *Pass) leaf(v *value, from string) {
	name := v.param.Name
	if old := p.owed[name]; old != nil && !slices.Equal(old, v.grad) {
		i := slices.IndexFunc(p.axes, func(Axis) bool { return true })
		for i = range old {
			if old[i] != v.grad[i] {
				break
			}
		}
		fail("gradient of "+name, p.axes[i].Name, nil, "over axis %q one use of it gives %v and another %v: reduce the partial one where it is made",
			p.axes[i].Name, old[i], v.grad[i])
	}
	p.owed[name] = v.grad
	for i, want := range v.param.Gradient {
		if v.grad[i] != want {
			fail("gradient of "+name, p.axes[i].Name, nil, "it is %v over axis %q (from %s), and the strategy takes %v: %s",
				v.grad[i], p.axes[i].Name, from, want, advice(v.grad[i]))
		}
	}
}

// advice says what to do about a gradient that a strategy does not take.
func advice(have mesh.Placement) string {
	if _, isPartial := have.IsPartial(); isPartial {
		return "reduce it where the module needs the parameter's whole gradient, or let the strategy sum it"
	}
	return fmt.Sprintf("a sum would count it once for each rank; keep it %v", have)
}
