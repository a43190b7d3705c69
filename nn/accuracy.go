// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// Accuracy returns the share of rows of logits [batch…, classes] whose largest
// entry is the one that targets [batch…] names, from 0 to 1. Rows whose target
// is tensor.IgnoreIndex do not count; it is 0 when none does. Ties go to the
// first entry, and NaN is the largest of all.
func Accuracy(logits, targets *tensor.Tensor) float64 {
	shape := logits.Shape()
	if len(shape) == 0 || !slices.Equal(shape[:len(shape)-1], targets.Shape()) {
		panic(&tensor.Error{
			Op: "accuracy", Names: []string{logits.Name(), targets.Name()}, Shapes: [][]int{shape, targets.Shape()},
			DTypes: []tensor.DType{logits.DType(), targets.DType()}, Msg: "want logits [batch…, classes] and targets [batch…]",
		})
	}
	classes, values := shape[len(shape)-1], logits.Float32s()
	right, counted := 0, 0
	for i, want := range targets.Int64s() {
		if want == tensor.IgnoreIndex {
			continue
		}
		counted++
		if row := values[i*classes : (i+1)*classes]; classes > 0 && int64(largest(row)) == want {
			right++
		}
	}
	if counted == 0 {
		return 0
	}
	return float64(right) / float64(counted)
}

// largest returns the index of the largest entry.
func largest(row []float32) int {
	best := 0
	for i, v := range row {
		if v > row[best] || v != v && row[best] == row[best] {
			best = i
		}
	}
	return best
}
