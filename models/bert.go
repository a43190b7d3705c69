// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// BERTConfig is the size of a BERT.
type BERTConfig struct {
	Vocab    int // entries of the vocabulary
	Context  int // most tokens in a sequence
	Segments int // kinds of segments; 0 is 2
	Width    int
	Hidden   int // width inside the feed-forward networks; 0 is 4·Width
	Heads    int // they divide Width
	Layers   int
	Epsilon  float64 // of the norms; 0 is 1e-12
	Dropout  float64 // of features and attention while training
	Padding  *int    // the word whose vector is not trained by being looked up; nil for none
	// What published models vary; the zero values are BERT's own.
	AttentionDropout *float64   // of attention, where it is not Dropout
	Activation       Activation // "" is "gelu"
	Untied           bool       // the output layer has weights of its own
	Headless         bool       // there is no output layer: the model returns features
	// Classes is a head that predicts classes, in place of the output layer; nil for none.
	Classes *Classes
	// Pooler keeps the layer after the first token of a headless model. No result
	// depends on it: it is there for who opens the weights with other tools.
	Pooler bool
}

// Validate reports a size that makes no model.
func (g BERTConfig) Validate() error {
	g = g.withDefaults()
	if err := checkSizes("BERT", []size{
		{"vocabulary", g.Vocab, 1 << 24}, {"context", g.Context, 1 << 24}, {"number of segments", g.Segments, 1 << 10},
		{"width", g.Width, 1 << 20}, {"hidden width", g.Hidden, 1 << 22}, {"number of heads", g.Heads, 1 << 20}, {"number of layers", g.Layers, 1 << 14},
	}); err != nil {
		return err
	}
	if g.Width%g.Heads != 0 {
		return fmt.Errorf("models: the width of a BERT must be a multiple of its heads: %d %% %d = %d", g.Width, g.Heads, g.Width%g.Heads)
	}
	if g.Padding != nil && (*g.Padding < 0 || *g.Padding >= g.Vocab) {
		return fmt.Errorf("models: the padding of a BERT is word %d, which is not one of its %d", *g.Padding, g.Vocab)
	}
	if d := g.attentionDropout(); !(d >= 0 && d < 1) {
		return fmt.Errorf("models: a BERT with dropout %v of attention: want 0 up to, not including, 1", d)
	}
	if err := g.Activation.validate("BERT"); err != nil {
		return err
	}
	if !(g.Dropout >= 0 && g.Dropout < 1) || !(g.Epsilon >= 0) {
		return fmt.Errorf("models: a BERT with dropout %v and epsilon %v: want 0 ≤ dropout < 1 and a positive epsilon", g.Dropout, g.Epsilon)
	}
	return g.Classes.validate("BERT")
}

func (g BERTConfig) attentionDropout() float64 {
	if g.AttentionDropout != nil {
		return *g.AttentionDropout
	}
	return g.Dropout
}

func (g BERTConfig) withDefaults() BERTConfig {
	if g.Segments == 0 {
		g.Segments = 2
	}
	if g.Hidden == 0 {
		g.Hidden = 4 * g.Width
	}
	if g.Epsilon == 0 {
		g.Epsilon = 1e-12
	}
	return g
}

// BERT is the encoder of Devlin et al. 2018 (arXiv 1810.04805) with the head of
// its masked language model or one for classes, under their Hugging Face names. The
// output layer is the table of words again, unless the configuration unties it.
type BERT struct {
	Config     BERTConfig   `name:"-"`
	Encoder    *BERTEncoder `name:"bert"`
	Head       *BERTHead    `name:"cls"`        // nil if headless, or for classes
	Classifier *nn.Linear   `name:"classifier"` // nil unless for classes
	Dropout    *nn.Dropout  // before the classifier
}

// NewBERT returns a BERT with the paper's first values: weights of deviation
// 0.02. It panics when the configuration is not valid.
func NewBERT(b *nn.Build, g BERTConfig) *BERT {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new bert", nil, "%v", err))
	}
	g = g.withDefaults()
	m := &BERT{Config: g}
	switch {
	case g.Classes != nil:
		m.Classifier, m.Dropout = newBERTLinear(b, g.Width, len(g.Classes.Names)), nn.NewDropout(g.Classes.dropout(g.Dropout))
	case !g.Headless:
		act := g.Activation.or("gelu")
		head := &BERTPrediction{Transform: &BERTTransform{Dense: newBERTLinear(b, g.Width, g.Width), Norm: newBERTNorm(b, g), act: act}}
		if g.Untied {
			head.Decoder = newBERTLinear(b, g.Width, g.Vocab)
		} else {
			head.Bias = b.Empty(g.Vocab)
		}
		m.Head = &BERTHead{Predictions: head}
	}
	m.Encoder = newBERTEncoder(b, g)
	switch {
	case g.Classes != nil && g.Classes.Of == OfSequences:
		m.Encoder.Pooler = &BERTDense{newBERTLinear(b, g.Width, g.Width)}
	case g.Classes == nil && g.Headless && g.Pooler:
		m.Encoder.Pooler = newUnusedPooler(b, g.Width)
	}
	return m
}

// Forward turns int64 token ids [batch, time], all of segment 0 and none of them
// padding, into logits [batch, time, vocab]; a headless model's are features
// [batch, time, width], and those of classes [batch, classes] or [batch, time, classes].
func (m *BERT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return m.ForwardN(c, ids)[0]
}

// ForwardN takes what [BERTEncoder.ForwardN] takes and returns the logits,
// or a headless model's features.
func (m *BERT) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("BERT", in, bertInputs, 1, 2, 3)
	h := c.CallN(m.Encoder, in...)[0]
	switch {
	case m.Classifier != nil:
		if m.Encoder.Pooler != nil {
			h = c.Call(m.Encoder.Pooler.Dense, h.Select(1, 0)).Tanh()
		}
		return []*tensor.Tensor{c.Call(m.Classifier, c.Call(m.Dropout, h))}
	case m.Head == nil:
		return []*tensor.Tensor{h}
	}
	p := m.Head.Predictions
	h = c.Call(p.Transform, h)
	if p.Decoder != nil {
		return []*tensor.Tensor{c.Call(p.Decoder, h)}
	}
	return []*tensor.Tensor{tensor.Linear(h, c.Param(m.Encoder.Embeddings.Words.Weight), c.Param(p.Bias))}
}

// bertInputs are what ForwardN takes.
const bertInputs = "ids and perhaps segments and a mask"

// BERTEncoder is the transformer alone.
type BERTEncoder struct {
	Embeddings *BERTEmbeddings
	Layers     *BERTLayers `name:"encoder"`
	Pooler     *BERTDense  // nil if nobody wants it; the model calls it
}

func newBERTEncoder(b *nn.Build, g BERTConfig) *BERTEncoder {
	e := &BERTEncoder{
		Embeddings: &BERTEmbeddings{
			Words:     &nn.Embedding{Weight: b.Normal(0.02, g.Vocab, g.Width), PaddingIdx: g.Padding},
			Positions: &nn.Embedding{Weight: b.Normal(0.02, g.Context, g.Width)},
			Segments:  &nn.Embedding{Weight: b.Normal(0.02, g.Segments, g.Width)},
			Norm:      newBERTNorm(b, g),
			Dropout:   nn.NewDropout(g.Dropout),
		},
		Layers: &BERTLayers{},
	}
	for range g.Layers {
		e.Layers.Layer = append(e.Layers.Layer, newBERTLayer(b, g))
	}
	return e
}

// ForwardN takes int64 token ids [batch, time] and, if wanted, int64 segments
// and a bool mask, both [batch, time] or nil; where the mask is false is
// padding, which nobody attends to. It returns features [batch, time, width].
func (e *BERTEncoder) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("BERTEncoder", in, bertInputs, 1, 2, 3)
	ids, segments, mask := in[0], (*tensor.Tensor)(nil), (*tensor.Tensor)(nil)
	if len(in) > 1 {
		segments = in[1]
	}
	if len(in) > 2 && in[2] != nil {
		mask = in[2].Reshape(ids.Dim(0), 1, 1, ids.Dim(1)) // of every head and query
	}
	x := e.Embeddings.embed(c, ids, segments)
	for _, layer := range e.Layers.Layer {
		x = c.CallN(layer, x, mask)[0]
	}
	return []*tensor.Tensor{x}
}

// BERTEmbeddings adds the vectors of words, positions and segments.
type BERTEmbeddings struct {
	Words     *nn.Embedding `name:"word_embeddings"`
	Positions *nn.Embedding `name:"position_embeddings"`
	Segments  *nn.Embedding `name:"token_type_embeddings"`
	Norm      *nn.LayerNorm `name:"LayerNorm"`
	Dropout   *nn.Dropout

	counted *int // RoBERTa's positions: this word has none, and the others begin after its number
}

func (e *BERTEmbeddings) embed(c *nn.Ctx, ids, segments *tensor.Tensor) *tensor.Tensor {
	if segments == nil {
		segments = c.Tape().Const(tensor.New(ids.Device(), tensor.Int64, 1))
	}
	x := c.Call(e.Words, ids).Add(c.Call(e.Segments, segments))
	positions := (*tensor.Tensor)(nil)
	if e.counted == nil {
		positions = c.Positions(ids.Dim(-1))
	} else {
		words := ids.NeScalar(float64(*e.counted)).To(tensor.Float32)
		positions = words.CumSum(-1).Mul(words).AddScalar(float64(*e.counted)).To(tensor.Int64)
	}
	x = x.Add(c.Call(e.Positions, positions))
	return c.Call(e.Dropout, c.Call(e.Norm, x))
}

// BERTLayers are the layers, under the name that Hugging Face gives them.
type BERTLayers struct{ Layer []*BERTLayer }

// BERTLayer is attention and a feed-forward network, each added to its input
// and normalised afterwards.
type BERTLayer struct {
	Attention    *BERTAttention
	Intermediate *BERTDense
	Output       *BERTOutput

	act func(*tensor.Tensor) *tensor.Tensor
}

func newBERTLayer(b *nn.Build, g BERTConfig) *BERTLayer {
	return &BERTLayer{
		Attention: &BERTAttention{
			Self: &BERTSelfAttention{
				Query: newBERTLinear(b, g.Width, g.Width), Key: newBERTLinear(b, g.Width, g.Width), Value: newBERTLinear(b, g.Width, g.Width),
				Attention: &nn.DotProductAttention{HeadDim: g.Width / g.Heads, Dropout: g.attentionDropout()},
			},
			Output: newBERTOutput(b, g, g.Width),
		},
		Intermediate: &BERTDense{newBERTLinear(b, g.Width, g.Hidden)},
		Output:       newBERTOutput(b, g, g.Hidden),
		act:          g.Activation.or("gelu"),
	}
}

// ForwardN maps x [batch, time, width], with a mask or nil, to one tensor of the
// same shape.
func (l *BERTLayer) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("BERTLayer", in, "x and a mask or nil", 2)
	x, mask := in[0], in[1]
	x = l.Attention.Output.add(c, c.CallN(l.Attention.Self, x, mask)[0], x)
	h := l.act(c.Call(l.Intermediate.Dense, x))
	return []*tensor.Tensor{l.Output.add(c, h, x)}
}

// BERTAttention is attention with its output layer.
type BERTAttention struct {
	Self   *BERTSelfAttention
	Output *BERTOutput
}

// BERTSelfAttention is multi-head attention in both directions (Vaswani et al.
// 2017).
type BERTSelfAttention struct {
	Query, Key, Value *nn.Linear

	Attention *nn.DotProductAttention
}

// ForwardN maps x [batch, time, width], with a mask or nil, to one tensor of the
// same shape.
func (a *BERTSelfAttention) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("BERTSelfAttention", in, "x and a mask or nil", 2)
	x := in[0]
	dim := a.Attention.HeadDim
	y := c.CallN(a.Attention, inHeads(c.Call(a.Query, x), dim), inHeads(c.Call(a.Key, x), dim), inHeads(c.Call(a.Value, x), dim), in[1])[0]
	return []*tensor.Tensor{besideEachOther(y)}
}

// BERTDense is a linear layer, under the name that Hugging Face gives it.
type BERTDense struct{ Dense *nn.Linear }

// BERTOutput ends a part of a layer.
type BERTOutput struct {
	Dense   *nn.Linear
	Norm    *nn.LayerNorm `name:"LayerNorm"`
	Dropout *nn.Dropout
}

func newBERTOutput(b *nn.Build, g BERTConfig, in int) *BERTOutput {
	return &BERTOutput{newBERTLinear(b, in, g.Width), newBERTNorm(b, g), nn.NewDropout(g.Dropout)}
}

// add returns the norm of x + dense(h).
func (o *BERTOutput) add(c *nn.Ctx, h, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(o.Norm, c.Call(o.Dropout, c.Call(o.Dense, h)).Add(x))
}

// BERTHead predicts the words that were masked.
type BERTHead struct{ Predictions *BERTPrediction }

// BERTPrediction turns features into logits, with the table of words or an
// output layer of its own.
type BERTPrediction struct {
	Transform *BERTTransform
	Bias      *nn.Parameter // [vocab], beside the table of words
	Decoder   *nn.Linear    // nil if tied
}

// BERTTransform is the layer before the logits.
type BERTTransform struct {
	Dense *nn.Linear
	Norm  *nn.LayerNorm `name:"LayerNorm"`

	act func(*tensor.Tensor) *tensor.Tensor
}

// Forward maps [batch, time, width] to the same shape.
func (t *BERTTransform) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(t.Norm, t.act(c.Call(t.Dense, x)))
}

func newBERTLinear(b *nn.Build, in, out int) *nn.Linear {
	return &nn.Linear{Weight: b.Normal(0.02, out, in), Bias: b.Empty(out)}
}

func newBERTNorm(b *nn.Build, g BERTConfig) *nn.LayerNorm {
	n := nn.NewLayerNorm(b, g.Width)
	n.Eps = g.Epsilon
	return n
}
