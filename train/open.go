// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
)

// place is the place of a model: a folder in a storage.
type place struct {
	from storage.Storage // the folder itself
	path string          // of it, for messages; of a directory its path
	// checkpoint is nil where a folder of Hugging Face's is.
	checkpoint *checkpoint.Checkpoint
}

// placeOf returns the place of a checkpoint.
func placeOf(ck *checkpoint.Checkpoint) place {
	if ck == nil {
		return place{}
	}
	if ck.Name == "" {
		return place{ck.Storage(), ck.Path, ck}
	}
	return place{storage.Under(ck.Storage(), ck.Name), ck.Path, ck}
}

// findModel finds a model: in the storage of a run the best weights or, if
// the run kept none, the newest good checkpoint; or the folder of one checkpoint;
// or a folder that save_pretrained wrote. findModel calls notice if the best weights
// are not those of the last step, and for each newer checkpoint that is damaged.
func findModel(ctx context.Context, from storage.Storage, notice func(text string)) (place, error) {
	best, err := findBest(ctx, from, notice)
	if best != nil || err != nil {
		return placeOf(best), err
	}
	ck, err := latest(ctx, from, notice)
	lists := !errors.Is(err, errors.ErrUnsupported) // a web server lists nothing
	switch {
	case err == nil:
		return placeOf(ck), nil
	case lists && !errors.Is(err, checkpoint.ErrNone):
		return place{}, err
	}
	for _, name := range []string{adapterConfigFile, configFile} {
		if has, err := hasFile(ctx, from, name); has {
			return place{from: from, path: from.String()}, nil
		} else if err != nil {
			return place{}, err
		}
	}
	if d, ok := from.(*storage.Directory); ok {
		if _, err := os.Stat(d.Path("")); errors.Is(err, fs.ErrNotExist) {
			return place{}, fmt.Errorf("%s does not exist: %w: want the directory of a run, which cohort train makes, of one checkpoint, or of a model", d, checkpoint.ErrNone)
		}
	}
	if !lists {
		return place{}, fmt.Errorf("%s is neither a checkpoint nor a folder with a %s, and a web server lists no checkpoints of a run: give the address of one checkpoint", from, configFile)
	}
	return place{}, fmt.Errorf("%w: it is neither the directory of a run, nor a checkpoint, nor a folder with a %s", err, configFile)
}

// hasFile reports whether a storage has a file.
func hasFile(ctx context.Context, from storage.Storage, name string) (bool, error) {
	f, err := from.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// findBest opens the best weights of a run. It returns nil if there are none, or if
// the last checkpoint has the same weights.
func findBest(ctx context.Context, from storage.Storage, notice func(text string)) (*checkpoint.Checkpoint, error) {
	if has, err := hasFile(ctx, from, checkpoint.ManifestName); has && err == nil {
		return nil, nil // one checkpoint's own folder
	}
	bestPlace := storage.Under(from, bestDir)
	kept, err := checkpoint.Steps(ctx, bestPlace)
	if err != nil || len(kept) == 0 {
		return nil, nil
	}
	steps, err := checkpoint.Steps(ctx, from)
	if err != nil {
		return nil, err
	}
	if len(steps) > 0 && steps[0] == kept[0] {
		return nil, nil
	}
	best, err := latest(ctx, bestPlace, notice)
	if damaged := (*checkpoint.DamagedError)(nil); errors.As(err, &damaged) && len(steps) > 0 {
		notice(fmt.Sprintf("the best weights cannot be used, the last take their place: %v", err))
		return nil, nil
	}
	if err == nil && len(steps) > 0 {
		notice(fmt.Sprintf("taking the best weights of %s, of step %d; the last are those of step %d, in %s", from, best.Step, steps[0], storage.At(from, checkpoint.StepName(steps[0]))))
	}
	return best, err
}

// AtStep returns the folder of a run's checkpoint of a step. The checkpoint is one
// of the last, or that of the best weights.
func AtStep(ctx context.Context, from storage.Storage, step int) (storage.Storage, error) {
	var there []string
	for _, in := range []storage.Storage{from, storage.Under(from, bestDir)} {
		steps, err := checkpoint.Steps(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, s := range steps {
			if s == step {
				return storage.Under(in, checkpoint.StepName(step)), nil
			}
			if text := fmt.Sprint(s); !slices.Contains(there, text) {
				there = append(there, text)
			}
		}
	}
	if len(there) == 0 {
		return nil, fmt.Errorf("--step %d: %s is not the directory of a run: it has no checkpoints", step, from)
	}
	return nil, fmt.Errorf("--step %d: %s has no checkpoint of it, but of %s", step, from, strings.Join(there, ", "))
}

// maxAdapter bounds the matrices of an adapter that does not lie in a directory.
const maxAdapter = 4 << 30

// local returns a directory of this machine that has what is small in the folder: the
// configuration, the tokenizer and, of an adapter, its matrices. Of a directory it is that itself. done
// removes what local has made.
func (at place) local(ctx context.Context) (dir string, done func(), err error) {
	if d, ok := at.from.(*storage.Directory); ok {
		return d.Path(""), func() {}, nil
	}
	if dir, err = os.MkdirTemp("", "cohort-*"); err != nil {
		return "", nil, err
	}
	done = func() { os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			done()
		}
	}()
	isAdapter := false
	for _, name := range append([]string{configFile, adapterConfigFile, models.AdapterFile, models.SentenceFile}, companions...) {
		limit := int64(maxCompanion)
		if name == models.AdapterFile {
			if limit = maxAdapter; !isAdapter {
				continue
			}
		}
		text, err := at.read(ctx, name, limit)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return "", nil, err
		}
		isAdapter = isAdapter || name == adapterConfigFile
	}
	return dir, done, nil
}

// read reads a file of the folder; of a checkpoint it compares the checksum.
func (at place) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	switch {
	case at.checkpoint == nil:
		return storage.ReadFile(ctx, at.from, name, limit)
	case !at.checkpoint.Has(name):
		return nil, fmt.Errorf("%s has no %s: %w", at.path, name, fs.ErrNotExist)
	}
	return at.checkpoint.ReadFile(name, limit)
}

// weights opens the tensors of the model, which is no adapter.
func (at place) weights(ctx context.Context) (interface {
	checkpoint.Source
	io.Closer
}, error) {
	if at.checkpoint != nil {
		return at.checkpoint.Source(checkpoint.Model)
	}
	return huggingface.OpenIn(ctx, at.from, at.path)
}

// weightsFrom returns the options to read the weights of the model in a local directory
// that [place.local] has made.
func (at place) weightsFrom(ctx context.Context, opts []models.LoadOption) []models.LoadOption {
	if _, ok := at.from.(*storage.Directory); ok {
		return opts
	}
	return append(slices.Clone(opts), models.WithStorage(ctx, at.from))
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

// LoadLM loads a language model and its tokenizer. from is where a run has its checkpoints, of
// which LoadLM takes the best weights or, if the run kept none, the newest good
// one; or the folder of one checkpoint ([AtStep]); or a folder with a GPT-2
// or Llama that Hugging Face's save_pretrained or PEFT wrote. The base of an adapter must lie in a
// directory of this machine.
//
// LoadLM calls notice if the best weights are not those of the last step, for each
// newer checkpoint that is damaged, and for settings of the model that are not known.
func LoadLM(ctx context.Context, from storage.Storage, notice func(text string)) (models.CausalLM, *tokenizer.Tokenizer, error) {
	at, err := findModel(ctx, from, notice)
	if err != nil {
		return nil, nil, fmt.Errorf("load a language model: %w", err)
	}
	return at.loadLM(ctx, models.WithNotice(notice))
}

func (at place) loadLM(ctx context.Context, opts ...models.LoadOption) (models.CausalLM, *tokenizer.Tokenizer, error) {
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
	dir, done, err := at.local(ctx)
	if err != nil {
		return fail(err)
	}
	defer done()
	tok, err := readTokenizer(dir)
	if err != nil {
		return fail(err)
	}
	if hasAdapter(dir) {
		at.from = storage.Dir(dir)
	}
	m, err := models.LoadCausalLM(dir, at.weightsFrom(ctx, opts)...)
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
