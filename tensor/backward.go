// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/trace"
)

// BackwardOption changes how a backward pass treats the tape.
type BackwardOption func(*backprop)

// RetainGraph keeps what the pass would free, for another pass over it.
func RetainGraph() BackwardOption { return func(b *backprop) { b.retain = true } }

// CreateGraph records the pass itself, so that its result can be
// differentiated again. It keeps the graph.
func CreateGraph() BackwardOption {
	return func(b *backprop) { b.create, b.retain = true, true }
}

// Backward computes the gradient of t, a tensor of one element, with respect
// to every leaf it depends on, and gives each leaf its own as soon as it is
// final, those used last in the forward pass first. It frees what it consumed.
//
// The error is that of a leaf's hook or of a collective on the way, or what a device
// that computes later has found wrong so far; the gradients are then incomplete.
func (t *Tensor) Backward(ctx context.Context, opts ...BackwardOption) error {
	dev := t.Device()
	if t.tape != nil && t.tape.observer != nil {
		t.tape.observer.Backward([]*Tensor{t})
	}
	if err := t.startBackward(ctx, "backward", nil, opts).pass(t.node); err != nil || !dev.Late() {
		return err
	}
	if err := deviceFault(dev, false); err != nil {
		return err
	}
	return nil
}

// pass walks from root down to the first leaf, with what wrappers do around it.
func (b *backprop) pass(root int) error {
	if trace.On() {
		if r := trace.Of(); r != nil {
			defer r.Forward()
		}
	}
	if b.tape.split {
		fail("backward", nil, "a pass with DeferWeights has left the gradients of weights: call Tape.BackwardWeights first")
	}
	return b.guarded(func() error {
		for _, fn := range b.tape.before {
			if err := fn(b.ctx); err != nil {
				return err
			}
		}
		b.tape.split = b.defers
		if err := b.run(root, nil); err != nil || b.defers {
			return err
		}
		return b.finish()
	})
}

// guarded runs fn, and tells wrappers when it ends by an error or a panic.
func (b *backprop) guarded(fn func() error) error {
	whole := false
	defer func() {
		for i := 0; !whole && i < len(b.tape.failed); i++ {
			b.tape.failed[i]()
		}
	}()
	if err := fn(); err != nil {
		return err
	}
	whole = true
	return nil
}

// finish runs what wrappers do when all leaves have their gradients.
func (b *backprop) finish() error {
	for _, fn := range b.tape.after {
		if err := fn(b.ctx); err != nil {
			return err
		}
	}
	return nil
}

// Grad returns the gradients of t with respect to values under the same tape,
// instead of giving gradients to leaves. The values are leaves, such as an input
// brought to the tape by [Tape.Leaf], or were computed from some: another has no
// gradient, which is an *Error. The entry of a value that t does not depend on is
// nil. t need not be a scalar: seed is the gradient of t, nil for ones. The graph
// is kept. With [CreateGraph] the result can be part of a loss.
func (t *Tensor) Grad(ctx context.Context, seed *Tensor, wrt []*Tensor, opts ...BackwardOption) ([]*Tensor, error) {
	b := t.startBackward(ctx, "grad", seed, opts)
	b.retain = true
	targets := make(map[int][]int, len(wrt))
	lowest := t.node
	for i, w := range wrt {
		if w.tape != t.tape || w.node == 0 {
			fail("grad", []*Tensor{t, w}, "value %d has no gradient: it is neither a leaf of the tape nor computed from one; "+
				"bring it there by Tape.Leaf, or nn.Ctx.Leaf, and compute with what that returns", i)
		}
		targets[w.node] = append(targets[w.node], i)
		lowest = min(lowest, w.node)
	}
	out := make([]*Tensor, len(wrt))
	err := b.run(t.node, func(node int, g *Tensor) bool {
		for _, i := range targets[node] {
			out[i] = g
			b.tape.own(g.storage) // until Close
		}
		return node <= lowest // one value may have been computed from another
	})
	return out, err
}

// backprop is one backward pass.
type backprop struct {
	ctx    context.Context
	tape   *Tape
	node   int // being worked on
	grads  []*Tensor
	retain bool
	create bool
	// crosses: gradients come and go by crossings; else one on the way is an error.
	crosses bool
	keep    []int // nodes of losses, whose values stay
	err     error
	// defers: what only leaves wait for is left for BackwardWeights. settles: it is being done.
	defers, settles bool
	again           bool // the walk is through what Recompute has run again
	// within: the walk is a part of another's visit to a node, whose operands it
	// ends at. Their hooks are the other walk's to run.
	within bool
	// born is the age of what the pass makes; see storage.
	born uint64
}

func (t *Tensor) startBackward(ctx context.Context, op string, seed *Tensor, opts []BackwardOption) *backprop {
	t.check(op)
	t.wantGradient(op)
	b := &backprop{ctx: ctx, tape: t.tape, grads: make([]*Tensor, t.node+1), born: t.tape.scope.born}
	for _, o := range opts {
		o(b)
	}
	given := seed != nil
	if !given {
		if op == "backward" {
			t.wantLoss(op, t.tape)
		}
		seed = t.firstGrad(op)
	}
	if !slices.Equal(seed.shape, t.shape) || seed.dtype != t.dtype {
		fail(op, []*Tensor{t, seed}, "the seed must have the shape and dtype of the value")
	}
	if given {
		b.tape.own(seed.storage) // it stays the caller's: the pass neither adds to it nor frees it
	}
	b.keep = append(b.keep, t.node)
	b.hold(t.node, seed)
	return b
}

// firstGrad returns the gradient of t with respect to itself.
func (t *Tensor) firstGrad(op string) *Tensor {
	seed := alloc(t.tape, t.Device(), t.dtype, t.shape, false)
	start := 1.0
	if op == "backward" {
		start = t.tape.seed
	}
	seed.Device().Fill(seed.array(), start)
	return seed
}

// wantGradient fails, with the reason, for a value that no gradient flows into.
func (t *Tensor) wantGradient(op string) {
	const none = "no gradient flows into it: "
	switch {
	case t.node != 0 && t.node < len(t.tape.nodes):
	case t.node != 0:
		fail(op, []*Tensor{t}, "its tape has been closed")
	case t.tape == nil:
		fail(op, []*Tensor{t}, none+"it was computed under no tape, from no parameter (nn.Ctx.Param) and no leaf (Tape.Leaf)")
	case !t.tape.recording:
		fail(op, []*Tensor{t}, none+"its tape does not record; gradients want a pass of nn.Training, not of nn.Evaluation")
	default:
		fail(op, []*Tensor{t}, none+"it was not computed from a leaf of its tape; what is computed from a gradient is so only if that was taken with CreateGraph")
	}
}

// run walks the tape from node down. stop is called with the final gradient of
// each node; when it returns true the walk does not go below that node.
func (b *backprop) run(root int, stop func(node int, g *Tensor) bool) error {
	return b.runTo(root, 1, stop)
}

// runTo is run down to a lowest node.
func (b *backprop) runTo(root, lowest int, stop func(node int, g *Tensor) bool) error {
	tp := b.tape
	recording := tp.recording
	tp.recording = b.create
	defer func() { tp.recording = recording }()
	if b.retain && !b.create {
		// What one pass leaves, the next would leave again: nothing until Close.
		mark := len(tp.scope.live)
		defer func() { tp.scope.sweep(min(mark, len(tp.scope.live))) }()
	}

	for i := root; i >= lowest; i-- {
		if b.crosses && len(tp.crossings[i]) > 0 {
			if err := b.cross(i); err != nil {
				return err
			}
		}
		n := &tp.nodes[i]
		g := b.grads[i]
		if g == nil && !n.written && !n.reached && tp.waiting[i] == 0 {
			continue // another loss may depend on it
		}
		if err := context.Cause(b.ctx); err != nil {
			return fmt.Errorf("backward ended at %s: %w", n.op, err)
		}
		if b.defers && tp.waiting[i] > 0 {
			b.leaveLeaf(i, g)
			continue
		}
		if err := b.visit(i, g, stop); err != nil {
			return err
		}
		if !b.retain {
			b.consume(i, slices.Contains(b.keep, i))
		}
	}
	return nil
}

func (b *backprop) visit(i int, g *Tensor, stop func(int, *Tensor) bool) error {
	tp := b.tape
	n := &tp.nodes[i]
	if trace.On() {
		if r := trace.Of(); r != nil {
			r.Backward(n.module)
		}
	}
	b.node, b.grads[i] = i, nil
	mark := len(tp.scope.live)
	if stop == nil && !b.crosses && len(tp.crossings[i]) > 0 {
		fail("backward", []*Tensor{n.out}, "the value crossed to or from another tape, where this pass does not go; "+
			"what was sent or received by RPC is differentiated by Backward of its autograd.Context")
	}
	if g != nil && len(n.hooks) > 0 && !b.within {
		g = b.hook(n, g)
	}
	switch {
	case stop != nil && g != nil && stop(i, g):
	case n.leaf != nil && stop == nil:
		if g != nil {
			n.takeGrad(g)
		}
		n.written, n.reached = false, false
		if err := n.leaf.GradReady(b.ctx); err != nil {
			return err
		}
	case n.back != nil:
		for _, s := range n.saved {
			s.t.check(n.op + " backward")
			if s.t.storage.version != s.version {
				fail(n.op+" backward", []*Tensor{s.t},
					"a value saved by the forward pass was written to in place since (version %d, saved at %d)",
					s.t.storage.version, s.version)
			}
		}
		n.back(b, g)
	}
	if g != nil {
		b.release(g.storage)
	}
	if !b.create {
		tp.scope.sweep(min(mark, len(tp.scope.live)))
	}
	err := b.err
	b.err = nil
	return err
}

// takeGrad stores or adds a gradient in the leaf's buffer.
func (n *node) takeGrad(g *Tensor) {
	buf, holds := n.leaf.GradBuffer()
	g = g.To(buf.dtype) // a leaf may collect in another dtype than it has
	if holds || n.written {
		buf.Axpy(1, g.Contiguous())
	} else {
		buf.CopyFrom(g)
	}
}

// consume drops what node i holds.
func (b *backprop) consume(i int, keepOutput bool) {
	n := &b.tape.nodes[i]
	if n.back == nil || n.done {
		return
	}
	for _, s := range n.saved {
		b.release(s.t.storage)
	}
	if !keepOutput {
		b.release(n.out.storage)
	}
	n.saved, n.back, n.done = nil, consumed, true
}

// consumed is the backward function of a node that a pass has freed.
func consumed(b *backprop, g *Tensor) {
	n := b.tape.nodes[b.node]
	fail(n.op+" backward", []*Tensor{n.out}, "an earlier backward pass consumed the graph; give it RetainGraph")
}

// hold stores g as the gradient of a node.
func (b *backprop) hold(node int, g *Tensor) {
	b.tape.own(g.storage)
	b.grads[node] = g
}

// release drops one hold on a storage of the tape, and frees it with the last. A
// pass that keeps the graph frees what it has made itself, unless that is part of a
// graph of its own.
func (b *backprop) release(s *storage) {
	if s.scope != b.tape.scope {
		return
	}
	s.owners--
	if s.owners == 0 && (!b.retain || !b.create && s.born >= b.born) {
		s.free()
	}
}

// needs reports whether a gradient flows into input i of the current node.
func (b *backprop) needs(i int) bool { return b.tape.nodes[b.node].inputs[i] != 0 }

// give adds g to the gradient of input i.
func (b *backprop) give(i int, g *Tensor) {
	n := &b.tape.nodes[b.node]
	to := n.inputs[i]
	if want := b.tape.nodes[to].out.shape; !slices.Equal(g.shape, want) {
		fail(n.op+" backward", []*Tensor{g}, "the gradient of input %d must have shape %v", i, want)
	}
	b.giveTo(to, g)
}

// giveTo adds g to the gradient of a node.
func (b *backprop) giveTo(to int, g *Tensor) {
	b.add(to, g.To(b.tape.nodes[to].out.dtype)) // an operation may compute in another dtype than its operand has
}

// add adds g, of the node's dtype, to its gradient.
func (b *backprop) add(to int, g *Tensor) {
	b.catchUp(to)
	old := b.grads[to]
	switch {
	case old == nil:
		b.hold(to, g)
	case !b.create && old.dtype == Float32 && b.ownsAlone(old):
		// Nobody else sees it: add in place.
		old.Axpy(1, g.Contiguous())
	default:
		sum := old.Add(g)
		b.hold(to, sum)
		b.release(old.storage)
	}
}

// direct returns the buffer in which input i collects its gradient when it is
// a leaf, so that a kernel can write there: dst = beta·dst + gradient. The
// caller must then do so. It saves a pass over every weight.
func (b *backprop) direct(i int) (dst *Tensor, beta float32, ok bool) {
	return b.directTo(b.tape.nodes[b.node].inputs[i])
}

// directTo is direct for a node.
func (b *backprop) directTo(to int) (dst *Tensor, beta float32, ok bool) {
	b.catchUp(to)
	n := &b.tape.nodes[to]
	if n.leaf == nil || b.retain || len(n.hooks) > 0 {
		return nil, 0, false
	}
	dst, holds := n.leaf.GradBuffer()
	if !slices.Equal(dst.shape, n.out.shape) || !dst.IsContiguous() {
		fail("backward", []*Tensor{n.out, dst}, "the leaf's gradient buffer must be dense and have the shape that the forward pass saw")
	}
	if holds || n.written {
		beta = 1
	}
	n.written = true
	dst.wrote("backward")
	return dst, beta, true
}

// rows returns the leaf behind input i when it takes its gradient by rows; the
// caller must then give it some.
func (b *backprop) rows(i int) (RowLeaf, bool) { return b.rowsTo(b.tape.nodes[b.node].inputs[i]) }

// rowsTo is rows for a node.
func (b *backprop) rowsTo(to int) (RowLeaf, bool) {
	b.catchUp(to)
	n := &b.tape.nodes[to]
	leaf, ok := n.leaf.(RowLeaf)
	if !ok || b.retain || len(n.hooks) > 0 || !leaf.WantsRows() {
		return nil, false
	}
	n.reached = true
	return leaf, true
}

// composite differentiates a fused operation through its definition, for a
// graph of the backward: compute is run again on the operation's inputs and recorded.
func (b *backprop) composite(g *Tensor, compute func() *Tensor) {
	inner := &backprop{ctx: b.ctx, tape: b.tape, create: true, retain: true, within: true}
	out := compute()
	inner.grads = make([]*Tensor, out.node+1)
	inner.hold(out.node, g)
	targets := b.tape.nodes[b.node].inputs
	found := make(map[int]*Tensor, len(targets))
	inner.err = inner.run(out.node, func(node int, g *Tensor) bool {
		if slices.Contains(targets, node) {
			found[node] = g
			return true
		}
		return false
	})
	b.err = inner.err
	for i, to := range targets {
		if g := found[to]; to != 0 && g != nil {
			b.give(i, g)
			delete(found, to)
		}
	}
}

// giveRegion adds g to the elements from start on of one dim of the gradient
// of input i, which has the given shape; the others get nothing. The parts of
// a tensor that was cut give their gradients so, each without a pass over the
// whole.
func (b *backprop) giveRegion(i int, g *Tensor, shape []int, dim, start int) {
	old := b.grads[b.tape.nodes[b.node].inputs[i]]
	if b.create || old == nil || old.dtype != Float32 || g.dtype != Float32 || !b.ownsAlone(old) {
		b.give(i, g.embed(shape, dim, start))
		return
	}
	g = g.Contiguous()
	fused(device.AddRegion{Dim: dim, Start: start}, old, g)
}

// ownsAlone reports whether nobody else sees a gradient, so that it can be
// added to in place.
func (b *backprop) ownsAlone(g *Tensor) bool {
	return g.storage.owners == 1 && g.storage.scope == b.tape.scope && g.IsContiguous() &&
		g.NumElems()*g.dtype.Size() == g.storage.mem.Size
}
