// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/nearest"
	"github.com/cohort-ml/cohort/nn"
)

// family is a kind of model that a config.json may describe.
type family struct {
	kind     string // its model_type
	class    string // how the names of its classes begin, for the oldest files, which have no model_type
	settings *settings
	open     func(c *configuration) (*parsed, error)
}

// families are all that can be opened. A family is one more row, and its file.
func families() []family {
	return []family{
		{"gpt2", "GPT2", &gpt2Settings, openGPT},
		{"llama", "Llama", &llamaSettings, decoder(parseLlama, func(g *LlamaConfig) *LlamaConfig { return g }, NewLlama)},
		{"mistral", "Mistral", &mistralSettings, decoder(parseLlama, func(g *LlamaConfig) *LlamaConfig { return g }, NewLlama)},
		{"smollm3", "SmolLM3", &smollm3Settings, decoder(parseSmolLM3, func(g *SmolLM3Config) *LlamaConfig { return &g.LlamaConfig }, NewSmolLM3)},
		{"qwen2", "Qwen2For", &qwen2Settings, decoder(parseQwen2, func(g *Qwen2Config) *LlamaConfig { return &g.LlamaConfig }, NewQwen2)},
		{"qwen3", "Qwen3For", &qwen3Settings, decoder(parseQwen3, func(g *Qwen3Config) *LlamaConfig { return &g.LlamaConfig }, NewQwen3)},
		{"gemma2", "Gemma2", &gemma2Settings, decoder(parseGemma2, func(g *Gemma2Config) *LlamaConfig { return &g.LlamaConfig }, NewGemma2)},
		{"gemma3_text", "Gemma3ForCausalLM", &gemma3Settings, decoder(parseGemma3, func(g *Gemma3Config) *LlamaConfig { return &g.LlamaConfig }, NewGemma3)},
		{"mixtral", "Mixtral", &mixtralSettings, decoder(parseMixtral, func(g *MixtralConfig) *LlamaConfig { return &g.LlamaConfig }, NewMixtral)},
		{"qwen2_moe", "Qwen2Moe", &qwen2MoESettings, decoder(parseQwen2MoE, func(g *QwenMoEConfig) *LlamaConfig { return &g.LlamaConfig }, NewQwen2MoE)},
		{"qwen3_moe", "Qwen3Moe", &qwen3MoESettings, decoder(parseQwen3MoE, func(g *QwenMoEConfig) *LlamaConfig { return &g.LlamaConfig }, NewQwen3MoE)},
		{moeType, "MoETransformer", &moeSettings, decoder(parseMoE, func(g *MoEConfig) *LlamaConfig { return &g.LlamaConfig }, NewMoETransformer)},
		{"bert", "Bert", &bertSettings, encoder("bert")},
		{robertaType, "Roberta", &bertSettings, encoder(robertaType)},
		{xlmRobertaType, "XLMRoberta", &bertSettings, encoder(xlmRobertaType)},
		{"distilbert", "DistilBert", &distilBERTSettings, encoder("distilbert")},
	}
}

// familyOf returns the family of a model_type.
func familyOf(c *configuration, kind string) (family, error) {
	var kinds []string
	for _, f := range families() {
		if f.kind == kind {
			return f, nil
		}
		kinds = append(kinds, f.kind)
	}
	if kind == "" {
		return family{}, fmt.Errorf("models: config.json has no model_type; there are %s", strings.Join(kinds, ", "))
	}
	hint := ""
	if near, new := nearestFamily(c, kind); near != "" {
		hint = fmt.Sprintf("; the nearest is %s, which has no %s", near, strings.Join(new, ", "))
		if len(new) == 0 {
			hint = fmt.Sprintf("; the nearest is %s, which has the same settings", near)
		}
	}
	if c.has("text_config") {
		hint = "; it holds a model of text (text_config) among others: save that one alone"
	}
	return family{}, fmt.Errorf("models: config.json is of a %q, which is not known here%s; there are %s", kind, hint, strings.Join(kinds, ", "))
}

// nearestFamily returns the family that a configuration of another one is most like, and which
// settings it does not know: one of a similar name, or of the most settings.
func nearestFamily(c *configuration, kind string) (name string, unknown []string) {
	var kinds []string
	for _, f := range families() {
		kinds = append(kinds, f.kind)
	}
	named := nearest.Name(kind, kinds)
	for _, k := range kinds {
		if strings.HasPrefix(kind, k) && len(k) >= len(named) { // as qwen3_next
			named = k
		}
	}
	for _, f := range families() {
		var lacks []string
		has := 0
		for _, key := range slices.Sorted(maps.Keys(c.keys)) {
			_, plain := f.settings.plain[key]
			switch {
			case slices.Contains(f.settings.honoured, key):
				has++
			case plain, slices.Contains(f.settings.harmless, key), slices.Contains(harmlessAlways, key):
			default:
				lacks = append(lacks, key)
			}
		}
		switch {
		case f.kind == named:
			return f.kind, lacks
		case has > len(f.settings.honoured)/2 && (name == "" || len(lacks) < len(unknown)):
			name, unknown = f.kind, lacks
		}
	}
	return name, unknown
}

// decoder returns how a family of decoders is opened: by what reads its configuration, the
// sizes therein, and what builds it.
func decoder[G any, M Pretrained](parse func(*configuration) (G, error), sizes func(*G) *LlamaConfig, build func(*nn.Build, G) M) func(c *configuration) (*parsed, error) {
	return func(c *configuration) (*parsed, error) {
		g, err := parse(c)
		size := sizes(&g)
		var m M // of which only the type matters
		rename := (*DecoderLM)(nil).fromHuggingFace
		if named, ok := any(m).(interface{ fromClass(string) string }); ok {
			rename = named.fromClass
		}
		return &parsed{
			inFiles: stacksOf(m),
			build:   func(b *nn.Build) Pretrained { return build(b, g) }, rename: rename,
			table: "model.embed_tokens.weight", output: "lm_head.weight", tied: size.Tied, untie: func() { size.Tied = false },
		}, err
	}
}

func openGPT(c *configuration) (*parsed, error) {
	g, err := parseGPT(c)
	return &parsed{
		build: func(b *nn.Build) Pretrained { return NewGPT(b, g) }, rename: (*GPT)(nil).fromHuggingFace,
		table: "transformer.wte.weight", output: "lm_head.weight", tied: !g.Untied, untie: func() { g.Untied = true },
	}, err
}

// encoder returns how a family of encoders is opened.
func encoder(kind string) func(c *configuration) (*parsed, error) {
	return func(c *configuration) (*parsed, error) { return parseEncoder(c, kind) }
}
