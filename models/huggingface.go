// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
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
func LoadHuggingFace(dir string) (m Pretrained, err error) {
	err = openHuggingFace(dir, func(src checkpoint.Source, build func(*nn.Build) Pretrained) error {
		m = build(&nn.Build{})
		// Published weights are often bfloat16; ours are float32, which holds them.
		return checkpoint.LoadTensors(src, nn.StateDict(m).All(), checkpoint.Widen())
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Outline returns the model that LoadHuggingFace would, on tensor.Meta: it
// reports what LoadHuggingFace would, but for errors of the disk, and reads no
// weights.
func Outline(dir string) (m Pretrained, err error) {
	err = openHuggingFace(dir, func(_ checkpoint.Source, build func(*nn.Build) Pretrained) error {
		m = build(&nn.Build{Device: tensor.Meta})
		return nil
	})
	return m, err
}

// openHuggingFace calls use with the tensors of a folder, under our names, and
// with what builds the model that they have been compared with.
func openHuggingFace(dir string, use func(src checkpoint.Source, build func(*nn.Build) Pretrained) error) error {
	f, err := huggingface.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	config, err := f.Config()
	if err != nil {
		return err
	}
	build, err := parsePretrained(config)
	if err != nil {
		return fmt.Errorf("%w (in %s)", err, dir)
	}
	// The configuration is only what a file says: nothing is allocated for it
	// before the weights agree.
	outline := build(&nn.Build{Device: tensor.Meta})
	src, err := checkpoint.Rename(f, outline.fromHuggingFace)
	if err != nil {
		return err
	}
	if err := checkpoint.MatchTensors(src, nn.StateDict(outline).All(), checkpoint.Widen()); err != nil {
		return err
	}
	return use(src, build)
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

// parsePretrained returns what builds the model that a config.json describes.
func parsePretrained(config []byte) (func(b *nn.Build) Pretrained, error) {
	var head struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return nil, fmt.Errorf("models: config.json: %w", err)
	}
	switch head.ModelType {
	case "gpt2":
		g, err := ParseGPTConfig(config)
		return func(b *nn.Build) Pretrained { return NewGPT(b, g) }, err
	case "llama":
		g, err := ParseLlamaConfig(config)
		return func(b *nn.Build) Pretrained { return NewLlama(b, g) }, err
	case "bert":
		g, err := ParseBERTConfig(config)
		return func(b *nn.Build) Pretrained { return NewBERT(b, g) }, err
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
