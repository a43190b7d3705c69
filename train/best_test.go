// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
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
		ck, _, err := checkpoint.Latest(t.Context(), BestDir(f.out))
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
