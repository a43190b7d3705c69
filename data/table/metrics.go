// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// AUC is the area under the ROC curve: how likely a row of label 1 has a higher
// score than a row of label 0, where equal scores count half. It is NaN where
// the labels are all the same or a score is NaN. The scores may be probabilities
// or logits: only their order counts.
func AUC(scores []float64, labels []float32) float64 {
	mustMatch("auc", scores, labels)
	order := make([]int, len(scores))
	for i := range order {
		if math.IsNaN(scores[i]) {
			return math.NaN()
		}
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	// Pairs are counted by ranks: every positive wins over the negatives below it.
	var wins, negatives float64
	for i := 0; i < len(order); {
		var tiedPositives, tiedNegatives float64
		at := scores[order[i]]
		for ; i < len(order) && scores[order[i]] == at; i++ {
			if labels[order[i]] > 0 {
				tiedPositives++
			} else {
				tiedNegatives++
			}
		}
		wins += tiedPositives * (negatives + tiedNegatives/2)
		negatives += tiedNegatives
	}
	return wins / (negatives * (float64(len(order)) - negatives))
}

// LogLoss is the mean of -log of the probability that each logit gives to its
// label, in nats.
func LogLoss(logits []float64, labels []float32) float64 {
	mustMatch("log loss", logits, labels)
	sum := 0.0
	for i, x := range logits {
		// log(1+exp(x)) - label·x, without an exp that overflows.
		sum += math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) - float64(labels[i])*x
	}
	return sum / float64(len(logits))
}

func mustMatch(op string, scores []float64, labels []float32) {
	if len(scores) != len(labels) {
		panic(fmt.Sprintf("table: %s of %d scores and %d labels", op, len(scores), len(labels)))
	}
}

// sigmoid maps a logit to its probability.
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
