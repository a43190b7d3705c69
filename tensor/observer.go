// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// Observer is told what a pass computes, from what, and where gradients flow. It
// changes nothing. What it knows of a value it keeps with the value; see
// [Tensor.SetNote].
//
// An operation that is made of others is seen as these. Mean is a sum and a product,
// and the result is then seen again as "mean", because the factor of the product is the
// number of elements. A fused operation is one operation. What [Tape.Recompute] runs is seen in its
// first run and again in its second. A method that panics ends the operation as a
// wrong shape does, so a panic of a *Error is an error with the module's name at
// the border of the step.
type Observer interface {
	// Computed is called for each result of an operation and each view, recorded or
	// not. Of a result, the elements need not be there yet.
	Computed(op Operation)
	// Recorded is called where a gradient will flow from out to inputs, of which
	// those that get none are nil. In the first run of Recompute it is called as if
	// the run were recorded.
	Recorded(op string, out *Tensor, inputs []*Tensor)
	// Watched is called when from comes under the tape as out: a parameter with its
	// leaf, or a constant with none.
	Watched(out, from *Tensor, leaf Leaf)
	// Backward is called when a backward pass begins from losses, before anything is
	// done in it.
	Backward(losses []*Tensor)
}

// Operation is what an [Observer] is told of one result.
type Operation struct {
	Name     string    // as in messages: "layer norm"
	Out      *Tensor   // the result
	Operands []*Tensor // what it is computed from; an absent one is nil
	// Dims are the dims that a view concerns, where shapes alone do not tell. For
	// permute Dims[d] is the dim of the result that dim d has become. For narrow and
	// squeeze it is the operand's dim, for diagonal the two. For unsqueeze it is the
	// dim of the result.
	Dims []int
}

// Note is what an [Observer] knows of a value.
type Note struct{ Value any }

// SetNote gives the value a note, nil for none. What shares the value has it too:
// [Tensor.Detach], [Tape.Watch] and [Tape.Const]. A result and a view have none
// until the observer gives them one. The note lives as long as the tensor, which
// may be longer than the tape.
func (t *Tensor) SetNote(n *Note) { t.note = n }

// Note returns what SetNote gave, nil for none.
func (t *Tensor) Note() *Note { return t.note }

// Observe makes o the observer of the pass; nil ends that. A tape has one at most:
// another panics with an *Error.
func (tp *Tape) Observe(o Observer) {
	if o != nil && tp.observer != nil && tp.observer != o {
		fail("observe", nil, "the tape has an observer already")
	}
	tp.observer = o
}

// Observer returns the observer of the pass, nil for none.
func (tp *Tape) Observer() Observer { return tp.observer }

// observe tells the observer of a result of an operation. The lists are copied, so
// that the caller's need not be on the heap.
func (tp *Tape) observe(op string, out *Tensor, dims []int, operands ...*Tensor) {
	tp.observer.Computed(Operation{Name: op, Out: out, Operands: slices.Clone(operands), Dims: slices.Clone(dims)})
}

// observeFlow tells the observer where the gradient of out goes.
func (tp *Tape) observeFlow(op string, out *Tensor, inputs []*Tensor) {
	to := slices.Clone(inputs)
	for i, t := range to {
		if t != nil && t.node == 0 && !tp.paused {
			to[i] = nil
		}
	}
	tp.observer.Recorded(op, out, to)
}
