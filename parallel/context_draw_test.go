// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// numContextDraws is how many TestContextDraws tries.
const numContextDraws = 60

// drawContext draws a model, a length and a split. said describes the draw.
func drawContext(r *rand.Rand) (cc contextCase, n int, config ContextConfig, said string) {
	n = 2 + r.IntN(4)
	cc = contextCase{time: 2*n + r.IntN(40), recompute: r.IntN(2) == 0, low: r.IntN(4) == 0}
	keyHeads, group := 1+r.IntN(3), 1+r.IntN(3)
	config.Attention = ringAttention
	if r.IntN(2) == 0 {
		config.Attention, keyHeads = headsAttention, n
	}
	if r.IntN(3) > 0 {
		window := max(0, r.IntN(2*cc.time)-cc.time+3)
		said = fmt.Sprintf("Llama with a window of %d", window)
		cc.build = func(b *nn.Build) any {
			return models.NewLlama(b, models.LlamaConfig{
				Vocab: contextVocabulary, Context: 64, Width: 16, Hidden: 20, Heads: keyHeads * group, KeyHeads: keyHeads, HeadDim: 4, Layers: 1, Window: window,
			})
		}
	} else {
		dropout := 0.2 * float64(r.IntN(2))
		cc.padding = r.IntN(2) == 0
		said = fmt.Sprintf("BERT with dropout %v, padding %t", dropout, cc.padding)
		cc.build = func(b *nn.Build) any {
			return models.NewBERT(b, models.BERTConfig{
				Vocab: contextVocabulary, Context: 64, Width: 8 * keyHeads * group, Heads: keyHeads * group, Layers: 1, Dropout: dropout,
			})
		}
	}
	for range 2 * r.IntN(2) {
		var row []int
		for left := cc.time; left > 0; left -= row[len(row)-1] {
			row = append(row, 1+r.IntN(left))
		}
		cc.documents = append(cc.documents, row)
	}
	return cc, n, config, fmt.Sprintf("%s, %d heads of keys for %d each, %d tokens on %d ranks by %s, documents %v, recomputation %t, bfloat16 %t",
		said, keyHeads, group, cc.time, n, config.Attention, cc.documents, cc.recompute, cc.low)
}

// TestContextDraws: drawn models, lengths, documents and splits give the losses and gradients of
// one rank.
func TestContextDraws(t *testing.T) {
	seed := seeded.Of(t)
	for i := range uint64(numContextDraws) {
		cc, n, config, said := drawContext(rand.New(rand.NewPCG(seed, i)))
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			bound := 1e-5
			if cc.low {
				bound = 3e-2 // single weights of small models
			}
			cc.compare(t, cc.onRanks(t, int64(i), n, config), cc.onOneRank(t, int64(i)), bound)
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}
