// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	textContext = 1024
	textBatch   = 8
	// smallText is read as a whole where all of it is asked for: it may be too
	// small to be parted, which evaluating does not need.
	smallText = 1 << 20
)

// evalLM computes how well a language model foretells a text.
func (at place) evalLM(ctx context.Context, o EvalOptions) (EvalResult, error) {
	run, err := at.recipeLM()
	if err != nil {
		return EvalResult{}, err
	}
	var result EvalResult
	if err := result.baseChanged(ctx, at, run); err != nil {
		return EvalResult{}, err
	}
	m, tok, err := at.loadLM(ctx, models.WithNotice(func(text string) { result.notes = append(result.notes, text) }))
	if err != nil {
		return EvalResult{}, err
	}
	own := run != nil && (o.Data == "" || o.Data == run.Data)
	if err := o.fillLM(at, run, m); err != nil {
		return EvalResult{}, err
	}
	var sum scored
	var texts []*data.Text
	var name string
	if of := recordsOf(o, run); of != nil {
		name, err = sum.addRecords(ctx, at, m, tok, o, *of)
	} else if data.IsShards(o.Data) {
		name, err = sum.addShards(ctx, m, tok, at.path, o)
	} else {
		var training *data.Text
		if texts, training, name, err = evalTexts(ctx, o); own && training != nil {
			result.changed(at.checkpoint, "text="+training.Fingerprint()+" ")
		}
	}
	if err != nil {
		return EvalResult{}, err
	}
	for _, text := range texts {
		if err := sum.add(ctx, m, tok, text, o); err != nil {
			return EvalResult{}, err
		}
	}
	if sum.tokens == 0 && o.Tokens > 0 && o.Tokens < o.Context {
		return EvalResult{}, fmt.Errorf("--tokens is %d, less than one sequence of %d tokens: give more, or a shorter --context", o.Tokens, o.Context)
	} else if sum.tokens == 0 {
		return EvalResult{}, fmt.Errorf("%s has less text than one sequence of %d tokens: give more, or a shorter --context", name, o.Context)
	}
	loss := sum.nats / float64(sum.tokens)
	result = EvalResult{
		notes: result.notes,
		Model: fmt.Sprintf("%s, %d parameters, %d tokens at once", nameOf(m), nn.NumParams(m), o.Context),
		Data:  name, Samples: sum.tokens, Unit: "tokens",
		Metrics: Metrics{
			{Name: "loss", Value: loss, Unit: "nats a token"},
			{Name: "perplexity", Value: math.Exp(loss)},
			{Name: "bits_per_byte", Value: data.BitsPerByte(sum.nats, sum.bytes), Unit: "bits per byte"},
		},
	}
	if sum.answers > 0 {
		result.Metrics = append(result.Metrics, Metric{Name: "exact_match", Value: float64(sum.exact) / float64(sum.answers), Higher: true, Unit: "%"})
	}
	return result, nil
}

// recipeLM returns the settings of the run that a checkpoint is of, nil where
// it is of none.
func (at place) recipeLM() (*LMConfig, error) {
	if at.checkpoint == nil || !at.checkpoint.HasProgress() {
		return nil, nil
	}
	p, err := at.checkpoint.ReadProgress()
	if err != nil {
		return nil, err
	}
	var run LMConfig
	if err := json.Unmarshal(p.Recipe, &run); err != nil {
		return nil, fmt.Errorf("the recipe in %s: %w", at.path, err)
	}
	return &run, nil
}

// baseChanged notes that the model beside which an adapter was trained is another
// now.
func (r *EvalResult) baseChanged(ctx context.Context, at place, run *LMConfig) error {
	if run == nil || run.LoRA == 0 || run.Base == "" {
		return nil
	}
	dir, done, err := at.local(ctx)
	if err != nil {
		return err
	}
	defer done()
	folder, err := modelFolder(dir)
	if err != nil {
		return err
	}
	base, err := models.LoadCausalLM(folder)
	if err != nil {
		return fmt.Errorf("the base of the adapter in %s: %w", at.path, err)
	}
	sum, err := checksum(base)
	if err == nil && sum != run.Base {
		r.notes = append(r.notes, fmt.Sprintf("the model in %s is not the one that %s was trained beside (its weights have the checksum %s, they had %s)", folder, at.path, sum, run.Base))
	}
	return err
}

// fillLM puts what the run says, or else what suits the model, where nothing was
// given.
func (o *EvalOptions) fillLM(at place, run *LMConfig, m models.CausalLM) error {
	context := min(textContext, m.Context())
	switch {
	case run != nil:
		if run.Context > 0 {
			context = min(run.Context, m.Context())
		}
		if o.Data == "" {
			o.Data = run.Data // "" is the standard library's source still
		}
	case o.Data == "":
		return fmt.Errorf("%s does not say what it was trained on: name a text by --data", at.path)
	}
	if o.Context == 0 {
		o.Context = context
	}
	if o.Context > m.Context() {
		return fmt.Errorf("--context is %d, the model in %s takes %d tokens", o.Context, at.path, m.Context())
	}
	if o.Batch == 0 {
		o.Batch = textBatch
	}
	return nil
}

// evalTexts opens what is evaluated on, and says what it is. training
// is what a run would be trained on, nil where the text was not parted.
func evalTexts(ctx context.Context, o EvalOptions) (texts []*data.Text, training *data.Text, name string, err error) {
	if info, err := os.Stat(o.Data); o.All && err == nil && info.Mode().IsRegular() && info.Size() <= smallText {
		text, err := data.OpenText(ctx, o.Data)
		if err != nil {
			return nil, nil, "", err
		}
		return []*data.Text{text}, nil, o.Data + ", all of it", nil
	}
	corpus, err := data.OpenCorpus(ctx, o.Data)
	if small := (*data.SourceError)(nil); errors.As(err, &small) && small.Problem == data.TooSmall && !o.All {
		small.Advice = "it is too small to hold a part out: take all of it (--all), or give --data more text"
	}
	if err != nil {
		return nil, nil, "", err
	}
	if o.All {
		return []*data.Text{corpus.Train, corpus.Validation}, corpus.Train, corpus.Name + ", all of it", nil
	}
	return []*data.Text{corpus.Validation}, corpus.Train, corpus.Name + ", the part that training holds out", nil
}

// scored is what a model made of texts.
type scored struct {
	nats           float64
	tokens         int
	bytes          int64
	answers, exact int // of records with prompts
}

// add scores the sequences of a text that follow each other; what is left at its
// end is less than one.
func (s *scored) add(ctx context.Context, m models.CausalLM, tok *tokenizer.Tokenizer, text *data.Text, o EvalOptions) error {
	most := math.MaxInt / 2
	if o.Tokens > 0 {
		if most = o.Tokens - s.tokens; most < o.Context {
			return nil
		}
	}
	// A text has at most as many tokens as bytes, and some more of a tokenizer that
	// puts a space before it.
	windows, err := data.NewValidation(text, tok, o.Context, min(most, max(o.Context, int(text.Size())+o.Context)))
	if short := (*data.SourceError)(nil); errors.As(err, &short) && short.Problem == data.TooSmall {
		return nil
	}
	if err != nil {
		return err
	}
	return s.addWindows(ctx, m, windows, o.Batch)
}

// addWindows scores windows, so many at once.
func (s *scored) addWindows(ctx context.Context, m models.CausalLM, windows heldOut, rows int) error {
	for batch := range windows.Batches(0, 1, rows) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := s.addBatch(ctx, m, batch); err != nil {
			return err
		}
	}
	s.bytes += windows.Bytes()
	return nil
}

// addBatch scores a batch. An answer is an exact match if each of its tokens is the likeliest
// one: then it is what the model writes when nothing is drawn by chance.
func (s *scored) addBatch(ctx context.Context, m nn.Module, batch data.TokenBatch) (err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	logits, targets := countedLogits(c, m, batch, false)
	if batch.Counted == 0 {
		return nil
	}
	s.nats += meanLoss(c, logits, targets, batch.Counted).Item() * float64(batch.Counted)
	s.tokens += batch.Counted
	if !slices.Contains(batch.Targets, data.NoTarget) {
		return nil // of a text all counts
	}
	told := logits.ArgMax(-1).Int64s()
	for lo := 0; lo < len(batch.Targets); lo += batch.Length {
		of := batch.Targets[lo : lo+batch.Length]
		if of[0] != data.NoTarget { // it has no prompt
			continue
		}
		exact := true
		for i, target := range of {
			exact = exact && (target == data.NoTarget || target == told[lo+i])
		}
		if s.answers++; exact {
			s.exact++
		}
	}
	return nil
}

// score returns the sum of the losses of a batch.
func score(ctx context.Context, m nn.Module, batch data.TokenBatch, opts ...nn.CtxOption) (nats float64, err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	loss := lossOf(c, m, batch, false)
	if batch.Counted == 0 {
		return 0, nil
	}
	return loss.Item() * float64(batch.Counted), nil
}

// lossOf computes the mean loss of the targets of a batch that count. It is 0 if none does.
func lossOf(c *nn.Ctx, m nn.Module, batch data.TokenBatch, sparse bool) *tensor.Tensor {
	logits, targets := countedLogits(c, m, batch, sparse)
	return meanLoss(c, logits, targets, batch.Counted)
}

// countedLogits computes the logits of a batch, and returns the targets beside them. If the model is
// not split within a sequence, sparse leaves out both where the targets do not count.
func countedLogits(c *nn.Ctx, m nn.Module, batch data.TokenBatch, sparse bool) (logits, targets *tensor.Tensor) {
	on := tensor.On(c.Device())
	inputs, targets := tensorsOf(c, batch)
	within := c
	if batch.Documents != nil {
		within = within.WithDocuments(on.FromInt64(batch.Documents, batch.Rows, batch.Length))
	}
	if n := batch.Counted; sparse && n > 0 && n <= len(batch.Targets)*7/8 {
		var at, of []int64
		for i, target := range batch.Targets {
			if target != tensor.IgnoreIndex {
				at, of = append(at, int64(i)), append(of, target)
			}
		}
		within, targets = within.WithCounted(on.FromInt64(at, len(at))), on.FromInt64(of, len(of))
	}
	return within.Call(m, inputs), targets
}

// meanLoss is that of the targets that count.
func meanLoss(c *nn.Ctx, logits, targets *tensor.Tensor, counted int) *tensor.Tensor {
	if counted > 0 {
		return c.CallN(&nn.CrossEntropyLoss{}, logits, targets)[0]
	}
	return c.CallN(&nn.CrossEntropyLoss{Reduction: tensor.ReduceSum}, logits, targets)[0]
}
