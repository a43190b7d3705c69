// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// embedRun makes the task of [Embed] on one rank.
type embedRun struct {
	cfg      EmbedConfig
	settings *config.Settings // of cfg
	axes     Axes
	report   Reporter

	base           textBase
	model          *models.SentenceEncoder
	tokens         textTokens
	columns        []string
	training, held textPart
	negatives      *mesh.Mesh // of the ranks whose texts are negatives
}

// Embed trains an encoder of texts on all ranks of a group, by pairs or triplets of texts,
// or by pairs with scores. Each rank calls Embed with the same configuration. given has the
// settings that the user gave; see [LM]. Embed uses report on rank 0. If the run's
// directory has a checkpoint, Embed resumes from it.
func Embed(ctx context.Context, group *dist.Group, cfg EmbedConfig, given map[string]string, report Reporter) error {
	report = reporterOf(group, report)
	if err := cfg.join("embed", group, given); err != nil {
		return err
	}
	return begins(ctx, "embed", report, func(ctx context.Context, report Reporter) error {
		return newEmbedRun(cfg, given, group, report).run(ctx)
	})
}

// CheckEmbed reports, before any rank is started, the errors that [Embed] would report on
// every rank. It changes no files, and returns the settings of the run as TOML.
func CheckEmbed(ctx context.Context, cfg EmbedConfig, given map[string]string) (resolved []byte, err error) {
	r := newEmbedRun(cfg, given, nil, Discard)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := CheckOut("embed", cfg.Out); err != nil {
		return nil, err
	}
	if _, err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if err := checkMemory("embed", r.model, r.cfg.SharedConfig); err != nil {
		return nil, err
	}
	return r.config(), nil
}

func newEmbedRun(cfg EmbedConfig, given map[string]string, group *dist.Group, report Reporter) *embedRun {
	r := &embedRun{cfg: cfg, axes: dataParallel(group), report: report}
	r.settings = config.New(&r.cfg)
	r.settings.SetGiven(given)
	return r
}

// config is what config.toml says.
func (r *embedRun) config() []byte { return settingsText("embed", r.settings, r.cfg.size()) }

// run makes the task and does it.
func (r *embedRun) run(ctx context.Context) error {
	saved, err := r.prepare(ctx)
	if err != nil {
		return settled(err)
	}
	r.cfg.size().tell(r.report, r.cfg.StepShare, r.settings.Given(), "records", r.cfg.copies())
	r.cfg.begin(r.cfg.size())
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return fmt.Errorf("train embed: save the recipe: %w", err)
	}
	o := r.cfg.options(saved)
	o.Epochs, o.Recipe, o.Config = r.cfg.Epochs, recipe, r.config()
	ranks, err := r.cfg.arrangeRanks(ctx, "embed", r.axes.World)
	if err != nil {
		return err
	}
	defer ranks.close()
	r.axes = ranks.axes
	if r.negatives, err = mesh.New(ctx, r.axes.Data, mesh.Axis{Name: "negatives", Size: r.axes.Data.Size()}); err != nil {
		return fmt.Errorf("train embed: %w", err)
	}
	defer r.negatives.Close()
	return runOn(ctx, spreading{cfg: r.cfg.SharedConfig, ranks: ranks}, r.task(saved), o, r.report)
}

// prepare finds and makes what the task consists of, and the run to go on with.
func (r *embedRun) prepare(ctx context.Context) (saved *SavedRun, err error) {
	was := EmbedConfig{SharedConfig: sharedBefore()}
	if saved, err = adoptRun(ctx, r.axes.World, "embed", r.cfg.SharedConfig, r.cfg.Data, r.cfg.InitFrom, r.settings, r.report, was, r.cfg.adopt); err != nil {
		return nil, err
	}
	return r.prepareFrom(ctx, saved, true)
}

// prepareFrom makes what a run consists of, or one that is only evaluated: its records may
// be others, which are compared if the run shall go on.
func (r *embedRun) prepareFrom(ctx context.Context, saved *SavedRun, goOn bool) (_ *SavedRun, err error) {
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	phaseOf(ctx).enter("opening the encoder")
	r.base, err = openTextBase(ctx, "embed", r.cfg.SharedConfig, r.cfg.InitFrom, saved, r.report.Notice, func(dir string, tok *tokenizer.Tokenizer, opts []models.LoadOption) (err error) {
		if r.model, err = models.LoadSentenceEncoder(dir, opts...); err == nil {
			err = fitsEncoder(tok, r.model.Encoder)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.tokens.most, err = r.cfg.mostTokens("embed", min(r.model.Config.MaxTokens, r.model.Encoder.Context()), r.model.Encoder.Context()); err != nil {
		return nil, err
	}
	r.model.Config.MaxTokens = r.tokens.most
	r.tokens.tok, r.tokens.lower, r.tokens.padding = r.base.tokenizer, r.model.Config.Lower, int64(r.model.Encoder.Padding())
	phaseOf(ctx).enter("reading %s", r.cfg.Data)
	if err := r.openData(); err != nil {
		return nil, fmt.Errorf("train embed: %w", err)
	}
	if saved != nil && goOn && !saved.isOf(r.training) {
		return nil, fmt.Errorf("train embed: the records of %s are not those that %s was saved with: put them back as they were, or %s",
			r.cfg.Data, saved.Checkpoint.Path, carryOver("embed", r.cfg.Out, r.cfg.Data))
	}
	if saved == nil {
		note, err := r.cfg.size().check(r.training.Len(), r.settings, "records")
		if err != nil {
			return nil, fmt.Errorf("train embed: %w", err)
		}
		if note != "" {
			r.report.Notice(note)
		}
	}
	if n := r.cfg.size(); r.cfg.Uneven > 0 && n.total()%(n.ranks*n.accumulate) != 0 {
		return nil, fmt.Errorf("train embed: %d records a step cannot be shared out evenly among %d ranks, which ranking needs: choose another number of ranks", n.total(), n.ranks)
	}
	return saved, nil
}

// usualColumns are names of fields that published records have.
var usualColumns = [][]string{
	{"anchor", "positive", "negative"}, {"query", "positive", "negative"}, {"anchor", "positive"}, {"query", "positive"}, {"question", "answer"}, {"query", "answer"},
	{"sentence1", "sentence2"}, {"sentence_A", "sentence_B"}, {"premise", "hypothesis"}, {"text1", "text2"}, {"title", "abstract"}, {"query", "document"}, {"query", "passage"},
}

// openData reads the records, and finds out what is learned of them.
func (r *embedRun) openData() error {
	records, err := readTextRecords(r.cfg.Data)
	if err != nil {
		return err
	}
	r.columns = r.cfg.Columns
	for _, names := range usualColumns {
		if len(r.columns) == 0 && records.has(names...) {
			r.columns = names
		}
	}
	if len(r.columns) == 0 {
		return fmt.Errorf("%s has the fields %s: say with --columns which of them have the texts", records.at(0), records.fields(0))
	}
	fill := func(name, text string) error { return r.settings.Field(name).SetText(text, "the data") }
	if len(r.cfg.Columns) == 0 {
		if err := fill("columns", strings.Join(r.columns, ",")); err != nil {
			return err
		}
	}
	if r.cfg.Score == "" && len(r.columns) == 2 && r.cfg.Loss != "ranking" && records.has("score") {
		if err := fill("score", "score"); err != nil {
			return err
		}
	}
	if r.cfg.Loss == "" {
		loss := "ranking"
		if r.cfg.Score != "" {
			loss = "cosine"
		}
		if err := fill("loss", loss); err != nil {
			return err
		}
	}
	switch n := len(r.columns); {
	case r.cfg.Loss == "cosine" && (n != 2 || r.cfg.Score == ""):
		return fmt.Errorf("--loss cosine wants two texts and a score (--score), and the records of %s have %s", r.cfg.Data, records.fields(0))
	case r.cfg.Loss == "triplet" && n != 3:
		return fmt.Errorf("--loss triplet wants three texts, and --columns names %s", strings.Join(r.columns, ", "))
	case r.cfg.Loss != "cosine" && r.cfg.Score != "":
		return fmt.Errorf("--loss %s has no use for --score %s: leave one of them out", r.cfg.Loss, r.cfg.Score)
	}
	training, held := splitRecords(records.Len(), r.cfg.Validation)
	if len(training) == 0 {
		return fmt.Errorf("%s has %d records, of which none is left to train on", r.cfg.Data, records.Len())
	}
	sum := fmt.Sprintf("%s-%s-%v-%s-%d-%v", records.sum, r.base.tokenizer.Fingerprint(), r.columns, r.cfg.Score, r.tokens.most, r.cfg.Validation)
	get := func(i int) (textSample, error) { return r.sample(records, i) }
	r.training = textPart{records, training, strings.ReplaceAll(sum, " ", ","), get}
	r.held = textPart{records, held, r.training.sum, get}
	for i := range records.Len() { // before the first step, and not after an hour
		for _, name := range r.columns {
			if _, err := records.text(i, name); err != nil {
				return err
			}
		}
		if r.cfg.Score != "" {
			if _, err := records.number(i, r.cfg.Score); err != nil {
				return err
			}
		}
	}
	return nil
}

// sample makes the tokens of a record.
func (r *embedRun) sample(records *textRecords, i int) (s textSample, err error) {
	prompt := r.model.Config.Prompts[r.model.Config.DefaultPrompt]
	for _, name := range r.columns {
		text, err := records.text(i, name)
		if err != nil {
			return s, err
		}
		s.tokens = append(s.tokens, r.tokens.encode(prompt+text))
	}
	if r.cfg.Score != "" {
		score, err := records.number(i, r.cfg.Score)
		if err != nil {
			return s, err
		}
		s.scores = []float32{float32(score)}
	}
	return s, nil
}

// task is what there is to know about training an encoder of texts.
func (r *embedRun) task(saved *SavedRun) Task[sentenceBatch] {
	numSteps := r.cfg.steps(r.training.Len(), r.cfg.size().total())
	t := Task[sentenceBatch]{
		Name: "embed", Model: r.model, Axes: r.axes,
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return adamW(params, optim.AdamWOptions{LR: r.cfg.LR, WeightDecay: r.cfg.WeightDecay})
		},
		About: About{
			Given: r.settings.Summary(),
			Model: fmt.Sprintf("%s from %s, vectors of %d numbers, texts of at most %d tokens", encoderName(r.model.Encoder), r.cfg.InitFrom, r.model.Width(), r.tokens.most),
			Data: fmt.Sprintf("%s: %d records of %s to train on by %s, %d to evaluate", r.cfg.Data, r.training.Len(), strings.Join(r.columns, ", "),
				r.cfg.Loss, r.held.Len()),
		},
		Schedule: optim.WarmupCosine(int(r.cfg.Warmup*float64(numSteps)), numSteps, r.cfg.LRFloor),
		Loss:     r.loss,
		Blank:    func() sentenceBatch { return r.tokens.blank(r.cfg.Batch, len(r.columns), 1, 0) },
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[sentenceBatch], error) {
			return r.training.feedOf(ctx, r.cfg.SharedConfig, r.axes, r.tokens, from)
		},
		Contents: r.training.Contents, Samples: r.training.Len(),
		Size: sentenceBatch.tokens, Unit: "tokens",
		Files: r.files, Finish: r.finish,
	}
	if r.held.Len() > 1 {
		t.Evaluate = r.evaluate
	}
	return t
}

// loss runs the model on a batch.
func (r *embedRun) loss(c *nn.Ctx, model any, b sentenceBatch) *tensor.Tensor {
	v := c.CallN(model.(nn.ModuleN), b.inputs(c)...)
	for i := range v {
		v[i] = v[i].To(tensor.Float32)
	}
	switch r.cfg.Loss {
	case "cosine":
		return models.CosineLoss(v[0], v[1], tensor.On(c.Device()).FromFloat32(b.Scores, b.N))
	case "triplet":
		margin := r.cfg.Margin
		if margin == 0 {
			margin = map[bool]float64{true: 0.5, false: 5}[r.cfg.Distance == models.Cosine]
		}
		loss, err := models.TripletLoss(v[0], v[1], v[2], r.cfg.Distance, margin)
		if err != nil {
			c.Fail(err)
		}
		return loss
	}
	first := 0
	candidates := v[1:]
	if !r.cfg.Local && r.negatives != nil {
		for i := range candidates {
			candidates[i] = gatherRows(c, r.negatives, candidates[i])
		}
		first = r.axes.Data.Rank() * b.N
	}
	return models.RankingLoss(v[0], tensor.Cat(0, candidates...), first, r.cfg.Scale)
}

// encoderName names the kind of an encoder for people.
func encoderName(m models.Encoder) string {
	switch m := m.(type) {
	case *models.Roberta:
		if m.Config.Type != "" {
			return "XLM-R"
		}
		return "RoBERTa"
	case *models.DistilBERT:
		return "DistilBERT"
	}
	return "BERT"
}

// files writes what makes a checkpoint the folder of an encoder, besides the weights.
func (r *embedRun) files(w *checkpoint.Writer) error {
	if err := writeEncoderFiles(w, r.model.Encoder, r.base.companions); err != nil {
		return err
	}
	return w.WriteJSON(models.SentenceFile, r.model.Config)
}

// writeEncoderFiles writes the config.json of an encoder, and the files of its tokenizer.
func writeEncoderFiles(w *checkpoint.Writer, m models.Encoder, companions map[string][]byte) error {
	config, err := m.HuggingFaceConfig()
	if err != nil {
		return err
	}
	for _, name := range filesInOrder(companions) {
		if err := w.WriteFile(name, companions[name]); err != nil {
			return err
		}
	}
	return w.WriteFile(configFile, config)
}

// filesInOrder lists the files in their order.
func filesInOrder(files map[string][]byte) (names []string) {
	for _, name := range companions {
		if _, ok := files[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// exportDir is the directory of a run in which the folder for other tools is.
const exportDir = "sentence-transformers"

// finish writes the best weights as a folder of sentence-transformers.
func (r *embedRun) finish(ctx context.Context, model any) (Ending, error) {
	end := Ending{Next: "eval --from " + argument(cmp.Or(r.cfg.SaveTo, r.cfg.Out))}
	if r.axes.World.Rank() != 0 {
		return end, nil
	}
	m := r.model
	best, err := latest(ctx, storage.Under(r.cfg.place(), bestDir), r.report.Notice)
	switch at := placeOf(best); {
	case err == nil:
		dir, done, err := at.local(ctx)
		if err != nil {
			return end, err
		}
		defer done()
		if m, err = models.LoadSentenceEncoder(dir, at.weightsFrom(ctx, nil)...); err != nil {
			return end, err
		}
	case !errors.Is(err, checkpoint.ErrNone):
		return end, err
	case isSharded(model):
		r.report.Notice("no folder of sentence-transformers is written: the ranks have parts of the weights, and --best keeps none")
		return end, nil
	}
	dir := filepath.Join(r.cfg.Out, exportDir)
	if err := removeExport(dir); err != nil {
		return end, err
	}
	if err := models.SaveSentenceEncoder(dir, m, r.base.companions); err != nil {
		return end, err
	}
	end.Title, end.Text, end.Key = "the encoder for sentence-transformers is in", dir, "folder"
	return end, nil
}
