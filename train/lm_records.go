// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"errors"

	"fmt"
	"iter"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/data/sequences"
	"github.com/cohort-ml/cohort/internal/config"
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

// openRecords opens records as the data of a run.
func (r *lmRun) openRecords(ctx context.Context, saved *SavedRun) (err error) {
	fail := func(err error) error { return fmt.Errorf("train lm: %w", err) }
	from := []sequences.Source{{Path: r.cfg.Data, Weight: 1}}
	if len(r.cfg.Mix) > 0 {
		if from, err = sequences.ParseMix(r.cfg.Mix); err != nil {
			return fail(err)
		}
	}
	if r.tokenizer == nil && saved != nil {
		if r.tokenizer, err = saved.tokenizer(ctx); err != nil {
			return fmt.Errorf("train lm: resume: %w", err)
		}
	}
	if r.tokenizer == nil {
		return fail(fmt.Errorf("records in %s need a tokenizer: give --init-from, a model that has one", from[0].Path))
	}
	o := sequences.Options{
		Tokenizer: r.tokenizer, EndOfText: -1, Context: r.cfg.Context, Pack: r.cfg.Pack, All: r.cfg.Loss == lossAll,
		Skip: r.cfg.OnError == data.SkipSample.String(), Notice: r.report.Notice,
	}
	if o.Columns, err = sequences.ParseColumns(r.cfg.Columns); err != nil {
		return fail(err)
	}
	if o.Template, err = r.template(ctx, saved); err != nil {
		return fail(err)
	}
	if id, ok := r.tokenizer.EndOfText(); ok {
		o.EndOfText = id
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
	const some = 16
	if r.cfg.PP > 1 || r.cfg.CP > 1 {
		return 0
	}
	return some
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
