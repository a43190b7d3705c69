// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// huggingFaceDistilBERT is the config.json of a Hugging Face DistilBERT, as far as it
// concerns us.
type huggingFaceDistilBERT struct {
	Architectures []string   `json:"architectures"`
	ModelType     string     `json:"model_type"`
	TorchDType    string     `json:"torch_dtype"`
	Activation    Activation `json:"activation"`
	Vocab         int        `json:"vocab_size"`
	Context       int        `json:"max_position_embeddings"`
	Width         int        `json:"dim"`
	Hidden        int        `json:"hidden_dim"`
	Layers        int        `json:"n_layers"`
	Heads         int        `json:"n_heads"`
	Dropout       float64    `json:"dropout"`
	AttentionDrop float64    `json:"attention_dropout"`
	ClassDropout  float64    `json:"seq_classif_dropout"`
	Tied          bool       `json:"tie_word_embeddings"`
	Padding       *int       `json:"pad_token_id"`
	// The names that other families have for these.
	CommonWidth  int `json:"hidden_size,omitempty"`
	CommonLayers int `json:"num_hidden_layers,omitempty"`
	CommonHeads  int `json:"num_attention_heads,omitempty"`
	huggingFaceClasses
}

var distilBERTSettings = settings{
	honoured: []string{
		"architectures", "model_type", "activation", "vocab_size", "max_position_embeddings", "dim", "hidden_dim", "n_layers", "n_heads", "dropout",
		"attention_dropout", "seq_classif_dropout", "tie_word_embeddings", "pad_token_id", "hidden_size", "num_hidden_layers", "num_attention_heads",
	},
	harmless: []string{"qa_dropout", "sinusoidal_pos_embds", "tie_weights_"}, // of another head, of first values, and of old files
	plain:    map[string][]any{"is_decoder": nil},
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open the
// model's weights as a DistilBERT with its head.
func (m *DistilBERT) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceDistilBERT{
		Architectures: []string{"DistilBertForMaskedLM"}, ModelType: "distilbert", TorchDType: "float32", Activation: cmp.Or(g.Activation, "gelu"),
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads,
		Dropout: g.Dropout, AttentionDrop: g.AttentionDropout, ClassDropout: 0.2, Tied: !g.Untied, Padding: g.Padding,
		huggingFaceClasses: g.Classes.describe(),
	}
	switch {
	case g.Classes != nil:
		hf.Architectures = []string{"DistilBert" + g.Classes.architecture()}
		if g.Classes.Of == OfSequences {
			hf.ClassDropout = g.Classes.dropout(g.Dropout)
		}
	case g.Headless:
		hf.Architectures = []string{"DistilBertModel"}
	}
	return json.MarshalIndent(hf, "", "  ")
}

// ParseDistilBERTConfig reads a config.json of a Hugging Face DistilBERT. What it does not
// say is what transformers takes.
func ParseDistilBERTConfig(data []byte) (DistilBERTConfig, error) {
	c, err := readConfig(data)
	if err != nil {
		return DistilBERTConfig{}, err
	}
	return parseDistilBERT(&c)
}

func parseDistilBERT(c *configuration) (g DistilBERTConfig, err error) {
	hf := huggingFaceDistilBERT{
		ModelType: "distilbert", Activation: "gelu", Vocab: 30522, Context: 512, Width: 768, Hidden: 3072, Layers: 6, Heads: 12,
		Dropout: 0.1, AttentionDrop: 0.1, ClassDropout: 0.2, Tied: true, Padding: new(int),
	}
	if err := c.decode(distilBERTSettings, &hf); err != nil {
		return g, err
	}
	if hf.ModelType != "distilbert" {
		return g, fmt.Errorf("models: config.json is of a %q, want a distilbert", hf.ModelType)
	}
	g = DistilBERTConfig{
		Vocab: hf.Vocab, Context: hf.Context, Width: cmp.Or(hf.CommonWidth, hf.Width), Hidden: hf.Hidden, Heads: cmp.Or(hf.CommonHeads, hf.Heads),
		Layers: cmp.Or(hf.CommonLayers, hf.Layers), Dropout: hf.Dropout, AttentionDropout: hf.AttentionDrop, Padding: hf.Padding, Untied: !hf.Tied,
	}
	if hf.Activation != "gelu" {
		g.Activation = hf.Activation
	}
	if g.Headless, g.Classes, err = parseHead(c, hf.Architectures); g.Classes != nil && g.Classes.Of == OfSequences {
		g.Classes.Dropout = &hf.ClassDropout
	}
	if err == nil {
		err = g.Validate()
	}
	if err != nil {
		return DistilBERTConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// fromHuggingFace leaves out a table of numbers that older files hold.
func (*DistilBERT) fromHuggingFace(name string) string {
	name = withPrefix(name, "distilbert.", "vocab_", "pre_classifier.", "classifier.")
	if strings.HasSuffix(name, "embeddings.position_ids") {
		return ""
	}
	return name
}
