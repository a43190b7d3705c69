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
	"github.com/cohort-ml/cohort/data"
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

// savedRun is a checkpoint of a run, opened to resume it.
type savedRun struct {
	checkpoint *checkpoint.Checkpoint
	progress   checkpoint.Progress
	recipe     LMConfig
	loader     data.LoaderState
	tokenizer  *tokenizer.Tokenizer
}

func openSaved(ck *checkpoint.Checkpoint) (*savedRun, error) {
	// What a recipe does not say is as it was before there was a choice.
	s := &savedRun{checkpoint: ck, recipe: LMConfig{Accumulate: 1, DType: "float32", NaN: nanStop}}
	var err error
	if s.progress, err = ck.ReadProgress(); err != nil {
		return nil, fmt.Errorf("train lm: resume: %w", err)
	}
	if err := json.Unmarshal(s.progress.Recipe, &s.recipe); err != nil {
		return nil, fmt.Errorf("train lm: resume: the recipe in %s: %w; give another --out", ck.Path, err)
	}
	if err := json.Unmarshal(s.progress.Loader, &s.loader); err != nil {
		return nil, fmt.Errorf("train lm: resume: the loader's state in %s: %w; give another --out", ck.Path, err)
	}
	s.tokenizer, err = readTokenizer(ck)
	return s, err
}

// latest returns the newest good checkpoint in a directory and tells of damaged
// ones that it passed over. Where all are damaged, the error tells.
func latest(ctx context.Context, dir string, notice func(text string)) (*checkpoint.Checkpoint, error) {
	ck, damaged, err := checkpoint.Latest(ctx, dir)
	if err == nil {
		for _, d := range damaged {
			notice("passing over a damaged checkpoint: " + d.Error())
		}
	}
	return ck, err
}

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

// load puts the saved weights and optimizer state into a run.
func (s *savedRun) load(r *lmRun) error {
	if err := s.checkpoint.LoadTensors(checkpoint.ModelFile, nn.StateDict(r.model).All()); err != nil {
		return fmt.Errorf("train lm: resume: %w", err)
	}
	if err := s.checkpoint.LoadTensors(checkpoint.OptimizerFile, r.opt.State().All()); err != nil {
		return fmt.Errorf("train lm: resume: %w", err)
	}
	r.step = s.progress.Step
	r.opt.SetNumSteps(s.progress.Step)
	return nil
}

// save writes a checkpoint on rank 0; the others go on meanwhile.
func (r *lmRun) save(ctx context.Context) error {
	if r.group.Rank() != 0 {
		return nil
	}
	progress, err := r.progress()
	if err != nil {
		return err
	}
	config, err := r.model.HuggingFaceConfig()
	if err != nil {
		return fmt.Errorf("train lm: save: %w", err)
	}
	var tok bytes.Buffer
	if err := r.tokenizer.Write(&tok); err != nil {
		return fmt.Errorf("train lm: save: %w", err)
	}
	tokenizerConfig, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": r.cfg.Context, "clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("train lm: save: %w", err)
	}
	err = checkpoint.Save(ctx, r.cfg.Out, r.step, func(w *checkpoint.Writer) error {
		if err := w.WriteTensors(checkpoint.ModelFile, nn.StateDict(r.model).All(), map[string]string{"format": "pt"}); err != nil {
			return err
		}
		if err := w.WriteTensors(checkpoint.OptimizerFile, r.opt.State().All(), nil); err != nil {
			return err
		}
		if err := w.WriteFile(configFile, config); err != nil {
			return err
		}
		if err := w.WriteFile(tokenizerFile, tok.Bytes()); err != nil {
			return err
		}
		if err := w.WriteFile(tokenizerConfigFile, tokenizerConfig); err != nil {
			return err
		}
		return w.WriteProgress(progress)
	}, r.cfg.Keep)
	if err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	r.report.Saved(Saved{Step: r.step, Path: checkpoint.Path(r.cfg.Out, r.step)})
	return nil
}

func (r *lmRun) progress() (checkpoint.Progress, error) {
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return checkpoint.Progress{}, fmt.Errorf("train lm: save the recipe: %w", err)
	}
	state := r.loader.State()
	loader, err := json.Marshal(state)
	if err != nil {
		return checkpoint.Progress{}, fmt.Errorf("train lm: save the loader's state: %w", err)
	}
	infos, err := checkpoint.Describe(nn.StateDict(r.model).All())
	if err != nil {
		return checkpoint.Progress{}, fmt.Errorf("train lm: save: %w", err)
	}
	return checkpoint.Progress{
		Step: r.step, Epoch: int(state.Position / int64(r.windows.Len())), Seed: r.cfg.Seed,
		Fingerprint: checkpoint.Fingerprint(infos), Loader: loader, Recipe: recipe,
	}, nil
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
