// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// textColumn is one text of each sample of a batch, as tokens: [rows, Time], padded to the
// longest of the batch.
type textColumn struct {
	Time int
	IDs  []int64
	Mask []bool // false where padding is
}

// sentenceBatch is a batch of the recipes of texts.
type sentenceBatch struct {
	N       int
	Columns []textColumn
	Scores  []float32 // of pairs, or the numbers or marks of classes: [N, of a sample]
	Labels  []int64   // classes of samples, or of tokens: [N, Time]
}

// textSample is one sample: the tokens of its texts, and what is to be learned.
type textSample struct {
	tokens [][]int64
	scores []float32
	labels []int64
}

// tokens is how many a batch has, padding included.
func (b sentenceBatch) tokens() int {
	n := 0
	for _, c := range b.Columns {
		n += len(c.IDs)
	}
	return n
}

// inputs are what an encoder takes of each column: ids, segments, which are all the first,
// and a mask.
func (b sentenceBatch) inputs(c *nn.Ctx) []*tensor.Tensor {
	on := tensor.On(c.Device())
	var in []*tensor.Tensor
	for _, col := range b.Columns {
		in = append(in, on.FromInt64(col.IDs, b.N, col.Time), nil, on.FromBool(col.Mask, b.N, col.Time))
	}
	return in
}

// textTokens turns texts into tokens for an encoder.
type textTokens struct {
	tok     *tokenizer.Tokenizer
	most    int // tokens of a text, those around it included
	lower   bool
	padding int64
}

// encode returns the tokens of a text with those around it. A text that is too long loses
// its end.
func (t textTokens) encode(text string) []int64 {
	in := []byte(text)
	if t.lower {
		in = bytes.ToLower(in)
	}
	inner, all := t.tok.Encode(in), t.tok.EncodeInput(in)
	over := len(all) - t.most
	if over <= 0 {
		return all
	}
	before := 0
	for before+len(inner) < len(all) && !equalIDs(all[before:before+len(inner)], inner) {
		before++
	}
	keep := max(0, len(inner)-over)
	return append(all[:before+keep:before+keep], all[before+len(inner):]...)
}

func equalIDs(a, b []int64) bool {
	for i, v := range b {
		if a[i] != v {
			return false
		}
	}
	return true
}

// collate makes a batch, in which each column has the length of its longest text.
func (t textTokens) collate(samples []textSample) (sentenceBatch, error) {
	b := sentenceBatch{N: len(samples)}
	for k := range samples[0].tokens {
		col := textColumn{}
		for _, s := range samples {
			col.Time = max(col.Time, len(s.tokens[k]))
		}
		col.IDs, col.Mask = make([]int64, b.N*col.Time), make([]bool, b.N*col.Time)
		for i, s := range samples {
			row := col.IDs[i*col.Time : (i+1)*col.Time]
			for j := range row {
				row[j] = t.padding
			}
			copy(row, s.tokens[k])
			for j := range s.tokens[k] {
				col.Mask[i*col.Time+j] = true
			}
		}
		b.Columns = append(b.Columns, col)
	}
	tags := len(samples[0].labels) > 1
	for _, s := range samples {
		b.Scores = append(b.Scores, s.scores...)
		b.Labels = append(b.Labels, s.labels...)
		for n := len(s.labels); tags && n < b.Columns[0].Time; n++ {
			b.Labels = append(b.Labels, tensor.IgnoreIndex)
		}
	}
	return b, nil
}

// blank returns a batch of n samples that say nothing, of the longest texts.
func (t textTokens) blank(n, columns, scores, labels int) sentenceBatch {
	b := sentenceBatch{N: n, Scores: make([]float32, n*scores), Labels: make([]int64, n*labels)}
	for range columns {
		col := textColumn{Time: t.most, IDs: make([]int64, n*t.most), Mask: make([]bool, n*t.most)}
		for i := range col.Mask {
			col.Mask[i] = true
		}
		b.Columns = append(b.Columns, col)
	}
	return b
}

// textPart are the samples that are trained on, or those that are held out.
type textPart struct {
	records *textRecords
	at      []int // the records
	sum     string
	get     func(record int) (textSample, error)
}

// Contents returns the checksum of the records, by the name of their file.
func (p textPart) Contents(context.Context) (map[string]string, error) {
	return map[string]string{filepath.Base(p.records.path): "checksum " + p.records.sum}, nil
}

// Len is the number of samples.
func (p textPart) Len() int { return len(p.at) }

// Get makes a sample.
func (p textPart) Get(_ context.Context, key data.Key) (textSample, error) {
	return p.get(p.at[key.Index])
}

// Fingerprint is that of the records and of what is made of them.
func (p textPart) Fingerprint() string { return p.sum }

// splitRecords holds out a share of the records: each of them stands as far from the next.
func splitRecords(n int, share float64) (training, held []int) {
	if share <= 0 {
		for i := range n {
			training = append(training, i)
		}
		return training, nil
	}
	every := max(2, int(1/share+0.5))
	for i := range n {
		if i%every == every-1 {
			held = append(held, i)
		} else {
			training = append(training, i)
		}
	}
	return training, held
}

// feedOf starts making the batches of a rank, from where a saved run was.
func (p textPart) feedOf(ctx context.Context, c SharedConfig, axes Axes, tok textTokens, from data.LoaderState) (Feed[sentenceBatch], error) {
	sampler, err := data.NewStream(data.StreamConfig{
		Len: p.Len(), Total: c.size().pass(), Rank: axes.Data.Rank(), World: axes.Data.Size(), Shuffle: true, Seed: c.dataSeed(),
	})
	if err != nil {
		return nil, err
	}
	loader, err := data.NewLoader(ctx, data.Dataset[textSample](p), sampler, tok.collate, data.LoaderConfig{Workers: c.Workers}, from)
	if err != nil {
		return nil, err
	}
	return loader, nil
}

// textBase is what a run of the recipes of texts begins with, besides the model.
type textBase struct {
	at         place
	tokenizer  *tokenizer.Tokenizer
	companions map[string][]byte
}

// openTextBase finds the folder of the model that a run begins with, or goes on with, calls
// open with it, and reads what else is there.
func openTextBase(ctx context.Context, task string, c SharedConfig, initFrom string, saved *SavedRun, notice func(string), open func(dir string, tok *tokenizer.Tokenizer, opts []models.LoadOption) error) (b textBase, err error) {
	fail := func(err error) (textBase, error) { return b, fmt.Errorf("train %s: --init-from: %w", task, err) }
	if saved != nil {
		b.at = placeOf(saved.Checkpoint)
	} else {
		if initFrom == "" {
			return fail(errors.New("it is empty: name the folder of an encoder (BERT, RoBERTa, XLM-R, MiniLM, DistilBERT), or a run"))
		}
		from, err := c.open("init-from", initFrom)
		if err != nil {
			return fail(err)
		}
		if b.at, err = findModel(ctx, from, notice); err != nil {
			return fail(err)
		}
	}
	dir, done, err := b.at.local(ctx)
	if err != nil {
		return fail(err)
	}
	defer done()
	if b.tokenizer, err = readTokenizer(dir); err != nil {
		return fail(err)
	}
	if err := open(dir, b.tokenizer, b.at.weightsFrom(ctx, []models.LoadOption{models.WithNotice(notice)})); err != nil {
		return fail(err)
	}
	b.companions, err = readCompanions(dir)
	if err != nil {
		return fail(err)
	}
	delete(b.companions, configFile)
	return b, nil
}

// fitsEncoder compares a tokenizer with an encoder.
func fitsEncoder(tok *tokenizer.Tokenizer, m models.Encoder) error {
	if tok.Base() > m.Vocab() {
		return fmt.Errorf("%s has %d tokens, the model knows %d: one of them is another model's", tokenizerFile, tok.Base(), m.Vocab())
	}
	return nil
}
