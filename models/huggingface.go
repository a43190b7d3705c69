// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/nn"
)

// Pretrained is a model that Hugging Face's tools know too: a [GPT], a [Llama]
// or a [BERT]. As an nn.Module it maps int64 token ids [batch, time] to logits
// [batch, time, vocab].
type Pretrained interface {
	nn.Module
	// HuggingFaceConfig returns the config.json that makes Hugging Face's tools
	// open the model's weights.
	HuggingFaceConfig() ([]byte, error)
	// fromHuggingFace returns our name of a tensor in a folder of theirs, "" for
	// one that the model has no use for.
	fromHuggingFace(name string) string
}

// LoadHuggingFace opens a folder that save_pretrained wrote: config.json says
// which model it is, the weights are in one safetensors file or in shards. Tensors
// that the model lacks or wants are all listed in a *checkpoint.StateDictError.
func LoadHuggingFace(dir string) (Pretrained, error) {
	f, err := huggingface.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	config, err := f.Config()
	if err != nil {
		return nil, err
	}
	m, err := parsePretrained(config)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, dir)
	}
	src, err := checkpoint.Rename(f, m.fromHuggingFace)
	if err != nil {
		return nil, err
	}
	// Published weights are often bfloat16; ours are float32, which holds them.
	return m, checkpoint.LoadTensors(src, nn.StateDict(m).All(), checkpoint.Widen())
}

// SaveHuggingFace writes a folder that from_pretrained opens: config.json and
// the weights, in shards if they have more than maxShardBytes (0 is Hugging
// Face's own bound). The folder must not exist yet or be empty; files, such as
// tokenizer.json, are written beside.
func SaveHuggingFace(dir string, m Pretrained, maxShardBytes int64, files map[string][]byte) error {
	config, err := m.HuggingFaceConfig()
	if err != nil {
		return err
	}
	all := map[string][]byte{"config.json": append(config, '\n')}
	for name, data := range files {
		all[name] = data
	}
	return huggingface.Save(dir, nn.StateDict(m).All(), huggingface.SaveOptions{MaxShardBytes: maxShardBytes, Files: all})
}

// parsePretrained returns the model that a config.json describes, with first
// values.
func parsePretrained(config []byte) (Pretrained, error) {
	var head struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return nil, fmt.Errorf("models: config.json: %w", err)
	}
	b := &nn.Build{}
	switch head.ModelType {
	case "gpt2":
		g, err := ParseGPTConfig(config)
		if err != nil {
			return nil, err
		}
		return NewGPT(b, g), nil
	case "llama":
		g, err := ParseLlamaConfig(config)
		if err != nil {
			return nil, err
		}
		return NewLlama(b, g), nil
	case "bert":
		g, err := ParseBERTConfig(config)
		if err != nil {
			return nil, err
		}
		return NewBERT(b, g), nil
	}
	return nil, fmt.Errorf("models: config.json is of a %q; there are gpt2, llama and bert", head.ModelType)
}

// withPrefix gives a tensor of a model saved without its head the name that it
// has with one.
func withPrefix(name, prefix string, heads ...string) string {
	for _, p := range append(heads, prefix) {
		if strings.HasPrefix(name, p) {
			return name
		}
	}
	return prefix + name
}
