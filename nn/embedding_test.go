// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// The options of embeddings: a padding row begins as zeros and stays without a
// gradient, dense or by rows.
func TestEmbeddingOptions(t *testing.T) {
	ids := tensor.FromInt64([]int64{1, 3, 1, 2}, 2, 2)
	for _, sparse := range []bool{false, true} {
		e := NewEmbedding(&Build{}, 5, 3, EmbeddingOptions{PaddingIdx: new(1), Sparse: sparse})
		bag := NewEmbeddingBag(&Build{}, 5, 3, EmbeddingBagOptions{Mode: tensor.BagSum, PaddingIdx: new(1), Sparse: sparse})
		for name, m := range map[string]Module{"embedding": e, "bag": bag} {
			p := Parameters(m)[0]
			if got := p.Data().Select(0, 1).Float32s(); p.Name() != "weight" || !slices.Equal(got, []float32{0, 0, 0}) {
				t.Errorf("%s: padding row of %s is %v", name, p.Name(), got)
			}
			if _, err := Backward(t.Context(), func(c *Ctx) *tensor.Tensor { return c.Call(m, ids).Sum() }); err != nil {
				t.Fatal(err)
			}
			g := p.Grad()
			if sparse {
				if g != nil || !slices.Equal(p.RowGrad().IDs.Int64s(), []int64{2, 3}) {
					t.Fatalf("%s: dense gradient %v, by rows %v", name, g, p.RowGrad().IDs)
				}
				g = p.RowGrad().Dense()
			}
			if got := g.Float32s(); !slices.Equal(got, []float32{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0}) {
				t.Errorf("%s, sparse %v: gradient %v", name, sparse, got)
			}
		}
	}
	// Offsets and weights come as further inputs.
	c := Evaluation(t.Context())
	defer c.Close()
	bag := NewEmbeddingBag(&Build{}, 5, 1, EmbeddingBagOptions{Mode: tensor.BagSum})
	w := bag.Weight.Data().Float32s()
	got := c.CallN(bag, tensor.FromInt64([]int64{4, 0, 2}), tensor.FromInt64([]int64{0, 1}), tensor.FromFloat32([]float32{2, 1, -1}))[0]
	if want := []float32{2 * w[4], w[0] - w[2]}; !slices.Equal(got.Float32s(), want) {
		t.Errorf("bags %v, want %v", got, want)
	}
}
