// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestMemoryPrediction: a run says before its first step how much a step will hold, and where it
// cannot, that it cannot.
func TestMemoryPrediction(t *testing.T) {
	for want, device := range map[string]tensor.Device{
		"at most 1.1 kB in a step":                   tensor.Meta,
		"what a step takes besides is not predicted": tensor.CPU(), // values on two devices
	} {
		f := newFitting(t)
		f.set = func(_ int, task *Task[points], o *Options) {
			o.Steps = 1
			task.Blank = func() points {
				return points{tensor.On(device).Zeros(3, 1), tensor.On(device).Zeros(3, 1)}
			}
		}
		if _, err := f.run(t, 2); err != nil {
			t.Fatal(err)
		}
		if got := f.log.start.Memory; !strings.Contains(got, want) {
			t.Errorf("says %q, want %q", got, want)
		}
	}
}
