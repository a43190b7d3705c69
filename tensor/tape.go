// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"runtime"
	"sync"
)

// Tape records operations in the order they run. That order is a topological
// one, so the backward pass is a walk from the loss down to the first leaf.
//
// One tape serves one forward pass and its backward: [NewTape], [Tape.Watch]
// for each leaf, the model, [Tensor.Backward], [Tape.Close].
type Tape struct {
	nodes     []node      // nodes[0] is not used: a tensor's node 0 means none
	memory    *tapeMemory // nil once the tape is closed
	recording bool
	paused    bool // Recompute is in its first run
	scope     *scope
	before    []func(context.Context) error
	after     []func(context.Context) error
	failed    []func()
	closing   []func()
	segments  int                // calls of Recompute so far
	segment   int                // the one whose function runs; see Segment
	seed      float64            // the gradient of the loss with respect to itself
	scaled    bool               // ScaleGrads has set it
	autocast  DType              // what SetAutocast chose, 0 for none
	crossings map[int][]Crossing // by node
	observer  Observer           // nil for none
	module    string             // see SetModule
	split     bool               // a pass with DeferWeights waits for BackwardWeights
	late      []lateGrad         // what it has left
	waiting   map[int]int        // by the node of a leaf: how much of it
}

// node is one recorded operation.
type node struct {
	op     string
	out    *Tensor
	module string // that computed it, while operations are traced
	inputs []int  // nodes of the operands, 0 for those without gradient
	saved  []saved
	back   func(b *backprop, g *Tensor)
	leaf   Leaf
	hooks  []func(g *Tensor) *Tensor
	done   bool // a backward pass has consumed it
	// written is set once the leaf's buffer holds a part of this backward's gradient.
	written bool
	// reached is set when the leaf got rows of its gradient; see RowLeaf.
	reached bool
}

// saved is an operand or result that the backward function reads.
type saved struct {
	t       *Tensor
	version uint32
}

// Leaf takes the gradient of a value watched by a tape; nn.Parameter is one.
type Leaf interface {
	// GradBuffer returns the dense tensor that collects the gradient, of the
	// leaf's shape and under no tape, and whether it holds the gradient of an
	// earlier backward pass, to be added to.
	GradBuffer() (buf *Tensor, holds bool)
	// GradReady is called once in a backward pass that reached the leaf, when
	// the buffer holds the final gradient. An error ends the pass.
	GradReady(ctx context.Context) error
}

// NewTape returns an empty tape. With recording false, nothing is recorded and
// no gradient can be taken: only the memory of what is computed is owned.
func NewTape(recording bool) *Tape {
	m := tapeMemories.Get().(*tapeMemory)
	tp := &Tape{nodes: append(m.nodes, node{}), memory: m, recording: recording, scope: &scope{live: m.live}, seed: 1}
	m.nodes, m.live = nil, nil
	// The last resort for a tape that nobody closed.
	runtime.AddCleanup(tp, (*scope).release, tp.scope)
	return tp
}

// SetModule says which module computes the operations that follow, for traces; see package internal/trace.
func (tp *Tape) SetModule(path string) { tp.module = path }

// Recording reports whether operations are recorded for a backward pass.
func (tp *Tape) Recording() bool { return tp.recording }

// SetAutocast makes the operations that gain from it compute in dtype, which is
// [BFloat16], and return it: matrix products, linear layers, convolutions and
// attention. Norms, losses, softmax and reductions compute in float32, and
// parameters and their gradients are of it; the documentation of the package has
// the list. It is PyTorch's autocast, except that it belongs to a
// pass and not to a thread. 0 turns it off.
func (tp *Tape) SetAutocast(dtype DType) {
	if dtype != 0 && dtype != BFloat16 {
		fail("set autocast", nil, "wants bfloat16, or 0 for none, got %v", dtype)
	}
	tp.autocast = dtype
}

// Autocast returns what SetAutocast chose, 0 for none.
func (tp *Tape) Autocast() DType { return tp.autocast }

// Watch returns t as a leaf of the tape: the same data, whose gradient goes to
// leaf. A nil leaf, or a tape that does not record, makes it a constant.
func (tp *Tape) Watch(t *Tensor, leaf Leaf) *Tensor {
	w := *t
	w.tape, w.node = tp, 0
	if leaf != nil && tp.recording {
		w.node = len(tp.nodes)
		tp.nodes = append(tp.nodes, node{op: "leaf", out: &w, leaf: leaf})
	}
	if tp.observer != nil {
		tp.observer.Watched(&w, t, leaf)
	}
	return &w
}

// Leaf returns t as a leaf of the tape whose gradient nobody keeps: the same data,
// with respect to which [Tensor.Grad] differentiates and whose gradient
// [Tensor.OnGrad] sees. What t was computed from gets none. It is PyTorch's
// t.detach().requires_grad_(). Under a tape that does not record it is a constant.
func (tp *Tape) Leaf(t *Tensor) *Tensor {
	if !t.dtype.IsFloat() {
		fail("leaf", []*Tensor{t}, "wants a floating dtype, for integers have no gradient; convert by To")
	}
	w := tp.Const(t)
	if tp.recording {
		w.node = len(tp.nodes)
		tp.nodes = append(tp.nodes, node{op: "leaf", out: w})
	}
	return w
}

// Const returns t as a constant under the tape, so that what is computed from
// it belongs to the tape.
func (tp *Tape) Const(t *Tensor) *Tensor { return tp.Watch(t, nil) }

// Adopt makes the tape own the memory of t, which was made under no tape: it is freed with
// what the tape has made, and no earlier than what needs it. It returns t as a constant under
// the tape. Collectives, for example, write to memory that is made before an operation is
// recorded. Memory that has another owner keeps it.
func (tp *Tape) Adopt(t *Tensor) *Tensor {
	if s := t.storage; s.scope == nil && s.state == live && !s.shared && s.unpin == nil && !tp.scope.closed {
		s.takeFromCollector()
		tp.scope.add(s)
		runtime.KeepAlive(s)
	}
	return tp.Const(t)
}

// Untracked returns the same values under no tape: what is computed of them is neither recorded
// nor observed, and no tape owns it. The memory of t itself stays what it was. Wrappers that
// communicate and then say what came of it ([Record]) work with it.
func (t *Tensor) Untracked() *Tensor { return t.detach() }

// New returns zeros under the tape, which frees them. It is for wrappers, which write the
// result of an operation of theirs there, or a gradient; see [Record].
func (tp *Tape) New(dev Device, dtype DType, shape ...int) *Tensor {
	t := alloc(tp, dev, dtype, shape, false)
	t.Fill(0)
	return t
}

// BeforeBackward registers fn to run at the start of every backward pass over
// the tape, before any gradient is written. Wrappers get ready there; an error
// ends the pass.
func (tp *Tape) BeforeBackward(fn func(context.Context) error) { tp.before = append(tp.before, fn) }

// AfterBackward registers fn to run at the end of every backward pass over the
// tape, when every leaf has its gradient. Wrappers wait for their communication
// there.
func (tp *Tape) AfterBackward(fn func(context.Context) error) { tp.after = append(tp.after, fn) }

// AfterFailure registers fn to run when a backward pass over the tape ends by an
// error or a panic, of which it is not told. Wrappers leave nothing under way there.
func (tp *Tape) AfterFailure(fn func()) { tp.failed = append(tp.failed, fn) }

// OnClose registers fn to run when the tape is closed, before its values are freed: also
// after a pass that had no backward pass, or failed on its way there. Wrappers give up
// there what they hold for the pass.
func (tp *Tape) OnClose(fn func()) { tp.closing = append(tp.closing, fn) }

// Segment returns the number of the call of [Tape.Recompute] whose function is being run,
// for the first time or again; 0 is none. Within other calls it is that of the outermost. The leaves that a function has brought to the
// tape get their gradients after the whole of it has been walked again.
func (tp *Tape) Segment() int { return tp.segment }

// ScaleGrads multiplies every gradient of the tape's backward passes by f, at
// no cost: it is where they start from. Averaging over ranks divides so before
// it sums. Several wrappers in one pass want the same factor, which counts once;
// a second factor panics with an *Error.
func (tp *Tape) ScaleGrads(f float64) {
	if tp.scaled && tp.seed != f {
		fail("scale grads", nil, "another part of the model has its gradients scaled by %v in this pass, this one wants %v: "+
			"run them under tapes of their own", tp.seed, f)
	}
	tp.seed, tp.scaled = f, true
}

// LiveBytes returns how much memory the values of the tape hold now.
func (tp *Tape) LiveBytes() int64 { return tp.scope.bytes }

// PeakBytes returns the most that [Tape.LiveBytes] has been. Of a tape whose values are on
// [Meta] it says how much memory a pass would take.
func (tp *Tape) PeakBytes() int64 { return tp.scope.peak }

// Count adds numBytes to what the tape's values hold, or takes them off when numBytes is
// negative: memory that a wrapper would hold besides, in a pass on [Meta] that plans memory.
func (tp *Tape) Count(numBytes int64) { tp.scope.count(int(numBytes)) }

// Close frees everything that was made under the tape and not kept. Using such
// a value afterwards panics. Close may be called twice.
func (tp *Tape) Close() {
	closing := tp.closing
	tp.closing = nil
	for _, fn := range closing {
		fn()
	}
	tp.scope.release()
	tp.scope.closed = true
	tp.giveBack()
	tp.nodes, tp.scope.live = make([]node, 1), nil // a kept value holds on to the tape, not to the graph
	tp.before, tp.after, tp.failed, tp.crossings, tp.observer = nil, nil, nil, nil, nil
	tp.late, tp.waiting, tp.split = nil, nil, false
	tp.recording = false
}

// Mark returns a place in the order in which values are made, for FreeSince.
func (tp *Tape) Mark() int { return len(tp.scope.live) }

// FreeSince frees what was made since mark, all but keep and what [Tensor.Keep]
// has taken out. It is for passes without a record, whose values nothing needs
// later: while the tape records it does nothing.
func (tp *Tape) FreeSince(mark int, keep ...*Tensor) {
	if tp.recording || mark >= len(tp.scope.live) {
		return
	}
	for _, t := range keep {
		if t != nil {
			tp.own(t.storage)
		}
	}
	tp.scope.sweep(mark)
	for _, t := range keep {
		if t != nil && t.storage.scope == tp.scope {
			t.storage.owners--
		}
	}
}

// own counts one more holder of a storage that the tape will free. Others are
// left alone: goroutines may share them.
func (tp *Tape) own(s *storage) {
	if s.scope == tp.scope {
		s.owners++
	}
}

// record makes out the result of an operation on inputs, with the function
// that turns the gradient of out into gradients of the inputs. saves lists
// what back reads: it is kept until then, and must not change until then.
func (out *Tensor) record(op string, inputs, saves []*Tensor, back func(b *backprop, g *Tensor)) *Tensor {
	tp := out.tape
	if tp == nil || !tp.recording {
		return out
	}
	if tp.observer != nil {
		tp.observeFlow(op, out, inputs)
	}
	if tp.paused {
		return out
	}
	needed := false
	for _, t := range inputs {
		needed = needed || t != nil && t.node != 0
	}
	if !needed {
		return out
	}
	n := node{op: op, module: tp.module, out: out, back: back, inputs: tp.memory.inputs.take(len(inputs)), saved: tp.memory.saved.take(len(saves))}
	for i, t := range inputs {
		if t != nil {
			n.inputs[i] = t.node
		}
	}
	for i, t := range saves {
		n.saved[i] = saved{t, t.storage.version}
		tp.own(t.storage)
	}
	tp.own(out.storage)
	out.node = len(tp.nodes)
	tp.nodes = append(tp.nodes, n)
	return out
}

// Record makes out the result of an operation that this package does not know,
// such as a collective. backward gets the gradient of out and returns that of
// each input, nil for none; it may fail, which ends the backward pass. saves
// lists the values that backward reads. An out made under no tape comes under
// that of the inputs.
func Record(op string, out *Tensor, inputs, saves []*Tensor,
	backward func(ctx context.Context, g *Tensor) ([]*Tensor, error),
) *Tensor {
	tp := tapeOf(op, append([]*Tensor{out}, inputs...))
	if tp != nil && out.tape == nil {
		out = tp.Const(out)
	}
	if tp != nil && tp.observer != nil {
		tp.observe(op, out, nil, inputs...)
	}
	return out.record(op, inputs, saves, func(b *backprop, g *Tensor) {
		grads, err := backward(b.ctx, g)
		if err != nil {
			b.err = err
			return
		}
		if len(grads) != len(inputs) {
			fail(op, inputs, "its backward returned %d gradients for %d inputs", len(grads), len(inputs))
		}
		for i, gi := range grads {
			if gi != nil && b.needs(i) {
				b.keepForeign(gi)
				b.give(i, gi)
			}
		}
	})
}

// tapeMemory is what a tape's record is written in. A closed tape gives it
// back, for a step's record is as long as that of the step before: training
// then leaves the collector little to do.
type tapeMemory struct {
	nodes  []node
	inputs slab[int]
	saved  slab[saved]
	live   []*storage
}

var tapeMemories = sync.Pool{New: func() any { return &tapeMemory{nodes: make([]node, 0, 256)} }}

// giveBack takes the memory from a tape that is being closed. Nothing outside
// the tape refers to it.
func (tp *Tape) giveBack() {
	m := tp.memory
	if m == nil {
		return // closed before
	}
	tp.memory = nil
	clear(tp.nodes)
	m.nodes = tp.nodes[:0]
	m.live = tp.scope.live[:0] // which release has cleared
	m.inputs.reset()
	m.saved.reset()
	tapeMemories.Put(m)
}

// slab gives out short slices of one array.
type slab[T any] struct{ free, all []T }

// take returns n zero elements.
func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		// What was given out stays with those who have it.
		s.all = make([]T, max(n, 2*len(s.all), 256))
		s.free = s.all
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// reset takes everything back.
func (s *slab[T]) reset() {
	clear(s.all[:len(s.all)-len(s.free)])
	s.free = s.all
}
