// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// recRun makes the task of [Rec] on one rank.
type recRun struct {
	cfg      RecConfig
	settings *config.Settings // of cfg
	axes     Axes
	report   Reporter

	training    *dealtRows
	validation  *table.Part // the rows that this rank holds
	labels      []float32   // of the validation rows of all ranks
	truth       []float64   // their logits, of a generated table
	recommender *Recommender
	source      source             // whose weights it begins with
	was         *RecommenderConfig // its recommender's; of a run that goes on its own
}

// Rec trains a recommender on the rows of a table on all ranks of a group. The
// recommender predicts labels that are 0 or 1, such as clicks, from categories and
// numbers. Each rank calls Rec with the same configuration. given has the settings
// that the user gave; see [LM]. Rec uses report on rank 0.
//
// The gradients of the tables have only the rows of the batch, so that the cost of a
// step depends on the batch and not on the tables. If the run's directory has a
// checkpoint, Rec resumes from it.
//
// Each rank reads and keeps a part of the rows, and the ranks send each other the rows of
// the batches to come. So the batches are those of one rank that reads all rows.
func Rec(ctx context.Context, group *dist.Group, cfg RecConfig, given map[string]string, report Reporter) error {
	report = reporterOf(group, report)
	if err := cfg.join("rec", group, given); err != nil {
		return err
	}
	return begins(ctx, "rec", report, func(ctx context.Context, report Reporter) error {
		return newRecRun(cfg, given, group, report).run(ctx)
	})
}

// CheckRec reports, before any rank is started, the errors of settings, checkpoints
// and rows that [Rec] would report on every rank. It reads all rows, or the first rows
// of more than 64 MB. It changes no files, and returns the settings of the run as TOML.
func CheckRec(ctx context.Context, cfg RecConfig, given map[string]string) (resolved []byte, err error) {
	r := newRecRun(cfg, given, nil, Discard)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := CheckOut("rec", cfg.Out); err != nil {
		return nil, err
	}
	if given["data"] == config.Flag && cfg.Data == "" {
		return nil, errors.New("train rec: --data is empty: name a CSV file or a directory of them, or leave the flag out for a generated table")
	}
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.openSource(ctx, saved); err != nil {
		return nil, err
	}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	if r.isSmall() {
		if err := r.load(ctx, saved); err != nil {
			return nil, err
		}
	}
	schema := r.cfg.schema()
	if cfg.Data == "" {
		schema = r.cfg.generated().Schema()
	}
	plan, err := r.cfg.recommender(&nn.Build{Device: tensor.Meta}, schema, table.Unscaled(schema))
	if err != nil {
		return nil, fmt.Errorf("train rec: %w", err)
	}
	if r.cfg.hasServers() {
		return r.config(), nil // the tables are not the ranks'
	}
	if err := checkMemory("rec", plan.Model, r.cfg.SharedConfig); err != nil {
		return nil, err
	}
	return r.config(), nil
}

func newRecRun(cfg RecConfig, given map[string]string, group *dist.Group, report Reporter) *recRun {
	r := &recRun{cfg: cfg, axes: dataParallel(group), report: report}
	r.settings = config.New(&r.cfg)
	r.settings.SetGiven(given)
	return r
}

// findRun returns the newest checkpoint of the run's directory, nil if there is
// none, and takes over its settings.
func (r *recRun) findRun(ctx context.Context) (*SavedRun, error) {
	was := RecConfig{SharedConfig: sharedBefore()}
	return adoptRun(ctx, r.axes.World, "rec", r.cfg.SharedConfig, r.cfg.Data, r.cfg.InitFrom, r.settings, r.report, was, r.cfg.adopt)
}

// config is what config.toml says.
func (r *recRun) config() []byte { return settingsText("rec", r.settings, r.cfg.size()) }

// resolve fills in the settings that the data decides: which columns are which,
// by the first rows of the file.
func (r *recRun) resolve() error {
	c := &r.cfg
	if c.Data == "" {
		for _, name := range []string{"label", "positive", "numbers", "categories", "separator", "no-header"} {
			if f := r.settings.Field(name); f.From != config.Default && f.Text() != "" && f.Text() != "0" && f.Text() != "false" {
				return fmt.Errorf("train rec: --%s is about a file, and there is none: name one (--data FILE)", name)
			}
		}
		if r.settings.Field("buckets").From == config.Flag {
			return errors.New("train rec: --buckets is about a file, and there is none: the generated table has its own")
		}
		return nil
	}
	if r.settings.Field("rows").From == config.Flag {
		return errors.New("train rec: --rows is about the generated table, and --data names a file, all of whose rows are taken: leave one of them out")
	}
	f, err := c.format()
	if err != nil {
		return err
	}
	if c.Label == "" || len(c.Numbers)+len(c.Categories) == 0 {
		if err := r.infer(f); err != nil {
			return fmt.Errorf("train rec: %w", err)
		}
	}
	// What is missing in the file, its header tells now.
	rows, err := table.Open(c.Data, f, c.schema())
	if err != nil {
		return fmt.Errorf("train rec: %w", err)
	}
	return rows.Close()
}

// infer sets the columns that no setting names by the first rows of the file.
func (r *recRun) infer(f table.Format) error {
	c := &r.cfg
	s, doubts, err := table.Infer(c.Data, f, c.Label, c.Buckets)
	if row := (*table.RowError)(nil); errors.As(err, &row) && row.Line == 1 {
		return fmt.Errorf("%w (--separator and --no-header say how the file is laid out)", err)
	}
	if err != nil {
		return err
	}
	for _, text := range doubts {
		r.report.Notice(text + " (--no-header, --numbers and --categories say what is what)")
	}
	from := "the first rows of " + filepath.Base(c.Data)
	set := func(name string, columns []string) error {
		values := []any{}
		for _, column := range columns {
			values = append(values, column)
		}
		return r.settings.Field(name).Set(values, from)
	}
	if c.Label == "" {
		if err := r.settings.Field("label").Set(s.Label, from); err != nil {
			return err
		}
	}
	if len(c.Numbers)+len(c.Categories) > 0 {
		return nil
	}
	if c.Model == recMF {
		s.Numbers, s.Categories = nil, s.Categories[:min(2, len(s.Categories))]
	}
	if err := set("numbers", s.Numbers); err != nil {
		return err
	}
	return set("categories", s.Categories)
}

// schema is that of the file, once all is resolved.
func (c RecConfig) schema() table.Schema {
	s := table.Schema{Label: c.Label, Numbers: c.Numbers, Categories: c.Categories, Buckets: c.Buckets}
	if c.Positive != 0 {
		s.Positive = &c.Positive
	}
	return s
}

// open reads or generates a share of the table and parts it.
func (c RecConfig) open(ctx context.Context, share table.Share) (training, validation *table.Part, err error) {
	rows, err := c.read(ctx, c.schema(), share)
	if err != nil {
		return nil, nil, err
	}
	return rows.Split(c.Validation)
}

// run makes the task and does it.
func (r *recRun) run(ctx context.Context) (err error) {
	saved, err := r.prepare(ctx)
	if err != nil {
		return settled(err)
	}
	r.cfg.size().tell(r.report, r.cfg.StepShare, r.settings.Given(), "rows", r.cfg.copies())
	r.cfg.begin(r.cfg.size())
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return fmt.Errorf("train rec: save the recipe: %w", err)
	}
	o := r.cfg.options(saved)
	o.Epochs, o.Recipe, o.Config = r.cfg.Epochs, recipe, r.config()
	ranks, err := r.cfg.arrangeRanks(ctx, "rec", r.axes.World)
	if err != nil {
		return err
	}
	defer ranks.close()
	r.axes = ranks.axes
	first := r.cfg.schemas(r.recommender.Model)
	if r.cfg.hasServers() {
		served, closing, err := r.serve(ctx)
		if err != nil {
			return fmt.Errorf("train rec: %w", err)
		}
		defer func() { err = errors.Join(err, closing(err != nil)) }()
		r.recommender.served = served
	}
	return runOn(ctx, spreading{cfg: r.cfg.SharedConfig, ranks: ranks, first: first}, r.task(saved), o, r.report)
}

// prepare finds and makes what the task consists of, and the run to go on with.
func (r *recRun) prepare(ctx context.Context) (*SavedRun, error) {
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	if err := r.openSource(ctx, saved); err != nil {
		return nil, err
	}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	phaseOf(ctx).enter("reading %s", cmp.Or(r.cfg.Data, "the generated table"))
	if err := r.load(ctx, saved); err != nil {
		return nil, err
	}
	phaseOf(ctx).enter("making the model")
	b := r.cfg.newBuild(saved == nil && r.was != nil)
	scale, err := r.scale()
	if err != nil {
		return nil, fmt.Errorf("train rec: %w", err)
	}
	if r.recommender, err = r.cfg.recommender(b, r.validation.Schema(), scale); err != nil {
		return nil, fmt.Errorf("train rec: %w", err)
	}
	if saved == nil && r.was != nil {
		return nil, r.carry()
	}
	return saved, nil
}

// smallBytes is the size of data that is read before the ranks start, to tell
// once what is wrong with it: 46 MB take a second.
const smallBytes = 64 << 20

func (r *recRun) isSmall() bool {
	path := r.cfg.Data
	if path == "" {
		return r.cfg.Rows <= table.DefaultGenerated().Rows
	}
	size := int64(0)
	err := filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if size += info.Size(); strings.HasSuffix(path, ".gz") {
			size += 7 * info.Size() // as text is packed
		}
		return nil
	})
	return err == nil && size <= smallBytes
}

// load reads the rows, or generates them, and looks whether they can be trained on.
func (r *recRun) load(ctx context.Context, saved *SavedRun) (err error) {
	training, validation, err := r.cfg.open(ctx, shareOf(ctx, r.axes.World))
	if row := (*table.RowError)(nil); errors.As(err, &row) && row.Field == r.cfg.Label && r.cfg.Positive == 0 {
		return fmt.Errorf("train rec: %w (--label names the label, --positive what counts as 1)", err)
	}
	if err != nil {
		return fmt.Errorf("train rec: %w", err)
	}
	for _, text := range training.Notes() {
		r.report.Notice(text)
	}
	r.training, r.validation = newDealtRows(r.axes.World, training), validation
	if r.labels, err = gatherOwn(ctx, r.axes.World, validation.Labels(), validation.Counts()); err == nil && r.cfg.Data == "" {
		r.truth, err = gatherTruth(ctx, r.axes.World, validation)
	}
	if err != nil {
		return fmt.Errorf("train rec: %w", err)
	}
	if math.IsNaN(table.AUC(make([]float64, len(r.labels)), r.labels)) {
		return fmt.Errorf("train rec: all %d rows to validate on have the label %v, so nothing can be told from them: use more rows, a larger --validation, or another --positive", len(r.labels), r.labels[0])
	}
	if saved != nil && !saved.isOf(r.training) {
		return fmt.Errorf("train rec: %w", r.changed(saved))
	}
	if saved != nil {
		return nil
	}
	note, err := r.cfg.size().check(r.training.Len(), r.settings, "rows")
	if err != nil {
		return fmt.Errorf("train rec: %w", err)
	}
	if note != "" {
		r.report.Notice(note)
	}
	r.cfg.size().tellSteps(r.report, r.cfg.Epochs, r.training.Len(), r.settings.Given(), "rows")
	return nil
}

// changed says that the rows are others than those of a saved run. The settings
// have been compared.
func (r *recRun) changed(saved *SavedRun) error {
	var was RecConfig
	if err := saved.Recipe(&was); err == nil && was.Data != r.cfg.Data {
		return fmt.Errorf("the rows of %s are not those which %s was saved with, of %s: drop --data, or %s",
			r.validation.Name(), saved.Checkpoint.Path, cmp.Or(was.Data, "a generated table"), carryOver("rec", r.cfg.Out, r.cfg.Data))
	}
	return fmt.Errorf("the rows of %s have changed since %s was saved: put them back as they were, or %s",
		r.validation.Name(), saved.Checkpoint.Path, carryOver("rec", r.cfg.Out, r.cfg.Data))
}

// recommender makes the model.
func (c RecConfig) recommender(b *nn.Build, schema table.Schema, scale table.Scale) (*Recommender, error) {
	bottom, err := widths("bottom", c.Bottom)
	if err != nil {
		return nil, err
	}
	top, err := widths("top", c.Top)
	if err != nil {
		return nil, err
	}
	return NewRecommender(b, RecommenderConfig{ModelType: c.Model, Width: c.Width, Bottom: bottom, Top: top, Schema: schema, Scale: scale})
}

// task is what there is to know about training a recommender on a table.
func (r *recRun) task(saved *SavedRun) Task[table.Batch] {
	t := Task[table.Batch]{
		Name: "rec", About: r.about(), Model: r.recommender.Model, Axes: r.axes,
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return optim.NewAdagrad(params, optim.AdagradOptions{LR: r.cfg.LR, LRDecay: r.cfg.Decay})
		},
		Loss: func(c *nn.Ctx, model any, b table.Batch) *tensor.Tensor {
			return tensor.BCEWithLogits(r.recommender.Logits(c, model.(nn.ModuleN), b), tensor.On(c.Device()).FromFloat32(b.Labels, b.Rows))
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[table.Batch], error) {
			return r.feed(ctx, saved, from)
		},
		Contents: r.training.own.Contents,
		Samples:  r.training.Len(),
		Size:     func(b table.Batch) int { return b.Rows }, Unit: "rows",
		Evaluate: r.evaluate, Files: r.files,
	}
	if served := r.recommender.served; served != nil {
		t.Elsewhere, t.Around = served, []nn.Interceptor{served.model}
		if served.layers != nil {
			t.Strategy = served.layers.spread
			adagrad := t.Optimizer
			t.Optimizer = func(params []*nn.Parameter) optim.Optimizer { return elsewhereOptimizer{adagrad(params)} }
		}
	}
	return t
}

// about describes the run. Of a generated table it says how good a model can be.
func (r *recRun) about() About {
	s := r.recommender.Config.Schema
	a := About{
		Given: r.settings.Summary(),
		Model: r.recommender.String(),
		Data: fmt.Sprintf("%s: %d rows to train on, %d to validate; %s by %s", r.validation.Name(), r.training.Len(), len(r.labels),
			s.Label, strings.Join(slices.Concat(s.Categories, s.Numbers), ", ")),
	}
	if r.truth != nil {
		best := fmt.Sprintf("%.4f", table.AUC(r.truth, r.labels))
		a.Goal = fmt.Sprintf("an area under the curve near %s, which the true probabilities of the labels reach", best)
		a.Beside = "the true probabilities: " + best
	}
	return a
}

// feed starts making batches, from where the saved run was.
func (r *recRun) feed(ctx context.Context, saved *SavedRun, from data.LoaderState) (Feed[table.Batch], error) {
	sampler, err := data.NewStream(data.StreamConfig{
		Len: r.training.Len(), Total: r.cfg.size().pass(), Rank: r.axes.Data.Rank(), World: r.axes.Data.Size(), Shuffle: true, Seed: r.cfg.dataSeed(),
	})
	if err != nil {
		return nil, err
	}
	loader, err := data.NewLoader(ctx, r.training, sampler, r.recommender.Config.Scale.Collate, data.LoaderConfig{Workers: r.cfg.Workers}, from)
	if other := (*data.ResumeError)(nil); errors.As(err, &other) {
		return nil, r.changed(saved)
	}
	if err != nil {
		return nil, err
	}
	var feed Feed[table.Batch] = loader
	if !r.training.isWhole() {
		feed = &dealtFeed{Loader: loader, rows: r.training, sampler: sampler, pass: r.cfg.size().pass()}
	}
	if r.cfg.looksAhead() {
		feed = newAheadFeed(feed, r.recommender.served, r.recommender, max(1, r.cfg.ahead), r.cfg.Accumulate)
	}
	return feed, nil
}

// evaluate scores the validation rows, of which every rank takes those that it holds.
func (r *recRun) evaluate(ctx context.Context, model any) (Metrics, error) {
	served := r.recommender.served
	if served != nil {
		if err := served.settle(ctx); err != nil {
			return nil, err
		}
		if served.layers != nil {
			if err := served.layers.Pull(ctx); err != nil {
				return nil, err
			}
		}
	}
	own, err := r.recommender.score(ctx, model.(nn.ModuleN), turnsOf(model, r.axes), r.validation, 0, r.validation.Len(), evalBatch, r.cfg.autocast(), onDeviceOf(model))
	cut := tensor.Zeros(1)
	if errors.Is(err, errCut) { // the others must hear of it
		err = nil
		cut.Fill(1)
	}
	if err != nil {
		return nil, err
	}
	if err := r.axes.World.AllReduce(ctx, cut, dist.Max); err != nil {
		return nil, err
	}
	if cut.Item() > 0 {
		return nil, errCut
	}
	share := make([]float32, len(own))
	for i, v := range own {
		share[i] = float32(v) // that is what the model computes in
	}
	all, err := gatherOwn(ctx, r.axes.World, share, r.validation.Counts())
	if err != nil {
		return nil, err
	}
	logits := make([]float64, len(all))
	for i, v := range all {
		logits[i] = float64(v)
	}
	metrics := recMetrics(logits, r.labels)
	if served != nil && r.cfg.looksAhead() {
		stale, err := served.staleness(ctx)
		if err != nil {
			return nil, err
		}
		metrics = append(metrics, stale)
	}
	return metrics, nil
}

// evalBatch is how many rows are scored at a time.
const evalBatch = 4096

// recMetrics says how well logits tell labels.
func recMetrics(logits []float64, labels []float32) Metrics {
	return Metrics{
		{Name: "auc", Value: table.AUC(logits, labels), Higher: true},
		{Name: "log_loss", Value: table.LogLoss(logits, labels)},
	}
}

// files writes what is to know besides the weights.
func (r *recRun) files(w *checkpoint.Writer) error {
	return w.WriteJSON(configFile, r.recommender.Config)
}
