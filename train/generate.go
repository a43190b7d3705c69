// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
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
	MinP        float64 // draw among tokens that are at least this share as likely as the likeliest; 0: all
	Seed        int64   // of the first text; the next has the next seed
	Seeds       []int64 // of each text, in place of Seed
	// RepetitionPenalty divides the logits of tokens that the text already has, and
	// multiplies them if they are below 0. 0 and 1: no penalty.
	RepetitionPenalty float64
	// PresencePenalty is taken from the logits of tokens that were drawn before, and
	// FrequencyPenalty as often as they were.
	PresencePenalty, FrequencyPenalty float64
	// NoRepeatNgram is the length of sequences of tokens that a text has once at most; 0: any.
	NoRepeatNgram int
	// Stop are texts before which the text ends.
	Stop []string
	// EOS are the tokens that end the text. If it is empty, every special token does.
	EOS []int64
	// BOS begins a text without a prompt, unless the tokenizer has such a token itself.
	BOS []int64
	// Turn, if not nil, runs each pass of the model: a server lets requests take turns.
	Turn func(ctx context.Context, pass func() error) error

	// Lengths with the prompt's tokens; 0: no limit.
	maxLength, minLength int
	minTokens            int // to draw before EOS

	pass  []nn.CtxOption                                    // of each pass
	agree func(ctx context.Context, logits []float32) error // makes the logits those of rank 0; nil: alone
}

// The reasons for which a text ends.
const (
	EndStop   = "stop"   // a token that ends texts, or a text of Stop
	EndLength = "length" // all tokens were drawn
)

// Generated is what came of a text.
type Generated struct {
	NumPrompt int     // tokens that it began with
	Tokens    []int64 // that were drawn, with the one that ended it
	Reason    string
}

// maxStops and maxStop bound the texts that end a text.
const maxStops, maxStop = 64, 4096

// check reports options that make no sense.
func (o *GenerateOptions) check() error {
	if o.NumTokens < 0 || o.TopK < 0 || !(o.Temperature >= 0) || o.NoRepeatNgram < 0 {
		return fmt.Errorf("%d tokens of the likeliest %d at a temperature of %v, no %d tokens twice: none may be negative, nor the temperature NaN", o.NumTokens, o.TopK, o.Temperature, o.NoRepeatNgram)
	}
	if !(o.TopP >= 0 && o.TopP <= 1) || !(o.RepetitionPenalty >= 0) || !(o.MinP >= 0 && o.MinP <= 1) {
		return fmt.Errorf("shares of %v and %v, a penalty of %v: a share is between 0 and 1, the penalty not negative, and neither is NaN", o.TopP, o.MinP, o.RepetitionPenalty)
	}
	for _, p := range []float64{o.PresencePenalty, o.FrequencyPenalty} {
		if math.IsNaN(p) || math.IsInf(p, 0) {
			return fmt.Errorf("a penalty of %v, want a finite number", p)
		}
	}
	if len(o.Stop) > maxStops {
		return fmt.Errorf("%d texts to stop at, want %d at most", len(o.Stop), maxStops)
	}
	for _, s := range o.Stop {
		if s == "" || len(s) > maxStop {
			return fmt.Errorf("a text of %d bytes to stop at, want 1 to %d", len(s), maxStop)
		}
	}
	return nil
}

// ends reports whether a token ends a text.
func (o *GenerateOptions) ends(tok *tokenizer.Tokenizer, id int64) bool {
	if len(o.EOS) > 0 {
		return slices.Contains(o.EOS, id)
	}
	return tok.Special(id)
}

// Generate continues a prompt. It calls emit with the bytes of each token that it
// draws, except those that may be the beginning of a text to stop at. If the prompt is longer
// than the model's context, Generate cuts off its
// beginning. If the text outgrows the context, Generate continues from the later
// half of the context. The text ends at a token of o.EOS or, if o.EOS is empty, at
// any special token, such as that which ends a document, and before a text of o.Stop. Generate
// does not emit special tokens.
func Generate(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, prompt string, o GenerateOptions, emit func([]byte) error) error {
	ids, err := beginning(m, tok, prompt, o.BOS)
	if err == nil {
		_, err = GenerateAfter(ctx, m, tok, [][]int64{ids}, o, func(_ int, piece []byte) error { return emit(piece) })
	}
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	return nil
}

// GenerateAfter is [Generate] of several texts at the same time, which begin with as many
// tokens each. emit gets the number of a text. Text i is drawn by the seed o.Seed + i, whatever
// is computed beside it.
func GenerateAfter(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, prompts [][]int64, o GenerateOptions, emit func(text int, piece []byte) error) ([]Generated, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if len(prompts) == 0 {
		return nil, nil
	}
	if o.Seeds != nil && len(o.Seeds) != len(prompts) {
		return nil, fmt.Errorf("%d seeds for %d texts", len(o.Seeds), len(prompts))
	}
	num := len(prompts[0])
	t := &texts{m: m, tok: tok, o: o, out: make([]Generated, len(prompts))}
	for i, ids := range prompts {
		if len(ids) != num || num == 0 {
			return nil, fmt.Errorf("text %d begins with %d tokens, the first with %d: texts at the same time begin with as many, and at least one", i, len(ids), num)
		}
		for _, id := range ids {
			if id < 0 || id >= int64(m.Vocab()) {
				return nil, fmt.Errorf("the prompt has the token %d, and the model knows %d: a file of its folder adds a token that it was not trained with", id, m.Vocab())
			}
		}
		seed := o.Seed + int64(i)
		if o.Seeds != nil {
			seed = o.Seeds[i]
		}
		t.out[i] = Generated{NumPrompt: num, Reason: EndLength}
		t.rows = append(t.rows, &textRow{
			ids: slices.Clone(ids[max(0, num-m.Context()):]), text: slices.Clone(ids), prompt: num,
			generator: tensor.NewGenerator(seed), stop: stopper{texts: o.Stop}, emit: func(piece []byte) error { return emit(i, piece) },
		})
	}
	if o.maxLength > 0 {
		t.o.NumTokens = max(0, o.maxLength-num)
	}
	if o.minLength > 0 {
		t.o.minTokens = o.minLength - num
	}
	return t.out, t.run(ctx)
}

// texts are texts that are drawn at the same time, with as many tokens each.
type texts struct {
	m    models.CausalLM
	tok  *tokenizer.Tokenizer
	o    GenerateOptions
	rows []*textRow
	out  []Generated
}

// textRow is one of them.
type textRow struct {
	ids       []int64 // that the model sees
	text      []int64 // all that the penalties are for
	prompt    int     // how many of them were there at the beginning
	generator *tensor.Generator
	stop      stopper
	emit      func([]byte) error
	done      bool
}

// flush emits what was held back.
func (r *textRow) flush() error {
	if len(r.stop.held) == 0 {
		return nil
	}
	return r.emit(r.stop.held)
}

// run draws tokens until each text has ended.
func (t *texts) run(ctx context.Context) error {
	first := len(t.rows[0].ids)
	// Published models take contexts that are longer than most texts: a cache for
	// all of it would be gigabytes.
	cache := nn.NewKVCache(min(t.m.Context()-first, t.o.NumTokens) + first)
	for written := range t.o.NumTokens {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if len(t.rows[0].ids) > t.m.Context() {
			for _, r := range t.rows {
				r.ids = r.ids[len(r.ids)-max(1, t.m.Context()/2):]
			}
			cache.Reset()
		}
		logits, err := t.logits(ctx, cache)
		if err != nil {
			return err
		}
		active := false
		for i, r := range t.rows {
			id := int64(0) // of a text that has ended: nobody looks at what follows
			if !r.done {
				if id, err = t.step(r, &t.out[i], logits[i], written); err != nil {
					return err
				}
			}
			r.ids = append(r.ids, id)
			active = active || !r.done
		}
		if !active {
			return nil
		}
	}
	for _, r := range t.rows {
		if !r.done {
			if err := r.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// logits returns those of the next token of each text.
func (t *texts) logits(ctx context.Context, cache *nn.KVCache) (logits [][]float32, err error) {
	var ids []int64
	for _, r := range t.rows {
		ids = append(ids, r.ids[cache.Len():]...)
	}
	pass := func() error {
		logits, err = nextLogits(ctx, t.m, ids, len(t.rows), append(t.o.pass, nn.WithKVCache(cache))...)
		return err
	}
	if t.o.Turn != nil {
		err = t.o.Turn(ctx, pass)
	} else {
		err = pass()
	}
	if err == nil && t.o.agree != nil {
		err = t.o.agree(ctx, logits[0])
	}
	return logits, err
}

// step draws a token of a text.
func (t *texts) step(r *textRow, out *Generated, logits []float32, written int) (int64, error) {
	if i := slices.IndexFunc(logits, func(v float32) bool { return v != v }); i >= 0 {
		return 0, fmt.Errorf("the score of token %d is NaN after %d tokens: the model has weights that are not finite, or too large", i, len(r.ids))
	}
	// A model may have more rows than its tokenizer has tokens, to be a round number.
	logits = logits[:min(len(logits), t.tok.Size())]
	t.o.process(logits, r.text, r.prompt)
	if written < t.o.minTokens {
		for _, id := range t.o.EOS {
			if id >= 0 && id < int64(len(logits)) {
				logits[id] = float32(math.Inf(-1))
			}
		}
	}
	id := draw(logits, t.o, r.generator)
	out.Tokens = append(out.Tokens, id)
	r.text = append(r.text, id)
	if t.o.ends(t.tok, id) {
		r.done, out.Reason = true, EndStop
		return id, r.flush()
	}
	if t.tok.Special(id) {
		return id, nil
	}
	piece, stopped := r.stop.add(t.tok.Token(id))
	if stopped {
		r.done, out.Reason = true, EndStop
	}
	if len(piece) == 0 {
		return id, nil
	}
	return id, r.emit(piece)
}

// stopper finds texts to stop at in bytes that come in pieces.
type stopper struct {
	texts []string
	held  []byte // which may be the beginning of one
}

// add returns the bytes that may be written, and whether one of the texts follows them.
func (s *stopper) add(piece []byte) (out []byte, stopped bool) {
	if len(s.texts) == 0 {
		return piece, false
	}
	all := append(s.held, piece...)
	end := -1
	for _, text := range s.texts {
		if i := bytes.Index(all, []byte(text)); i >= 0 && (end < 0 || i < end) {
			end = i
		}
	}
	if end >= 0 {
		s.held = nil
		return all[:end], true
	}
	keep := 0
	for _, text := range s.texts {
		for n := min(len(text)-1, len(all)); n > keep; n-- {
			if bytes.HasSuffix(all, []byte(text[:n])) {
				keep = n
			}
		}
	}
	s.held = slices.Clone(all[len(all)-keep:])
	return all[:len(all)-keep], false
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

// nextLogits returns the logits of the token after each of so many texts, [rows, time] ids one
// after the other. ids follow the tokens that the cache has seen.
func nextLogits(ctx context.Context, m models.CausalLM, ids []int64, rows int, opts ...nn.CtxOption) (logits [][]float32, err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	time := len(ids) / rows
	out := c.Call(m, tensor.On(c.Device()).FromInt64(ids, rows, time))
	for i := range rows {
		logits = append(logits, out.Select(0, i).Select(0, time-1).Float32s())
	}
	return logits, nil
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
	return r.write(ctx, model, r.cfg.SampleTokens, func() bool { return true })
}

// write returns what the model makes of the recipe's prompt: so many tokens, and fewer if more says so.
func (r *lmRun) write(ctx context.Context, model any, tokens int, more func() bool) (string, error) {
	if tokens == 0 {
		return "", nil
	}
	text := []byte(r.cfg.Prompt)
	o := GenerateOptions{NumTokens: tokens, Temperature: 0.8, TopK: 50, Seed: r.cfg.Seed, pass: []nn.CtxOption{onDeviceOf(model)}}
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
		if text = append(text, piece...); !more() {
			return errLongEnough
		}
		return nil
	})
	if errors.Is(err, errLongEnough) {
		err = nil
	}
	return string(text), err
}
