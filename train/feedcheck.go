// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"

	"github.com/cohort-ml/cohort/tensor"
)

// checkPass holds a pass, in which all ranks together took samples, to what the
// options and the data axis say. It knows of feeds that say what they deliver.
func (r *trainer[B]) checkPass(taken int64) error {
	if r.proof == nil || taken < 1 {
		return nil
	}
	size, passes := r.axes.Data.Size(), int64(r.o.Accumulate)
	if n := int64(len(r.proof.feed.Keys())); size > 1 && n == taken {
		return fmt.Errorf("Task.Feed gives this rank all %d samples of a pass, though there are %d ranks: give its sampler Rank: group.Rank() and World: group.Size()", n, size)
	}
	if r.o.Batch == 0 || taken*passes == int64(r.o.Batch) {
		r.shortPass = false
		return nil
	}
	// A sampler's last batch of an epoch may be short, and then a full one follows.
	if taken*passes < int64(r.o.Batch) && !r.shortPass {
		r.shortPass = true
		return nil
	}
	return fmt.Errorf("Options.Batch is %d samples a step, but Task.Feed takes %d of all ranks in each of %d passes: give both the same, or the epochs come out wrong",
		r.o.Batch, taken, passes)
}

// lossError says that Task.Loss returned what no mean is.
func lossError(loss *tensor.Tensor) error {
	if loss == nil {
		return fmt.Errorf("Task.Loss returned nil, want the mean loss of the batch")
	}
	return fmt.Errorf("Task.Loss returned a tensor of dims %v, want one number: the mean loss of the batch (Mean)", loss.Shape())
}
