// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// GenerateOptions say how text is drawn from a model.
type GenerateOptions struct {
	NumTokens   int
	Temperature float64 // divides the logits; 0 takes the likeliest token always
	TopK        int     // draw among so many likeliest tokens; 0 is all
	Seed        int64
}

// Generate goes on from a prompt: it calls emit with the bytes of each token
// that it draws. A prompt longer than the model's context is cut at the front,
// and where the text outgrows the context, its later half goes on alone. A
// special token, such as that which ends a document, ends the text.
func Generate(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, prompt string, o GenerateOptions, emit func([]byte) error) error {
	if o.NumTokens < 0 || o.TopK < 0 || !(o.Temperature >= 0) {
		return fmt.Errorf("generate: %d tokens of the likeliest %d at a temperature of %v: none may be negative, nor the temperature NaN", o.NumTokens, o.TopK, o.Temperature)
	}
	ids := tok.EncodeInput([]byte(prompt))
	if len(ids) == 0 {
		ids = tok.Encode([]byte("\n"))
	}
	ids = ids[max(0, len(ids)-m.Context()):]
	// Published models take contexts that are longer than most texts: a cache for
	// all of it would be gigabytes.
	g, cache := tensor.NewGenerator(o.Seed), nn.NewKVCache(min(m.Context(), len(ids)+o.NumTokens))
	for range o.NumTokens {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if len(ids) > m.Context() {
			ids = ids[len(ids)-max(1, m.Context()/2):]
			cache.Reset()
		}
		logits, err := nextLogits(ctx, m, cache, ids[cache.Len():])
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if i := slices.IndexFunc(logits, func(v float32) bool { return v != v }); i >= 0 {
			return fmt.Errorf("generate: the score of token %d is NaN after %d tokens: the model has weights that are not finite, or too large", i, len(ids))
		}
		// A model may have more rows than its tokenizer has tokens, to be a round number.
		id := draw(logits[:min(len(logits), tok.Size())], o, g)
		if tok.Special(id) {
			return nil
		}
		ids = append(ids, id)
		if err := emit(tok.Token(id)); err != nil {
			return err
		}
	}
	return nil
}

// nextLogits returns the logits of the token after ids, which follow those that
// the cache has seen.
func nextLogits(ctx context.Context, m models.CausalLM, cache *nn.KVCache, ids []int64) (logits []float32, err error) {
	c := nn.Evaluation(ctx, nn.WithKVCache(cache))
	defer c.Close()
	defer c.Recover(&err)
	out := c.Call(m, tensor.FromInt64(ids, 1, len(ids)))
	return out.Select(0, 0).Select(0, len(ids)-1).Float32s(), nil
}

// draw picks a token.
func draw(logits []float32, o GenerateOptions, g *tensor.Generator) int64 {
	order := make([]int64, len(logits))
	for i := range order {
		order[i] = int64(i)
	}
	slices.SortStableFunc(order, func(a, b int64) int { return cmp.Compare(logits[b], logits[a]) })
	if o.Temperature <= 0 {
		return order[0]
	}
	if o.TopK > 0 {
		order = order[:min(o.TopK, len(order))]
	}
	weights, sum := make([]float64, len(order)), 0.0
	for i, id := range order {
		weights[i] = math.Exp(float64(logits[id]-logits[order[0]]) / o.Temperature)
		sum += weights[i]
	}
	at := g.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return order[i]
		}
	}
	return order[len(order)-1]
}

// sample returns what the model makes of the recipe's prompt.
func (r *lmRun) sample(ctx context.Context) (string, error) {
	if r.cfg.SampleTokens == 0 {
		return "", nil
	}
	text := []byte(r.cfg.Prompt)
	o := GenerateOptions{NumTokens: r.cfg.SampleTokens, Temperature: 0.8, TopK: 50, Seed: r.cfg.Seed}
	err := Generate(ctx, r.model(), r.tokenizer, r.cfg.Prompt, o, func(piece []byte) error {
		text = append(text, piece...)
		return nil
	})
	return string(text), err
}
