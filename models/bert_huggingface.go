// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"strings"
)

// huggingFaceBERT is the config.json of a Hugging Face BERT, as far as it
// concerns us.
type huggingFaceBERT struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	TorchDType    string   `json:"torch_dtype"`
	Activation    string   `json:"hidden_act"`
	Positions     string   `json:"position_embedding_type"`
	Vocab         int      `json:"vocab_size"`
	Context       int      `json:"max_position_embeddings"`
	Segments      int      `json:"type_vocab_size"`
	Width         int      `json:"hidden_size"`
	Hidden        int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	Epsilon       float64  `json:"layer_norm_eps"`
	Dropout       float64  `json:"hidden_dropout_prob"`
	AttentionDrop float64  `json:"attention_probs_dropout_prob"`
	Tied          bool     `json:"tie_word_embeddings"`
	Padding       *int     `json:"pad_token_id"`
	Decoder       bool     `json:"is_decoder,omitempty"`
	CrossAttended bool     `json:"add_cross_attention,omitempty"`
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a BERT with its masked language model.
func (m *BERT) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	return json.MarshalIndent(huggingFaceBERT{
		Architectures: []string{"BertForMaskedLM"}, ModelType: "bert", TorchDType: "float32", Activation: "gelu", Positions: "absolute",
		Vocab: g.Vocab, Context: g.Context, Segments: g.Segments, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads,
		Epsilon: g.Epsilon, Dropout: g.Dropout, AttentionDrop: g.Dropout, Tied: true, Padding: g.Padding,
	}, "", "  ")
}

// ParseBERTConfig reads a config.json of a Hugging Face BERT.
func ParseBERTConfig(data []byte) (BERTConfig, error) {
	hf := huggingFaceBERT{Activation: "gelu", Positions: "absolute", Segments: 2, Epsilon: 1e-12, Dropout: 0.1, AttentionDrop: 0.1, Tied: true, Padding: new(int)}
	if err := json.Unmarshal(data, &hf); err != nil {
		return BERTConfig{}, fmt.Errorf("models: config.json: %w", err)
	}
	switch {
	case hf.ModelType != "bert":
		return BERTConfig{}, fmt.Errorf("models: config.json is of a %q, want a bert", hf.ModelType)
	case hf.Activation != "gelu":
		return BERTConfig{}, fmt.Errorf("models: config.json wants the activation %q; a BERT has gelu", hf.Activation)
	case hf.Positions != "absolute":
		return BERTConfig{}, fmt.Errorf("models: config.json wants positions of type %q; a BERT has absolute ones", hf.Positions)
	case !hf.Tied:
		return BERTConfig{}, fmt.Errorf("models: config.json wants an output layer of its own; a BERT's is its table of words")
	case hf.Decoder || hf.CrossAttended:
		return BERTConfig{}, fmt.Errorf("models: config.json wants is_decoder %t and add_cross_attention %t; a BERT is an encoder", hf.Decoder, hf.CrossAttended)
	case hf.Dropout != hf.AttentionDrop:
		return BERTConfig{}, fmt.Errorf("models: config.json wants dropout %v of features and %v of attention; a BERT has one of both", hf.Dropout, hf.AttentionDrop)
	case hf.Epsilon <= 0:
		return BERTConfig{}, fmt.Errorf("models: config.json wants layer_norm_eps %v, which must be positive", hf.Epsilon)
	}
	g := BERTConfig{
		Vocab: hf.Vocab, Context: hf.Context, Segments: hf.Segments, Width: hf.Width, Hidden: hf.Hidden,
		Heads: hf.Heads, Layers: hf.Layers, Epsilon: hf.Epsilon, Dropout: hf.Dropout, Padding: hf.Padding,
	}
	if err := g.Validate(); err != nil {
		return BERTConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// fromHuggingFace leaves out the pooler and the prediction of the next
// sentence, and the copies of tied weights that older files have.
func (m *BERT) fromHuggingFace(name string) string {
	name = withPrefix(name, "bert.", "cls.")
	name = strings.Replace(name, "LayerNorm.gamma", "LayerNorm.weight", 1) // files from TensorFlow
	name = strings.Replace(name, "LayerNorm.beta", "LayerNorm.bias", 1)
	switch {
	case strings.HasPrefix(name, "bert.pooler."), strings.HasPrefix(name, "cls.seq_relationship."),
		strings.HasPrefix(name, "cls.predictions.decoder."), strings.HasSuffix(name, "embeddings.position_ids"):
		return ""
	}
	return name
}
