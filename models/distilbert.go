// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// DistilBERTConfig is the size of a DistilBERT.
type DistilBERTConfig struct {
	Vocab            int
	Context          int // most tokens in a sequence
	Width            int
	Hidden           int // width inside the feed-forward networks; 0 is 4·Width
	Heads            int // they divide Width
	Layers           int
	Dropout          float64 // of features while training
	AttentionDropout float64
	Padding          *int       // the word whose vector is not trained by being looked up; nil for none
	Activation       Activation // "" is "gelu"
	Untied           bool       // the output layer has weights of its own
	Headless         bool       // there is no output layer: the model returns features
	Classes          *Classes   // a head that predicts classes, in place of the output layer; nil for none
}

// Validate reports a size that makes no model.
func (g DistilBERTConfig) Validate() error {
	if err := g.bert().Validate(); err != nil {
		return fmt.Errorf("%w (a DistilBERT is one)", err)
	}
	return nil
}

// bert is the BERT of the same size.
func (g DistilBERTConfig) bert() BERTConfig {
	return BERTConfig{
		Vocab: g.Vocab, Context: g.Context, Segments: 1, Width: g.Width, Hidden: g.Hidden, Heads: g.Heads, Layers: g.Layers,
		Dropout: g.Dropout, AttentionDropout: &g.AttentionDropout, Padding: g.Padding, Activation: g.Activation, Classes: g.Classes,
	}.withDefaults()
}

// DistilBERT is the encoder of Sanh et al. 2019 (arXiv 1910.01108), under its Hugging
// Face names: half the layers of a BERT, and no segments.
type DistilBERT struct {
	Config  DistilBERTConfig   `name:"-"`
	Encoder *DistilBERTEncoder `name:"distilbert"`
	// The masked language model; nil if headless, or for classes.
	Transform *nn.Linear     `name:"vocab_transform"`
	Norm      *nn.LayerNorm  `name:"vocab_layer_norm"`
	Projector *DistilBERTOut `name:"vocab_projector"`
	// The head for classes. Hidden is nil for those of tokens.
	Hidden     *nn.Linear `name:"pre_classifier"`
	Classifier *nn.Linear `name:"classifier"`
	Dropout    *nn.Dropout

	act func(*tensor.Tensor) *tensor.Tensor
}

// DistilBERTOut is the output layer. Its weight is nil where the table of words stands
// for it.
type DistilBERTOut struct{ Weight, Bias *nn.Parameter }

// NewDistilBERT returns a DistilBERT with first values of deviation 0.02. It panics when
// the configuration is not valid.
func NewDistilBERT(b *nn.Build, g DistilBERTConfig) *DistilBERT {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new distilbert", nil, "%v", err))
	}
	size := g.bert()
	g.Hidden = size.Hidden
	m := &DistilBERT{Config: g, act: g.Activation.or("gelu")}
	switch {
	case g.Classes != nil:
		if g.Classes.Of == OfSequences {
			m.Hidden = newBERTLinear(b, g.Width, g.Width)
		}
		m.Classifier, m.Dropout = newBERTLinear(b, g.Width, len(g.Classes.Names)), nn.NewDropout(g.Classes.dropout(g.Dropout))
	case !g.Headless:
		m.Transform, m.Norm = newBERTLinear(b, g.Width, g.Width), newBERTNorm(b, size)
		m.Projector = &DistilBERTOut{Bias: b.Empty(g.Vocab)}
		if g.Untied {
			m.Projector.Weight = b.Normal(0.02, g.Vocab, g.Width)
		}
	}
	m.Encoder = &DistilBERTEncoder{
		Embeddings: &DistilBERTEmbeddings{
			Words:     &nn.Embedding{Weight: b.Normal(0.02, g.Vocab, g.Width), PaddingIdx: g.Padding},
			Positions: &nn.Embedding{Weight: b.Normal(0.02, g.Context, g.Width)},
			Norm:      newBERTNorm(b, size), Dropout: nn.NewDropout(g.Dropout),
		},
		Layers: &DistilBERTLayers{},
	}
	for range g.Layers {
		m.Encoder.Layers.Layer = append(m.Encoder.Layers.Layer, newDistilBERTLayer(b, size))
	}
	return m
}

// Forward turns int64 token ids [batch, time], none of them padding, into logits
// [batch, time, vocab]; a headless model's are features [batch, time, width], and those
// of classes [batch, classes] or [batch, time, classes].
func (m *DistilBERT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return m.ForwardN(c, ids)[0]
}

// ForwardN takes what [BERTEncoder.ForwardN] takes, of which the segments must be nil, and
// returns what Forward does.
func (m *DistilBERT) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("DistilBERT", in, bertInputs, 1, 2, 3)
	h := c.CallN(m.Encoder, in...)[0]
	switch {
	case m.Classifier != nil:
		if m.Hidden != nil {
			h = c.Call(m.Hidden, h.Select(1, 0)).ReLU()
		}
		return []*tensor.Tensor{c.Call(m.Classifier, c.Call(m.Dropout, h))}
	case m.Projector == nil:
		return []*tensor.Tensor{h}
	}
	h = c.Call(m.Norm, m.act(c.Call(m.Transform, h)))
	table := m.Encoder.Embeddings.Words.Weight
	if m.Projector.Weight != nil {
		table = m.Projector.Weight
	}
	return []*tensor.Tensor{tensor.Linear(h, c.Param(table), c.Param(m.Projector.Bias))}
}

// DistilBERTEncoder is the transformer alone.
type DistilBERTEncoder struct {
	Embeddings *DistilBERTEmbeddings
	Layers     *DistilBERTLayers `name:"transformer"`
}

// ForwardN takes what [BERTEncoder.ForwardN] takes, without segments.
func (e *DistilBERTEncoder) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("DistilBERTEncoder", in, bertInputs, 1, 2, 3)
	ids, mask := in[0], (*tensor.Tensor)(nil)
	if len(in) > 1 && in[1] != nil {
		panic(tensor.NewError("distilbert", in, "there are segments, of which a DistilBERT knows nothing: give nil"))
	}
	if len(in) > 2 && in[2] != nil {
		mask = in[2].Reshape(ids.Dim(0), 1, 1, ids.Dim(1)) // of every head and query
	}
	x := c.Call(e.Embeddings.Words, ids).Add(c.Call(e.Embeddings.Positions, c.Positions(ids.Dim(-1))))
	x = c.Call(e.Embeddings.Dropout, c.Call(e.Embeddings.Norm, x))
	for _, layer := range e.Layers.Layer {
		x = c.CallN(layer, x, mask)[0]
	}
	return []*tensor.Tensor{x}
}

// DistilBERTEmbeddings adds the vectors of words and positions.
type DistilBERTEmbeddings struct {
	Words     *nn.Embedding `name:"word_embeddings"`
	Positions *nn.Embedding `name:"position_embeddings"`
	Norm      *nn.LayerNorm `name:"LayerNorm"`
	Dropout   *nn.Dropout
}

// DistilBERTLayers are the layers, under the name that Hugging Face gives them.
type DistilBERTLayers struct{ Layer []*DistilBERTLayer }

// DistilBERTLayer is attention and a feed-forward network, each added to its input and
// normalised afterwards.
type DistilBERTLayer struct {
	Attention  *DistilBERTAttention
	Norm       *nn.LayerNorm `name:"sa_layer_norm"`
	FFN        *DistilBERTFFN
	OutputNorm *nn.LayerNorm `name:"output_layer_norm"`
}

// DistilBERTAttention is multi-head attention in both directions.
type DistilBERTAttention struct {
	Query  *nn.Linear `name:"q_lin"`
	Key    *nn.Linear `name:"k_lin"`
	Value  *nn.Linear `name:"v_lin"`
	Output *nn.Linear `name:"out_lin"`

	Attention *nn.DotProductAttention
}

// DistilBERTFFN is the feed-forward network.
type DistilBERTFFN struct {
	Lin1, Lin2 *nn.Linear

	act     func(*tensor.Tensor) *tensor.Tensor
	Dropout *nn.Dropout
}

// Forward maps [batch, time, width] to the same shape.
func (f *DistilBERTFFN) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(f.Dropout, c.Call(f.Lin2, f.act(c.Call(f.Lin1, x))))
}

func newDistilBERTLayer(b *nn.Build, g BERTConfig) *DistilBERTLayer {
	return &DistilBERTLayer{
		Attention: &DistilBERTAttention{
			Query: newBERTLinear(b, g.Width, g.Width), Key: newBERTLinear(b, g.Width, g.Width), Value: newBERTLinear(b, g.Width, g.Width),
			Output:    newBERTLinear(b, g.Width, g.Width),
			Attention: &nn.DotProductAttention{HeadDim: g.Width / g.Heads, Dropout: g.attentionDropout()},
		},
		Norm:       newBERTNorm(b, g),
		FFN:        &DistilBERTFFN{newBERTLinear(b, g.Width, g.Hidden), newBERTLinear(b, g.Hidden, g.Width), g.Activation.or("gelu"), nn.NewDropout(g.Dropout)},
		OutputNorm: newBERTNorm(b, g),
	}
}

// ForwardN maps x [batch, time, width], with a mask or nil, to one tensor of the same
// shape.
func (l *DistilBERTLayer) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("DistilBERTLayer", in, "x and a mask or nil", 2)
	x, a := in[0], l.Attention
	dim := a.Attention.HeadDim
	y := c.CallN(a.Attention, inHeads(c.Call(a.Query, x), dim), inHeads(c.Call(a.Key, x), dim), inHeads(c.Call(a.Value, x), dim), in[1])[0]
	x = c.Call(l.Norm, c.Call(a.Output, besideEachOther(y)).Add(x))
	return []*tensor.Tensor{c.Call(l.OutputNorm, c.Call(l.FFN, x).Add(x))}
}
