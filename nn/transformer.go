// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"cmp"

	"github.com/cohort-ml/cohort/tensor"
)

// TransformerOptions are the choices of the transformer's layers, PyTorch's
// arguments of the names in brackets.
type TransformerOptions struct {
	Width      int     // of the residual stream (d_model)
	NumHeads   int     // they divide Width (nhead)
	Hidden     int     // width inside the perceptron (dim_feedforward); 0 is 2048
	Dropout    float64 // 0 is none; PyTorch's own default is 0.1
	Activation string  // "relu" or "gelu"; "" is "relu"
	Eps        float64 // of the norms (layer_norm_eps); 0 is 1e-5
	NormFirst  bool    // norms before attention and perceptron, not after
	Causal     bool    // self-attention sees positions up to its own
}

func (o TransformerOptions) activation() Module {
	switch o.Activation {
	case "", "relu":
		return &ReLU{}
	case "gelu":
		return &GELU{}
	}
	panic(tensor.NewError("transformer", nil, "there is no activation %q: there is relu and gelu", o.Activation))
}

func (o TransformerOptions) norm(b *Build) *LayerNorm {
	n := NewLayerNorm(b, o.Width)
	n.Eps = cmp.Or(o.Eps, n.Eps)
	return n
}

func (o TransformerOptions) attention(b *Build, causal bool) *MultiheadAttention {
	m := NewMultiheadAttention(b, o.Width, o.NumHeads)
	m.Causal, m.Dropout = causal, o.Dropout
	return m
}

// residual is a step of a layer around the sum: x + f(norm(x)), or norm(x +
// f(x)).
func residual(c *Ctx, normFirst bool, norm *LayerNorm, drop *Dropout, x *tensor.Tensor, f func(x *tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if normFirst {
		return x.Add(c.Call(drop, f(c.Call(norm, x))))
	}
	return c.Call(norm, x.Add(c.Call(drop, f(x))))
}

// TransformerEncoderLayer is self-attention and a perceptron, each with a norm
// and a residual connection (Vaswani et al. 2017, §3.1), with PyTorch's names.
// Batches come first, [batch, time, width], and of a bool mask true takes part:
// see [MultiheadAttention].
type TransformerEncoderLayer struct {
	SelfAttn           *MultiheadAttention
	Linear1            *Linear
	Dropout            *Dropout
	Linear2            *Linear
	Norm1, Norm2       *LayerNorm
	Dropout1, Dropout2 *Dropout
	Activation         Module

	NormFirst bool
}

// NewTransformerEncoderLayer returns a layer with PyTorch's first values.
func NewTransformerEncoderLayer(b *Build, o TransformerOptions) *TransformerEncoderLayer {
	hidden := cmp.Or(o.Hidden, 2048)
	return &TransformerEncoderLayer{
		Activation: o.activation(), NormFirst: o.NormFirst,
		SelfAttn: o.attention(b, o.Causal),
		Linear1:  NewLinear(b, o.Width, hidden), Linear2: NewLinear(b, hidden, o.Width),
		Norm1: o.norm(b), Norm2: o.norm(b),
		Dropout: NewDropout(o.Dropout), Dropout1: NewDropout(o.Dropout), Dropout2: NewDropout(o.Dropout),
	}
}

// Forward maps [batch, time, width] to the same shape.
func (l *TransformerEncoderLayer) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return l.ForwardN(c, x)[0]
}

// ForwardN takes x and, if there is one, a mask of the self-attention.
func (l *TransformerEncoderLayer) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("TransformerEncoderLayer", x, "x and perhaps a mask", 1, 2)
	y := residual(c, l.NormFirst, l.Norm1, l.Dropout1, x[0], func(h *tensor.Tensor) *tensor.Tensor {
		return selfAttention(c, l.SelfAttn, h, x[1:])
	})
	y = residual(c, l.NormFirst, l.Norm2, l.Dropout2, y, func(h *tensor.Tensor) *tensor.Tensor {
		return c.Call(l.Linear2, c.Call(l.Dropout, c.Call(l.Activation, c.Call(l.Linear1, h))))
	})
	return []*tensor.Tensor{y}
}

// selfAttention calls m with a mask if there is one.
func selfAttention(c *Ctx, m *MultiheadAttention, x *tensor.Tensor, mask []*tensor.Tensor) *tensor.Tensor {
	if len(mask) == 0 {
		return c.Call(m, x)
	}
	return c.CallN(m, x, mask[0])[0]
}

// TransformerEncoder is a stack of encoder layers and perhaps a last norm.
type TransformerEncoder struct {
	Layers []*TransformerEncoderLayer
	Norm   *LayerNorm // nil for none
}

// NewTransformerEncoder returns a stack without a last norm. All layers begin
// with the same values, as PyTorch's, which are copies of one layer.
func NewTransformerEncoder(b *Build, numLayers int, o TransformerOptions) *TransformerEncoder {
	e := &TransformerEncoder{}
	for range numLayers {
		e.Layers = append(e.Layers, alike(b, e.Layers, func(b *Build) *TransformerEncoderLayer { return NewTransformerEncoderLayer(b, o) }))
	}
	return e
}

// alike builds a module, with the values of the first of its kind if there is
// one; then nothing is drawn.
func alike[M any](b *Build, others []M, build func(b *Build) M) M {
	if len(others) == 0 {
		return build(b)
	}
	m := build(&Build{Device: b.Device})
	from := Parameters(others[0])
	for i, p := range Parameters(m) {
		p.data.CopyFrom(from[i].data)
	}
	return m
}

// Forward maps [batch, time, width] to the same shape.
func (e *TransformerEncoder) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return e.ForwardN(c, x)[0]
}

// ForwardN takes x and, if there is one, a mask for all layers.
func (e *TransformerEncoder) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("TransformerEncoder", x, "x and perhaps a mask", 1, 2)
	y, mask := x[0], x[1:]
	for _, l := range e.Layers {
		if len(mask) == 0 {
			y = c.Call(l, y)
		} else {
			y = c.CallN(l, y, mask[0])[0]
		}
	}
	if e.Norm != nil {
		y = c.Call(e.Norm, y)
	}
	return []*tensor.Tensor{y}
}

// TransformerDecoderLayer is an encoder layer with attention to a memory, the
// encoder's result, in between; see [TransformerEncoderLayer]. PyTorch's is given
// a mask that makes its self-attention causal; this one has an option for it.
type TransformerDecoderLayer struct {
	SelfAttn, MultiheadAttn      *MultiheadAttention
	Linear1                      *Linear
	Dropout                      *Dropout
	Linear2                      *Linear
	Norm1, Norm2, Norm3          *LayerNorm
	Dropout1, Dropout2, Dropout3 *Dropout
	Activation                   Module

	NormFirst bool
}

// NewTransformerDecoderLayer returns a layer with PyTorch's first values.
func NewTransformerDecoderLayer(b *Build, o TransformerOptions) *TransformerDecoderLayer {
	hidden := cmp.Or(o.Hidden, 2048)
	return &TransformerDecoderLayer{
		Activation: o.activation(), NormFirst: o.NormFirst,
		SelfAttn: o.attention(b, o.Causal), MultiheadAttn: o.attention(b, false),
		Linear1: NewLinear(b, o.Width, hidden), Linear2: NewLinear(b, hidden, o.Width),
		Norm1: o.norm(b), Norm2: o.norm(b), Norm3: o.norm(b),
		Dropout: NewDropout(o.Dropout), Dropout1: NewDropout(o.Dropout), Dropout2: NewDropout(o.Dropout), Dropout3: NewDropout(o.Dropout),
	}
}

// ForwardN takes one of
//
//	x, memory
//	x, memory, memoryMask
//	x, memory, memoryMask, mask
//
// of [batch, time, width], the memory with a time of its own, and masks of the
// two attentions. It returns one value of the shape of x.
func (l *TransformerDecoderLayer) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	memory, memoryMask, mask := decoderInputs("TransformerDecoderLayer", x)
	y := residual(c, l.NormFirst, l.Norm1, l.Dropout1, x[0], func(h *tensor.Tensor) *tensor.Tensor {
		return selfAttention(c, l.SelfAttn, h, mask)
	})
	y = residual(c, l.NormFirst, l.Norm2, l.Dropout2, y, func(h *tensor.Tensor) *tensor.Tensor {
		return c.CallN(l.MultiheadAttn, append([]*tensor.Tensor{h, memory, memory}, memoryMask...)...)[0]
	})
	y = residual(c, l.NormFirst, l.Norm3, l.Dropout3, y, func(h *tensor.Tensor) *tensor.Tensor {
		return c.Call(l.Linear2, c.Call(l.Dropout, c.Call(l.Activation, c.Call(l.Linear1, h))))
	})
	return []*tensor.Tensor{y}
}

// decoderInputs splits the inputs of a decoder; a mask that is absent is empty.
func decoderInputs(kind string, x []*tensor.Tensor) (memory *tensor.Tensor, memoryMask, mask []*tensor.Tensor) {
	WantInputs(kind, x, "x, memory and perhaps a mask of the memory and one of x", 2, 3, 4)
	return x[1], x[2:min(3, len(x))], x[min(3, len(x)):]
}

// TransformerDecoder is a stack of decoder layers and perhaps a last norm.
type TransformerDecoder struct {
	Layers []*TransformerDecoderLayer
	Norm   *LayerNorm // nil for none
}

// NewTransformerDecoder returns a stack without a last norm, whose layers begin
// with the same values; see [NewTransformerEncoder].
func NewTransformerDecoder(b *Build, numLayers int, o TransformerOptions) *TransformerDecoder {
	d := &TransformerDecoder{}
	for range numLayers {
		d.Layers = append(d.Layers, alike(b, d.Layers, func(b *Build) *TransformerDecoderLayer { return NewTransformerDecoderLayer(b, o) }))
	}
	return d
}

// ForwardN takes what [TransformerDecoderLayer.ForwardN] takes.
func (d *TransformerDecoder) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	decoderInputs("TransformerDecoder", x)
	y := x[:1:1]
	for _, l := range d.Layers {
		y = c.CallN(l, append(y[:1:1], x[1:]...)...)
	}
	if d.Norm != nil {
		y = []*tensor.Tensor{c.Call(d.Norm, y[0])}
	}
	return y
}
