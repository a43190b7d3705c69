// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/json"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/nn"
)

// The files that Hugging Face tools look for in a checkpoint, besides the weights.
const (
	configFile    = "config.json"
	tokenizerFile = "tokenizer.json"
	// tokenizerConfigFile is only for these tools. Without it, they would split the
	// text for a model that is called GPT-2 by GPT-2's own rule and not by that of
	// tokenizer.json.
	tokenizerConfigFile = "tokenizer_config.json"
	adapterConfigFile   = "adapter_config.json" // of an adapter, in place of config.json
)

// files writes the files that make a checkpoint a Hugging Face folder.
func (r *lmRun) files(w *checkpoint.Writer) error {
	if r.cfg.InitFrom != "" {
		return r.tunedFiles(w)
	}
	config, err := r.base.HuggingFaceConfig()
	if err != nil {
		return err
	}
	var tok bytes.Buffer
	if err := r.tokenizer.Write(&tok); err != nil {
		return err
	}
	tokenizerConfig, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": r.cfg.Context, "clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := w.WriteFile(configFile, config); err != nil {
		return err
	}
	if err := w.WriteFile(tokenizerFile, tok.Bytes()); err != nil {
		return err
	}
	return w.WriteFile(tokenizerConfigFile, tokenizerConfig)
}

// matchModel compares the names and shapes of a model's weights with those in a
// checkpoint. The model may be one without data, on the meta device.
func matchModel(ck *checkpoint.Checkpoint, model any) error {
	f, err := ck.Source(checkpoint.Model)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkpoint.MatchTensors(f, nn.StateDict(model).All())
}
