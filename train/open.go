// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
)

// place is the place of a model on disk.
type place struct {
	path string
	// checkpoint is nil where a folder of Hugging Face's is.
	checkpoint *checkpoint.Checkpoint
}

// findModel finds a model in dir: in the directory of a run the best weights or, if
// the run kept none, the newest good checkpoint; or the directory of one checkpoint;
// or a folder that save_pretrained wrote. findModel calls notice if the best weights
// are not those of the last step, and for each newer checkpoint that is damaged.
func findModel(ctx context.Context, dir string, notice func(text string)) (place, error) {
	best, err := findBest(ctx, dir, notice)
	if best != nil || err != nil {
		return place{path(best), best}, err
	}
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
	if _, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
		err = fmt.Errorf("%s does not exist: %w", dir, checkpoint.ErrNone)
	} else if statErr == nil {
		return place{}, fmt.Errorf("%w: it is neither the directory of a run, nor a checkpoint, nor a folder with a %s", err, configFile)
	}
	return place{}, fmt.Errorf("%w: want the directory of a run, which cohort train makes, of one checkpoint, or of a model", err)
}

func path(ck *checkpoint.Checkpoint) string {
	if ck == nil {
		return ""
	}
	return ck.Path
}

// findBest opens the best weights of a run. It returns nil if there are none, or if
// the last checkpoint has the same weights.
func findBest(ctx context.Context, dir string, notice func(text string)) (*checkpoint.Checkpoint, error) {
	if _, err := os.Stat(filepath.Join(dir, checkpoint.ManifestName)); err == nil {
		return nil, nil // one checkpoint's own directory
	}
	kept, err := checkpoint.Steps(ctx, storage.Dir(BestDir(dir)))
	if err != nil || len(kept) == 0 {
		return nil, nil
	}
	steps, err := checkpoint.Steps(ctx, storage.Dir(dir))
	if err != nil {
		return nil, err
	}
	if len(steps) > 0 && steps[0] == kept[0] {
		return nil, nil
	}
	best, err := latest(ctx, BestDir(dir), notice)
	if damaged := (*checkpoint.DamagedError)(nil); errors.As(err, &damaged) && len(steps) > 0 {
		notice(fmt.Sprintf("the best weights cannot be used, the last take their place: %v", err))
		return nil, nil
	}
	if err == nil && len(steps) > 0 {
		notice(fmt.Sprintf("taking the best weights of %s, of step %d; the last are those of step %d, in %s", dir, best.Step, steps[0], checkpoint.Path(dir, steps[0])))
	}
	return best, err
}

// AtStep returns the directory of a run's checkpoint of a step. The checkpoint is one
// of the last, or that of the best weights.
func AtStep(dir string, step int) (string, error) {
	var there []string
	for _, in := range []string{dir, BestDir(dir)} {
		steps, err := checkpoint.Steps(context.Background(), storage.Dir(in))
		if err != nil {
			return "", err
		}
		for _, s := range steps {
			if s == step {
				return checkpoint.Path(in, step), nil
			}
			if text := fmt.Sprint(s); !slices.Contains(there, text) {
				there = append(there, text)
			}
		}
	}
	if len(there) == 0 {
		return "", fmt.Errorf("--step %d: %s is not the directory of a run: it has no checkpoints", step, dir)
	}
	return "", fmt.Errorf("--step %d: %s has no checkpoint of it, but of %s", step, dir, strings.Join(there, ", "))
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

// hasTokenizer reports whether a folder has a tokenizer's file, good or bad.
func hasTokenizer(dir string) bool {
	for _, name := range []string{tokenizerFile, "vocab.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// LoadLM loads a language model and its tokenizer. dir is the directory of a run, of
// which LoadLM takes the best weights or, if the run kept none, the newest good
// checkpoint; or the directory of one checkpoint ([AtStep]); or a folder with a GPT-2
// or Llama that Hugging Face's save_pretrained or PEFT wrote.
//
// LoadLM calls notice if the best weights are not those of the last step, for each
// newer checkpoint that is damaged, and for settings of the model that are not known.
func LoadLM(ctx context.Context, dir string, notice func(text string)) (models.CausalLM, *tokenizer.Tokenizer, error) {
	at, err := findModel(ctx, dir, notice)
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	return at.loadLM(models.WithNotice(notice))
}

func (at place) loadLM(opts ...models.LoadOption) (models.CausalLM, *tokenizer.Tokenizer, error) {
	fail := func(err error) (models.CausalLM, *tokenizer.Tokenizer, error) {
		return nil, nil, fmt.Errorf("load a language model from %s: %w", at.path, err)
	}
	if task, err := at.task(); err != nil || task != "lm" {
		if err == nil {
			err = fmt.Errorf("it is a checkpoint of the task %q, which writes no text", task)
			if task == "vision" || task == "rec" {
				err = fmt.Errorf("%w: cohort eval says how good it is", err)
			}
		}
		return fail(err)
	}
	tok, err := readTokenizer(at.path)
	if err != nil {
		return fail(err)
	}
	m, err := models.LoadCausalLM(at.path, opts...)
	if err != nil {
		return fail(err)
	}
	if err := fits(tok, m); err != nil {
		return fail(err)
	}
	return m, tok, nil
}

// fits reports a tokenizer with tokens that a model does not know. A model may know
// more tokens than its tokenizer, because tables are often rounded up. It need not
// know tokens that other files of the folder add, such as one for padding, until a
// text has them.
func fits(tok *tokenizer.Tokenizer, m models.CausalLM) error {
	if tok.Base() > m.Vocab() {
		return fmt.Errorf("%s has %d tokens, the model knows %d: one of them is another model's", tokenizerFile, tok.Base(), m.Vocab())
	}
	return nil
}
