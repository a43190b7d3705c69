// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// shapesPass is what a pass has while it runs for shapes alone: a tape of its own, and
// stand-ins on tensor.Meta for what modules read.
type shapesPass struct {
	tape      *tensor.Tape
	flows     bool // the stand-ins of parameters have gradients
	reads     func(p *Parameter)
	standIns  map[*tensor.Tensor]*tensor.Tensor
	params    map[*Parameter]*tensor.Tensor
	sequences map[*sequence]*sequence
	values    map[*tensor.Tensor]*tensor.Tensor // by their stand-ins
	owners    map[*tensor.Tensor]*Parameter     // by the stand-ins of their values
}

// SetParamShapes says which shape modules read of a parameter while the pass runs for shapes
// alone. It is that of its whole, or of its data, where nothing else is said: a strategy that has
// cut parameters says what its modules read.
func (c *Ctx) SetParamShapes(fn func(p *Parameter) []int) { c.pass.paramShape = fn }

func newShapesPass(recording bool) *shapesPass {
	return &shapesPass{
		tape: tensor.NewTape(recording), flows: recording, standIns: map[*tensor.Tensor]*tensor.Tensor{},
		params: map[*Parameter]*tensor.Tensor{}, sequences: map[*sequence]*sequence{},
		values: map[*tensor.Tensor]*tensor.Tensor{}, owners: map[*tensor.Tensor]*Parameter{},
	}
}

// current returns the tape under which the pass computes now.
func (p *pass) current() *tensor.Tape {
	if p.shapes != nil {
		return p.shapes.tape
	}
	return p.tape
}

// ShapesOnly begins or ends a part of the pass that runs for shapes alone. In it [Ctx.Device]
// is tensor.Meta, and parameters, buffers, positions and documents are stand-ins there, under a
// tape of their own that records nothing. Losses that modules add are dropped. Random numbers
// are passed over as if they were drawn. A pipeline runs the modules of other ranks so. It
// gives them inputs on tensor.Meta.
//
// All carriers of the pass change at once.
func (c *Ctx) ShapesOnly(on bool) {
	p := c.pass
	switch {
	case !on:
		p.shapes = nil
	case p.shapes == nil:
		if p.shapesBefore == nil {
			p.shapesBefore = newShapesPass(false)
			p.shapesBefore.tape.SetAutocast(p.tape.Autocast())
		}
		p.shapes = p.shapesBefore
	}
}

// IsShapesOnly reports whether the pass runs for shapes alone.
func (c *Ctx) IsShapesOnly() bool { return c.pass.shapes != nil }

// ForShapes returns a carrier with the interceptors and settings of c, for a pass of its own that
// runs for shapes alone from beginning to end; see [Ctx.ShapesOnly]. It changes nothing of c.
// Its tape records if that of c does: what gradients flow into is seen from the values. reads is
// called for each parameter that is read, each time; it may be nil. The caller closes the
// carrier.
func (c *Ctx) ForShapes(reads func(p *Parameter)) *Ctx {
	d := *c
	tape := c.pass.tape
	d.pass = &pass{paramShape: c.pass.paramShape, tape: tensor.NewTape(false), leaves: map[*Parameter]*tensor.Tensor{}, shapes: newShapesPass(tape.Recording())}
	d.pass.shapesBefore = d.pass.shapes
	d.pass.shapes.reads = reads
	d.pass.shapes.tape.SetAutocast(tape.Autocast())
	d.cache = c.cache.forShapes()
	if c.generator != nil {
		d.generator = tensor.NewGenerator(0)
	}
	return &d
}

// StandsFor returns what t stands for, which the carrier gave while the pass ran for shapes
// alone: a buffer, positions or documents, or a parameter. Both are nil for another value.
func (c *Ctx) StandsFor(t *tensor.Tensor) (value *tensor.Tensor, p *Parameter) {
	if s := c.pass.shapesBefore; s != nil {
		return s.values[t], s.owners[t]
	}
	return nil, nil
}

// standIn returns the stand-in of a value.
func (s *shapesPass) standIn(t *tensor.Tensor) *tensor.Tensor {
	if t == nil || t.Device() == tensor.Meta && t.Tape() == s.tape {
		return t
	}
	if s.standIns[t] == nil {
		on := t
		if t.Device() != tensor.Meta {
			on = tensor.New(tensor.Meta, t.DType(), t.Shape()...)
			on.SetName(t.Name())
		}
		s.standIns[t] = s.tape.Const(on)
		s.values[s.standIns[t]] = t
	}
	return s.standIns[t]
}

// bare returns the stand-in of a value under no tape.
func (s *shapesPass) bare(t *tensor.Tensor) *tensor.Tensor {
	if t == nil {
		return nil
	}
	m := tensor.New(tensor.Meta, t.DType(), t.Shape()...)
	m.SetName(t.Name())
	s.values[m] = t
	return m
}

// param returns the stand-in of a parameter.
func (s *shapesPass) param(c *Ctx, p *Parameter) *tensor.Tensor {
	if s.reads != nil {
		s.reads(p)
	}
	if s.params[p] == nil {
		shape := p.whole
		if c.pass.paramShape != nil {
			shape = c.pass.paramShape(p)
		} else if shape == nil {
			shape = p.data.Shape()
		}
		on := tensor.New(tensor.Meta, p.data.DType(), shape...)
		on.SetName(p.name)
		var leaf tensor.Leaf
		if s.flows && !p.Frozen {
			leaf = noLeaf{}
		}
		s.params[p] = s.tape.Watch(on, leaf)
		s.owners[s.params[p]] = p
	}
	return s.params[p]
}

// noLeaf is the leaf of a stand-in, which no backward pass comes to.
type noLeaf struct{ tensor.Leaf }

// shaped returns the stand-in of a sequence while the pass runs for shapes alone.
func (c *Ctx) shaped(q *sequence) *sequence {
	s := c.pass.shapes
	if s == nil || q == nil {
		return q
	}
	if s.sequences[q] == nil {
		// Masks that outlive the call which makes them are computed of these, so no tape has them.
		s.sequences[q] = &sequence{positions: s.bare(q.positions), documents: s.bare(q.documents)}
	}
	return s.sequences[q]
}

// stop ends UntilStop of the same pass.
type stop struct{ pass *pass }

// Stop ends the forward pass where it is, as a pipeline does at the end of its stage. It returns
// to [Ctx.UntilStop], by a panic that [Ctx.Recover] lets through.
func (c *Ctx) Stop() { panic(stop{c.pass}) }

// Depth returns how many calls are under way, and Unwind forgets those beyond: for wrappers that
// recover from a panic within them.
func (c *Ctx) Depth() int { return len(c.pass.calls) }

// Unwind is the end of what Depth began.
func (c *Ctx) Unwind(depth int) { c.pass.calls = c.pass.calls[:depth] }

// UntilStop runs fn to its end, or to a call of [Ctx.Stop] of the same pass, which it reports.
func (c *Ctx) UntilStop(fn func()) (stopped bool) {
	depth := c.Depth()
	defer func() {
		switch v := recover(); v {
		case nil:
		case stop{c.pass}:
			stopped = true
			c.Unwind(depth)
			c.ShapesOnly(false)
		default:
			panic(v)
		}
	}()
	fn()
	return false
}
