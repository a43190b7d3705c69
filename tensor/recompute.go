// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// Recompute returns fn(inputs) and keeps nothing of what fn computes on the
// way: the backward pass runs fn again when it needs that, so that memory is
// paid for with time (Chen et al. 2016, Training Deep Nets with Sublinear
// Memory Cost). PyTorch calls it activation checkpointing.
//
// Both runs must compute the same: fn draws random numbers from a generator that
// it puts back where the first run had it, and changes nothing outside. What fn
// reads beside its inputs, of which some may be nil, must be parameters or
// constants; gradients reach both. There is no graph of the backward pass through fn: [CreateGraph] panics
// with an *Error.
func (tp *Tape) Recompute(inputs []*Tensor, fn func(inputs []*Tensor) []*Tensor) []*Tensor {
	if !tp.recording || tp.paused {
		return fn(inputs)
	}
	constants := make([]*Tensor, len(inputs))
	for i, t := range inputs {
		if t != nil {
			constants[i] = t.Detach()
		}
	}
	mark := len(tp.scope.live)
	outer := tp.segment
	number := outer // of a call within a call that is run again
	if number == 0 {
		tp.segments++
		number = tp.segments
	}
	tp.segment = number
	outs := tp.withoutRecording(func() []*Tensor { return fn(constants) })
	tp.segment = outer
	s := &segment{fn: fn, inputs: inputs, grads: make([]*Tensor, len(outs)), number: number}
	for i, out := range outs {
		if out.tape != tp {
			fail("recompute", []*Tensor{out}, "result %d was not computed under the tape", i)
		}
		// A result may be an input; the node needs a value of its own.
		outs[i] = out.Detach()
		tp.own(out.storage)
	}
	tp.scope.sweep(mark)
	s.first = len(tp.nodes)
	for i, out := range outs {
		n := node{op: "recompute", out: out, back: s.collect(i)}
		if i == 0 {
			n.back = s.backward
			n.inputs = make([]int, len(inputs))
			for j, t := range inputs {
				if t == nil {
					continue
				}
				n.inputs[j] = t.node
				n.saved = append(n.saved, saved{t, t.storage.version})
				tp.own(t.storage)
			}
		}
		out.node = len(tp.nodes)
		tp.nodes = append(tp.nodes, n)
	}
	return outs
}

// withoutRecording runs fn with no operation recorded. Leaves that it meets for
// the first time are still put on the tape: what comes later may use them.
func (tp *Tape) withoutRecording(fn func() []*Tensor) []*Tensor {
	tp.paused = true
	defer func() { tp.paused = false }()
	return fn()
}

// segment is a part of the forward pass that is run again. Its results are
// nodes that follow each other; the walk meets the first of them last, with the
// gradients of all.
type segment struct {
	fn     func([]*Tensor) []*Tensor
	inputs []*Tensor
	grads  []*Tensor // of the results but the first
	first  int       // node of the first result
	number int       // see Tape.Segment
}

// collect keeps the gradient of result i until the walk comes to the first.
func (s *segment) collect(i int) func(b *backprop, g *Tensor) {
	return func(b *backprop, g *Tensor) {
		b.tape.own(g.storage)
		s.grads[i] = g
		b.tape.nodes[s.first].reached = true
	}
}

// backward runs the segment again, recorded at the end of the tape, and takes
// the gradients through it.
func (s *segment) backward(b *backprop, g *Tensor) {
	tp := b.tape
	if b.create {
		fail("recompute backward", s.inputs, "a part of the model that is recomputed has no second derivative: run it without recomputation")
	}
	tp.nodes[s.first].reached = false
	outer := tp.segment
	tp.segment = s.number
	defer func() { tp.segment = outer }()
	base := len(tp.nodes)
	inputs, place := make([]*Tensor, len(s.inputs)), map[int]int{}
	for i, t := range s.inputs {
		if t == nil {
			continue
		}
		in := t.Detach()
		if t.node != 0 {
			in.node = len(tp.nodes)
			place[in.node] = i
			tp.nodes = append(tp.nodes, node{op: "input of recompute", out: in})
		}
		inputs[i] = in
	}
	before := theCPU().FLOPs()
	tp.recording = true
	outs := s.fn(inputs)
	tp.recording = false
	recomputed.Add(theCPU().FLOPs() - before)
	for _, n := range tp.nodes[base:] {
		if n.leaf != nil {
			fail("recompute backward", []*Tensor{n.out}, "a leaf was brought to the tape by the function that is recomputed, which drops its gradient: call Watch outside")
		}
	}

	inner := &backprop{ctx: b.ctx, tape: tp, retain: b.retain, defers: b.defers, again: true, born: b.born, grads: make([]*Tensor, len(tp.nodes))}
	s.grads[0] = g
	if len(outs) != len(s.grads) {
		fail("recompute backward", s.inputs, "the second run gave %d results, the first %d", len(outs), len(s.grads))
	}
	for i, gi := range s.grads {
		if gi == nil || outs[i].node == 0 {
			continue
		}
		if !slices.Equal(outs[i].shape, gi.shape) {
			fail("recompute backward", []*Tensor{outs[i], gi}, "the second run gave result %d another shape than the first", i)
		}
		inner.add(outs[i].node, gi)
		if i > 0 {
			b.release(gi.storage)
		}
	}
	b.err = inner.runTo(len(tp.nodes)-1, base, func(n int, g *Tensor) bool {
		i, found := place[n]
		if found {
			b.give(i, g)
		}
		return found
	})
	for i := base; i < len(tp.nodes); i++ {
		inner.consume(i, false) // those that no gradient reached, and all of a graph that is kept
	}
	clear(tp.nodes[base:])
	tp.nodes = tp.nodes[:base]
	// What is left belongs to leaves, which the walk has yet to come to.
	for i, gi := range inner.grads[:base] {
		if gi != nil {
			b.add(i, gi)
			b.release(gi.storage)
		}
	}
	clear(s.grads) // another pass over a retained graph collects its own
}
