// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
)

// openShards takes tokens that were encoded before as the data of a run, with
// the tokenizer beside them. It must be the model's, where the run goes on from
// one.
func (r *lmRun) openShards(ctx context.Context, saved *SavedRun) (err error) {
	fail := func(err error) error { return fmt.Errorf("train lm: %w", err) }
	if r.shards, err = data.OpenShards(r.cfg.Data); err != nil {
		return fail(err)
	}
	tok := r.shards.Tokenizer
	known, whose := r.tokenizer, r.cfg.InitFrom
	if known == nil && saved != nil {
		if known, err = saved.tokenizer(ctx); err != nil {
			return fmt.Errorf("train lm: resume: %w", err)
		}
		whose = saved.Checkpoint.Path
	}
	if known != nil {
		if err := sameTokens(r.shards, known, whose); err != nil {
			return fail(err)
		}
	}
	if known == nil && r.cfg.InitFrom == "" {
		if r.settings.Given()["vocab"] != "" && r.cfg.Vocab != tok.Size() {
			return fail(fmt.Errorf("--vocab is %d, but the tokens in %s are of a vocabulary of %d: leave the flag out", r.cfg.Vocab, r.cfg.Data, tok.Size()))
		}
		r.cfg.Vocab = tok.Size()
	}
	r.tokenizer = tok
	if r.windows, err = data.NewShardWindows(r.shards, r.cfg.Context); err != nil {
		return fail(err)
	}
	if r.validation, err = data.NewShardValidation(r.shards, r.cfg.Context, r.cfg.EvalTokens); err != nil {
		return fail(err)
	}
	if err := r.sameText(saved); err != nil {
		return fail(err)
	}
	if r.cfg.Prompt == "" && r.settings.Given()["prompt"] != config.Flag {
		start := make([]int64, min(8, r.shards.Validation.Len()))
		if _, err := r.shards.Validation.ReadAt(start, 0); err != nil {
			return fail(err)
		}
		text, err := tok.DecodeText(start)
		if err != nil {
			return fail(err)
		}
		r.cfg.Prompt, err = promptFor(r.cfg.Data, data.NewText(r.cfg.Data, text))
		return err
	}
	return nil
}

// closeData closes files that were only read: nothing is lost.
func (r *lmRun) closeData() {
	if r.shards != nil {
		r.shards.Close()
	}
	if r.sequences != nil {
		r.sequences.Close()
	}
}

// dataName says where the data is, for people.
func (r *lmRun) dataName() string {
	switch {
	case r.shards != nil:
		return r.shards.Dir
	case r.sequences != nil:
		return r.sequences.Names()
	}
	return r.corpus.Name
}

// describeData says what the data is, for people.
func (r *lmRun) describeData() string {
	if s := r.shards; s != nil {
		return fmt.Sprintf("tokens of %s in %s: %d to train on, %d to validate", s.Source, s.Dir, s.Train.Len(), s.Validation.Len())
	}
	if r.sequences != nil {
		return r.sequences.String()
	}
	return fmt.Sprintf("%s: %s to train on, %s to validate",
		r.corpus.Name, data.ByteSize(r.corpus.Train.Size()), data.ByteSize(r.corpus.Validation.Size()))
}

// sameTokens makes sure that tokens are what a model in a place knows by them.
func sameTokens(s *data.Shards, model *tokenizer.Tokenizer, path string) error {
	if s.Tokenizer.Fingerprint() != model.Fingerprint() {
		return fmt.Errorf("the tokens in %s are of another vocabulary (%d tokens) than the model's in %s (%d): encode the text with `cohort tokenize encode --tokenizer %s`",
			s.Dir, s.Tokenizer.Size(), path, model.Size(), path)
	}
	return nil
}

// addShards scores the tokens that training holds out, and says what they are.
func (s *scored) addShards(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, from string, o EvalOptions) (name string, err error) {
	if o.All {
		return "", errors.New("all of a text can be evaluated on, of tokens only what training holds out: leave --all out")
	}
	shards, err := data.OpenShards(o.Data)
	if err != nil {
		return "", err
	}
	defer shards.Close()
	if err := sameTokens(shards, tok, from); err != nil {
		return "", err
	}
	most := int(shards.Validation.Len())
	if o.Tokens > 0 {
		most = min(most, o.Tokens)
	}
	windows, err := data.NewShardValidation(shards, o.Context, max(most, o.Context))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("tokens in %s, the part that training holds out", o.Data), s.addWindows(ctx, m, windows, o.Batch)
}
