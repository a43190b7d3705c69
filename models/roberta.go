// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// RobertaConfig is the size of a RoBERTa. Padding must be there. Context counts the
// rows of the table of positions, of which the first Padding+1 stand for no position.
type RobertaConfig struct {
	BERTConfig
	Type string // model_type of config.json: "" is "roberta"; "xlm-roberta" is the same model
}

// Validate reports a size that makes no model.
func (g RobertaConfig) Validate() error {
	if err := g.BERTConfig.Validate(); err != nil {
		return err
	}
	if g.Padding == nil {
		return fmt.Errorf("models: a RoBERTa without padding: its positions begin after the number of that word")
	}
	if g.Context <= *g.Padding+1 {
		return fmt.Errorf("models: a RoBERTa with %d positions, of which the first %d stand for none", g.Context, *g.Padding+1)
	}
	return nil
}

// Roberta is the encoder of Liu et al. 2019 (arXiv 1907.11692) and of XLM-R (Conneau
// et al. 2019, arXiv 1911.02116), under their Hugging Face names. It is a BERT that
// counts positions from the number of the word that stands for padding, and has
// other heads.
type Roberta struct {
	Config     RobertaConfig      `name:"-"`
	Encoder    *BERTEncoder       `name:"roberta"`
	Head       *RobertaHead       `name:"lm_head"`    // nil if headless, or for classes
	Classifier *RobertaClassifier `name:"classifier"` // nil unless for classes
}

// NewRoberta returns a RoBERTa with first values of deviation 0.02. It panics when the
// configuration is not valid.
func NewRoberta(b *nn.Build, g RobertaConfig) *Roberta {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new roberta", nil, "%v", err))
	}
	g.BERTConfig = g.withDefaults()
	m := &Roberta{Config: g}
	switch {
	case g.Classes != nil:
		m.Classifier = &RobertaClassifier{Dropout: nn.NewDropout(g.Classes.dropout(g.Dropout))}
		n := len(g.Classes.Names)
		if g.Classes.Of == OfSequences {
			m.Classifier.Dense, m.Classifier.Output = newBERTLinear(b, g.Width, g.Width), newBERTLinear(b, g.Width, n)
		} else {
			m.Classifier.Weight, m.Classifier.Bias = b.Normal(0.02, n, g.Width), b.Empty(n)
		}
	case !g.Headless:
		m.Head = &RobertaHead{Dense: newBERTLinear(b, g.Width, g.Width), Norm: newBERTNorm(b, g.BERTConfig)}
		if g.Untied {
			m.Head.Decoder = newBERTLinear(b, g.Width, g.Vocab)
		} else {
			m.Head.Bias = b.Empty(g.Vocab)
		}
	}
	m.Encoder = newBERTEncoder(b, g.BERTConfig)
	m.Encoder.Embeddings.counted = g.Padding
	m.Encoder.Embeddings.Positions.PaddingIdx = g.Padding
	if g.Classes == nil && g.Headless && g.Pooler {
		m.Encoder.Pooler = newUnusedPooler(b, g.Width)
	}
	return m
}

// newUnusedPooler returns a layer that is kept for other tools.
func newUnusedPooler(b *nn.Build, width int) *BERTDense {
	p := &BERTDense{newBERTLinear(b, width, width)}
	p.Dense.Weight.Frozen, p.Dense.Bias.Frozen = true, true
	return p
}

// Forward turns int64 token ids [batch, time], of which those of the padding stand for
// nothing but are attended to, into logits [batch, time, vocab]; a headless model's are
// features [batch, time, width], and those of classes [batch, classes] or
// [batch, time, classes].
func (m *Roberta) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return m.ForwardN(c, ids)[0]
}

// ForwardN takes what [BERTEncoder.ForwardN] takes and returns what Forward does.
func (m *Roberta) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("Roberta", in, bertInputs, 1, 2, 3)
	h := c.CallN(m.Encoder, in...)[0]
	switch {
	case m.Classifier != nil:
		return []*tensor.Tensor{c.Call(m.Classifier, h)}
	case m.Head == nil:
		return []*tensor.Tensor{h}
	}
	h = c.Call(m.Head.Norm, c.Call(m.Head.Dense, h).GELU())
	if m.Head.Decoder != nil {
		return []*tensor.Tensor{c.Call(m.Head.Decoder, h)}
	}
	return []*tensor.Tensor{tensor.Linear(h, c.Param(m.Encoder.Embeddings.Words.Weight), c.Param(m.Head.Bias))}
}

// RobertaHead predicts the words that were masked.
type RobertaHead struct {
	Dense   *nn.Linear
	Norm    *nn.LayerNorm `name:"layer_norm"`
	Bias    *nn.Parameter // [vocab], beside the table of words
	Decoder *nn.Linear    // nil if tied
}

// RobertaClassifier predicts classes: of a sequence by two layers after its first token,
// of tokens by one after each.
type RobertaClassifier struct {
	Dense        *nn.Linear
	Output       *nn.Linear `name:"out_proj"`
	Weight, Bias *nn.Parameter

	Dropout *nn.Dropout
}

// Forward maps features [batch, time, width] to [batch, classes] or [batch, time, classes].
func (h *RobertaClassifier) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if h.Dense == nil {
		return tensor.Linear(c.Call(h.Dropout, x), c.Param(h.Weight), c.Param(h.Bias))
	}
	x = c.Call(h.Dense, c.Call(h.Dropout, x.Select(1, 0))).Tanh()
	return c.Call(h.Output, c.Call(h.Dropout, x))
}
