// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// CheckLM reports, before any rank is started, what [LM] would report on every
// one of them: settings that make no sense, a checkpoint of another run, a text
// that cannot be used, a directory that cannot be written. It leaves nothing
// behind, and returns the settings that the run would have, as TOML.
func CheckLM(ctx context.Context, cfg LMConfig, given map[string]string) (resolved []byte, err error) {
	r := newLMRun(cfg, given, nil, Discard)
	if err := r.cfg.tuneDefaults(given); err != nil {
		return nil, err
	}
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	if err := CheckOut("lm", r.cfg.Out); err != nil {
		return nil, err
	}
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.dividePasses(); err != nil {
		return nil, err
	}
	if err := r.checkModel(saved); err != nil {
		return nil, err
	}
	switch moved := saved != nil && r.was.InitFrom != r.cfg.InitFrom; {
	case r.cfg.InitFrom == "":
	case moved: // only the weights tell whether it is the same model
		if err := r.openBase(ctx, saved); err != nil {
			return nil, err
		}
	case saved == nil || r.cfg.LoRA > 0:
		if err := r.checkBase(ctx, saved); err != nil {
			return nil, err
		}
	}
	if given["data"] == config.Flag && cfg.Data == "" {
		return nil, errors.New("train lm: --data is empty: name a file or directory, or leave the flag out for the Go standard library's source")
	}
	defer r.closeData()
	if saved != nil {
		return r.config(), r.openData(ctx, saved)
	}
	if r.cfg.areRecords() {
		if err := r.openRecords(ctx, saved); err != nil {
			return nil, err
		}
	} else if data.IsShards(r.cfg.Data) {
		if err := r.openShards(ctx, saved); err != nil {
			return nil, err
		}
	} else if r.cfg.Data != "" {
		corpus, err := data.OpenCorpus(ctx, r.cfg.Data)
		if err != nil {
			return nil, fmt.Errorf("train lm: %w", err)
		}
		// A token has a byte at least.
		if n := corpus.Validation.Size(); n < int64(r.cfg.Context) {
			return nil, fmt.Errorf("train lm: --context is %d tokens, but of %s no more than %d bytes are held out to validate on: give --data more text, or a shorter --context",
				r.cfg.Context, r.cfg.Data, n)
		}
		if err := r.checkText(corpus.Train.Size()); err != nil {
			return nil, err
		}
	}
	return r.config(), nil
}

// checkModel reports a model that the axes of the mesh cannot split, and a new one that is too
// large for the machine.
func (r *lmRun) checkModel(saved *SavedRun) error {
	if r.cfg.InitFrom != "" {
		return nil
	}
	m := r.cfg.newModel(&nn.Build{Device: tensor.Meta}, r.cfg.Vocab)
	if err := r.cfg.checkSplit(m); err != nil || saved != nil {
		return err
	}
	return checkMemory("lm", m, r.cfg.SharedConfig)
}

// checkText reports a step that takes more sequences than a text can have: a token has
// a byte at least.
func (r *lmRun) checkText(bytes int64) error {
	most := int(bytes/int64(r.cfg.Context)) + 1
	if _, err := r.cfg.size().check(most, r.settings, fmt.Sprintf("sequences of %d tokens", r.cfg.Context)); err != nil {
		return fmt.Errorf("train lm: of %s: %w", r.cfg.Data, err)
	}
	return nil
}
