// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/nn"
)

// openSource finds the run whose weights this one begins with, if there is one, and
// takes over what its model is like, and its columns where no flag names others. A run
// that goes on has them already.
func (r *recRun) openSource(ctx context.Context, saved *SavedRun) (err error) {
	if r.cfg.InitFrom == "" {
		return nil
	}
	r.was = new(RecommenderConfig)
	if r.source, err = openSource(ctx, "rec", r.cfg.SaveConfig, r.cfg.InitFrom, saved, r.was, r.report.Notice); err != nil || saved != nil {
		return err
	}
	var run RecConfig
	progress, err := r.source.ck.ReadProgress()
	if err == nil {
		err = json.Unmarshal(progress.Recipe, &run)
	}
	if err != nil {
		return fmt.Errorf("train rec: --init-from: the recipe in %s: %w", r.source.ck.Path, err)
	}
	for name, value := range map[string]any{
		"model": r.was.ModelType, "width": int64(r.was.Width), "bottom": listOf(r.was.Bottom), "top": listOf(r.was.Top),
		"buckets": int64(run.Buckets),
	} {
		if err := r.source.inherit("rec", r.settings.Field(name), value); err != nil {
			return err
		}
	}
	if r.cfg.Data == "" || run.Data == "" {
		return nil // a generated table has its own columns
	}
	given := r.settings.Given()
	columns := map[string]any{"label": run.Label}
	if run.Positive != 0 {
		columns["positive"] = run.Positive
	}
	if run.NoHeader {
		columns["no-header"] = true
	}
	if given["numbers"] == "" && given["categories"] == "" {
		columns["numbers"], columns["categories"] = listOf(run.Numbers), listOf(run.Categories)
	}
	for name, value := range columns {
		if given[name] == "" {
			if err := r.settings.Field(name).Set(value, "the model's"); err != nil {
				return fmt.Errorf("train rec: --init-from: %s: %w", r.source.ck.Path, err)
			}
		}
	}
	return nil
}

// scale is that of the numbers: of those that the source knows the one that its weights
// are made for.
func (r *recRun) scale() (table.Scale, error) {
	s, err := table.Measure(r.training.own)
	if err != nil || r.was == nil {
		return s, err
	}
	for i, at := range places(r.validation.Schema().Numbers, r.was.Schema.Numbers) {
		if at >= 0 {
			s.Mean[i], s.Width[i] = r.was.Scale.Mean[at], r.was.Scale.Width[at]
		}
	}
	return s, nil
}

// carry begins with the weights of the source.
func (r *recRun) carry() error {
	fail := func(err error) error { return fmt.Errorf("train rec: --init-from: %w", err) }
	old, err := OpenRecommender(r.source.ck)
	if err != nil {
		return fail(err)
	}
	now, was := r.recommender.Config, old.Config
	same := append(places(now.Schema.Categories, was.Schema.Categories), places(now.Schema.Numbers, was.Schema.Numbers)...)
	if slices.Max(same) < 0 {
		return fail(fmt.Errorf("no column of %s is one that the model in %s knows (categories %s, numbers %s): nothing can be carried over",
			r.validation.Name(), r.cfg.InitFrom, few(was.Schema.Categories), few(was.Schema.Numbers)))
	}
	if now.Schema.Buckets != was.Schema.Buckets {
		return fail(fmt.Errorf("the model in %s has tables of %d rows, those of this run %d: a value's row would be another", r.cfg.InitFrom, was.Schema.Buckets, now.Schema.Buckets))
	}
	plan := now.planDLRM
	if now.ModelType == recMF {
		plan = now.planMF
	}
	if err := carry(nn.StateDict(r.recommender.Model), nn.StateDict(old.Model), plan(was)); err != nil {
		return fail(err)
	}
	parts := []string{matched("categories", now.Schema.Categories, was.Schema.Categories)}
	if now.ModelType == recDLRM && len(now.Schema.Numbers)+len(was.Schema.Numbers) > 0 {
		parts = append(parts, matched("numbers", now.Schema.Numbers, was.Schema.Numbers))
	}
	r.report.Notice(r.source.says(parts...))
	return nil
}

// planDLRM says where the tensors of a DLRM come from.
func (c RecommenderConfig) planDLRM(was RecommenderConfig) func(name string) carried {
	tables, numbers := places(c.Schema.Categories, was.Schema.Categories), places(c.Schema.Numbers, was.Schema.Numbers)
	if len(numbers) == 0 { // the one input is always 0
		numbers = []int{-1}
		if len(was.Schema.Numbers) == 0 {
			numbers[0] = 0
		}
	}
	// What the top sees: the vector of the numbers, and the products of all pairs of
	// vectors, of which that of the numbers is the first.
	top, vectors := counting(c.Width), append([]int{0}, tables...)
	for i := 1; i < len(vectors); i++ {
		if vectors[i] >= 0 {
			vectors[i]++
		}
	}
	for i := range vectors {
		for j := range i {
			a, b := max(vectors[i], vectors[j]), min(vectors[i], vectors[j])
			if b < 0 {
				top = append(top, -1)
			} else {
				top = append(top, c.Width+a*(a-1)/2+b)
			}
		}
	}
	return func(name string) carried {
		if rest, ok := strings.CutPrefix(name, "emb_l."); ok {
			number, field, _ := strings.Cut(rest, ".")
			i, err := strconv.Atoi(number)
			if err != nil || i >= len(tables) || tables[i] < 0 {
				return carried{}
			}
			return carried{from: fmt.Sprintf("emb_l.%d.%s", tables[i], field)}
		}
		switch name {
		case "bot_l.0.weight":
			return carried{from: name, cols: numbers}
		case "top_l.0.weight":
			return carried{from: name, cols: top}
		}
		return carried{from: name}
	}
}

// planMF says where the tensors of a matrix factorization come from.
func (c RecommenderConfig) planMF(was RecommenderConfig) func(name string) carried {
	sides := []string{"user", "item"}
	at := places(c.Schema.Categories[:2], was.Schema.Categories[:2])
	return func(name string) carried {
		i := slices.IndexFunc(sides, func(side string) bool { return strings.HasPrefix(name, side) })
		switch {
		case i < 0:
			return carried{from: name}
		case at[i] < 0:
			return carried{}
		}
		return carried{from: sides[at[i]] + strings.TrimPrefix(name, sides[i])}
	}
}
