// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/tensor"
)

// The distances of [TripletLoss].
const (
	Euclidean = "euclidean"
	Manhattan = "manhattan"
	Cosine    = "cosine" // 1 minus the cosine of the angle
)

// RankingLoss is the contrastive loss with the other texts of a batch as negatives
// (Henderson et al. 2017, arXiv 1705.00652; InfoNCE): the cross entropy by which anchor i,
// [n, width], finds candidate first+i among all candidates, [m, width], by their cosines
// times scale. It is the mean over the anchors.
func RankingLoss(anchors, candidates *tensor.Tensor, first int, scale float64) *tensor.Tensor {
	scores := tensor.Linear(Normalized(anchors), Normalized(candidates), nil).MulScalar(scale)
	n := anchors.Dim(0)
	right := make([]int64, n)
	for i := range right {
		right[i] = int64(first + i)
	}
	return tensor.CrossEntropy(scores, tensor.On(anchors.Device()).FromInt64(right, n))
}

// TripletLoss is the mean over rows [n, width] of how much the distance from an anchor to
// its positive, with a margin added, exceeds that to its negative (Schroff et al. 2015,
// arXiv 1503.03832).
func TripletLoss(anchors, positives, negatives *tensor.Tensor, distance string, margin float64) (*tensor.Tensor, error) {
	const eps = 1e-6 // PyTorch adds it to each difference
	var far func(x, y *tensor.Tensor) *tensor.Tensor
	switch distance {
	case Euclidean:
		far = func(x, y *tensor.Tensor) *tensor.Tensor { return x.Sub(y).AddScalar(eps).Norm(2, 1) }
	case Manhattan:
		far = func(x, y *tensor.Tensor) *tensor.Tensor { return x.Sub(y).AddScalar(eps).Abs().Sum(1) }
	case Cosine:
		far = func(x, y *tensor.Tensor) *tensor.Tensor { return Cosines(x, y).RSubScalar(1) }
	default:
		return nil, fmt.Errorf("models: there is no distance %q: there are %s, %s and %s", distance, Euclidean, Manhattan, Cosine)
	}
	return far(anchors, positives).Sub(far(anchors, negatives)).AddScalar(margin).ReLU().Mean(), nil
}

// CosineLoss is the mean squared difference between the cosines of pairs of rows
// [n, width] and their scores [n].
func CosineLoss(x, y, scores *tensor.Tensor) *tensor.Tensor {
	return tensor.MSE(Cosines(x, y), scores)
}

// Cosines returns the cosines of pairs of rows: [n, width] and [n, width] to [n].
func Cosines(x, y *tensor.Tensor) *tensor.Tensor { return tensor.CosineSimilarity(x, y, 1, 1e-8) }
