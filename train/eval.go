// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
)

// EvalOptions say on what a model is evaluated.
type EvalOptions struct {
	// Data is a path, of the kind that the model's recipe takes; "" is what the
	// model was trained on.
	Data string
	// All takes everything in Data; else it is the part that training holds out.
	All bool
	// Batch is how many samples go through the model at once; 0 leaves it to the
	// recipe.
	Batch int
	// Tokens bounds those of a text; 0 is all.
	Tokens int
	// Context is how many tokens a language model sees at once; 0 is as many as
	// in training or, where nobody knows, as the model takes, up to 1,024.
	Context int
}

// EvalResult is how good a model is.
type EvalResult struct {
	Task    string // "lm"
	Path    string // of the checkpoint or folder that was opened
	Step    int    // of the checkpoint; 0 where there is none
	Model   string // for people
	Data    string // for people
	Samples int    // that the figures are of, in Unit
	Unit    string // "tokens"
	Metrics Metrics

	notes []string // for people who compare the figures with those of training
}

// Eval opens the model in dir (the best weights of a run or, where it keeps none, its
// newest good checkpoint; one checkpoint's own directory; or a folder of a language model that Hugging
// Face's tools wrote) and evaluates it. What kind of model it is, the
// checkpoint says. It calls notice where the best weights are not those of the last step,
// for each newer checkpoint that is damaged and
// was passed over, and where data or an adapter's base are no more those of training.
func Eval(ctx context.Context, dir string, o EvalOptions, notice func(text string)) (EvalResult, error) {
	if o.Batch < 0 || o.Tokens < 0 || o.Context < 0 {
		return EvalResult{}, fmt.Errorf("eval: batches of %d, %d tokens, %d at once: none may be negative", o.Batch, o.Tokens, o.Context)
	}
	at, err := findModel(ctx, dir, notice)
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

// changed notes where the data that a checkpoint was trained on are others now.
func (r *EvalResult) changed(ck *checkpoint.Checkpoint, fingerprint string) {
	var from data.LoaderState
	if p, err := ck.ReadProgress(); err != nil || json.Unmarshal(p.Loader, &from) != nil || from.Order == "" {
		return
	}
	if !strings.Contains(from.Order, fingerprint) {
		r.notes = append(r.notes, fmt.Sprintf("the data have changed since %s was saved: what is held out now may have been trained on", ck.Path))
	}
}

// task returns what kind of model lies in a place, as the recipes are called.
func (at place) task() (string, error) {
	if ck := at.checkpoint; ck != nil && !ck.Has(checkpoint.ProgressFile) && !ck.Has(configFile) && !ck.Has(adapterConfigFile) {
		return "", fmt.Errorf("%s is a checkpoint of a program with a loop of its own (it has neither %s nor %s): that program can open it", at.path, checkpoint.ProgressFile, configFile)
	}
	if at.checkpoint == nil || !at.checkpoint.Has(checkpoint.ProgressFile) {
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

// wantTask reports a checkpoint of another recipe. One that does not say what it
// is may be any.
func wantTask(ck *checkpoint.Checkpoint, task string) error {
	if !ck.Has(checkpoint.ProgressFile) {
		return nil
	}
	if got, err := (place{ck.Path, ck}).task(); err != nil || got != task {
		if err == nil {
			err = fmt.Errorf("it is a checkpoint of the task %q, not %q", got, task)
		}
		return err
	}
	return nil
}
