// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/models"
)

// TestBestIsWhatIsKept: a run that lost its last steps, and comes to other
// figures when it does them again, keeps the best weights that it ever saw; one
// that begins late to keep them names none that it has not.
func TestBestIsWhatIsKept(t *testing.T) {
	f := newFitting(t)
	do := func(steps int, best bool, values map[int]float64) *Best {
		t.Helper()
		scores := metricsOf(values, true)
		f.set = func(rank int, task *Task[points], o *Options) {
			scores(rank, task, o)
			o.Best, o.SaveEvery, o.Steps = best, 3, steps
		}
		if _, err := f.run(t, 2); err != nil {
			t.Fatal(err)
		}
		return f.log.finish.Best
	}
	kept := func(step int, value float64, b *Best) {
		t.Helper()
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(BestDir(f.out)))
		if err != nil || ck.Step != step {
			t.Errorf("%+v is kept, want step %d (%v)", ck, step, err)
		}
		if b == nil || b.Step != step || b.Metric.Value != value {
			t.Errorf("%+v is said to be the best, want %v of step %d", b, value, step)
		}
	}
	if b := do(6, false, map[int]float64{3: 0.8, 6: 0.1}); b != nil {
		t.Errorf("%+v, though nothing is kept", b)
	}
	kept(9, 0.7, do(12, true, map[int]float64{9: 0.7, 12: 0.6}))
	for _, step := range []int{9, 12} { // as if the machine had stopped before it saved them
		if err := os.RemoveAll(checkpoint.Path(f.out, step)); err != nil {
			t.Fatal(err)
		}
	}
	kept(9, 0.7, do(12, true, map[int]float64{9: 0.5, 12: 0.4}))
	kept(15, 0.9, do(18, true, map[int]float64{15: 0.9, 18: 0.3}))
}

// TestTheBestIsTaken: where a run got worse, what is evaluated, generated with, gone
// on from and merged are the weights that were best, and it says so; others by their step.
func TestTheBestIsTaken(t *testing.T) {
	c, given := tuneCases[1].config(t)
	// At this rate no step after the first comes near it, on any kind of processor.
	c.Merge, c.Steps, c.EvalEvery, c.SaveEvery, c.LR, c.LRFloor, c.Warmup = true, 8, 1, 4, 100, 1, 0
	l := newLog()
	if err := runGiven(t, 1, c, l, given); err != nil {
		t.Fatal(err)
	}
	best, last := l.finish.Best, l.evaluations[8]
	if best == nil || best.Metric.Value > last-1e-3 {
		t.Fatalf("no run that gets worse: the evaluations are %v", l.evaluations)
	}
	from := func(dir string) (bits float64, said string) {
		t.Helper()
		r, err := Eval(t.Context(), storage.Dir(dir), EvalOptions{Tokens: c.EvalTokens, Context: c.Context}, func(text string) { said += text })
		if err != nil {
			t.Fatal(err)
		}
		if m, _, err := LoadLM(t.Context(), storage.Dir(dir), func(string) {}); err != nil || m == nil {
			t.Fatal(err)
		}
		return r.Metrics[2].Value, said
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-4 {
			t.Errorf("%s: %v bits per byte, want %v", what, got, want)
		}
	}
	bits, said := from(c.Out)
	near("the run", bits, best.Metric.Value)
	if want := fmt.Sprintf("taking the best weights of %s, of step %d; the last are those of step 8", c.Out, best.Step); !strings.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	for dir, want := range map[string]float64{BestDir(c.Out): best.Metric.Value, filepath.Join(c.Out, mergedDir): best.Metric.Value, checkpoint.Path(c.Out, 8): last} {
		if bits, said = from(dir); said != "" {
			t.Errorf("%s: said %q", dir, said)
		}
		near(dir, bits, want)
	}
	for step, want := range map[int]string{8: checkpoint.Path(c.Out, 8), best.Step: checkpoint.Path(BestDir(c.Out), best.Step)} {
		if dir, err := AtStep(t.Context(), storage.Dir(c.Out), step); dir.String() != want && step != 4 || err != nil {
			t.Errorf("step %d is in %q, want %q: %v", step, dir, want, err)
		}
	}
	if _, err := AtStep(t.Context(), storage.Dir(c.Out), 99); err == nil || !strings.Contains(err.Error(), "has no checkpoint of it, but of 8, 4") {
		t.Errorf("%v", err)
	}
	if _, err := AtStep(t.Context(), storage.Dir(t.TempDir()), 1); err == nil || !strings.Contains(err.Error(), "not the directory of a run") {
		t.Errorf("%v", err)
	}
	if text := strings.Join(l.notices, "\n"); !strings.Contains(text, fmt.Sprintf("has the model with the matrices of step %d", best.Step)) {
		t.Errorf("of what is merged it says %q", text)
	}
	// What is damaged is passed over, with a word.
	if err := os.Truncate(filepath.Join(checkpoint.Path(BestDir(c.Out), best.Step), models.AdapterFile), 10); err != nil {
		t.Fatal(err)
	}
	bits, said = from(c.Out)
	near("damaged", bits, last)
	if !strings.Contains(said, "the best weights cannot be used, the last take their place") {
		t.Errorf("said %q", said)
	}
}
