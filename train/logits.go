// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// process changes the logits of the next token by the tokens of a text, of which the first
// were its prompt, in the order in which transformers does.
func (o *GenerateOptions) process(logits []float32, text []int64, prompt int) {
	o.penalize(logits, text)
	if o.PresencePenalty != 0 || o.FrequencyPenalty != 0 {
		counts := make(map[int64]int)
		for _, id := range text[prompt:] {
			counts[id]++
		}
		for id, n := range counts {
			if id >= 0 && id < int64(len(logits)) {
				logits[id] -= float32(o.PresencePenalty + o.FrequencyPenalty*float64(n))
			}
		}
	}
	if n := o.NoRepeatNgram; n > 0 && len(text) >= n {
		last := text[len(text)-n+1:]
		for i := 0; i+n <= len(text); i++ {
			if id := text[i+n-1]; slices.Equal(text[i:i+n-1], last) && id >= 0 && id < int64(len(logits)) {
				logits[id] = float32(math.Inf(-1))
			}
		}
	}
}

// penalize makes tokens that are in a text less likely.
func (o *GenerateOptions) penalize(logits []float32, text []int64) {
	if o.RepetitionPenalty == 0 || o.RepetitionPenalty == 1 {
		return
	}
	p, done := float32(o.RepetitionPenalty), make(map[int64]bool, len(text))
	for _, id := range text {
		if id < 0 || id >= int64(len(logits)) || done[id] {
			continue
		}
		done[id] = true
		if logits[id] < 0 {
			logits[id] *= p
		} else {
			logits[id] /= p
		}
	}
}

// draw picks a token.
func draw(logits []float32, o GenerateOptions, g *tensor.Generator) int64 {
	if o.Temperature <= 0 {
		best := 0
		for i, v := range logits {
			if v > logits[best] {
				best = i
			}
		}
		return int64(best)
	}
	order, weights, sum := o.distribution(logits)
	at := g.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return order[i]
		}
	}
	return order[len(order)-1]
}

// distribution returns the tokens among which one is drawn, likeliest first, and weights with
// their sum, which their probabilities are in proportion to: what is left by TopK, TopP and
// MinP, in this order, as in transformers.
func (o *GenerateOptions) distribution(logits []float32) (order []int64, weights []float64, sum float64) {
	most := slices.Max(logits)
	weigh := func(id int64) float64 { return math.Exp(float64(logits[id]-most) / o.Temperature) }
	switch share := o.TopP > 0 && o.TopP < 1; {
	case o.TopK > 0 && o.TopK < len(logits):
		order = likeliestTokens(logits, o.TopK)
	case share:
		order, sum = mostOfTheMass(logits, weigh, o.TopP)
	default:
		order = make([]int64, len(logits))
		for i := range order {
			order[i] = int64(i)
		}
	}
	slices.SortFunc(order, func(a, b int64) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	weights = make([]float64, len(order))
	total := 0.0
	for i, id := range order {
		weights[i] = weigh(id)
		total += weights[i]
	}
	if sum == 0 {
		sum = total // else that of all tokens, of which order has the first
	}
	if o.TopP > 0 && o.TopP < 1 {
		before := 0.0 // what is likelier
		for i, w := range weights {
			if before >= o.TopP*sum {
				order, weights = order[:i], weights[:i]
				break
			}
			before += w
		}
	}
	if o.MinP > 0 {
		for i, w := range weights {
			if i > 0 && w < o.MinP*weights[0] {
				order, weights = order[:i], weights[:i]
				break
			}
		}
	}
	sum = 0
	for _, w := range weights {
		sum += w
	}
	return order, weights, sum
}

// likeliestTokens returns the k likeliest tokens, and those that are as likely as the last of them.
func likeliestTokens(logits []float32, k int) []int64 {
	top := make([]float32, 0, k) // falling
	for _, v := range logits {
		if len(top) == k && !(v > top[k-1]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, v, func(e, v float32) int { return cmp.Compare(v, e) })
		if len(top) == k {
			top = top[:k-1]
		}
		top = slices.Insert(top, at, v)
	}
	var ids []int64
	for i, v := range logits {
		if v >= top[k-1] {
			ids = append(ids, int64(i))
		}
	}
	return ids
}

// mostOfTheMass returns tokens that have at least a share of the sum of all weights, and every
// token that is likelier than one of them, so that few need to be sorted.
func mostOfTheMass(logits []float32, weigh func(int64) float64, share float64) (ids []int64, sum float64) {
	weights := make([]float64, len(logits))
	for i := range logits {
		weights[i] = weigh(int64(i))
		sum += weights[i]
	}
	for _, least := range []float64{1e-3, 1e-6, 0} {
		ids = ids[:0]
		mass := 0.0
		for i, w := range weights {
			if w >= least {
				ids = append(ids, int64(i))
				mass += w
			}
		}
		if mass >= share*sum {
			break
		}
	}
	return ids, sum
}
