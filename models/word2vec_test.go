// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Words that stand near each other get vectors that point the same way.
func TestWord2VecFindsNeighbours(t *testing.T) {
	const vocab, width, batch = 12, 8, 64
	g := tensor.NewGenerator(4)
	m := NewWord2Vec(&nn.Build{Generator: g}, vocab, width)
	opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 4})
	counts := make([]int64, vocab)
	for i := range counts {
		counts[i] = 100
	}
	noise, err := NewNegativeSampler(counts)
	if err != nil {
		t.Fatal(err)
	}
	first, last := 0.0, 0.0
	for i := range 300 {
		// Words 0 to 5 keep to themselves, and so do 6 to 11.
		words, near := make([]int64, batch), make([]int64, batch)
		for j := range words {
			group := int64(j%2) * 6
			words[j], near[j] = group+int64(g.Float64()*6), group+int64(g.Float64()*6)
		}
		c := nn.Training(t.Context())
		opt.ZeroGrad()
		loss := c.CallN(m, tensor.FromInt64(words), tensor.FromInt64(near), noise.Draw(g, batch, 5))[0]
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		opt.Step(nil)
		if last = loss.Item(); i == 0 {
			first = last
		}
		c.Close()
	}
	if want := 6 * math.Ln2; !(math.Abs(first-want) <= 1e-5) {
		t.Errorf("the first loss is %v; of zero contexts it is 6·ln 2 = %v", first, want)
	}
	if last > 0.85*first {
		t.Errorf("the loss went from %v to %v", first, last)
	}
	v := m.Words.Weight.Data().Float32s()
	cosine := func(a, b int) float64 {
		var ab, aa, bb float64
		for i := range width {
			x, y := float64(v[a*width+i]), float64(v[b*width+i])
			ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
		}
		return ab / math.Sqrt(aa*bb)
	}
	if same, other := cosine(0, 5), cosine(0, 8); same < 0.5 || other > same-0.5 {
		t.Errorf("cosine of two words of one group %.2f, of two groups %.2f", same, other)
	}
}

func TestNegativeSamplerDrawsByCount(t *testing.T) {
	counts := []int64{1, 0, 16, 81, 256}
	s, err := NewNegativeSampler(counts)
	if err != nil {
		t.Fatal(err)
	}
	const n = 200_000
	drawn := make([]float64, len(counts))
	for _, id := range s.Draw(tensor.NewGenerator(1), n).Int64s() {
		drawn[id]++
	}
	total := 0.0
	for _, c := range counts {
		total += math.Pow(float64(c), 0.75)
	}
	for i, c := range counts {
		p := math.Pow(float64(c), 0.75) / total
		if sigma := math.Sqrt(n * p * (1 - p)); math.Abs(drawn[i]-n*p) > 5*sigma {
			t.Errorf("word %d was drawn %v times of %d, want %.0f", i, drawn[i], n, n*p)
		}
	}
	for _, bad := range [][]int64{{}, {0, 0}, {3, -1}} {
		if _, err := NewNegativeSampler(bad); err == nil {
			t.Errorf("counts %v make a sampler", bad)
		}
	}
}
