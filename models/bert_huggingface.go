// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// huggingFaceBERT is the config.json of a Hugging Face BERT, as far as it
// concerns us.
type huggingFaceBERT struct {
	Architectures []string   `json:"architectures"`
	ModelType     string     `json:"model_type"`
	TorchDType    string     `json:"torch_dtype"`
	Activation    Activation `json:"hidden_act"`
	Positions     string     `json:"position_embedding_type"`
	Vocab         int        `json:"vocab_size"`
	Context       int        `json:"max_position_embeddings"`
	Segments      int        `json:"type_vocab_size"`
	Width         int        `json:"hidden_size"`
	Hidden        int        `json:"intermediate_size"`
	Layers        int        `json:"num_hidden_layers"`
	Heads         int        `json:"num_attention_heads"`
	Epsilon       float64    `json:"layer_norm_eps"`
	Dropout       float64    `json:"hidden_dropout_prob"`
	AttentionDrop float64    `json:"attention_probs_dropout_prob"`
	Tied          bool       `json:"tie_word_embeddings"`
	Padding       *int       `json:"pad_token_id"`
	ClassDropout  *float64   `json:"classifier_dropout,omitempty"`
	huggingFaceClasses
}

var bertSettings = settings{
	honoured: []string{
		"architectures", "model_type", "hidden_act", "vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size", "intermediate_size",
		"num_hidden_layers", "num_attention_heads", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "tie_word_embeddings",
		"pad_token_id", "classifier_dropout",
	},
	harmless: []string{
		// Of the pooler, which logits do not need.
		"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
	},
	plain: map[string][]any{"position_embedding_type": {"absolute"}, "is_decoder": nil},
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a BERT with its head.
func (m *BERT) HuggingFaceConfig() ([]byte, error) {
	return json.MarshalIndent(m.Config.huggingFace("bert", "Bert"), "", "  ")
}

// huggingFace describes the model under the names of a family.
func (g BERTConfig) huggingFace(kind, class string) huggingFaceBERT {
	hf := huggingFaceBERT{
		Architectures: []string{class + "ForMaskedLM"}, ModelType: kind, TorchDType: "float32", Activation: cmp.Or(g.Activation, "gelu"), Positions: "absolute",
		Vocab: g.Vocab, Context: g.Context, Segments: g.Segments, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads,
		Epsilon: g.Epsilon, Dropout: g.Dropout, AttentionDrop: g.attentionDropout(), Tied: !g.Untied, Padding: g.Padding,
		huggingFaceClasses: g.Classes.describe(),
	}
	switch {
	case g.Classes != nil:
		hf.Architectures, hf.ClassDropout = []string{class + g.Classes.architecture()}, g.Classes.Dropout
	case g.Headless:
		hf.Architectures = []string{class + "Model"}
	}
	return hf
}

// ParseBERTConfig reads a config.json of a Hugging Face BERT. What it does not
// say is what transformers takes.
func ParseBERTConfig(data []byte) (BERTConfig, error) {
	c, err := readConfig(data)
	if err != nil {
		return BERTConfig{}, err
	}
	return parseBERT(&c)
}

func parseBERT(c *configuration) (BERTConfig, error) {
	hf := huggingFaceBERT{
		ModelType: "bert", Activation: "gelu", Vocab: 30522, Context: 512, Segments: 2, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Epsilon: 1e-12,
		Dropout: 0.1, AttentionDrop: 0.1, Tied: true, Padding: new(int),
	}
	if err := c.decode(bertSettings, &hf); err != nil {
		return BERTConfig{}, err
	}
	if hf.ModelType != "bert" {
		return BERTConfig{}, fmt.Errorf("models: config.json is of a %q, want a bert", hf.ModelType)
	}
	g, err := hf.config(c)
	if err == nil {
		err = g.Validate()
	}
	if err != nil {
		return BERTConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// config returns the sizes.
func (hf huggingFaceBERT) config(c *configuration) (g BERTConfig, err error) {
	if hf.Epsilon <= 0 {
		return g, fmt.Errorf("models: config.json wants layer_norm_eps %v, which must be positive", hf.Epsilon)
	}
	g = BERTConfig{
		Vocab: hf.Vocab, Context: hf.Context, Segments: hf.Segments, Width: hf.Width, Hidden: hf.Hidden,
		Heads: hf.Heads, Layers: hf.Layers, Epsilon: hf.Epsilon, Dropout: hf.Dropout, Padding: hf.Padding, Untied: !hf.Tied,
	}
	if hf.AttentionDrop != hf.Dropout {
		g.AttentionDropout = &hf.AttentionDrop
	}
	if hf.Activation != "gelu" {
		g.Activation = hf.Activation
	}
	g.Headless, g.Classes, err = parseHead(c, hf.Architectures)
	if g.Classes != nil {
		g.Classes.Dropout = hf.ClassDropout
	}
	return g, err
}

// parseHead returns which head the classes of transformers have that saved a model.
func parseHead(c *configuration, architectures []string) (headless bool, classes *Classes, err error) {
	for _, a := range architectures {
		of := map[bool]string{strings.HasSuffix(a, forSequences): OfSequences, strings.HasSuffix(a, forTokens): OfTokens}[true]
		if of != "" {
			classes, err = parseClasses(c, of)
			return false, classes, err
		}
	}
	withHead := func(a string) bool {
		return strings.HasSuffix(a, "ForMaskedLM") || strings.HasSuffix(a, "ForPreTraining") || strings.HasSuffix(a, "LMHeadModel")
	}
	return len(architectures) > 0 && !slices.ContainsFunc(architectures, withHead), nil, nil
}

// The ends of the names of transformers' classes with a head for classes.
const (
	forSequences = "ForSequenceClassification"
	forTokens    = "ForTokenClassification"
)

func (c *Classes) architecture() string {
	if c.Of == OfTokens {
		return forTokens
	}
	return forSequences
}

// fromHuggingFace leaves out the prediction of the next sentence, and tables of numbers
// that older files hold.
func (*BERT) fromHuggingFace(name string) string {
	name = withPrefix(name, "bert.", "cls.", "classifier.")
	if norm, ok := strings.CutSuffix(name, "LayerNorm.gamma"); ok { // files from TensorFlow
		name = norm + "LayerNorm.weight"
	} else if norm, ok := strings.CutSuffix(name, "LayerNorm.beta"); ok {
		name = norm + "LayerNorm.bias"
	}
	switch {
	case strings.HasPrefix(name, "cls.seq_relationship."),
		strings.HasSuffix(name, "embeddings.position_ids"), strings.HasSuffix(name, "embeddings.token_type_ids"):
		return ""
	}
	return name
}
