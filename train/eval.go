// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
)

// EvalOptions say on which data [Eval] evaluates a model.
type EvalOptions struct {
	// Data is a path of the kind that the model's recipe takes. "": the data that the
	// model was trained on.
	Data string
	// All evaluates on everything in Data, not only on the part that training holds
	// out.
	All bool
	// Batch is the number of samples that go through the model at once. 0: what suits
	// the recipe.
	Batch int
	// Tokens limits the number of tokens of a text. 0: all.
	Tokens int
	// Context is the number of tokens that a language model sees at once. 0: as in
	// training or, if that is not known, what the model takes, up to 1,024.
	Context int
}

// EvalResult says how good a model is.
type EvalResult struct {
	Task    string // recipe of the model, such as "lm"
	Path    string // of the checkpoint or folder
	Step    int    // of the checkpoint; 0 of a folder
	Model   string // description for people
	Data    string // description for people
	Samples int    // number of samples, in Unit
	Unit    string // such as "tokens"
	Metrics Metrics
	// Confusion counts the samples of each class by what they were taken for: of classifiers of
	// images, and of texts or words of one class, with up to 256 classes; else nil.
	Confusion *Confusion

	notes []string // for people who compare the metrics with those of training
}

// Eval evaluates a model. from is where a run has its checkpoints, of which Eval takes
// the best weights or, if the run kept none, the newest good checkpoint; or the
// folder of one checkpoint; or a folder with a language model that Hugging Face's
// tools wrote. The checkpoint says what kind of model it is.
//
// Eval calls notice if the best weights are not those of the last step, for each
// newer checkpoint that is damaged, and if the data or the base of an adapter have
// changed since training.
func Eval(ctx context.Context, from storage.Storage, o EvalOptions, notice func(text string)) (EvalResult, error) {
	if o.Batch < 0 || o.Tokens < 0 || o.Context < 0 {
		return EvalResult{}, fmt.Errorf("eval: batches of %d, %d tokens, %d at once: none may be negative", o.Batch, o.Tokens, o.Context)
	}
	at, err := findModel(ctx, from, notice)
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	task, err := at.task()
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	var result EvalResult
	switch task {
	case "lm":
		result, err = at.evalLM(ctx, o)
	case "vision":
		result, err = evalVision(ctx, at.checkpoint, o)
	case "rec":
		result, err = at.evalRec(ctx, o)
	case "embed":
		result, err = at.evalEmbed(ctx, o)
	case "classify":
		result, err = at.evalClassify(ctx, o)
	default:
		return EvalResult{}, fmt.Errorf("eval: %s is a checkpoint of the task %q, which is not one of `cohort train`: the program that trained it can evaluate it", at.path, task)
	}
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	for _, text := range result.notes {
		notice(text)
	}
	result.Task, result.Path = task, at.path
	if at.checkpoint != nil {
		result.Step = at.checkpoint.Step
	}
	return result, nil
}

// changed adds a note if the data have changed since the checkpoint was saved.
func (r *EvalResult) changed(ck *checkpoint.Checkpoint, fingerprint string) {
	var from data.LoaderState
	if p, err := ck.ReadProgress(); err != nil || json.Unmarshal(p.Loader, &from) != nil || from.Order == "" {
		return
	}
	if !strings.Contains(from.Order, fingerprint) {
		r.notes = append(r.notes, fmt.Sprintf("the data have changed since %s was saved: what is held out now may have been trained on", ck.Path))
	}
}

// task returns the name of the recipe that made the model in a place.
func (at place) task() (string, error) {
	if ck := at.checkpoint; ck != nil && !ck.HasProgress() && !ck.Has(configFile) && !ck.Has(adapterConfigFile) {
		return "", fmt.Errorf("%s is a checkpoint of a program with a loop of its own (it has neither the value %q nor %s): that program can open it", at.path, checkpoint.ProgressValue, configFile)
	}
	if at.checkpoint == nil || !at.checkpoint.HasProgress() {
		return "lm", nil // a folder with a config.json, which says more
	}
	p, err := at.checkpoint.ReadProgress()
	if err != nil {
		return "", err
	}
	if p.Task == "" {
		return "lm", nil // there was nothing else
	}
	return p.Task, nil
}

// wantTask reports a checkpoint of another recipe. A checkpoint that does not name
// its recipe may be of any.
func wantTask(ck *checkpoint.Checkpoint, task string) error {
	if !ck.HasProgress() {
		return nil
	}
	if got, err := placeOf(ck).task(); err != nil || got != task {
		if err == nil {
			err = fmt.Errorf("it is a checkpoint of the task %q, not %q", got, task)
		}
		return err
	}
	return nil
}
