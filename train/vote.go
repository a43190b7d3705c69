// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// vote is what the ranks tell each other in a step: a few numbers that are summed
// over all of them. The numbers are float64, in which counts of tokens are exact.
// They lie on the device that trains and nobody waits for them until the step is
// over: the device adds up the loss, and the update depends on it, while the
// program is ahead of the device.
type vote struct {
	axes    Axes
	numbers *tensor.Tensor
	at      [numVotes]*tensor.Tensor // each of them
}

// The numbers of a vote.
const (
	voteLoss     = iota // its mean over the ranks is that of all samples
	voteSize            // of the batches
	voteReplaced        // samples that could not be made
	voteStop            // 1 for a rank that wants to stop
	voteFailed          // 1 for a rank of which a save before has failed
	voteNorm            // of all gradients: not summed, every rank has it
	numVotes
)

func newVote(axes Axes, dev tensor.Device) *vote {
	v := &vote{axes: axes, numbers: tensor.NewShared(dev, tensor.Float64, numVotes)}
	for i := range v.at {
		v.at[i] = v.numbers.Select(0, i)
	}
	return v
}

// begin begins a step.
func (v *vote) begin() { v.numbers.Fill(0) }

// addLoss adds the loss of the rank's samples, a tensor of one element on any device.
func (v *vote) addLoss(loss *tensor.Tensor) {
	v.at[voteLoss].Axpy(1, loss.Detach().Reshape().To(tensor.Float64).ToDevice(v.numbers.Device()))
}

// sum replaces the numbers by those of all ranks.
func (v *vote) sum(ctx context.Context, mine share) error {
	v.at[voteSize].Fill(float64(mine.size))
	v.at[voteReplaced].Fill(float64(mine.replaced))
	if mine.stop {
		v.at[voteStop].Fill(1)
	}
	if mine.failed {
		v.at[voteFailed].Fill(1)
	}
	if v.axes.World.Size() == 1 {
		return nil
	}
	return v.axes.World.AllReduce(ctx, v.numbers, dist.Sum)
}

// spoil makes the factor of the gradients NaN if the loss of any rank is not finite:
// an update with that factor changes nothing.
func (v *vote) spoil(scale *tensor.Tensor) {
	scale.Axpy(0, v.at[voteLoss]) // 0·loss is 0, or NaN
}

// read waits for the device and returns what all ranks have done.
func (v *vote) read(norm *tensor.Tensor) (all share) {
	v.at[voteNorm].CopyFrom(norm)
	copies := v.axes.copies()
	v.numbers.WithFloat64s(func(n []float64) {
		all = share{
			loss: n[voteLoss] / float64(v.axes.World.Size()), norm: n[voteNorm],
			size: int(n[voteSize]) / copies, replaced: int(n[voteReplaced]) / copies, stop: n[voteStop] > 0, failed: n[voteFailed] > 0,
		}
	})
	return all
}
