// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Word2Vec learns vectors of words by skip-gram with negative sampling (Mikolov
// et al. 2013, arXiv 1310.4546): a word's vector is to predict the words around
// it among words drawn at random.
type Word2Vec struct {
	Words    *nn.Embedding `name:"in_embed"`  // what is kept
	Contexts *nn.Embedding `name:"out_embed"` // what is predicted with
}

// NewWord2Vec returns the model for a vocabulary with vectors of a width: words
// uniform within 1/(2·width), contexts zero, as in the original program. Its
// tables take their gradients by rows.
func NewWord2Vec(b *nn.Build, vocab, width int) *Word2Vec {
	m := &Word2Vec{
		Words:    &nn.Embedding{Weight: b.Uniform(0.5/float64(width), vocab, width)},
		Contexts: &nn.Embedding{Weight: b.Empty(vocab, width)},
	}
	m.Words.Weight.Sparse, m.Contexts.Weight.Sparse = true, true
	return m
}

// ForwardN takes int64 words [batch], what stood near each of them [batch], and
// words drawn at random [batch, negatives]. It returns the mean loss, in nats:
// -log σ(u·v) for the neighbour, -log σ(-u·v) for each of the others.
func (m *Word2Vec) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("Word2Vec", in, "words, their neighbours and words drawn at random", 3)
	words, neighbours, drawn := in[0], in[1], in[2]
	batch := words.Dim(0)
	candidates := tensor.Cat(1, neighbours.Reshape(batch, 1), drawn) // [batch, 1+negatives]
	u := c.Call(m.Words, words).Reshape(batch, -1, 1)                // [batch, width, 1]
	v := c.Call(m.Contexts, candidates)                              // [batch, 1+negatives, width]
	scores := v.MatMul(u).Reshape(batch, -1)
	first := scores.Narrow(1, 0, 1).LogSigmoid().Sum()
	rest := scores.Narrow(1, 1, scores.Dim(1)-1).Neg().LogSigmoid().Sum()
	return []*tensor.Tensor{first.Add(rest).MulScalar(-1 / float64(batch))}
}

// NegativeSampler draws words with a probability proportional to their count to
// the power 3/4, in constant time (Walker 1977, the alias method).
type NegativeSampler struct {
	keep  []float64 // the chance to keep a column's own word
	alias []int64   // the other one
}

// NewNegativeSampler returns a sampler of the words 0 … len(counts)-1.
func NewNegativeSampler(counts []int64) (*NegativeSampler, error) {
	n, total := len(counts), 0.0
	weights := make([]float64, n)
	for i, count := range counts {
		if count < 0 {
			return nil, fmt.Errorf("models: word %d was counted %d times", i, count)
		}
		weights[i] = math.Pow(float64(count), 0.75)
		total += weights[i]
	}
	if total == 0 {
		return nil, fmt.Errorf("models: none of %d words was counted: there is nothing to draw", n)
	}
	s := &NegativeSampler{keep: make([]float64, n), alias: make([]int64, n)}
	var small, large []int // columns with less and with more than their share
	for i := range weights {
		weights[i] *= float64(n) / total
		if weights[i] < 1 {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 && len(large) > 0 {
		low, high := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		s.keep[low], s.alias[low] = weights[low], int64(high)
		weights[high] -= 1 - weights[low]
		if weights[high] < 1 {
			large = large[:len(large)-1]
			small = append(small, high)
		}
	}
	for _, i := range slices.Concat(small, large) {
		s.keep[i], s.alias[i] = 1, int64(i) // what rounding has left
	}
	return s, nil
}

// Draw returns int64 words of a shape.
func (s *NegativeSampler) Draw(g *tensor.Generator, shape ...int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	ids := make([]int64, n)
	for i := range ids {
		x := g.Float64() * float64(len(s.keep))
		column := min(int(x), len(s.keep)-1)
		if ids[i] = int64(column); x-float64(column) >= s.keep[column] {
			ids[i] = s.alias[column]
		}
	}
	return tensor.FromInt64(ids, shape...)
}
