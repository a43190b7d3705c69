// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/train"
)

// results remembers how a run went.
type results struct {
	train.Reporter
	exams   []float64
	answers string
}

func (r *results) Evaluation(e train.Evaluation) { r.exams = append(r.exams, e.Metrics[0].Value) }
func (r *results) Finish(f train.Finish)         { r.answers = f.Ending.Text }

// TestLearnsToAnswer: questions that were not learned are answered right, and
// the adapter that was saved opens with its base.
func TestLearnsToAnswer(t *testing.T) {
	*from, *out, *epochs = filepath.Join("..", "..", "train", "testdata", "finetune", "llama"), filepath.Join(t.TempDir(), "run"), 20
	r := &results{Reporter: train.Discard}
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, group *dist.Group) error { return tune(ctx, group, r) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("exams %.2f, and then\n%s", r.exams, r.answers)
	if first, last := r.exams[0], r.exams[len(r.exams)-1]; first > 0.1 || last < 0.6 {
		t.Errorf("the share of right answers goes from %v to %v, want from none to more than 0.6", first, last)
	}
	if !strings.Contains(r.answers, "three hundred and ninety-four is 3 9 4\n") {
		t.Errorf("it answers %q", r.answers)
	}
	best, err := filepath.Glob(filepath.Join(train.BestDir(*out), "step-*"))
	if err != nil || len(best) != 1 {
		t.Fatalf("the best are %q, %v", best, err)
	}
	if _, err := models.LoadCausalLM(best[0]); err != nil {
		t.Error(err)
	}
}

func TestPairsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"what is it?\tthis\nno answer\n":      ":2: want a question, a tab and an answer",
		"a\tb\n":                              "has 1 pairs",
		strings.Repeat("far ", 99) + "\tno\n": "the model takes 64",
	} {
		*from, *source = filepath.Join("..", "..", "train", "testdata", "finetune", "llama"), filepath.Join(t.TempDir(), "pairs.tsv")
		if err := os.WriteFile(*source, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		err := dist.Spawn(t.Context(), 1, func(ctx context.Context, group *dist.Group) error { return tune(ctx, group, train.Discard) })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), *source) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	*source = ""
}
