// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// classifyRun makes the task of [Classify] on one rank.
type classifyRun struct {
	cfg      ClassifyConfig
	settings *config.Settings // of cfg
	axes     Axes
	report   Reporter

	base           textBase
	model          models.Encoder
	tokens         textTokens
	classes        []string
	number         map[string]int // of a class
	training, held textPart
	evaluates      bool // only: the classes are the model's
}

// Classify trains a classifier of texts, or of their words, on all ranks of a group. Each
// rank calls Classify with the same configuration. given has the settings that the user
// gave; see [LM]. Classify uses report on rank 0. If the run's directory has a checkpoint,
// Classify resumes from it.
func Classify(ctx context.Context, group *dist.Group, cfg ClassifyConfig, given map[string]string, report Reporter) error {
	report = reporterOf(group, report)
	if err := cfg.join("classify", group, given); err != nil {
		return err
	}
	return begins(ctx, "classify", report, func(ctx context.Context, report Reporter) error {
		return newClassifyRun(cfg, given, group, report).run(ctx)
	})
}

// CheckClassify reports, before any rank is started, the errors that [Classify] would report
// on every rank. It changes no files, and returns the settings of the run as TOML.
func CheckClassify(ctx context.Context, cfg ClassifyConfig, given map[string]string) (resolved []byte, err error) {
	r := newClassifyRun(cfg, given, nil, Discard)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := CheckOut("classify", cfg.Out); err != nil {
		return nil, err
	}
	if _, err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if err := checkMemory("classify", r.model, r.cfg.SharedConfig); err != nil {
		return nil, err
	}
	return r.config(), nil
}

func newClassifyRun(cfg ClassifyConfig, given map[string]string, group *dist.Group, report Reporter) *classifyRun {
	r := &classifyRun{cfg: cfg, axes: dataParallel(group), report: report}
	r.settings = config.New(&r.cfg)
	r.settings.SetGiven(given)
	return r
}

// config is what config.toml says.
func (r *classifyRun) config() []byte { return settingsText("classify", r.settings, r.cfg.size()) }

// run makes the task and does it.
func (r *classifyRun) run(ctx context.Context) error {
	saved, err := r.prepare(ctx)
	if err != nil {
		return settled(err)
	}
	r.cfg.size().tell(r.report, r.cfg.StepShare, r.settings.Given(), "records", r.cfg.copies())
	r.cfg.begin(r.cfg.size())
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return fmt.Errorf("train classify: save the recipe: %w", err)
	}
	o := r.cfg.options(saved)
	o.Epochs, o.Recipe, o.Config = r.cfg.Epochs, recipe, r.config()
	ranks, err := r.cfg.arrangeRanks(ctx, "classify", r.axes.World)
	if err != nil {
		return err
	}
	defer ranks.close()
	r.axes = ranks.axes
	return runOn(ctx, spreading{cfg: r.cfg.SharedConfig, ranks: ranks}, r.task(saved), o, r.report)
}

// prepare finds and makes what the task consists of, and the run to go on with.
func (r *classifyRun) prepare(ctx context.Context) (saved *SavedRun, err error) {
	was := ClassifyConfig{SharedConfig: sharedBefore()}
	if saved, err = adoptRun(ctx, r.axes.World, "classify", r.cfg.SharedConfig, r.cfg.Data, r.cfg.InitFrom, r.settings, r.report, was, r.cfg.adopt); err != nil {
		return nil, err
	}
	return r.prepareFrom(ctx, saved, true)
}

// prepareFrom makes what a run consists of, or one that is only evaluated: its records may
// be others, which are compared if the run shall go on.
func (r *classifyRun) prepareFrom(ctx context.Context, saved *SavedRun, goOn bool) (_ *SavedRun, err error) {
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	r.evaluates = !goOn
	phaseOf(ctx).enter("reading %s", r.cfg.Data)
	records, err := readTextRecords(r.cfg.Data)
	if err == nil {
		err = r.findClasses(records)
	}
	if err != nil {
		return nil, fmt.Errorf("train classify: %w", err)
	}
	phaseOf(ctx).enter("opening the encoder")
	r.base, err = openTextBase(ctx, "classify", r.cfg.SharedConfig, r.cfg.InitFrom, saved, r.report.Notice, r.open)
	if err != nil {
		return nil, err
	}
	if r.tokens.most, err = r.cfg.mostTokens("classify", 0, r.model.Context()); err != nil {
		return nil, err
	}
	r.tokens.tok, r.tokens.padding = r.base.tokenizer, int64(r.model.Padding())
	training, held := splitRecords(records.Len(), r.cfg.Validation)
	if len(training) == 0 {
		return nil, fmt.Errorf("train classify: %s has %d records, of which none is left to train on", r.cfg.Data, records.Len())
	}
	sum := fmt.Sprintf("%s-%s-%s-%s-%s-%d-%v", records.sum, r.base.tokenizer.Fingerprint(), r.cfg.Text, r.cfg.Label, r.cfg.Kind, r.tokens.most, r.cfg.Validation)
	get := func(i int) (textSample, error) { return r.sample(records, i) }
	r.training, r.held = textPart{records, training, sum, get}, textPart{records, held, sum, get}
	if saved != nil && goOn && !saved.isOf(r.training) {
		return nil, fmt.Errorf("train classify: the records of %s are not those that %s was saved with: put them back as they were, or %s",
			r.cfg.Data, saved.Checkpoint.Path, carryOver("classify", r.cfg.Out, r.cfg.Data))
	}
	if saved == nil {
		note, err := r.cfg.size().check(r.training.Len(), r.settings, "records")
		if err != nil {
			return nil, fmt.Errorf("train classify: %w", err)
		}
		if note != "" {
			r.report.Notice(note)
		}
	}
	return saved, nil
}

// open opens the encoder with a head for the classes. A folder whose head has the same
// classes keeps it, with its order of them.
func (r *classifyRun) open(dir string, tok *tokenizer.Tokenizer, opts []models.LoadOption) error {
	plain, err := models.Outline(dir, opts...)
	if err != nil {
		return err
	}
	want := &models.Classes{Of: models.OfSequences, Names: r.classes, Problem: map[string]string{
		kindSingle: models.SingleLabel, kindMulti: models.MultiLabel, kindRegression: models.Regression,
	}[r.cfg.Kind]}
	if r.cfg.Kind == kindTags {
		want.Of = models.OfTokens
	}
	if e, ok := plain.(models.Encoder); ok {
		if has := e.Predicts().Classes; has != nil && has.Of == want.Of && (r.evaluates || slices.Equal(slices.Sorted(slices.Values(has.Names)), r.classes)) {
			want.Names, r.classes, want.Dropout = has.Names, has.Names, has.Dropout
		}
	}
	r.number = make(map[string]int)
	for i, name := range r.classes {
		r.number[name] = i
	}
	first := &nn.Build{Generator: tensor.NewGenerator(r.cfg.Seed)}
	if r.model, err = models.LoadEncoder(dir, append(opts, models.WithHead(models.Head{Classes: want}), models.WithBuild(first))...); err != nil {
		return err
	}
	return fitsEncoder(tok, r.model)
}

// findClasses finds the fields of the records, what is learned of them, and the names of
// the classes. It reads all records, so that a wrong one shows before the first step.
func (r *classifyRun) findClasses(records *textRecords) error {
	fill := func(name string, value *string, candidates ...string) error {
		for _, c := range candidates {
			if *value == "" && records.has(c) {
				return r.settings.Field(name).SetText(c, "the data")
			}
		}
		if *value == "" {
			return fmt.Errorf("%s has the fields %s: say with --%s which is meant", records.at(0), records.fields(0), name)
		}
		return nil
	}
	if err := fill("text", &r.cfg.Text, "text", "sentence", "tokens", "words"); err != nil {
		return err
	}
	if err := fill("label", &r.cfg.Label, "label", "labels", "tags", "ner_tags", "class", "score"); err != nil {
		return err
	}
	if r.cfg.Kind == "" {
		kind := kindSingle
		_, words := records.rows[0][r.cfg.Text].([]any)
		switch v := records.rows[0][r.cfg.Label].(type) {
		case []any:
			kind = map[bool]string{true: kindTags, false: kindMulti}[words]
		case float64:
			if v != float64(int64(v)) {
				kind = kindRegression
			}
		}
		if err := r.settings.Field("kind").SetText(kind, "the data"); err != nil {
			return err
		}
	}
	seen := make(map[string]bool)
	for i := range records.Len() {
		names, err := r.labelsOf(records, i)
		if err != nil {
			return err
		}
		for _, n := range names {
			seen[n] = true
		}
	}
	r.classes = slices.Sorted(maps.Keys(seen))
	const most = 1 << 16
	switch n := len(r.classes); {
	case r.cfg.Kind == kindRegression:
		r.classes = []string{r.cfg.Label}
	case n < 2 && r.cfg.Kind != kindMulti, n < 1:
		return fmt.Errorf("the records of %s are of %d class: there is nothing to tell apart; want two or more", r.cfg.Data, n)
	case n > most:
		return fmt.Errorf("the field %q of %s has %d different values, more than the %d classes allowed: is it a number? (--kind regression)", r.cfg.Label, r.cfg.Data, n, most)
	}
	return nil
}

// labelsOf returns the names of the classes of a record, and checks its text.
func (r *classifyRun) labelsOf(records *textRecords, i int) ([]string, error) {
	if r.cfg.Kind == kindTags {
		words, err := records.names(i, r.cfg.Text)
		if err != nil {
			return nil, err
		}
		tags, err := records.names(i, r.cfg.Label)
		if err == nil && len(words) != len(tags) {
			err = fmt.Errorf("%s: there are %d words in %q and %d tags in %q", records.at(i), len(words), r.cfg.Text, len(tags), r.cfg.Label)
		}
		return tags, err
	}
	if _, err := records.text(i, r.cfg.Text); err != nil {
		return nil, err
	}
	switch r.cfg.Kind {
	case kindRegression:
		_, err := records.number(i, r.cfg.Label)
		return nil, err
	case kindMulti:
		return records.names(i, r.cfg.Label)
	}
	v, err := records.value(i, r.cfg.Label)
	if err != nil {
		return nil, err
	}
	name, ok := nameOfValue(v)
	if !ok {
		return nil, fmt.Errorf("%s: the field %q is %s, want a class: text or a whole number", records.at(i), r.cfg.Label, shortJSON(v))
	}
	return []string{name}, nil
}

// sample makes the tokens of a record, and the numbers of its classes.
func (r *classifyRun) sample(records *textRecords, i int) (s textSample, err error) {
	names, err := r.labelsOf(records, i)
	if err != nil {
		return s, err
	}
	for _, n := range names {
		if _, ok := r.number[n]; !ok {
			return s, fmt.Errorf("%s: the class %q is none of the model's: %s", records.at(i), n, few(r.classes))
		}
	}
	if r.cfg.Kind == kindTags {
		words, err := records.names(i, r.cfg.Text)
		if err != nil {
			return s, err
		}
		tags := make([]int64, len(names))
		for k, n := range names {
			tags[k] = int64(r.number[n])
		}
		ids, labels := r.tokens.tag(words, tags)
		return textSample{tokens: [][]int64{ids}, labels: labels}, nil
	}
	text, err := records.text(i, r.cfg.Text)
	if err != nil {
		return s, err
	}
	s.tokens = [][]int64{r.tokens.encode(text)}
	switch r.cfg.Kind {
	case kindRegression:
		x, err := records.number(i, r.cfg.Label)
		s.scores = []float32{float32(x)}
		return s, err
	case kindMulti:
		s.scores = make([]float32, len(r.classes))
		for _, n := range names {
			s.scores[r.number[n]] = 1
		}
	default:
		s.labels = []int64{int64(r.number[names[0]])}
	}
	return s, nil
}

// tag returns the tokens of words, with those around a text, and the tag of each token:
// that of its word at the first token of the word, none at the others.
func (t textTokens) tag(words []string, tags []int64) (ids, labels []int64) {
	frame := t.tok.EncodeInput([]byte("a"))
	inner := t.tok.Encode([]byte("a"))
	before := 0
	for before+len(inner) < len(frame) && !equalIDs(frame[before:before+len(inner)], inner) {
		before++
	}
	after := frame[before+len(inner):]
	ids = append(ids, frame[:before]...)
	for range ids {
		labels = append(labels, tensor.IgnoreIndex)
	}
	for i, w := range words {
		if i > 0 {
			w = " " + w
		}
		piece := t.tok.Encode([]byte(w))
		if len(ids)+len(piece)+len(after) > t.most {
			break
		}
		for k, id := range piece {
			ids = append(ids, id)
			if k == 0 {
				labels = append(labels, tags[i])
			} else {
				labels = append(labels, tensor.IgnoreIndex)
			}
		}
	}
	for _, id := range after {
		ids, labels = append(ids, id), append(labels, tensor.IgnoreIndex)
	}
	return ids, labels
}

// perSample returns how many scores and labels a sample of a blank batch has.
func (r *classifyRun) perSample() (scores, labels int) {
	switch r.cfg.Kind {
	case kindTags:
		return 0, r.tokens.most
	case kindSingle:
		return 0, 1
	}
	return len(r.classes), 0
}

// task is what there is to know about training a classifier of texts.
func (r *classifyRun) task(saved *SavedRun) Task[sentenceBatch] {
	numSteps := r.cfg.steps(r.training.Len(), r.cfg.size().total())
	what := fmt.Sprintf("%d classes", len(r.classes))
	if r.cfg.Kind == kindRegression {
		what = "a number"
	}
	t := Task[sentenceBatch]{
		Name: "classify", Model: r.model, Axes: r.axes,
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return adamW(params, optim.AdamWOptions{LR: r.cfg.LR, WeightDecay: r.cfg.WeightDecay})
		},
		About: About{
			Given: r.settings.Summary(),
			Model: fmt.Sprintf("%s from %s, %s (%s), texts of at most %d tokens", encoderName(r.model), r.cfg.InitFrom, what, r.cfg.Kind, r.tokens.most),
			Data:  fmt.Sprintf("%s: %d records to train on, %d to evaluate", r.cfg.Data, r.training.Len(), r.held.Len()),
		},
		Schedule: optim.WarmupCosine(int(r.cfg.Warmup*float64(numSteps)), numSteps, r.cfg.LRFloor),
		Loss:     r.loss,
		Blank: func() sentenceBatch {
			scores, labels := r.perSample()
			return r.tokens.blank(r.cfg.Batch, 1, scores, labels)
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[sentenceBatch], error) {
			return r.training.feedOf(ctx, r.cfg.SharedConfig, r.axes, r.tokens, from)
		},
		Contents: r.training.Contents, Samples: r.training.Len(),
		Size: sentenceBatch.tokens, Unit: "tokens",
		Files: func(w *checkpoint.Writer) error { return writeEncoderFiles(w, r.model, r.base.companions) },
		Finish: func(context.Context, any) (Ending, error) {
			return Ending{
				Title: "the classes", Key: "classes", Text: strings.Join(r.classes, ", "), Next: "eval --from " + argument(cmp.Or(r.cfg.SaveTo, r.cfg.Out)),
			}, nil
		},
	}
	if r.held.Len() > 0 {
		t.Evaluate = r.evaluate
	}
	return t
}

// loss runs the model on a batch.
func (r *classifyRun) loss(c *nn.Ctx, model any, b sentenceBatch) *tensor.Tensor {
	logits := c.CallN(model.(nn.ModuleN), b.inputs(c)...)[0].To(tensor.Float32)
	if r.cfg.Kind != kindTags {
		return r.lossOf(logits, b)
	}
	// Of the words of all ranks: a rank may have more of them than another.
	words := 0
	for _, l := range b.Labels {
		if l >= 0 {
			words++
		}
	}
	loss := tensor.CrossEntropy(logits, tensor.On(c.Device()).FromInt64(b.Labels, b.N, b.Columns[0].Time), tensor.CrossEntropyOptions{Reduction: tensor.ReduceSum})
	total := float64(max(1, words))
	if n := r.axes.Data.Size(); n > 1 && logits.Device() != tensor.Meta {
		count := tensor.FromInt64([]int64{int64(words)})
		if err := r.axes.Data.AllReduce(c, count, dist.Sum); err != nil {
			c.Fail(err)
		}
		total = float64(max(1, count.Int64s()[0])) / float64(n)
	}
	return loss.MulScalar(1 / total)
}

// lossOf is the mean loss of a batch.
func (r *classifyRun) lossOf(logits *tensor.Tensor, b sentenceBatch) *tensor.Tensor {
	on := tensor.On(logits.Device())
	switch r.cfg.Kind {
	case kindTags:
		return tensor.CrossEntropy(logits, on.FromInt64(b.Labels, b.N, b.Columns[0].Time))
	case kindMulti:
		return tensor.BCEWithLogits(logits, on.FromFloat32(b.Scores, b.N, len(r.classes)))
	case kindRegression:
		return tensor.MSE(logits.Reshape(b.N), on.FromFloat32(b.Scores, b.N))
	}
	return tensor.CrossEntropy(logits, on.FromInt64(b.Labels, b.N))
}
