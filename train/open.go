// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
)

// place is where a model lies.
type place struct {
	path string
	// checkpoint is nil where a folder of Hugging Face's is.
	checkpoint *checkpoint.Checkpoint
}

// findModel finds the newest good checkpoint in a run's directory, or takes the
// directory of one checkpoint, or a folder that save_pretrained wrote. It calls
// notice for each newer checkpoint that is damaged and was passed over.
func findModel(ctx context.Context, dir string, notice func(text string)) (place, error) {
	ck, err := latest(ctx, dir, notice)
	switch {
	case err == nil:
		return place{ck.Path, ck}, nil
	case !errors.Is(err, checkpoint.ErrNone):
		return place{}, err
	}
	for _, name := range []string{adapterConfigFile, configFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return place{path: dir}, nil
		}
	}
	if _, statErr := os.Stat(dir); statErr == nil {
		return place{}, fmt.Errorf("%w: it is neither the directory of a run, nor a checkpoint, nor a folder with a %s", err, configFile)
	}
	return place{}, err
}

// readTokenizer reads the tokenizer in the folder of a model or, if an adapter's
// has none, in that of its base.
func readTokenizer(dir string) (*tokenizer.Tokenizer, error) {
	if hasTokenizer(dir) {
		return tokenizer.Load(dir)
	}
	folder, err := modelFolder(dir)
	if err != nil {
		return nil, err
	}
	return tokenizer.Load(folder)
}

// hasTokenizer says whether there is a file of a tokenizer in a folder, good or
// not.
func hasTokenizer(dir string) bool {
	for _, name := range []string{tokenizerFile, "vocab.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// LoadLM opens a language model and its tokenizer: of the newest good checkpoint
// in a run's directory, of one checkpoint's own directory, or of a GPT-2 or
// Llama in a folder that Hugging Face's save_pretrained or PEFT wrote. It calls
// notice for each newer checkpoint that is damaged and was passed over.
func LoadLM(ctx context.Context, dir string, notice func(text string)) (models.CausalLM, *tokenizer.Tokenizer, error) {
	at, err := findModel(ctx, dir, notice)
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	return at.loadLM()
}

func (at place) loadLM() (models.CausalLM, *tokenizer.Tokenizer, error) {
	fail := func(err error) (models.CausalLM, *tokenizer.Tokenizer, error) {
		return nil, nil, fmt.Errorf("load a language model from %s: %w", at.path, err)
	}
	if task, err := at.task(); err != nil || task != "lm" {
		if err == nil {
			err = fmt.Errorf("it is a checkpoint of the task %q", task)
		}
		return fail(err)
	}
	tok, err := readTokenizer(at.path)
	if err != nil {
		return fail(err)
	}
	m, err := models.LoadCausalLM(at.path)
	if err != nil {
		return fail(err)
	}
	if err := fits(tok, m); err != nil {
		return fail(err)
	}
	return m, tok, nil
}

// fits reports a tokenizer with tokens that a model does not know. A model may
// know more: tables are made larger than vocabularies, to be round numbers.
func fits(tok *tokenizer.Tokenizer, m models.CausalLM) error {
	if tok.Size() > m.Vocab() {
		return fmt.Errorf("%s has %d tokens, the model knows %d: one of them is another model's", tokenizerFile, tok.Size(), m.Vocab())
	}
	return nil
}
