// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/data"
)

// recipe reads the settings of a run of texts for an evaluation: of the run's own records,
// or of others.
func (at place) recipe(o EvalOptions, run any, c *TextConfig, shared *SharedConfig) error {
	if o.Tokens > 0 || o.Context > 0 {
		return errors.New("--tokens and --context are about language models: this model reads records")
	}
	p, err := at.checkpoint.ReadProgress()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(p.Recipe, run); err != nil {
		return fmt.Errorf("the recipe in %s: %w", at.path, err)
	}
	if o.Data != "" {
		c.Data = o.Data
	}
	if o.Batch > 0 {
		shared.Batch = o.Batch
	}
	return nil
}

// evalHeld evaluates on the records that a run holds out, or on all of them.
func evalHeld(at place, o EvalOptions, training, held *textPart, name, model string, metrics func() (Metrics, error)) (EvalResult, error) {
	which := "the records that training holds out"
	if o.All {
		which = "all of it"
		*held = *training
		held.at = nil
		for i := range held.records.Len() {
			held.at = append(held.at, i)
		}
	}
	if held.Len() == 0 {
		return EvalResult{}, fmt.Errorf("the run holds no record of %s out: take all of them (--all), or other records (--data)", name)
	}
	m, err := metrics()
	if err != nil {
		return EvalResult{}, err
	}
	result := EvalResult{Model: model, Data: name + ", " + which, Samples: held.Len(), Unit: "records", Metrics: m}
	if o.Data == "" {
		result.changed(at.checkpoint, training.Fingerprint())
	}
	return result, nil
}

// batch makes a batch of samples lo..hi-1, of so many of their texts.
func (p textPart) batch(ctx context.Context, t textTokens, lo, hi, columns int) (sentenceBatch, error) {
	var samples []textSample
	for i := lo; i < hi; i++ {
		s, err := p.Get(ctx, data.Key{Index: i})
		if err != nil {
			return sentenceBatch{}, err
		}
		s.tokens = s.tokens[:columns]
		samples = append(samples, s)
	}
	return t.collate(samples)
}
