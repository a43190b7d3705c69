// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// OnGrad calls fn in every backward pass that reaches t with the gradient of t,
// when it is final and before it goes on to what t was computed from. What fn
// returns takes its place; nil leaves it as it is. Hooks run in the order in
// which they were added. fn must not write to the gradient in place, and calls
// Keep to have it after the pass. PyTorch calls it register_hook.
//
// A view has hooks of its own. An operation that has nothing to change returns t itself
// (Reshape or Expand to t's shape, To its dtype, Contiguous), and then its hooks too.
//
// In a function that [Tape.Recompute] runs twice, a hook counts in the second run.
// A value without gradient panics with an *Error: the hook would never run.
func (t *Tensor) OnGrad(fn func(g *Tensor) *Tensor) {
	if t.tape != nil && t.tape.paused {
		return // the second run of what is recomputed comes here again
	}
	t.wantGradient("on grad")
	n := &t.tape.nodes[t.node]
	n.hooks = append(n.hooks, fn)
}

// keepForeign sees to a gradient that comes from outside the package: what was
// there before the pass is neither added to nor freed by it.
func (b *backprop) keepForeign(g *Tensor) {
	if g.storage.born < b.born {
		b.tape.own(g.storage)
	}
}

// hook runs the hooks of a node; the pass holds what it returns as it held g.
func (b *backprop) hook(n *node, g *Tensor) *Tensor {
	hooks, out := n.hooks, n.out // the hooks may record, which moves the nodes
	for _, fn := range hooks {
		next := fn(g)
		if next == nil || next == g {
			continue
		}
		if !slices.Equal(next.shape, out.shape) {
			fail("on grad", []*Tensor{out, next}, "the hook's gradient must have the value's shape")
		}
		next = next.To(out.dtype)
		b.keepForeign(next)
		b.tape.own(next.storage)
		b.release(g.storage)
		g = next
	}
	return g
}
