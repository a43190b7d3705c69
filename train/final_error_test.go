// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/internal/errorfile"
)

// TestWhatMayPass: a launcher starts the ranks again where they saw different checkpoints, for
// a file system may lag behind, and not where their settings differ.
func TestWhatMayPass(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(rank int, task *Task[points], o *Options)
		final bool
	}{
		{"another checkpoint", func(rank int, _ *Task[points], o *Options) {
			if o.Steps = 13; rank == 1 {
				o.Out = filepath.Join(filepath.Dir(o.Out), "nothing yet")
			}
		}, false},
		{"other options", func(rank int, _ *Task[points], o *Options) { o.Steps, o.Clip = 13, float64(1+rank) }, true},
	} {
		f := newFitting(t)
		if _, err := f.run(t, 2); err != nil {
			t.Fatal(err)
		}
		f.set = c.set
		told, _ := f.run(t, 2)
		if final := errors.As(told[0], new(*errorfile.Final)); told[0] == nil || final != c.final {
			t.Errorf("%s: %v, final: %v", c.name, told[0], final)
		}
	}
}
