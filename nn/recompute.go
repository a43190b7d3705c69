// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// Recompute returns an interceptor that keeps only the inputs and results of
// the modules that match chooses, and runs them again during the backward pass:
// activation checkpointing. A model of equal blocks then holds the inside of
// one block at a time, for a third more computation.
//
//	c := nn.Training(ctx).With(nn.Recompute(func(m any) bool { _, ok := m.(*models.GPTBlock); return ok }))
//
// Random numbers are drawn again as they were. A chosen module must depend on
// nothing but its inputs, parameters, buffers and the carrier, and its gradient
// cannot be differentiated again. Interceptors outside this one see the call
// once, those inside see it twice.
func Recompute(match func(module any) bool) Interceptor { return recompute{match} }

type recompute struct{ match func(module any) bool }

func (r recompute) InterceptCall(c *Ctx, module any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if !c.Tape().Recording() || c.IsShapesOnly() || !r.match(module) {
		return next(c, x)
	}
	var drawn []byte // the generator's state before the first run
	if c.generator != nil {
		drawn = c.generator.State()
	}
	calls := append([]any(nil), c.pass.calls...)
	again := false
	numOuts := 0
	// What the call adds to the losses is a result of it, for the gradient to come back to.
	withLosses := func(x []*tensor.Tensor) []*tensor.Tensor {
		before := len(c.pass.added)
		y := next(c, x)
		numOuts = len(y)
		y = append(slices.Clone(y), c.pass.added[before:]...)
		c.pass.added = c.pass.added[:before]
		return y
	}
	y := c.Tape().Recompute(x, func(x []*tensor.Tensor) []*tensor.Tensor {
		if !again {
			again = true
			return withLosses(x)
		}
		outer, was := c.pass.calls, c.pass.recomputing
		c.pass.calls, c.pass.recomputing = calls, true
		if c.generator != nil {
			now := c.generator.State()
			c.restore(drawn)
			defer c.restore(now)
		}
		y := withLosses(x)
		// A panic leaves the calls as they are, which tells where it came from.
		c.pass.calls, c.pass.recomputing = outer, was
		return y
	})
	c.pass.added = append(c.pass.added, y[numOuts:]...)
	return y[:numOuts]
}

// restore puts the generator back to a state that it gave.
func (c *Ctx) restore(state []byte) {
	if err := c.generator.SetState(state); err != nil {
		c.Fail(err)
	}
}

func (recompute) InterceptParam(c *Ctx, _ *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}
