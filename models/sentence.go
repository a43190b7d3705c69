// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The ways in which the features of a text's tokens become one vector: the names of
// sentence-transformers.
const (
	PoolCLS          = "cls"                  // those of the first token
	PoolMax          = "max"                  // the largest of each feature
	PoolMean         = "mean"                 // their mean
	PoolMeanSqrt     = "mean_sqrt_len_tokens" // their sum by the root of their number
	PoolWeightedMean = "weightedmean"         // their mean, where token i counts i times
	PoolLast         = "lasttoken"            // those of the last token
)

var poolings = []string{PoolCLS, PoolMax, PoolMean, PoolMeanSqrt, PoolWeightedMean, PoolLast}

// SentenceStep is what happens to a text's vector after the pooling: it is normalised to
// length 1, or goes through a layer.
type SentenceStep struct {
	Normalize bool           `json:"normalize,omitempty"`
	Dense     *SentenceLayer `json:"dense,omitempty"`
}

// SentenceLayer is the size of a layer after the pooling.
type SentenceLayer struct {
	In, Out    int
	NoBias     bool       `json:",omitempty"`
	Activation Activation // such as "tanh" or "linear"
}

// SentenceConfig says how an encoder's features become the vector of a text, and what its
// users need to know. It is all that is in a folder of sentence-transformers besides the
// encoder.
type SentenceConfig struct {
	Pooling []string       // which stand beside each other in the vector; none is PoolMean
	Steps   []SentenceStep `json:",omitempty"`

	MaxTokens     int               `json:",omitempty"` // most tokens of a text, those around it included; 0 is the encoder's Context
	Lower         bool              `json:",omitempty"` // texts are made lower case first
	Prompts       map[string]string `json:",omitempty"` // what is put before a text, by its name: "query"
	DefaultPrompt string            `json:",omitempty"` // the name of that which is used where nobody chooses; "" is none
	Similarity    string            `json:",omitempty"` // of vectors: "cosine", "dot", "euclidean", "manhattan"; "" is cosine
}

// Validate reports what makes no vector of features of a width.
func (g SentenceConfig) Validate(width int) error {
	for _, p := range g.Pooling {
		if !slices.Contains(poolings, p) {
			return fmt.Errorf("models: there is no pooling %q: there are %s", p, strings.Join(poolings, ", "))
		}
	}
	if g.MaxTokens < 0 || g.MaxTokens > 1<<24 {
		return fmt.Errorf("models: a text of at most %d tokens, want 0 to %d", g.MaxTokens, 1<<24)
	}
	if !slices.Contains([]string{"", "cosine", "dot", "euclidean", "manhattan"}, g.Similarity) {
		return fmt.Errorf("models: there is no similarity %q: there are cosine, dot, euclidean and manhattan", g.Similarity)
	}
	if _, ok := g.Prompts[g.DefaultPrompt]; g.DefaultPrompt != "" && !ok {
		return fmt.Errorf("models: the default prompt %q is not one of the prompts", g.DefaultPrompt)
	}
	width *= max(1, len(g.Pooling))
	for _, s := range g.Steps {
		d := s.Dense
		if d == nil {
			continue
		}
		if d.In != width || d.Out < 1 || d.Out > 1<<20 {
			return fmt.Errorf("models: a layer after the pooling is from %d to %d numbers; it gets %d", d.In, d.Out, width)
		}
		if err := d.Activation.validate("layer after the pooling"); err != nil {
			return err
		}
		width = d.Out
	}
	return nil
}

// SentenceEncoder computes a vector for a text: Reimers and Gurevych 2019, "Sentence-BERT"
// (arXiv 1908.10084). It opens and writes the folders of sentence-transformers.
type SentenceEncoder struct {
	Config  SentenceConfig   `name:"-"`
	Encoder Encoder          `name:""` // its parameters have its own names
	Dense   []*SentenceDense // of the steps that have one
}

// SentenceDense is a layer after the pooling.
type SentenceDense struct {
	Linear *nn.Linear

	act func(*tensor.Tensor) *tensor.Tensor
}

// NewSentenceEncoder puts a pooling and what follows after an encoder, which must predict
// features: see [WithHead].
func NewSentenceEncoder(b *nn.Build, e Encoder, g SentenceConfig) (*SentenceEncoder, error) {
	if h := e.Predicts(); h.MaskedLM || h.Classes != nil {
		return nil, fmt.Errorf("models: the encoder of a text's vector has a head of its own: open it with models.WithHead(models.Head{})")
	}
	if err := g.Validate(e.Width()); err != nil {
		return nil, err
	}
	if len(g.Pooling) == 0 {
		g.Pooling = []string{PoolMean}
	}
	m := &SentenceEncoder{Config: g, Encoder: e}
	for _, s := range g.Steps {
		if d := s.Dense; d != nil {
			layer := nn.NewLinear(b, d.In, d.Out)
			if d.NoBias {
				layer.Bias = nil
			}
			m.Dense = append(m.Dense, &SentenceDense{layer, d.Activation.or("linear")})
		}
	}
	return m, nil
}

// Width is the size of a vector.
func (m *SentenceEncoder) Width() int {
	if n := len(m.Dense); n > 0 {
		return m.Dense[n-1].Linear.Weight.Data().Dim(0)
	}
	return m.Encoder.Width() * len(m.Config.Pooling)
}

// MaxTokens is how many tokens of a text count, those around it included.
func (m *SentenceEncoder) MaxTokens() int {
	if n := m.Config.MaxTokens; n > 0 {
		return min(n, m.Encoder.Context())
	}
	return m.Encoder.Context()
}

// Forward maps int64 token ids [batch, time], none of them padding, to vectors
// [batch, Width].
func (m *SentenceEncoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return m.ForwardN(c, ids, nil, nil)[0]
}

// ForwardN takes the texts of one or more columns, such as questions and their answers,
// which may be of other lengths. Each column is three tensors: token ids, segments and a
// mask, as those of [Encoder]. It returns the vectors [batch, Width] of each column.
func (m *SentenceEncoder) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	if len(in) == 0 || len(in)%3 != 0 {
		panic(tensor.NewError("sentence encoder", in, "there are %d inputs: want ids, segments and a mask of each column", len(in)))
	}
	var out []*tensor.Tensor
	for ; len(in) > 0; in = in[3:] {
		out = append(out, m.vector(c, c.CallN(m.Encoder, in[0], in[1], in[2])[0], in[2]))
	}
	return out
}

// vector makes one vector of each text's features [batch, time, width].
func (m *SentenceEncoder) vector(c *nn.Ctx, x, mask *tensor.Tensor) *tensor.Tensor {
	var pooled []*tensor.Tensor
	for _, mode := range m.Config.Pooling {
		pooled = append(pooled, pool(c, mode, x, mask))
	}
	v := pooled[0]
	if len(pooled) > 1 {
		v = tensor.Cat(1, pooled...)
	}
	next := 0
	for _, s := range m.Config.Steps {
		if s.Normalize {
			v = Normalized(v)
		}
		if s.Dense != nil {
			v = m.Dense[next].act(c.Call(m.Dense[next].Linear, v))
			next++
		}
	}
	return v
}

// Normalized returns rows [batch, width] scaled to length 1, as PyTorch's normalize does.
func Normalized(x *tensor.Tensor) *tensor.Tensor {
	const least = 1e-12
	return x.Div(x.Square().SumKeep(1).Clamp(least*least, maxSquare).Sqrt())
}

const maxSquare = 3e38

// pool makes one vector of each text's features by one mode.
func pool(c *nn.Ctx, mode string, x, mask *tensor.Tensor) *tensor.Tensor {
	batch, time := x.Dim(0), x.Dim(1)
	if mode == PoolCLS {
		return x.Select(1, 0)
	}
	if mask == nil {
		mask = c.Tape().Const(tensor.On(x.Device()).Full(1, batch, time)).To(tensor.Bool)
	}
	if mode == PoolMax {
		return x.MaskedFill(mask.LogicalNot().Unsqueeze(2), -maxSquare).AMax(1)
	}
	weights := mask.To(tensor.Float32)
	switch mode {
	case PoolWeightedMean:
		weights = weights.Mul(c.Tape().Const(tensor.ArangeOf(x.Device(), tensor.Float32, 1, float64(time+1), 1)))
	case PoolLast: // padding stands at the end
		if time > 1 {
			after := tensor.Cat(1, weights.Narrow(1, 1, time-1), weights.Narrow(1, 0, 1).MulScalar(0))
			weights = weights.Sub(after)
		}
		return weighted(x, weights)
	}
	number := weights.SumKeep(1).Clamp(1e-9, maxSquare)
	if mode == PoolMeanSqrt {
		number = number.Sqrt()
	}
	return weighted(x, weights).Div(number.To(x.DType()))
}

// weighted returns the sum over time of x [batch, time, width] times weights [batch, time].
func weighted(x, weights *tensor.Tensor) *tensor.Tensor {
	return weights.To(x.DType()).Unsqueeze(1).MatMul(x).Reshape(x.Dim(0), x.Dim(2))
}
