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

// GenerateOptions say how [Generate] draws text from a model.
type GenerateOptions struct {
	NumTokens   int     // number of tokens to draw, at most
	Temperature float64 // divides the logits; 0: always take the likeliest token
	TopK        int     // draw among this many likeliest tokens; 0: all
	TopP        float64 // draw among the likeliest tokens whose probabilities add up to this; 0 and 1: all
	Seed        int64
	// RepetitionPenalty divides the logits of tokens that the text already has, and
	// multiplies them if they are below 0. 0 and 1: no penalty.
	RepetitionPenalty float64
	// EOS are the tokens that end the text. If it is empty, every special token does.
	EOS []int64
	// BOS begins a text without a prompt, unless the tokenizer has such a token itself.
	BOS []int64

	// Lengths with the prompt's tokens; 0: no limit.
	maxLength, minLength int
	minTokens            int // to draw before EOS

	pass  []nn.CtxOption                                    // of each pass
	agree func(ctx context.Context, logits []float32) error // makes the logits those of rank 0; nil: alone
}

// ends reports whether a token ends a text.
func (o *GenerateOptions) ends(tok *tokenizer.Tokenizer, id int64) bool {
	if len(o.EOS) > 0 {
		return slices.Contains(o.EOS, id)
	}
	return tok.Special(id)
}

// Generate continues a prompt. It calls emit with the bytes of each token that it
// draws. If the prompt is longer than the model's context, Generate cuts off its
// beginning. If the text outgrows the context, Generate continues from the later
// half of the context. The text ends at a token of o.EOS or, if o.EOS is empty, at
// any special token, such as that which ends a document. Generate does not emit
// special tokens.
func Generate(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, prompt string, o GenerateOptions, emit func([]byte) error) error {
	if o.NumTokens < 0 || o.TopK < 0 || !(o.Temperature >= 0) {
		return fmt.Errorf("generate: %d tokens of the likeliest %d at a temperature of %v: none may be negative, nor the temperature NaN", o.NumTokens, o.TopK, o.Temperature)
	}
	if !(o.TopP >= 0 && o.TopP <= 1) || !(o.RepetitionPenalty >= 0) {
		return fmt.Errorf("generate: a share of %v, a penalty of %v: the share is between 0 and 1, the penalty not negative, and neither is NaN", o.TopP, o.RepetitionPenalty)
	}
	ids, err := beginning(m, tok, prompt, o.BOS)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	if o.maxLength > 0 {
		o.NumTokens = max(0, o.maxLength-len(ids))
	}
	if o.minLength > 0 {
		o.minTokens = o.minLength - len(ids)
	}
	ids = ids[max(0, len(ids)-m.Context()):]
	// Published models take contexts that are longer than most texts: a cache for
	// all of it would be gigabytes.
	g, cache := tensor.NewGenerator(o.Seed), nn.NewKVCache(min(m.Context()-len(ids), o.NumTokens)+len(ids))
	text := slices.Clone(ids) // all that the penalty is for
	for written := range o.NumTokens {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if len(ids) > m.Context() {
			ids = ids[len(ids)-max(1, m.Context()/2):]
			cache.Reset()
		}
		logits, err := nextLogits(ctx, m, ids[cache.Len():], append(o.pass, nn.WithKVCache(cache))...)
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if o.agree != nil {
			if err := o.agree(ctx, logits); err != nil {
				return fmt.Errorf("generate: %w", err)
			}
		}
		if i := slices.IndexFunc(logits, func(v float32) bool { return v != v }); i >= 0 {
			return fmt.Errorf("generate: the score of token %d is NaN after %d tokens: the model has weights that are not finite, or too large", i, len(ids))
		}
		// A model may have more rows than its tokenizer has tokens, to be a round number.
		logits = logits[:min(len(logits), tok.Size())]
		o.penalize(logits, text)
		if written < o.minTokens {
			for _, id := range o.EOS {
				if id >= 0 && id < int64(len(logits)) {
					logits[id] = float32(math.Inf(-1))
				}
			}
		}
		id := draw(logits, o, g)
		if o.ends(tok, id) {
			return nil
		}
		ids, text = append(ids, id), append(text, id)
		if tok.Special(id) {
			continue
		}
		if err := emit(tok.Token(id)); err != nil {
			return err
		}
	}
	return nil
}

// beginning returns the tokens that a text begins with. It is an error if the model
// does not know one of them.
func beginning(m models.CausalLM, tok *tokenizer.Tokenizer, prompt string, bos []int64) ([]int64, error) {
	ids := tok.EncodeInput([]byte(prompt))
	if len(ids) == 0 {
		for _, id := range bos {
			if id < 0 || id >= int64(m.Vocab()) {
				return nil, fmt.Errorf("bos_token_id is %d, and the model knows %d tokens", id, m.Vocab())
			}
		}
		ids = slices.Clone(bos)
	}
	if len(ids) == 0 {
		ids = tok.Encode([]byte("\n"))
	}
	for _, id := range ids {
		if id >= int64(m.Vocab()) {
			return nil, fmt.Errorf("the prompt has %q, token %d, and the model knows %d: a file of its folder adds a token that it was not trained with", tok.Token(id), id, m.Vocab())
		}
	}
	return ids, nil
}

// nextLogits returns the logits of the token after ids. ids follow the tokens that
// the cache has seen.
func nextLogits(ctx context.Context, m models.CausalLM, ids []int64, opts ...nn.CtxOption) (logits []float32, err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	out := c.Call(m, tensor.On(c.Device()).FromInt64(ids, 1, len(ids)))
	return out.Select(0, 0).Select(0, len(ids)-1).Float32s(), nil
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
	if o.TopP > 0 && o.TopP < 1 {
		before := 0.0 // what is likelier
		for i, w := range weights {
			if before >= o.TopP*sum {
				order, weights, sum = order[:i], weights[:i], before
				break
			}
			before += w
		}
	}
	at := g.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return order[i]
		}
	}
	return order[len(order)-1]
}

// spreadLM is a language model whose passes a strategy runs.
type spreadLM struct {
	models.CausalLM
	spread nn.Module
}

func (m spreadLM) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return c.Call(m.spread, x) }

// checkSample reports what would prevent the model from writing its sample at the
// end of the run.
func (c LMConfig) checkSample(m models.CausalLM, tok *tokenizer.Tokenizer, files map[string][]byte) error {
	if c.SampleTokens == 0 {
		return nil
	}
	said, err := parseGeneration(files)
	if err == nil {
		_, err = beginning(m, tok, c.Prompt, said.BOS)
	}
	return err
}

// sample returns what the model makes of the recipe's prompt.
func (r *lmRun) sample(ctx context.Context, model any) (string, error) {
	if r.cfg.SampleTokens == 0 {
		return "", nil
	}
	text := []byte(r.cfg.Prompt)
	o := GenerateOptions{NumTokens: r.cfg.SampleTokens, Temperature: 0.8, TopK: 50, Seed: r.cfg.Seed, pass: []nn.CtxOption{onDeviceOf(model)}}
	if isSharded(model) { // all ranks run the passes, and must draw the same tokens
		o.agree = func(ctx context.Context, logits []float32) error {
			t := tensor.FromFloat32(logits)
			defer t.Free()
			err := r.axes.World.Broadcast(ctx, t, 0)
			copy(logits, t.Float32s())
			return err
		}
	}
	said, err := parseGeneration(r.companions)
	if err != nil {
		return "", err
	}
	o.Fill(said, func(name string) bool { return name == "max_new_tokens" })
	err = Generate(ctx, spreadLM{r.base, model.(nn.Module)}, r.tokenizer, r.cfg.Prompt, o, func(piece []byte) error {
		text = append(text, piece...)
		return nil
	})
	return string(text), err
}
