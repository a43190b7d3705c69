// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/json"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/nn"
)

// The files of a checkpoint that Hugging Face tools look for, besides the
// weights. The last one is only for them: without it, the tokenizer of a model
// that calls itself GPT-2 would split text by GPT-2's own rule, not by what
// tokenizer.json says.
const (
	configFile          = "config.json"
	tokenizerFile       = "tokenizer.json"
	tokenizerConfigFile = "tokenizer_config.json"
	adapterConfigFile   = "adapter_config.json" // of an adapter, in the place of config.json
)

// files writes what makes a checkpoint a Hugging Face folder.
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

// matchModel compares names and shapes of a model, which need not have data,
// with those in a checkpoint.
func matchModel(ck *checkpoint.Checkpoint, model any) error {
	f, err := ck.OpenSafetensors(checkpoint.ModelFile)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkpoint.MatchTensors(f, nn.StateDict(model).All())
}
