// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/sequences"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// lmRun makes the task of [LM] on one rank.
type lmRun struct {
	cfg      LMConfig
	settings *config.Settings // of cfg
	axes     Axes
	report   Reporter

	corpus     *data.Corpus // nil where shards is not
	shards     *data.Shards
	tokenizer  *tokenizer.Tokenizer
	windows    data.TokenSource
	validation heldOut
	sequences  *sequences.Data // nil where the data is no records

	base   models.CausalLM
	lora   *nn.LoRA // beside base; nil if base itself is trained
	opt    *optim.AdamW
	around []nn.Interceptor // of the training passes

	outline    string // where the weights of base are; "" where base has them
	outlineAt  place  // the same
	outlineIn  []models.LoadOption
	baseDir    string            // of the model that was begun with, which the adapter names
	baseStep   int               // of its checkpoint
	keepsBase  bool              // in baseDir, in the run's directory
	was        LMConfig          // of the run that is resumed
	given      map[string]string // settings that the user gave
	companions map[string][]byte // its files beside the weights
}

// LM trains a language model on text on all ranks of a group. Each rank calls LM with
// the same configuration. given has the settings that the user gave: the source of
// each value ("flag", or a file's line) by the name of its flag. If the run resumes,
// these settings must agree with it. LM uses report on rank 0.
//
// If the run's directory has a checkpoint, LM resumes from it: with the same data,
// weights and optimizer as if it had never stopped. When ctx ends, LM saves a
// checkpoint and returns an error that wraps [ErrStopped].
func LM(ctx context.Context, group *dist.Group, cfg LMConfig, given map[string]string, report Reporter) error {
	report = reporterOf(group, report)
	if err := cfg.join("lm", group, given); err != nil {
		return err
	}
	return begins(ctx, "lm", report, func(ctx context.Context, report Reporter) error {
		return newLMRun(cfg, given, group, report).run(ctx)
	})
}

func newLMRun(cfg LMConfig, given map[string]string, group *dist.Group, report Reporter) *lmRun {
	r := &lmRun{cfg: cfg, axes: dataParallel(group), report: report}
	r.settings = config.New(&r.cfg)
	r.settings.SetGiven(given)
	return r
}

// run makes the task and does it.
func (r *lmRun) run(ctx context.Context) error {
	defer r.closeData()
	saved, err := r.prepare(ctx)
	if err != nil {
		return settled(err)
	}
	r.cfg.size().tell(r.report, r.cfg.StepShare, r.given, "sequences", r.cfg.copies())
	r.cfg.begin(r.cfg.size())
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return fmt.Errorf("train lm: save the recipe: %w", err)
	}
	o := r.cfg.options(saved)
	o.Steps, o.Recipe, o.Config = r.cfg.Steps, recipe, r.config()
	ranks, err := r.cfg.arrangeRanks(ctx, "lm", r.axes.World)
	if err != nil {
		return err
	}
	defer ranks.close()
	r.axes = ranks.axes
	return runOn(ctx, spreading{cfg: r.cfg.SharedConfig, ranks: ranks, config: r.splitConfig(), fill: r.fillBase}, r.task(saved), o, r.report)
}

// prepare finds and makes what the task consists of, and the run to go on with.
func (r *lmRun) prepare(ctx context.Context) (*SavedRun, error) {
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	if err := r.dividePasses(); err != nil {
		return nil, err
	}
	if r.cfg.InitFrom != "" {
		if err := r.openBase(ctx, saved); err != nil {
			return nil, err
		}
	}
	if err := r.openData(ctx, saved); err != nil {
		return nil, err
	}
	if saved == nil {
		if _, err := r.cfg.size().check(r.windows.Len(), r.settings, fmt.Sprintf("sequences of %d tokens", r.cfg.Context)); err != nil {
			return nil, fmt.Errorf("train lm: %w", err)
		}
	}
	phaseOf(ctx).enter("making the model")
	if err := r.buildModel(saved); err != nil {
		return nil, err
	}
	return saved, r.cfg.checkSplit(r.base)
}

// task is what there is to know about training a GPT on text.
func (r *lmRun) task(saved *SavedRun) Task[data.TokenBatch] {
	t := Task[data.TokenBatch]{
		Name: "lm", About: r.about(), Model: r.base, Axes: r.axes, Optimizer: r.optimizer, Around: r.around,
		Schedule: optim.WarmupCosine(r.cfg.numWarmup(), r.cfg.Steps, r.cfg.LRFloor),
		Loss: func(c *nn.Ctx, model any, batch data.TokenBatch) *tensor.Tensor {
			return lossOf(c, model.(nn.Module), batch, r.sequences != nil && !r.cfg.isComposed())
		},
		Blank: func() data.TokenBatch {
			n := r.cfg.Batch * r.cfg.Context
			return data.TokenBatch{Rows: r.cfg.Batch, Length: r.cfg.Context, Inputs: make([]int64, n), Targets: make([]int64, n)}
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[data.TokenBatch], error) {
			return r.feed(ctx, saved, from)
		},
		Contents: contentsOf(r.windows),
		Samples:  r.windows.Len(),
		Size:     func(batch data.TokenBatch) int { return batch.Rows * batch.Length }, Unit: "tokens",
		Evaluate: r.evaluate, Files: r.files, Finish: r.finish,
	}
	if r.sequences != nil {
		t.Weigh = func(batch data.TokenBatch) float64 { return float64(batch.Counted) }
	}
	if r.lora != nil {
		t.Model, t.Weights, t.WeightsFile = r.lora, r.lora.State, models.AdapterFile
	}
	return t
}

// findRun returns the newest checkpoint of the run's directory, nil if there is
// none, and takes over its settings.
func (r *lmRun) findRun(ctx context.Context) (*SavedRun, error) {
	if err := r.cfg.tuneDefaults(r.settings.Given()); err != nil {
		return nil, err
	}
	if err := checkApart("lm", r.cfg.Out, r.cfg.Data, r.cfg.InitFrom); err != nil {
		return nil, err
	}
	s, err := findRun(ctx, r.axes.World, "lm", r.cfg.place(), r.report.Notice)
	if s == nil || err != nil {
		return nil, err
	}
	recipe, err := savedRecipe(s)
	if err != nil {
		return nil, err
	}
	r.was = recipe
	if err := r.cfg.adopt(recipe, r.settings, s.Checkpoint.Path); err != nil {
		return nil, err
	}
	return s, nil
}

// config is what config.toml says.
func (r *lmRun) config() []byte {
	defer r.markTuned()()
	return settingsText("lm", r.settings, r.cfg.size())
}

// savedRecipe returns the settings of a saved run.
func savedRecipe(s *SavedRun) (LMConfig, error) {
	recipe := LMConfig{SharedConfig: sharedBefore()}
	return recipe, s.Recipe(&recipe)
}

// openData finds the text, its tokenizer, and the windows that are trained and
// evaluated on.
func (r *lmRun) openData(ctx context.Context, saved *SavedRun) (err error) {
	if data.IsShards(r.cfg.Data) && len(r.cfg.Mix) == 0 {
		return r.openShards(ctx, saved)
	}
	if r.cfg.areRecords() {
		return r.openRecords(ctx, saved)
	}
	phaseOf(ctx).enter("reading %s", cmp.Or(r.cfg.Data, "the Go standard library"))
	if r.corpus, err = data.OpenCorpus(ctx, r.cfg.Data); err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	if note := r.corpus.Note(); note != "" {
		r.report.Notice(note)
	}
	switch {
	case r.tokenizer != nil: // that of the model which was begun with
	case saved != nil:
		if r.tokenizer, err = saved.tokenizer(ctx); err != nil {
			return fmt.Errorf("train lm: resume: %w", err)
		}
	default:
		phaseOf(ctx).enter("making a tokenizer of %d tokens", r.cfg.Vocab)
		if r.tokenizer, err = data.TrainTokenizer(ctx, r.corpus.Train, r.cfg.Vocab); err != nil {
			return fmt.Errorf("train lm: tokenizer: %w", err)
		}
		if n := r.tokenizer.Size(); r.settings.Given()["vocab"] != "" && n < r.cfg.Vocab {
			r.report.Notice(fmt.Sprintf("the text yields only %d tokens; --vocab asked for %d", n, r.cfg.Vocab))
		}
	}
	if r.windows, err = data.NewWindows(r.corpus.Train, r.tokenizer, r.cfg.Context); err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	r.validation, err = data.NewValidation(r.corpus.Validation, r.tokenizer, r.cfg.Context, r.cfg.EvalTokens)
	if err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	if err := r.sameText(saved); err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	if r.cfg.Prompt == "" && r.settings.Given()["prompt"] != config.Flag {
		r.cfg.Prompt, err = promptFor(r.cfg.Data, r.corpus.Validation)
	}
	return err
}

// sameText reports a text that is not the one that a run was saved with. It may
// lie elsewhere than it did.
func (r *lmRun) sameText(saved *SavedRun) error {
	switch {
	case saved == nil || saved.loader.Order == "" || saved.isOf(r.windows):
		return nil
	case r.was.Data != r.cfg.Data:
		return fmt.Errorf("the text in %s is not that which %s was saved with, in %s: drop --data, or %s",
			r.dataName(), saved.Checkpoint.Path, cmp.Or(r.was.Data, "the Go standard library"), carryOver("lm", r.cfg.Out, r.cfg.Data))
	}
	return fmt.Errorf("the text in %s has changed since %s was saved: put it back as it was, or %s", r.dataName(), saved.Checkpoint.Path, carryOver("lm", r.cfg.Out, r.cfg.Data))
}

// about describes the run to people.
func (r *lmRun) about() About {
	a := About{
		Model: r.describeModel(),
		Data:  r.describeData(),
		Given: r.settings.Summary(),
	}
	if r.axes.World.Rank() != 0 {
		return a
	}
	text, ok := r.validation.(*data.Validation)
	if !ok {
		return a
	}
	// Only for comparison: a text that cannot be read fails where it is used.
	if gzip, _ := text.GzipBitsPerByte(); gzip > 0 {
		a.Goal = fmt.Sprintf("fewer bits per byte of validation text than gzip -9: %.3f", gzip)
		a.Beside = fmt.Sprintf("gzip -9: %.3f", gzip)
	}
	return a
}

// promptFor returns how a text of this kind begins.
func promptFor(source string, text *data.Text) (string, error) {
	if source == "" {
		return "func New", nil
	}
	start := make([]byte, min(text.Size(), 24))
	if _, err := text.ReadAt(start, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("train lm: %w", err)
	}
	line, _, _ := strings.Cut(strings.TrimLeft(strings.ToValidUTF8(string(start), ""), " \t\r\n"), "\n")
	return line, nil
}

// buildModel makes the model.
func (r *lmRun) buildModel(saved *SavedRun) error {
	if r.cfg.InitFrom == "" {
		if saved != nil {
			// The recipe is only what a file says: nothing is allocated for it before the
			// weights agree.
			if err := matchModel(saved.Checkpoint, r.cfg.newModel(&nn.Build{Device: tensor.Meta}, r.tokenizer.Size())); err != nil {
				return fmt.Errorf("train lm: resume: %w", err)
			}
		}
		r.base = r.cfg.newModel(r.cfg.newBuild(false), r.tokenizer.Size())
	}
	if r.cfg.LoRA > 0 {
		if err := r.adapt(); err != nil {
			return err
		}
	}
	if r.cfg.Recompute {
		r.around = append(r.around, nn.Recompute(r.base.IsBlock))
	}
	return nil
}

// optimizer makes the optimizer of the model's parameters.
func (r *lmRun) optimizer(params []*nn.Parameter) optim.Optimizer {
	r.opt = adamW(params, optim.AdamWOptions{LR: r.cfg.LR, Beta2: r.cfg.Beta2, WeightDecay: r.cfg.WeightDecay})
	return r.opt
}

// feed starts making batches, from where the saved run was.
func (r *lmRun) feed(ctx context.Context, saved *SavedRun, from data.LoaderState) (Feed[data.TokenBatch], error) {
	total, rank, world, seed := r.cfg.size().pass(), r.axes.Data.Rank(), r.axes.Data.Size(), r.cfg.dataSeed()
	var sampler data.Sampler
	var err error
	collate, o := data.CollateTokens, data.LoaderConfig{Workers: r.cfg.Workers}
	if r.sequences != nil {
		sampler, err = r.sequences.Sampler(total, rank, world, seed)
		collate = data.CollateSequences(r.cfg.Context, r.rowStep())
		r.onBadRecord(&o)
	} else {
		sampler, err = data.NewStream(data.StreamConfig{Len: r.windows.Len(), Total: total, Rank: rank, World: world, Shuffle: true, Seed: seed})
	}
	if err != nil {
		return nil, err
	}
	loader, err := data.NewLoader(ctx, r.windows, sampler, collate, o, from)
	if other := (*data.ResumeError)(nil); errors.As(err, &other) {
		// The settings and the text have been compared; what is left is a program of
		// another version.
		return nil, fmt.Errorf("%s cannot be gone on from: %w", saved.Checkpoint.Path, err)
	}
	if err != nil {
		return nil, err
	}
	return loader, nil
}

// tensorsOf returns a batch as a model takes it on the device of a pass, both
// [rows, length].
func tensorsOf(c *nn.Ctx, batch data.TokenBatch) (inputs, targets *tensor.Tensor) {
	on := tensor.On(c.Device())
	return on.FromInt64(batch.Inputs, batch.Rows, batch.Length), on.FromInt64(batch.Targets, batch.Rows, batch.Length)
}

// evaluate computes the bits per byte of the validation text, of which every
// rank takes a share.
func (r *lmRun) evaluate(ctx context.Context, model any) (Metrics, error) {
	begun := time.Now()
	nats, counted, cut := 0.0, 0.0, 0.0
	next, done := iter.Pull(r.validation.Batches(r.axes.Data.Rank(), r.axes.Data.Size(), r.cfg.Batch))
	defer done()
	together, opts := turnsOf(model, r.axes), []nn.CtxOption{r.cfg.autocast(), onDeviceOf(model)}
	for batch, more := next(); ; batch, more = next() {
		pass, err := together.next(ctx, more)
		if errors.Is(err, errCut) { // the others must hear of it
			cut = 1
		} else if err != nil {
			return nil, err
		}
		if !pass {
			break
		}
		if !more { // for the others
			none := make([]int64, r.cfg.Context)
			batch = data.TokenBatch{Inputs: none, Targets: none, Rows: 1, Length: len(none), Counted: len(none)}
		}
		loss, err := score(ctx, model.(nn.Module), batch, opts...)
		if err != nil {
			return nil, err
		}
		if more {
			nats += loss
			counted += float64(batch.Counted)
		}
	}
	sum := tensor.FromFloat64([]float64{nats, counted, cut})
	if err := r.axes.World.AllReduce(ctx, sum, dist.Sum); err != nil {
		return nil, err
	}
	sum.WithFloat64s(func(all []float64) { nats, counted, cut = all[0], all[1], all[2] })
	if cut > 0 {
		return nil, errCut
	}
	r.showText(ctx, model, time.Since(begun))
	bits := data.BitsPerByte(nats/float64(r.axes.copies()), r.validation.Bytes())
	bytes := Metric{Name: "bits_per_byte", Value: bits, Unit: "bits per byte"}
	if r.sequences == nil {
		return Metrics{bytes}, nil
	}
	loss := nats / counted
	return Metrics{{Name: "loss", Value: loss, Unit: "nats a token"}, {Name: "perplexity", Value: math.Exp(loss)}, bytes}, nil
}

// finish has the model write something.
func (r *lmRun) finish(ctx context.Context, model any) (Ending, error) {
	if r.axes.World.Rank() != 0 && !isSharded(model) {
		return Ending{}, nil
	}
	text, err := r.sample(ctx, model)
	if err != nil {
		return Ending{}, err
	}
	from := cmp.Or(r.cfg.SaveTo, r.cfg.Out)
	if r.cfg.Merge {
		if from, err = r.saveMerged(ctx); err != nil {
			return Ending{}, err
		}
	}
	return Ending{
		Title: "the model writes", Text: text, Key: "sample",
		Next: fmt.Sprintf("generate --from %s --prompt %s", argument(from), quoted(r.cfg.Prompt)),
	}, nil
}
