// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"errors"

	"github.com/cohort-ml/cohort/tensor"
)

// Fork returns the carrier of a pass of its own, on another device and with another source of
// random numbers, nil for none: a pass over some samples of this one. It has the mode, the number
// type and the interceptors of c. A wrapper runs several of them at the same time, each on a
// goroutine, closes them, and says by tensor.Record what came of them. Carriers of a part of a
// sequence, with documents or with a key-value cache cannot be forked.
func (c *Ctx) Fork(dev tensor.Device, g *tensor.Generator) (*Ctx, error) {
	switch {
	case c.cache != nil:
		return nil, errors.New("the pass has a key-value cache, which keeps the samples of one batch together")
	case c.sequence != nil || len(c.cuts) > 0 || c.part != (tensor.AttentionPart{}):
		return nil, errors.New("the pass has documents or a part of a sequence, which are of the whole batch")
	case c.pass.shapes != nil:
		return nil, errors.New("the pass runs for shapes alone")
	}
	f := newCtx(c.Context, c.training, []CtxOption{WithDevice(dev), WithGenerator(g), WithAutocast(c.Tape().Autocast())})
	f.around = c.around
	return f, nil
}

// BindBuffer makes t the data of b in this pass: modules read and write t in its place. It is for
// wrappers that run several passes at once, or on another device.
func (c *Ctx) BindBuffer(b *Buffer, t *tensor.Tensor) {
	if c.pass.buffers == nil {
		c.pass.buffers = make(map[*Buffer]*tensor.Tensor)
	}
	c.pass.buffers[b] = t
}

// BufferData returns the data of a buffer, under no tape: what a module writes, such as running
// statistics. Modules read by [Ctx.Buffer].
func (c *Ctx) BufferData(b *Buffer) *tensor.Tensor {
	if t := c.pass.buffers[b]; t != nil {
		return t
	}
	return b.Data
}
