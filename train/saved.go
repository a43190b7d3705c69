// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The files of a checkpoint that Hugging Face tools look for, besides the
// weights. The last one is only for them: without it, the tokenizer of a model
// that calls itself GPT-2 would split text by GPT-2's own rule, not by what
// tokenizer.json says.
const (
	configFile          = "config.json"
	tokenizerFile       = "tokenizer.json"
	tokenizerConfigFile = "tokenizer_config.json"
)

// fileLimit bounds the small files of a checkpoint.
const fileLimit = 64 << 20

func readTokenizer(ck *checkpoint.Checkpoint) (*tokenizer.Tokenizer, error) {
	text, err := ck.ReadFile(tokenizerFile, fileLimit)
	if err != nil {
		return nil, fmt.Errorf("train lm: %w", err)
	}
	tok, err := tokenizer.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("train lm: %s in %s: %w", tokenizerFile, ck.Path, err)
	}
	return tok, nil
}

// files writes what makes a checkpoint a Hugging Face folder.
func (r *lmRun) files(w *checkpoint.Writer) error {
	config, err := r.model.HuggingFaceConfig()
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

// LoadLM opens the model and tokenizer of the newest good checkpoint in a run's
// directory, or of one checkpoint's own directory. It calls notice for each
// newer one that is damaged and was passed over.
func LoadLM(ctx context.Context, dir string, notice func(text string)) (*models.GPT, *tokenizer.Tokenizer, error) {
	ck, err := latest(ctx, dir, notice)
	if errors.Is(err, checkpoint.ErrNone) {
		if _, statErr := os.Stat(filepath.Join(dir, configFile)); statErr == nil {
			return nil, nil, fmt.Errorf("load a language model from %s: %w: it is a folder of weights and not the run of a train lm; "+
				"a program opens it by models.LoadHuggingFace", dir, err)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model from %s: %w", dir, err)
	}
	text, err := ck.ReadFile(configFile, fileLimit)
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	config, err := models.ParseGPTConfig(text)
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model from %s: %w", ck.Path, err)
	}
	tok, err := readTokenizer(ck)
	if err != nil {
		return nil, nil, err
	}
	if tok.Size() != config.Vocab {
		return nil, nil, fmt.Errorf("load a language model from %s: %s has %d tokens, %s says %d",
			ck.Path, tokenizerFile, tok.Size(), configFile, config.Vocab)
	}
	// The configuration is only what a file says: nothing is allocated for it
	// before the weights' file agrees.
	if err := matchModel(ck, models.NewGPT(&nn.Build{Device: tensor.Meta}, config)); err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	model := models.NewGPT(&nn.Build{}, config)
	if err := ck.LoadTensors(checkpoint.ModelFile, nn.StateDict(model).All()); err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	return model, tok, nil
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
