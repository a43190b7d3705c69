// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"errors"

	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/data/sequences"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
)

// RecordConfig has the settings of [LMConfig] for data that is records.
type RecordConfig struct {
	Mix     []string `json:"mix,omitempty" run:"fixed" group:"Records" usage:"in place of --data: {SOURCES} of records with weights, such as chats.jsonl=3,texts.jsonl=1; of each come so many samples"`
	Columns []string `json:"columns,omitempty" run:"fixed" usage:"{NAMES} of fields of records that have others than text, prompt, completion, instruction, input, output, messages and conversations, such as text=content"`
	Loss    string   `json:"loss,omitempty" run:"fixed" values:"completions|all" usage:"tokens that the loss counts; default: completions, and of texts all"`
	Pack    bool     `json:"pack,omitempty" run:"fixed" usage:"put several sequences into one row; they do not see each other"`
	OnError string   `json:"on_error,omitempty" values:"fail|skip" usage:"what to do with a record that cannot be used: fail, or skip it and take another one"`
}

// The values of Loss.
const (
	lossCompletions = "completions"
	lossAll         = "all"
)

// recordContext is how many tokens a sequence of records has where nobody says.
const recordContext = 1024

// someTokens is of what rows have a multiple where they need not be alike.
const someTokens = 16

// heldOut is what a language model is evaluated on.
type heldOut interface {
	Batches(rank, world, rows int) iter.Seq[data.TokenBatch]
	Bytes() int64
}

// areRecords reports whether the data is records.
func (c LMConfig) areRecords() bool {
	return len(c.Mix) > 0 || records.Is(c.Data)
}

// validateRecords reports the first setting of records that makes no sense.
func (c LMConfig) validateRecords() error {
	fail := func(format string, args ...any) error { return fmt.Errorf("train lm: "+format, args...) }
	if c.OnError != "" {
		if _, err := data.ParseOnError(c.OnError); err != nil {
			return fail("--on-error is %q, want fail or skip", c.OnError)
		}
	}
	if c.Loss != "" && c.Loss != lossCompletions && c.Loss != lossAll {
		return fail("--loss is %q, want %s or %s", c.Loss, lossCompletions, lossAll)
	}
	if _, err := sequences.ParseMix(c.Mix); err != nil {
		return fail("--mix: %w", err)
	}
	if _, err := sequences.ParseColumns(c.Columns); err != nil {
		return fail("--columns: %w", err)
	}
	if len(c.Mix) > 0 && c.Data != "" {
		return fail("--mix names all sources: leave --data %s out, or name it in --mix", c.Data)
	}
	if c.areRecords() {
		return nil
	}
	for flag, given := range map[string]bool{"columns": len(c.Columns) > 0, "loss": c.Loss != "", "pack": c.Pack, "on-error": c.OnError == data.SkipSample.String()} {
		if given {
			return fail("--%s is for records (%s), and --data is %s: leave the flag out", flag, strings.Join(records.Endings(), ", "), cmp.Or(c.Data, "the Go standard library's source"))
		}
	}
	return nil
}

// recordOptions are the sources of a run, and how sequences are made of them.
func (c LMConfig) recordOptions() (from []sequences.Source, o sequences.Options, err error) {
	from = []sequences.Source{{Path: c.Data, Weight: 1}}
	if len(c.Mix) > 0 {
		if from, err = sequences.ParseMix(c.Mix); err != nil {
			return nil, o, err
		}
	}
	o = sequences.Options{Context: c.Context, Pack: c.Pack, All: c.Loss == lossAll, Skip: c.OnError == data.SkipSample.String()}
	o.Columns, err = sequences.ParseColumns(c.Columns)
	return from, o, err
}

// know sets the tokenizer of sequences.
func know(o *sequences.Options, tok *tokenizer.Tokenizer) {
	o.Tokenizer, o.EndOfText = tok, -1
	if id, ok := tok.EndOfText(); ok {
		o.EndOfText = id
	}
}

// recordsOf returns the settings for the records that are evaluated on, nil if these are no records.
// run is that of the model; nil for none.
func recordsOf(o EvalOptions, run *LMConfig) *LMConfig {
	c := LMConfig{}
	if run != nil {
		c.RecordConfig = run.RecordConfig
	}
	c.Data = o.Data
	if o.Data != "" {
		c.Mix = nil
	}
	c.Context, c.Pack = o.Context, false
	if !c.areRecords() {
		return nil
	}
	return &c
}

// addRecords scores the records that training holds out, and says what they are.
func (s *scored) addRecords(ctx context.Context, at place, m models.CausalLM, tok *tokenizer.Tokenizer, o EvalOptions, c LMConfig) (name string, err error) {
	if o.All {
		return "", errors.New("of records only those that training holds out are evaluated on: leave --all out")
	}
	from, so, err := c.recordOptions()
	if err != nil {
		return "", err
	}
	know(&so, tok)
	if so.Template, err = at.template(ctx); err != nil {
		return "", err
	}
	d, err := sequences.Open(ctx, from, so)
	if err != nil {
		return "", err
	}
	defer d.Close()
	most := math.MaxInt32
	if o.Tokens > 0 {
		most = o.Tokens
	}
	held, err := d.Held(ctx, most, someTokens)
	if err != nil {
		return "", err
	}
	return d.Names() + ", the records that training holds out", s.addWindows(ctx, m, held, o.Batch)
}

// openRecords opens records as the data of a run.
func (r *lmRun) openRecords(ctx context.Context, saved *SavedRun) (err error) {
	fail := func(err error) error { return fmt.Errorf("train lm: %w", err) }
	from, o, err := r.cfg.recordOptions()
	if err != nil {
		return fail(err)
	}
	if r.tokenizer == nil && saved != nil {
		if r.tokenizer, err = saved.tokenizer(ctx); err != nil {
			return fmt.Errorf("train lm: resume: %w", err)
		}
	}
	if r.tokenizer == nil {
		return fail(fmt.Errorf("records in %s need a tokenizer: give --init-from, a model that has one", from[0].Path))
	}
	know(&o, r.tokenizer)
	o.Notice = r.report.Notice
	if o.Template, err = r.template(ctx, saved); err != nil {
		return fail(err)
	}
	phaseOf(ctx).enter("reading %s", from[0].Path)
	if r.sequences, err = sequences.Open(ctx, from, o); err != nil {
		return fail(err)
	}
	r.windows = r.sequences
	if r.validation, err = r.sequences.Held(ctx, r.cfg.EvalTokens, r.rowStep()); err != nil {
		return fail(err)
	}
	if err := r.sameText(saved); err != nil {
		return fail(err)
	}
	if r.cfg.Prompt == "" && r.settings.Given()["prompt"] != config.Flag {
		r.cfg.Prompt, err = promptFor(r.cfg.Data, data.NewText(r.cfg.Data, []byte(r.sequences.Example())))
	}
	return err
}

// template reads the chat template of the model that the run goes on from, nil if it has none.
func (r *lmRun) template(ctx context.Context, saved *SavedRun) (*chat.Template, error) {
	if r.cfg.InitFrom == "" {
		return nil, nil
	}
	at, err := r.findBase(ctx, saved)
	if err != nil {
		return nil, err
	}
	return at.template(ctx)
}

// template reads the chat template of the model in a place, nil if it has none.
func (at place) template(ctx context.Context) (*chat.Template, error) {
	dir, done, err := at.local(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	folder, err := modelFolder(dir)
	if err != nil {
		return nil, err
	}
	for _, place := range []string{dir, folder} {
		t, err := chat.Load(place)
		if !errors.Is(err, chat.ErrNoTemplate) {
			return t, err
		}
	}
	return nil, nil
}

// rowStep is of what rows of batches have a multiple: some tokens, or all where ranks share the
// sequence or have stages, which must have one shape.
func (r *lmRun) rowStep() int {
	if r.cfg.PP > 1 || r.cfg.CP > 1 {
		return 0
	}
	return someTokens
}

// onBadRecord says what a loader does about a record that cannot be used.
func (r *lmRun) onBadRecord(o *data.LoaderConfig) {
	if r.cfg.OnError != data.SkipSample.String() {
		return
	}
	o.OnError = data.SkipSample
	const most = 20
	told := 0
	o.OnSkip = func(s data.Skip) {
		if told++; told <= most {
			r.report.Notice(s.String())
		}
	}
}
