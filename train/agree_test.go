// SPDX-License-Identifier: Apache-2.0

package train

import (
	"slices"
	"testing"
)

// TestSizesAreExact: the tokens of a step are counted beyond what float32 can hold.
func TestSizesAreExact(t *testing.T) {
	const odd = 1<<24 + 1
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], o *Options) {
		task.Size = func(points) int { return odd + 2*rank }
		o.Steps, o.Accumulate, o.Batch, f.batch = 2, 2, 48, 24
	}
	var sizes []int
	f.onStep = func(s Step) { sizes = append(sizes, s.Size) }
	if _, err := f.run(t, 3); err != nil {
		t.Fatal(err)
	}
	if want := 2 * (3*odd + 6); !slices.Equal(sizes, []int{want, want}) {
		t.Errorf("steps of %v, want %d", sizes, want)
	}
}
