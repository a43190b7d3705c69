// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/data/table"
)

// evalRec computes how well a recommender tells the labels of a table.
func (at place) evalRec(ctx context.Context, o EvalOptions) (EvalResult, error) {
	if o.Tokens > 0 || o.Context > 0 {
		return EvalResult{}, errors.New("--tokens and --context are about text: a recommender reads rows")
	}
	r, err := OpenRecommender(at.checkpoint)
	if err != nil {
		return EvalResult{}, err
	}
	p, err := at.checkpoint.ReadProgress()
	if err != nil {
		return EvalResult{}, err
	}
	run := DefaultRec()
	if err := json.Unmarshal(p.Recipe, &run); err != nil {
		return EvalResult{}, fmt.Errorf("the recipe in %s: %w", at.path, err)
	}
	own := o.Data == "" || o.Data == run.Data
	if !own {
		run.Data = o.Data
	}
	rows, err := run.read(ctx, r.Config.Schema, table.Share{})
	if err != nil {
		return EvalResult{}, err
	}
	part, which := rows.All(), "all of it"
	if !o.All {
		which = "the rows that training holds out"
		if _, part, err = rows.Split(run.Validation); err != nil {
			return EvalResult{}, fmt.Errorf("%w; or take all of them (--all)", err)
		}
	}
	batch := o.Batch
	if batch == 0 {
		batch = evalBatch
	}
	logits, err := r.Score(ctx, part, 0, part.Len(), batch)
	if err != nil {
		return EvalResult{}, err
	}
	labels := part.Labels()
	metrics := recMetrics(logits, labels)
	if math.IsNaN(metrics[0].Value) {
		return EvalResult{}, fmt.Errorf("the %d rows of %s have labels of one kind, or scores that are no numbers: there is nothing to compare", len(labels), rows.Name)
	}
	result := EvalResult{Model: r.String(), Data: rows.Name + ", " + which, Samples: part.Len(), Unit: "rows", Metrics: metrics, notes: rows.Notes()}
	if training, _, err := rows.Split(run.Validation); own && err == nil {
		result.changed(at.checkpoint, training.Fingerprint())
	}
	if truth, ok := part.Truth(); ok {
		result.Data += fmt.Sprintf(" (the true probabilities reach %s)", recMetrics(truth, labels))
	}
	return result, nil
}

// String describes the model to people.
func (r *Recommender) String() string {
	s := r.Config.Schema
	if r.Config.ModelType == recMF {
		return fmt.Sprintf("matrix factorization of %s and %s, %d rows each, width %d", s.Categories[0], s.Categories[1], s.Buckets, r.Config.Width)
	}
	return fmt.Sprintf("DLRM, %d tables of %d rows and width %d, %d numbers", len(s.Categories), s.Buckets, r.Config.Width, len(s.Numbers))
}

// read reads a share of the rows by a schema, or generates them.
func (c RecConfig) read(ctx context.Context, s table.Schema, share table.Share) (*table.Table, error) {
	if c.Data == "" {
		return c.generated().TableShare(share)
	}
	f, err := c.format()
	if err != nil {
		return nil, err
	}
	return table.ReadShare(ctx, c.Data, f, s, share)
}

// generated is the table of a run without data.
func (c RecConfig) generated() table.Generated {
	g := table.DefaultGenerated()
	g.Rows, g.Seed = c.Rows, c.Seed
	return g
}
