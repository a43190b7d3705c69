// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Encoder is a model of texts that looks in both directions: a [BERT], a [Roberta] or a
// [DistilBERT]. ForwardN takes int64 token ids [batch, time] and, if wanted, int64
// segments and a bool mask, both [batch, time] or nil; where the mask is false is padding.
// What it returns depends on what it Predicts.
type Encoder interface {
	Pretrained
	nn.ModuleN
	// Vocab is the number of tokens that the model knows, Context how many it takes at
	// once, Width the size of a token's features.
	Vocab() int
	Context() int
	Width() int
	// Padding is the token that fills short sequences, 0 where config.json names none.
	Padding() int
	// Segments is the number of segments that the model tells apart.
	Segments() int
	// Predicts is what the model computes.
	Predicts() Head
	// IsBlock says whether a module is one of its layers, for nn.Recompute.
	IsBlock(module any) bool
	// LoRATargets are the projections that are adapted when nobody chooses: those that
	// PEFT takes for this kind of model.
	LoRATargets() []string
}

// Head is what an encoder computes: features [batch, time, width] as the zero value,
// logits of masked words [batch, time, vocab], or logits of classes, [batch, classes] or
// [batch, time, classes].
type Head struct {
	MaskedLM bool
	Classes  *Classes
}

// WithHead opens an encoder with this head, whatever head the folder has. A head that the
// folder has not, or has for other classes, keeps its first values.
func WithHead(h Head) LoadOption { return func(l *loading) { l.head = &h } }

// WithBuild draws first values, of a head that a folder lacks, as b does.
func WithBuild(b *nn.Build) LoadOption { return func(l *loading) { l.first = b } }

// LoadEncoder opens a folder of an encoder; see [LoadHuggingFace].
func LoadEncoder(dir string, opts ...LoadOption) (Encoder, error) {
	p, err := LoadHuggingFace(dir, opts...)
	if err != nil {
		return nil, err
	}
	m, ok := p.(Encoder)
	if !ok {
		return nil, fmt.Errorf("models: %s holds a %s, which is no encoder: a BERT, RoBERTa, XLM-R, MiniLM or DistilBERT is one", dir, strings.TrimPrefix(fmt.Sprintf("%T", p), "*models."))
	}
	return m, nil
}

func valueOr(p *int, otherwise int) int {
	if p == nil {
		return otherwise
	}
	return *p
}

func headOf(headless bool, classes *Classes) Head {
	return Head{MaskedLM: !headless && classes == nil, Classes: classes}
}

// Vocab is the number of tokens that the model knows.
func (m *BERT) Vocab() int { return m.Config.Vocab }

// Context is how many tokens it takes at once.
func (m *BERT) Context() int { return m.Config.Context }

// Width is the size of a token's features.
func (m *BERT) Width() int { return m.Config.Width }

// Padding is the token that fills short sequences.
func (m *BERT) Padding() int { return valueOr(m.Config.Padding, 0) }

// Segments is the number of segments that the model tells apart.
func (m *BERT) Segments() int { return m.Config.Segments }

// Predicts is what the model computes.
func (m *BERT) Predicts() Head { return headOf(m.Config.Headless, m.Config.Classes) }

// IsBlock says whether a module is one of the layers.
func (*BERT) IsBlock(module any) bool { _, ok := module.(*BERTLayer); return ok }

// LoRATargets are the projections to queries and values.
func (*BERT) LoRATargets() []string { return []string{"query", "value"} }

// Vocab is the number of tokens that the model knows.
func (m *Roberta) Vocab() int { return m.Config.Vocab }

// Context is how many tokens it takes at once: fewer than the table of positions has rows.
func (m *Roberta) Context() int { return m.Config.Context - m.Padding() - 1 }

// Width is the size of a token's features.
func (m *Roberta) Width() int { return m.Config.Width }

// Padding is the token that fills short sequences.
func (m *Roberta) Padding() int { return *m.Config.Padding }

// Segments is the number of segments that the model tells apart.
func (m *Roberta) Segments() int { return m.Config.Segments }

// Predicts is what the model computes.
func (m *Roberta) Predicts() Head { return headOf(m.Config.Headless, m.Config.Classes) }

// IsBlock says whether a module is one of the layers.
func (*Roberta) IsBlock(module any) bool { _, ok := module.(*BERTLayer); return ok }

// LoRATargets are the projections to queries and values.
func (*Roberta) LoRATargets() []string { return []string{"query", "value"} }

// Vocab is the number of tokens that the model knows.
func (m *DistilBERT) Vocab() int { return m.Config.Vocab }

// Context is how many tokens it takes at once.
func (m *DistilBERT) Context() int { return m.Config.Context }

// Width is the size of a token's features.
func (m *DistilBERT) Width() int { return m.Config.Width }

// Padding is the token that fills short sequences.
func (m *DistilBERT) Padding() int { return valueOr(m.Config.Padding, 0) }

// Segments is 0: the model has none.
func (*DistilBERT) Segments() int { return 0 }

// Predicts is what the model computes.
func (m *DistilBERT) Predicts() Head { return headOf(m.Config.Headless, m.Config.Classes) }

// IsBlock says whether a module is one of the layers.
func (*DistilBERT) IsBlock(module any) bool { _, ok := module.(*DistilBERTLayer); return ok }

// LoRATargets are the projections to queries and values.
func (*DistilBERT) LoRATargets() []string { return []string{"q_lin", "v_lin"} }

// heads is what a config.json says of an encoder's head, and what its weights may change
// of that.
type heads struct {
	headless *bool
	classes  **Classes
	pooler   *bool // nil if the family has none
	headed   bool  // config.json says that there is an output layer for words
	// Names of tensors: the bias of the output layer, which has two; the beginning of
	// those of the output layer, of those for classes, and of the pooler.
	bare, own          string
	words, forClasses  []string
	poolerName         string
	fresh              []string // what a new head draws: the folder has none
	isFresh, different bool     // the head is not the folder's, or its classes are others
}

// settleHead finds out whether there is an output layer at all, and gives its bias,
// which may have two names, that of the model.
func (p *parsed) settleHead(stored map[string]safetensors.Info, names map[string]string, head *Head) {
	h := p.heads
	bare, hasBare := stored[h.bare]
	own, hasOwn := stored[h.own]
	want := h.bare
	if !p.tied && h.own != "" {
		want = h.own
	}
	if hasBare {
		names[bare.Name] = want
	}
	if hasOwn { // which is what is added, where both are there
		names[own.Name] = want
		if hasBare {
			names[bare.Name] = ""
		}
	}
	begins := func(name string, with []string) bool {
		return slices.ContainsFunc(with, func(w string) bool { return strings.HasPrefix(name, w) })
	}
	hasPooler := false
	*h.headless = !h.headed && *h.classes == nil
	for name := range stored {
		if *h.classes == nil && begins(name, h.words) {
			*h.headless = false
		}
		hasPooler = hasPooler || h.poolerName != "" && strings.HasPrefix(name, h.poolerName)
	}
	if head != nil {
		h.different = head.Classes != nil && !head.Classes.equal(*h.classes)
		*h.classes, *h.headless = head.Classes, head.Classes == nil && !head.MaskedLM
		h.isFresh = true
	}
	if h.pooler != nil {
		*h.pooler = hasPooler && *h.headless
	}
	// What the folder has of heads that this model lacks is of no use.
	wanted := make(map[string]bool)
	for _, s := range nn.StateDict(p.build(&nn.Build{Device: tensor.Meta})) {
		wanted[s.Name] = true
	}
	for name, info := range stored {
		of := begins(name, h.words) || begins(name, h.forClasses) || h.poolerName != "" && strings.HasPrefix(name, h.poolerName)
		ours := names[info.Name]
		forgotten := h.isFresh || *h.classes != nil && begins(name, h.words) || h.poolerName != "" && strings.HasPrefix(name, h.poolerName)
		if of && (forgotten && !wanted[ours] || h.different && begins(name, h.forClasses)) {
			names[info.Name] = ""
		}
	}
	if h.isFresh {
		has := make(map[string]bool)
		for _, ours := range names {
			has[ours] = true
		}
		for name := range wanted {
			if !has[name] && (begins(name, h.words) || begins(name, h.forClasses) || h.poolerName != "" && strings.HasPrefix(name, h.poolerName)) {
				h.fresh = append(h.fresh, name)
			}
		}
		slices.Sort(h.fresh)
	}
}

// without leaves tensors out that a folder lacks.
func without(list nn.NamedTensors, names []string) nn.NamedTensors {
	if len(names) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(s nn.NamedTensor) bool { return slices.Contains(names, s.Name) })
}

// loadInto fills a model but for the tensors that its folder lacks.
func loadInto(src checkpoint.Source, m Pretrained, fresh []string) error {
	return checkpoint.LoadTensors(src, without(stacksOf(m).split(nn.StateDict(m)), fresh).All(), inFloat32...)
}

// parseEncoder reads the config.json of an encoder.
func parseEncoder(c *configuration, kind string) (p *parsed, err error) {
	switch kind {
	case "bert":
		g := new(BERTConfig)
		*g, err = parseBERT(c)
		p = &parsed{
			build: func(b *nn.Build) Pretrained { return NewBERT(b, *g) }, rename: (*BERT)(nil).fromHuggingFace,
			table: "bert.embeddings.word_embeddings.weight", output: "cls.predictions.decoder.weight", tied: !g.Untied, untie: func() { g.Untied = true },
			heads: &heads{
				headless: &g.Headless, classes: &g.Classes, pooler: &g.Pooler, headed: c.has("architectures") && !g.Headless,
				bare: "cls.predictions.bias", own: "cls.predictions.decoder.bias", words: []string{"cls.predictions."}, forClasses: []string{"classifier."}, poolerName: "bert.pooler.",
			},
		}
	case "distilbert":
		g := new(DistilBERTConfig)
		*g, err = parseDistilBERT(c)
		p = &parsed{
			build: func(b *nn.Build) Pretrained { return NewDistilBERT(b, *g) }, rename: (*DistilBERT)(nil).fromHuggingFace,
			table: "distilbert.embeddings.word_embeddings.weight", output: "vocab_projector.weight", tied: !g.Untied, untie: func() { g.Untied = true },
			heads: &heads{
				headless: &g.Headless, classes: &g.Classes, headed: c.has("architectures") && !g.Headless,
				bare: "vocab_projector.bias", words: []string{"vocab_"}, forClasses: []string{"pre_classifier.", "classifier."},
			},
		}
	default:
		g := new(RobertaConfig)
		*g, err = parseRoberta(c)
		p = &parsed{
			build: func(b *nn.Build) Pretrained { return NewRoberta(b, *g) }, rename: (*Roberta)(nil).fromHuggingFace,
			table: "roberta.embeddings.word_embeddings.weight", output: "lm_head.decoder.weight", tied: !g.Untied, untie: func() { g.Untied = true },
			heads: &heads{
				headless: &g.Headless, classes: &g.Classes, pooler: &g.Pooler, headed: c.has("architectures") && !g.Headless,
				bare: "lm_head.bias", own: "lm_head.decoder.bias", words: []string{"lm_head."}, forClasses: []string{"classifier."}, poolerName: "roberta.pooler.",
			},
		}
	}
	return p, err
}
