// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// TextClassifier tells classes of texts or of their words, or a number.
type TextClassifier struct {
	Model     models.Encoder
	Tokenizer *tokenizer.Tokenizer
	Kind      string   // single, multi, tags or regression; see [ClassifyConfig]
	Classes   []string // in the order of the model's logits
	Text      string   // the field with the text in the records that it was trained on; "" if it is not known
	MaxTokens int      // of a text, those around it included

	tokens textTokens
}

// TextEncoder makes vectors of texts.
type TextEncoder struct {
	Model     *models.SentenceEncoder
	Tokenizer *tokenizer.Tokenizer

	prompt string // that is put before each text
}

// loadTextClassifier opens a classifier of texts. A folder that is no run's has the kind in
// its config.json.
func (at place) loadTextClassifier(dir string, opts []models.LoadOption) (*TextClassifier, error) {
	tok, err := readTokenizer(dir)
	if err != nil {
		return nil, err
	}
	e, err := models.LoadEncoder(dir, opts...)
	if err != nil {
		return nil, err
	}
	if err := fitsEncoder(tok, e); err != nil {
		return nil, err
	}
	classes := e.Predicts().Classes
	if classes == nil {
		return nil, fmt.Errorf("its %s names no classes", configFile)
	}
	m := &TextClassifier{Model: e, Tokenizer: tok, Classes: classes.Names, MaxTokens: e.Context()}
	if n, err := models.TokenizerLength(dir); err != nil {
		return nil, err
	} else if n > 0 {
		m.MaxTokens = min(n, m.MaxTokens)
	}
	switch kind := classes.Kind(); {
	case classes.Of == models.OfTokens:
		m.Kind = kindTags
	case kind == models.Regression && len(classes.Names) > 1:
		return nil, fmt.Errorf("it tells %d numbers of a text: Cohort tells one", len(classes.Names))
	default:
		m.Kind = map[string]string{models.Regression: kindRegression, models.SingleLabel: kindSingle, models.MultiLabel: kindMulti}[kind]
	}
	if at.checkpoint != nil && at.checkpoint.HasProgress() {
		p, err := at.checkpoint.ReadProgress()
		if err != nil {
			return nil, err
		}
		run := DefaultClassify()
		if err := json.Unmarshal(p.Recipe, &run); err != nil {
			return nil, fmt.Errorf("the recipe: %w", err)
		}
		if m.MaxTokens, err = run.mostTokens("classify", 0, e.Context()); err != nil {
			return nil, err
		}
		m.Text = run.Text
	}
	m.tokens = textTokens{tok: tok, most: m.MaxTokens, padding: int64(e.Padding())}
	return m, nil
}

// prepare makes the tokens of a text or of words.
func (m *TextClassifier) prepare(in Input) (p Prepared, err error) {
	if m.Kind != kindTags {
		return m.tokens.prepare(in.Text)
	}
	if len(in.Words) == 0 {
		in.Words = strings.Fields(in.Text)
	}
	numbers := make([]int64, len(in.Words))
	for i := range numbers {
		numbers[i] = int64(i)
	}
	ids, words := m.tokens.tag(in.Words, numbers)
	p = Prepared{ids: ids, count: len(in.Words)}
	last := -1
	for _, w := range words {
		if w < 0 {
			w = -1
		}
		p.words, last = append(p.words, int(w)), max(last, int(w))
	}
	p.cut = last < p.count-1
	return p, nil
}

// prepare makes the tokens of a text, which loses its end if it is too long.
func (t textTokens) prepare(text string) (Prepared, error) {
	if t.lower {
		text = strings.ToLower(text)
	}
	whole, err := t.tok.EncodeText([]byte(text), tokenizer.EncodeOptions{})
	if err != nil {
		return Prepared{}, err
	}
	if len(whole.IDs) > t.most {
		cut, err := t.tok.EncodeText([]byte(text), tokenizer.EncodeOptions{MaxLength: t.most})
		return Prepared{ids: cut.IDs, cut: true}, err
	}
	if len(whole.IDs) == 0 {
		return Prepared{}, &FieldError{Detail: "the text has no tokens"}
	}
	return Prepared{ids: whole.IDs}, nil
}

// predict classifies a batch.
func (m *TextClassifier) predict(ctx context.Context, some []Prepared) (out []Prediction, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	b, err := m.tokens.collatePrepared(some)
	if err != nil {
		return nil, err
	}
	logits, err := finite(c.CallN(m.Model, b.inputs(c)...)[0])
	if err != nil {
		return nil, err
	}
	k := len(m.Classes)
	if m.Kind == kindTags {
		time := b.Columns[0].Time
		for i, p := range some {
			out = append(out, m.tagged(p, logits[i*time*k:(i+1)*time*k]))
		}
		return out, nil
	}
	for row := range slices.Chunk(logits, k) {
		switch m.Kind {
		case kindRegression:
			out = append(out, Prediction{Value: float64(row[0])})
		case kindMulti:
			var p Prediction
			for i, v := range row {
				p.Probabilities = append(p.Probabilities, sigmoid(float64(v)))
				if v > 0 {
					p.Classes = append(p.Classes, m.Classes[i])
				}
			}
			out = append(out, p)
		default:
			out = append(out, likeliest(row, m.Classes))
		}
	}
	return out, nil
}

// tagged says the class of each word, which the first of its tokens tells.
func (m *TextClassifier) tagged(in Prepared, logits []float32) Prediction {
	p := Prediction{Tags: make([]string, in.count), TagProbabilities: make([]float64, in.count)}
	k := len(m.Classes)
	for at, w := range in.words {
		if w >= 0 {
			told := likeliest(logits[at*k:(at+1)*k], m.Classes)
			p.Tags[w], p.TagProbabilities[w] = told.Class, told.Probability
		}
	}
	return p
}

// collatePrepared makes a batch of texts, padded to the longest.
func (t textTokens) collatePrepared(some []Prepared) (sentenceBatch, error) {
	samples := make([]textSample, len(some))
	for i, p := range some {
		samples[i].tokens = [][]int64{p.ids}
	}
	return t.collate(samples)
}

// loadTextEncoder opens an encoder of vectors.
func loadTextEncoder(dir string, opts []models.LoadOption) (*TextEncoder, error) {
	tok, err := readTokenizer(dir)
	if err != nil {
		return nil, err
	}
	m, err := models.LoadSentenceEncoder(dir, opts...)
	if err != nil {
		return nil, err
	}
	if err := fitsEncoder(tok, m.Encoder); err != nil {
		return nil, err
	}
	e := &TextEncoder{Model: m, Tokenizer: tok}
	return e, e.SetPrompt(m.Config.DefaultPrompt)
}

// SetPrompt chooses one of the prompts of the folder, by its name: what it says is put before
// each text. "" is none. Without SetPrompt it is the default prompt of the folder.
func (e *TextEncoder) SetPrompt(name string) error {
	prompt, ok := e.Model.Config.Prompts[name]
	if name != "" && !ok {
		var names []string
		for n := range e.Model.Config.Prompts {
			names = append(names, n)
		}
		slices.Sort(names)
		return fmt.Errorf("the encoder has no prompt %q; it has %s", name, few(names))
	}
	if name == "" {
		prompt = ""
	}
	e.prompt = prompt
	return nil
}

// Width is how many numbers a vector has.
func (e *TextEncoder) Width() int { return e.Model.Width() }

func (e *TextEncoder) tokens() textTokens {
	return textTokens{tok: e.Tokenizer, most: e.Model.MaxTokens(), lower: e.Model.Config.Lower, padding: int64(e.Model.Encoder.Padding())}
}

func (e *TextEncoder) prepare(text string) (Prepared, error) {
	return e.tokens().prepare(e.prompt + text)
}

// Embed returns the vector of each text. It computes batch texts at a time; 0 is what suits
// the model.
func (e *TextEncoder) Embed(ctx context.Context, texts []string, batch int) ([][]float32, error) {
	ready := make([]Prepared, len(texts))
	for i, text := range texts {
		var err error
		if ready[i], err = e.prepare(text); err != nil {
			return nil, fmt.Errorf("embed: text %d: %w", i, err)
		}
	}
	return e.EmbedPrepared(ctx, ready, batch)
}

// EmbedPrepared is Embed of what [Model.Prepare] has made.
func (e *TextEncoder) EmbedPrepared(ctx context.Context, ready []Prepared, batch int) ([][]float32, error) {
	if batch <= 0 {
		batch = defaultBatch
	}
	out := make([][]float32, len(ready))
	err := inBatches(ctx, ready, batch, func(part []int) error {
		some := make([]Prepared, len(part))
		for i, at := range part {
			some[i] = ready[at]
		}
		b, err := e.tokens().collatePrepared(some)
		if err != nil {
			return err
		}
		return embedPass(ctx, e.Model, b, nil, func(_ int, rows []float32) {
			for i, at := range part {
				out[at] = slices.Clone(rows[i*e.Width() : (i+1)*e.Width()])
			}
		})
	})
	return out, err
}

// Cut says whether a text was too long and lost its end, and NumTokens how many it has.
func (p Prepared) Cut() bool { return p.cut }

// NumTokens is how many tokens a text has for the model, those around it included.
func (p Prepared) NumTokens() int { return len(p.ids) }

// isFile says whether there is a file.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
