// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// Parameter is a tensor that training changes. Modules hold it in a field and
// read it through [Ctx.Param].
type Parameter struct {
	// Frozen parameters get no gradient.
	Frozen bool
	// Sparse parameters take their gradient by rows where an operation computes
	// it so (an embedding): RowGrad holds it then, and Grad is nil. Optimizers
	// update those rows alone.
	Sparse bool

	name  string
	data  *tensor.Tensor
	whole []int          // the shape of what data is a shard of, nil if it is all
	grad  *tensor.Tensor // the buffer; holds says whether there is a gradient in it
	holds bool
	lent  bool // the buffer was asked for in this backward pass
	rows  *tensor.RowGrad
	ready []*readyHook
	// zeroed is called by ZeroGrad. It may be nil.
	zeroed func()
}

type readyHook struct {
	fn func(ctx context.Context, p *Parameter) error
}

// NewParameter returns a parameter with the value data, which it owns from
// now on.
func NewParameter(data *tensor.Tensor) *Parameter { return &Parameter{data: data} }

// Name returns the parameter's name in the model last walked; see [Parameters].
func (p *Parameter) Name() string { return p.name }

// Data returns the value, under no tape. Optimizers and loaders write it.
func (p *Parameter) Data() *tensor.Tensor { return p.data }

// SetData makes data the value, of any shape, dtype and device: a shard of it, say.
// Hooks stay; a gradient that does not fit it, and its buffer, are dropped.
func (p *Parameter) SetData(data *tensor.Tensor) {
	data.SetName(p.name)
	if p.grad != nil && !(slices.Equal(p.grad.Shape(), data.Shape()) && p.grad.DType() == data.DType() && p.grad.Device() == data.Device()) {
		p.grad, p.holds = nil, false
	}
	if r := p.rows; r != nil && !(slices.Equal([]int{r.NumRows, r.Rows.Dim(1)}, data.Shape()) && r.Rows.DType() == data.DType() && r.Rows.Device() == data.Device()) {
		p.rows = nil
	}
	p.data = data
}

// Whole returns the shape of the tensor of which Data is this rank's shard; nil where Data is
// all of it.
func (p *Parameter) Whole() []int { return slices.Clone(p.whole) }

// SetWhole says that Data is a shard of a tensor of that shape; nil is that it is all of it.
// [Ctx.Param] then fails unless a wrapper binds the whole by [Ctx.Bind]. It is for wrappers
// that shard, and stays when SetData gives another shard.
func (p *Parameter) SetWhole(shape []int) { p.whole = slices.Clone(shape) }

// Grad returns the gradient, nil if there is none.
func (p *Parameter) Grad() *tensor.Tensor {
	if !p.holds {
		return nil
	}
	return p.grad
}

// RowGrad returns the gradient of a [Parameter.Sparse] parameter, nil if there
// is none.
func (p *Parameter) RowGrad() *tensor.RowGrad { return p.rows }

// SetGrad makes g the gradient: one that was computed elsewhere, by another process
// say. The parameter owns it from now on. g has the parameter's shape, dtype and
// device; nil is no gradient.
func (p *Parameter) SetGrad(g *tensor.Tensor) {
	if g == nil {
		p.ZeroGrad()
		return
	}
	p.SetGradBuffer(g)
	p.holds, p.rows = true, nil
}

// SetRowGrad replaces the gradient of a sparse parameter: by that summed over
// ranks, say.
func (p *Parameter) SetRowGrad(g *tensor.RowGrad) { p.rows = g }

// ZeroGrad forgets the gradient; its memory is used again.
func (p *Parameter) ZeroGrad() {
	p.holds, p.rows = false, nil
	if p.zeroed != nil {
		p.zeroed()
	}
}

// OnZeroGrad makes [Parameter.ZeroGrad] call fn: a wrapper that keeps a part of the gradient
// elsewhere forgets it there. There is one such function at a time; nil is none.
func (p *Parameter) OnZeroGrad(fn func()) { p.zeroed = fn }

// SetGradBuffer makes gradients collect in buf, dense and of the parameter's
// shape, dtype and device: a view of a bucket, say. nil is memory of the parameter's
// own. It forgets the present gradient.
func (p *Parameter) SetGradBuffer(buf *tensor.Tensor) {
	if buf == nil {
		p.grad, p.holds = nil, false
		return
	}
	if !slices.Equal(buf.Shape(), p.data.Shape()) || buf.DType() != p.data.DType() || buf.Device() != p.data.Device() || !buf.IsContiguous() {
		panic(&tensor.Error{
			Op: "set grad buffer", Names: []string{p.name, ""}, Shapes: [][]int{p.data.Shape(), buf.Shape()},
			DTypes: []tensor.DType{p.data.DType(), buf.DType()}, Msg: "the buffer must have the parameter's shape, dtype and device, and be contiguous",
		})
	}
	p.grad, p.holds = buf, false
}

// WithGrad runs fn with g and rows as the gradient, of which both may be nil, and
// puts the present one back afterwards: an optimizer can step so on a gradient that
// was kept elsewhere. g has the parameter's shape and dtype.
func (p *Parameter) WithGrad(g *tensor.Tensor, rows *tensor.RowGrad, fn func()) {
	if g != nil && (!slices.Equal(g.Shape(), p.data.Shape()) || g.DType() != p.data.DType()) {
		panic(&tensor.Error{
			Op: "with grad", Names: []string{p.name, ""}, Shapes: [][]int{p.data.Shape(), g.Shape()},
			DTypes: []tensor.DType{p.data.DType(), g.DType()}, Msg: "the gradient must have the parameter's shape and dtype",
		})
	}
	grad, holds, had := p.grad, p.holds, p.rows
	defer func() { p.grad, p.holds, p.rows = grad, holds, had }()
	p.grad, p.holds, p.rows = g, g != nil, rows
	fn()
}

// OnGradReady calls fn in every backward pass, as soon as the parameter's
// gradient is final in it, from the goroutine of the pass. An error ends the
// pass. The function that is returned takes the hook off.
func (p *Parameter) OnGradReady(fn func(ctx context.Context, p *Parameter) error) (remove func()) {
	h := &readyHook{fn}
	p.ready = append(p.ready, h)
	return func() { p.ready = slices.DeleteFunc(slices.Clone(p.ready), func(o *readyHook) bool { return o == h }) }
}

// GradBuffer lends the tape the gradient's memory; see tensor.Leaf.
func (p *Parameter) GradBuffer() (*tensor.Tensor, bool) {
	if p.grad == nil {
		p.grad = tensor.New(p.data.Device(), p.data.DType(), p.data.Shape()...)
		if p.name != "" {
			p.grad.SetName(p.name + ".grad")
		}
	}
	p.lent = true
	return p.grad, p.holds
}

// WantsRows reports whether the gradient is taken by rows; see tensor.RowLeaf.
func (p *Parameter) WantsRows() bool { return p.Sparse }

// AddRows is called by the tape; see tensor.RowLeaf.
func (p *Parameter) AddRows(g tensor.RowGrad) {
	if p.rows != nil {
		g = p.rows.Add(g)
	}
	p.rows = &g
}

// GradReady is called by the tape; see tensor.Leaf.
func (p *Parameter) GradReady(ctx context.Context) error {
	p.holds = p.holds || p.lent || p.rows == nil
	p.lent = false
	if p.holds && p.rows != nil {
		// A table that was also used whole, as a tied output layer is.
		p.grad.Axpy(1, p.rows.Dense())
		p.rows = nil
	}
	for _, h := range p.ready {
		if err := h.fn(ctx, p); err != nil {
			return fmt.Errorf("gradient of %s: %w", p.name, err)
		}
	}
	return nil
}

// Buffer is a tensor that belongs to a module's state but is not trained, such
// as a running mean.
type Buffer struct {
	Data *tensor.Tensor
	name string
}

// Name returns the buffer's name in the model last walked.
func (b *Buffer) Name() string { return b.name }
