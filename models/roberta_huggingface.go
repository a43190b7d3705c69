// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

const (
	robertaType    = "roberta"
	xlmRobertaType = "xlm-roberta"
)

// robertaClasses are the beginnings of the names that transformers' classes have.
var robertaClasses = map[string]string{robertaType: "Roberta", xlmRobertaType: "XLMRoberta"}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open the
// model's weights as a RoBERTa or an XLM-R with its head.
func (m *Roberta) HuggingFaceConfig() ([]byte, error) {
	kind := cmp.Or(m.Config.Type, robertaType)
	return json.MarshalIndent(m.Config.huggingFace(kind, robertaClasses[kind]), "", "  ")
}

// ParseRobertaConfig reads a config.json of a Hugging Face RoBERTa or XLM-R. What it does
// not say is what transformers takes.
func ParseRobertaConfig(data []byte) (RobertaConfig, error) {
	c, err := readConfig(data)
	if err != nil {
		return RobertaConfig{}, err
	}
	return parseRoberta(&c)
}

func parseRoberta(c *configuration) (RobertaConfig, error) {
	padding := 1
	hf := huggingFaceBERT{
		ModelType: robertaType, Activation: "gelu", Vocab: 50265, Context: 512, Segments: 2, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Epsilon: 1e-12,
		Dropout: 0.1, AttentionDrop: 0.1, Tied: true, Padding: &padding,
	}
	if kind, err := c.modelType(); err == nil && kind == xlmRobertaType {
		hf.Vocab = 30522
	}
	if err := c.decode(bertSettings, &hf); err != nil {
		return RobertaConfig{}, err
	}
	if robertaClasses[hf.ModelType] == "" {
		return RobertaConfig{}, fmt.Errorf("models: config.json is of a %q, want a %s or %s", hf.ModelType, robertaType, xlmRobertaType)
	}
	bert, err := hf.config(c)
	g := RobertaConfig{BERTConfig: bert}
	if hf.ModelType != robertaType {
		g.Type = hf.ModelType
	}
	if err == nil {
		err = g.Validate()
	}
	if err != nil {
		return RobertaConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// fromHuggingFace leaves out tables of numbers that older files hold.
func (*Roberta) fromHuggingFace(name string) string {
	name = withPrefix(name, "roberta.", "lm_head.", "classifier.")
	if slices.ContainsFunc([]string{"embeddings.position_ids", "embeddings.token_type_ids"}, func(end string) bool { return strings.HasSuffix(name, end) }) {
		return ""
	}
	return name
}
