// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/tensor"
)

// Model is a trained model with all that its inputs go through: the tokenizer, the size of
// images, the columns of tables, the names of classes. One of its parts is not nil.
type Model struct {
	Task string // that it was trained for: lm, vision, rec, classify or embed
	Path string // of the checkpoint or folder
	Step int    // of the checkpoint; 0 of a folder

	LM      *LanguageModel
	Images  *Classifier
	Rows    *Recommender
	Texts   *TextClassifier
	Vectors *TextEncoder

	// Format is how the tables are written that the Rows were trained on.
	Format table.Format
}

// LanguageModel is a model that continues texts.
type LanguageModel struct {
	models.CausalLM
	Tokenizer  *tokenizer.Tokenizer
	Template   *chat.Template // of conversations; nil if the folder has none
	Generation Generation     // what the folder says of generating text
}

// Load loads a model of any recipe. from is where a run has its checkpoints, of which Load
// takes the best weights or, if the run kept none, the newest good one; or the folder of one
// checkpoint ([AtStep]); or a folder that Hugging Face's save_pretrained, PEFT or
// sentence-transformers wrote. Load calls notice, which may be nil, as [LoadLM] does.
func Load(ctx context.Context, from storage.Storage, notice func(text string)) (*Model, error) {
	if notice == nil {
		notice = func(string) {}
	}
	at, err := findModel(ctx, from, notice)
	if err != nil {
		return nil, fmt.Errorf("load a model: %w", err)
	}
	m := &Model{Path: at.path}
	if at.checkpoint != nil {
		m.Step = at.checkpoint.Step
	}
	if m.Task, err = at.task(); err != nil {
		return nil, fmt.Errorf("load a model: %w", err)
	}
	if m.Task == "lm" && at.checkpoint == nil {
		p, err := pretrainedIn(ctx, at.from, "")
		if err == nil && p != nil {
			m.Task = "vision"
			m.Images, err = p.open()
			p.close()
		}
		if err != nil {
			return nil, fmt.Errorf("load a model: %w", err)
		}
		if p != nil {
			return m, nil
		}
	}
	switch m.Task {
	case "vision":
		m.Images, err = OpenClassifier(at.checkpoint)
	case "rec":
		m.Rows, m.Format, err = at.loadRows()
	case "lm", "classify", "embed":
		err = at.loadTexts(ctx, m, notice)
	default:
		err = fmt.Errorf("%s is a checkpoint of the task %q, which is not one of `cohort train`: the program that trained it can open it", at.path, m.Task)
	}
	if err != nil {
		return nil, fmt.Errorf("load a model: %w", err)
	}
	return m, nil
}

// loadRows opens a recommender, and how its tables are written.
func (at place) loadRows() (*Recommender, table.Format, error) {
	r, err := OpenRecommender(at.checkpoint)
	if err != nil || !at.checkpoint.HasProgress() {
		return r, table.Format{}, err
	}
	p, err := at.checkpoint.ReadProgress()
	if err != nil {
		return nil, table.Format{}, err
	}
	run := DefaultRec()
	if err := json.Unmarshal(p.Recipe, &run); err != nil {
		return nil, table.Format{}, fmt.Errorf("the recipe in %s: %w", at.path, err)
	}
	f, err := run.format()
	return r, f, err
}

// loadTexts opens a model of texts. A folder does not name its task: its files do.
func (at place) loadTexts(ctx context.Context, m *Model, notice func(text string)) error {
	fail := func(err error) error { return fmt.Errorf("%s: %w", at.path, err) }
	if has, err := hasFile(ctx, at.from, modulesFile); err == nil && has && !isDirectory(at.from) {
		return fail(fmt.Errorf("a folder of sentence-transformers has folders in it, which are read from a directory of this machine: copy it"))
	}
	dir, done, err := at.local(ctx)
	if err != nil {
		return fail(err)
	}
	defer done()
	opts := at.weightsFrom(ctx, []models.LoadOption{models.WithNotice(notice)})
	if at.checkpoint == nil || !at.checkpoint.HasProgress() {
		if m.Task, err = folderTask(dir, opts); err != nil {
			return fail(err)
		}
	}
	switch m.Task {
	case "classify":
		m.Texts, err = at.loadTextClassifier(dir, opts)
	case "embed":
		if isPlain(dir) {
			notice(fmt.Sprintf("%s says nothing of vectors of texts: they are the means of the features of their tokens, as in sentence-transformers", at.path))
		}
		m.Vectors, err = loadTextEncoder(dir, opts)
	default:
		m.LM, err = at.loadLanguageModel(ctx, dir, opts)
		return err
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

const modulesFile = "modules.json" // of sentence-transformers

func isDirectory(from storage.Storage) bool { _, ok := from.(*storage.Directory); return ok }

// isPlain says whether a folder is of an encoder alone, without what makes vectors of texts.
func isPlain(dir string) bool {
	for _, name := range []string{modulesFile, models.SentenceFile} {
		if isFile(filepath.Join(dir, name)) {
			return false
		}
	}
	return true
}

// folderTask says for which task the model in a folder was trained.
func folderTask(dir string, opts []models.LoadOption) (string, error) {
	if hasAdapter(dir) {
		return "lm", nil
	}
	if !isPlain(dir) {
		return "embed", nil
	}
	plan, err := models.Outline(dir, opts...)
	if err != nil {
		return "", err
	}
	switch e, ok := plan.(models.Encoder); {
	case !ok:
		return "lm", nil
	case e.Predicts().Classes != nil:
		return "classify", nil
	}
	return "embed", nil
}

// loadLanguageModel opens a language model with its template and its settings.
func (at place) loadLanguageModel(ctx context.Context, dir string, opts []models.LoadOption) (*LanguageModel, error) {
	m, tok, err := at.loadLM(ctx, opts...)
	if err != nil {
		return nil, err
	}
	l := &LanguageModel{CausalLM: m, Tokenizer: tok}
	if l.Generation, err = generationOf(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", at.path, err)
	}
	for _, folder := range folders(dir) {
		if l.Template, err = chat.Load(folder); err == nil || !errors.Is(err, chat.ErrNoTemplate) {
			break
		}
	}
	if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return nil, fmt.Errorf("%s: %w", at.path, err)
	}
	return l, nil
}

// folders are those that may have files of a model: its own and, of an adapter, its base's.
func folders(dir string) []string {
	if base, err := modelFolder(dir); err == nil && base != dir {
		return []string{dir, base}
	}
	return []string{dir}
}

// Input is one input of a [Model], of the kind that it takes.
type Input struct {
	Text  string         // of a text classifier; of a TextEncoder
	Words []string       // of a text classifier of words
	Image vision.Image   // of a classifier of images
	Row   map[string]any // of a recommender: string, int64, float64, bool or nil, by the names of columns
}

// Prediction is what a model says of one input.
type Prediction struct {
	// Probabilities are those of the model's classes, in order; nil if it has none, and of a
	// classifier of words.
	Probabilities []float64
	// Class is the likeliest class, Probability how likely it is: of a recommender, that the
	// label is 1.
	Class       string
	Probability float64
	// Classes are all that are likelier than not, of a model that tells several.
	Classes []string
	// Value is what a model of a number tells.
	Value float64
	// Tags are the classes of the words, and TagProbabilities how likely they are. Words
	// that are beyond what the model takes at once have none: "".
	Tags             []string
	TagProbabilities []float64
	// Cut says that the text was too long and lost its end.
	Cut bool
}

// FieldError says that a field of an input is not as wanted.
type FieldError struct {
	Field  string // "" for the input as a whole
	Detail string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Detail
	}
	return fmt.Sprintf("the field %q: %s", e.Field, e.Detail)
}

// Predicts reports a model that predicts nothing, as an error that names what it is for.
func (m *Model) Predicts() error {
	switch {
	case m.LM != nil:
		return fmt.Errorf("%s is a language model, which writes text: use cohort generate, or Generate", m.Path)
	case m.Vectors != nil:
		return fmt.Errorf("%s is an encoder, which makes vectors of texts: use cohort embed, or Embed", m.Path)
	}
	return nil
}

// Classes are the names of the classes that the model tells apart; nil if it has none.
func (m *Model) Classes() []string {
	switch {
	case m.Images != nil:
		return m.Images.Config.Classes
	case m.Texts != nil && m.Texts.Kind != kindRegression:
		return m.Texts.Classes
	}
	return nil
}

// Kind is what a prediction has: "class", "classes", "tags", "value" or "probability".
func (m *Model) Kind() string {
	switch {
	case m.Images != nil:
		return "class"
	case m.Texts != nil:
		return map[string]string{kindSingle: "class", kindMulti: "classes", kindTags: "tags", kindRegression: "value"}[m.Texts.Kind]
	}
	return "probability"
}

// Predict returns what the model says of each input, in their order. It computes batch
// inputs at a time; 0 is what suits the model.
func (m *Model) Predict(ctx context.Context, inputs []Input, batch int) ([]Prediction, error) {
	ready := make([]Prepared, len(inputs))
	for i, err := range m.PrepareAll(inputs, ready) {
		if err != nil {
			return nil, fmt.Errorf("predict: input %d: %w", i, err)
		}
	}
	return m.Run(ctx, ready, batch)
}

// Prepared is an input in the form that the model's passes take.
type Prepared struct {
	ids   []int64
	words []int // the word of each token, -1 of others
	count int   // of words
	cut   bool
	image vision.Image
	row   table.Row
}

// PrepareAll prepares inputs, several at a time. Each has an error of its own.
func (m *Model) PrepareAll(inputs []Input, out []Prepared) []error {
	errs := make([]error, len(inputs))
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(inputs))
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(inputs); i += workers {
				out[i], errs[i] = m.Prepare(inputs[i])
			}
		})
	}
	wg.Wait()
	return errs
}

// Prepare brings an input into the form that the model takes. What is wrong with a field is a
// *[FieldError].
func (m *Model) Prepare(in Input) (p Prepared, err error) {
	switch {
	case m.Images != nil:
		p.image, err = m.Images.Config.fit(in.Image)
	case m.Texts != nil:
		return m.Texts.prepare(in)
	case m.Vectors != nil:
		return m.Vectors.prepare(in.Text)
	case m.Rows != nil:
		p.row, err = m.Rows.Config.row(m.Format, in.Row)
	default:
		err = m.Predicts()
	}
	return p, err
}

// defaultBatches is how many inputs go through a model at once where nobody says.
const defaultBatch = 32

// Run predicts what was prepared. Texts of one length are computed together.
func (m *Model) Run(ctx context.Context, ready []Prepared, batch int) ([]Prediction, error) {
	if err := m.Predicts(); err != nil {
		return nil, err
	}
	if batch <= 0 {
		if batch = defaultBatch; m.Rows != nil {
			batch = evalBatch
		}
	}
	out := make([]Prediction, len(ready))
	err := inBatches(ctx, ready, batch, func(part []int) error {
		some := make([]Prepared, len(part))
		for i, at := range part {
			some[i] = ready[at]
		}
		var told []Prediction
		var err error
		switch {
		case m.Images != nil:
			told, err = m.Images.predict(ctx, some)
		case m.Texts != nil:
			told, err = m.Texts.predict(ctx, some)
		default:
			told, err = m.Rows.predict(ctx, some)
		}
		for i, p := range told {
			p.Cut = some[i].cut
			out[part[i]] = p
		}
		return err
	})
	return out, err
}

// inBatches calls pass with the numbers of so many inputs at a time, those of about one
// length together.
func inBatches(ctx context.Context, ready []Prepared, batch int, pass func(part []int) error) error {
	order := make([]int, len(ready))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(ready[b].ids), len(ready[a].ids)) })
	for part := range slices.Chunk(order, batch) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := pass(part); err != nil {
			return err
		}
	}
	return nil
}

// likeliest returns the probabilities of logits, and the class that has the highest.
func likeliest(logits []float32, classes []string) (p Prediction) {
	p.Probabilities = softmax(logits)
	best := 0
	for i, v := range p.Probabilities {
		if v > p.Probabilities[best] {
			best = i
		}
	}
	p.Class, p.Probability = classes[best], p.Probabilities[best]
	return p
}

// softmax returns the probabilities of logits.
func softmax(logits []float32) []float64 {
	most, sum := math.Inf(-1), 0.0
	for _, v := range logits {
		most = max(most, float64(v))
	}
	out := make([]float64, len(logits))
	for i, v := range logits {
		out[i] = math.Exp(float64(v) - most)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// finite reports scores that are no numbers.
func finite(logits *tensor.Tensor) ([]float32, error) {
	values := logits.To(tensor.Float32).Float32s()
	for _, v := range values {
		if v != v {
			return nil, errors.New("a score of the model is NaN: the model has weights that are not finite, or too large")
		}
	}
	return values, nil
}
