// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// CausalLM is a model that names the token after each token: a [GPT], a [Llama]
// or another of the decoders (see [DecoderLM]).
type CausalLM interface {
	Pretrained
	// Vocab is the number of tokens that it knows, Context how many it takes at
	// once.
	Vocab() int
	Context() int
	// IsBlock says whether a module is one of its layers, for nn.Recompute.
	IsBlock(module any) bool
	// LoRATargets are the projections that are adapted when nobody chooses: those
	// that PEFT takes for this kind of model.
	LoRATargets() []string
	// Kind is the model_type of its config.json, or "moe".
	Kind() string
	// Shape is how many parts it has, for strategies that share them.
	Shape() CausalShape
}

// CausalShape are the numbers of what strategies can share of a [CausalLM].
type CausalShape struct {
	Heads, KeyHeads int
	Layers          int
	Experts         int // in each layer, 0 for none
}

// Vocab is the number of tokens that the model knows.
func (m *GPT) Vocab() int { return m.Config.Vocab }

// Context is how many tokens it takes at once.
func (m *GPT) Context() int { return m.Config.Context }

// IsBlock says whether a module is one of the layers.
func (*GPT) IsBlock(module any) bool { _, ok := module.(*GPTBlock); return ok }

// LoRATargets is the projection to queries, keys and values.
func (*GPT) LoRATargets() []string { return []string{"c_attn"} }

// Kind is "gpt2".
func (*GPT) Kind() string { return "gpt2" }

// Shape is how many parts it has.
func (m *GPT) Shape() CausalShape {
	return CausalShape{Heads: m.Config.Heads, KeyHeads: m.Config.Heads, Layers: m.Config.Layers}
}

// Kind is "llama", also of a Mistral.
func (*Llama) Kind() string { return "llama" }

// Kind is "moe".
func (*MoETransformer) Kind() string { return "moe" }

// WithLoRA returns the model that a LoRA of m computes, for what wants to know
// more of a model than a LoRA does: how many tokens it takes.
func WithLoRA(m CausalLM, l *nn.LoRA) CausalLM { return adapted{m, l} }

type adapted struct {
	CausalLM
	lora *nn.LoRA
}

func (a adapted) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return a.lora.Forward(c, x) }

// LoadCausalLM opens a folder of a causal language model: one that
// save_pretrained wrote (see [LoadHuggingFace]), or one of an adapter, whose
// base must be a folder on this machine and into which it is merged.
func LoadCausalLM(dir string, opts ...LoadOption) (CausalLM, error) {
	if _, err := os.Stat(filepath.Join(dir, adapterConfigFile)); errors.Is(err, fs.ErrNotExist) {
		return loadCausal(dir, opts)
	}
	base, err := AdapterBase(dir)
	if err != nil {
		return nil, err
	}
	m, err := loadCausal(base, opts)
	if err != nil {
		return nil, fmt.Errorf("the base of the adapter in %s: %w", dir, err)
	}
	l, err := LoadAdapter(dir, m)
	if err != nil {
		return nil, err
	}
	l.Merge()
	for _, p := range nn.Parameters(m) {
		p.Frozen = false
	}
	return m, nil
}

func loadCausal(dir string, opts []LoadOption) (CausalLM, error) {
	p, err := LoadHuggingFace(dir, opts...)
	if err != nil {
		return nil, err
	}
	m, ok := p.(CausalLM)
	if !ok {
		return nil, fmt.Errorf("models: %s holds a %s, which does not name the next token: a GPT-2 or a Llama does", dir, strings.TrimPrefix(fmt.Sprintf("%T", p), "*models."))
	}
	return m, nil
}
