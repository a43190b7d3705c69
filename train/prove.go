// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train/proof"
)

// ProveOptions say how [Prove] does a step again.
type ProveOptions struct {
	// Mesh arranges other ranks than the run had, all in this process; the zero value is
	// the ranks of the run.
	Mesh MeshConfig
	// Data is in place of the path in the checkpoint; "" for that.
	Data string
	// Tolerance is the relative difference that is allowed where bits are not compared;
	// 0: 1e-5, and more for steps that compute in bfloat16.
	Tolerance float64
	Notice    func(text string) // is told what the user should know; may be nil
}

// NoProofError says that a checkpoint has no proof, so that nothing can be compared.
type NoProofError struct {
	Path string
	Err  error // nil where there is no file
}

func (e *NoProofError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s has no proof that can be read: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s has no proof: the run that saved it did no step after it, or was of a program that makes none; prove an earlier checkpoint", e.Path)
}

func (e *NoProofError) Unwrap() error { return e.Err }

// Prove loads a checkpoint of a run of [LM], [Vision] or [Rec], as a run that resumes does, and
// does the step after it again. It compares this step with what the run itself noted of it.
// from is the folder of one checkpoint, or where the run has its checkpoints, whose newest one with a
// proof is taken. The ranks are goroutines of this process. It changes no files.
//
// A checkpoint without a proof is a [NoProofError]; what differs is in the Comparison, not
// an error.
func Prove(ctx context.Context, from storage.Storage, o ProveOptions) (*proof.Comparison, error) {
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	ck, run, err := findProof(ctx, from, o.Notice)
	if err != nil {
		return nil, fmt.Errorf("prove: %w", err)
	}
	again, err := replayRecipe(ctx, ck, run, o)
	if err != nil {
		return nil, fmt.Errorf("prove %s: %w", ck.Path, err)
	}
	return proof.Compare(run, again, o.Tolerance), nil
}

// ProveTask is [Prove] for a program that calls [Run]: all ranks of the group call it with the
// task and the options that they give to Run, and a storage that all of them see. The Comparison is
// nil on all ranks but rank 0.
func ProveTask[B any](ctx context.Context, group *dist.Group, task Task[B], o Options, from storage.Storage) (*Comparison, error) {
	ck, run, err := findProof(ctx, from, func(string) {})
	if err != nil {
		return nil, fmt.Errorf("prove: %w", err)
	}
	p := &replay{ck: ck, run: run}
	if err := Run(context.WithValue(ctx, replayKey{}, p), group, task, o, Discard); err != nil {
		return nil, fmt.Errorf("prove %s: %w", ck.Path, err)
	}
	switch {
	case group.Rank() != 0:
		return nil, nil
	case p.done == nil:
		return nil, fmt.Errorf("prove %s: %w", ck.Path, errNotFinite)
	}
	return proof.Compare(run, p.done, 0), nil
}

// findProof opens the checkpoint in a folder, or the newest one of a run that has a proof.
func findProof(ctx context.Context, from storage.Storage, notice func(text string)) (*checkpoint.Checkpoint, *proof.Proof, error) {
	ck, err := latest(ctx, from, notice)
	if err != nil {
		return nil, nil, err
	}
	run, err := ReadProof(ck)
	if err == nil || ck.Name == "" {
		return ck, run, err
	}
	steps, listed := checkpoint.Steps(ctx, from)
	if listed != nil {
		return nil, nil, listed
	}
	for _, step := range steps {
		if step >= ck.Step {
			continue
		}
		older, opened := checkpoint.Open(ctx, from, checkpoint.StepName(step))
		if opened != nil {
			continue
		}
		if run, read := ReadProof(older); read == nil {
			notice(err.Error() + "; this is about the one of step " + fmt.Sprint(step))
			return older, run, nil
		}
	}
	return nil, nil, err
}

// ReadProof returns the proof of a checkpoint.
func ReadProof(ck *checkpoint.Checkpoint) (*proof.Proof, error) {
	text, err := readProofFile(ck)
	if err != nil {
		return nil, &NoProofError{Path: ck.Path, Err: err}
	}
	if text == nil {
		return nil, &NoProofError{Path: ck.Path}
	}
	p, err := proof.Parse(text)
	if err == nil && p.Step != ck.Step {
		err = fmt.Errorf("it is that of step %d", p.Step)
	}
	if err != nil {
		return nil, &NoProofError{Path: ck.Path, Err: err}
	}
	return p, nil
}

var errNotFinite = errors.New("the step after it was not finite, so nothing can be compared")

// replay is a call of Run that does one step after a checkpoint, and ends.
type replay struct {
	ck   *checkpoint.Checkpoint
	run  *proof.Proof // of the run; nil for none
	done *proof.Proof // of this call, on rank 0
}

// loadedKey is where tests put a function that is given the model of a replay when it was loaded.
type loadedKey struct{}

// replayKey is where a context has it, so that a recipe and the Run that it calls have the
// same.
type replayKey struct{}

// replayOf returns the replay that a call is; nil for a run.
func replayOf(ctx context.Context) *replay {
	p, _ := ctx.Value(replayKey{}).(*replay)
	return p
}

// replayRecipe does the step after a checkpoint of a recipe.
func replayRecipe(ctx context.Context, ck *checkpoint.Checkpoint, run *proof.Proof, o ProveOptions) (*proof.Proof, error) {
	progress, err := ck.ReadProgress()
	if err != nil {
		return nil, err
	}
	given := map[string]string{}
	var shared *SharedConfig
	var call func(ctx context.Context, g *dist.Group, report Reporter) error
	lm, vision, rec := LMConfig{SharedConfig: sharedBefore()}, VisionConfig{SharedConfig: sharedBefore()}, RecConfig{SharedConfig: sharedBefore()}
	var settings any
	var data *string
	switch progress.Task {
	case "lm":
		settings, shared, data = &lm, &lm.SharedConfig, &lm.Data
		call = func(ctx context.Context, g *dist.Group, report Reporter) error { return LM(ctx, g, lm, given, report) }
	case "vision":
		settings, shared, data = &vision, &vision.SharedConfig, &vision.Data
		call = func(ctx context.Context, g *dist.Group, report Reporter) error {
			return Vision(ctx, g, vision, given, report)
		}
	case "rec":
		settings, shared, data = &rec, &rec.SharedConfig, &rec.Data
		call = func(ctx context.Context, g *dist.Group, report Reporter) error {
			return Rec(ctx, g, rec, given, report)
		}
	default:
		return nil, fmt.Errorf("it is of a task %q of another program: that program proves it, by train.ProveTask", progress.Task)
	}
	if err := json.Unmarshal(progress.Recipe, settings); err != nil {
		return nil, fmt.Errorf("the recipe: %w", err)
	}
	if o.Data != "" {
		*data, given["data"] = o.Data, config.Flag
	}
	shared.Out, shared.Storage, shared.Best = replayOut(ck), ck.Storage(), false
	if err := arrangeReplay(progress.Task, shared, o.Mesh, given); err != nil {
		return nil, err
	}
	p := &replay{ck: ck, run: run}
	err = spawnReplay(ctx, p, shared.Ranks, run, func(ctx context.Context, g *dist.Group) error {
		return call(ctx, g, noticer{o.Notice})
	})
	return p.done, err
}

// replayOut returns the directory of a run for the settings of a replay, which writes nothing there.
func replayOut(ck *checkpoint.Checkpoint) string {
	if _, ok := ck.Storage().(*storage.Directory); ok {
		return filepath.Dir(ck.Path)
	}
	return "out"
}

// arrangeReplay makes the settings those of the ranks that do the step again.
func arrangeReplay(task string, shared *SharedConfig, mesh MeshConfig, given map[string]string) error {
	sizes := mesh.sizes()
	if slices.Max(sizes[:]) == 0 {
		return nil
	}
	shared.MeshConfig = mesh
	for i, name := range axisNames {
		if sizes[i] > 0 {
			given[name] = config.Flag
		}
	}
	return shared.FillRanks(task, given)
}

// spawnReplay runs the ranks of a replay. They compute on as many threads as those of the run,
// if this process has not begun to compute.
func spawnReplay(ctx context.Context, p *replay, ranks int, run *proof.Proof, f func(ctx context.Context, g *dist.Group) error) error {
	if run != nil {
		_ = tensor.SetNumThreads(run.Made.Threads) // a comparison tells if they differ
	}
	err := dist.Spawn(context.WithValue(ctx, replayKey{}, p), max(1, ranks), f)
	if err == nil && p.done == nil {
		err = errNotFinite
	}
	return err
}

// noticer is a Reporter of notices alone.
type noticer struct{ notice func(text string) }

func (noticer) Start(Start)           {}
func (noticer) Step(Step)             {}
func (noticer) Evaluation(Evaluation) {}
func (noticer) Saved(Saved)           {}
func (noticer) Finish(Finish)         {}
func (n noticer) Notice(text string)  { n.notice(text) }

// replay does the step after a checkpoint that was loaded, and notes it.
func (r *trainer[B]) replay(ctx context.Context, p *replay) error {
	if feed, ok := r.feed.(ordered); ok && r.feed.State().Order != "" {
		r.order = &orderLog{feed: feed}
		r.order.start.World = r.axes.Data.Size()
	}
	if loaded, ok := ctx.Value(loadedKey{}).(func(model any)); ok {
		loaded(r.task.Model)
	}
	if err := r.expectProof(ctx); err != nil {
		return err
	}
	if err := r.lookAtLoaded(ctx, p); err != nil {
		return err
	}
	mine, err := r.gradients(ctx)
	if err != nil {
		return r.errorf("step %d: %w", r.step+1, err)
	}
	all, err := r.update(ctx, mine)
	if err != nil {
		return err
	}
	done, err := r.endProof(ctx, all)
	if err == nil && r.axes.World.Rank() == 0 {
		p.done = done
	}
	if err != nil {
		return err
	}
	// Nobody leaves before all have finished, which others would take for a failure.
	return r.axes.World.Barrier(ctx)
}

// lookAtLoaded counts in the tensors that are not those which the run saved.
func (r *trainer[B]) lookAtLoaded(ctx context.Context, p *replay) error {
	if p.run == nil {
		return nil
	}
	found := r.recorder.proof
	for _, of := range []struct {
		kind    string
		parts   []checkpoint.Part
		was, is proof.Digests
	}{
		{"weights", r.weightParts(), p.run.Before.Weights, found.Before.Weights},
		{"optimizer", r.optimizerParts(), p.run.Before.Optimizer, found.Before.Optimizer},
	} {
		for i, part := range of.parts {
			was, ok := of.was[part.Name]
			if !ok || was.Sum == of.is[part.Name].Sum {
				continue
			}
			var look proof.Look
			if r.recorder.mine[of.kind][i] {
				look = proof.LookAt(part.Local)
			}
			sums, err := r.sumNumbers(ctx, []int64{look.Zeros, look.Halves})
			if err != nil {
				return r.errorf("prove: %w", err)
			}
			if found.Looks == nil {
				found.Looks = make(map[string]proof.Look)
			}
			found.Looks[part.Name] = proof.Look{Zeros: sums[0], Halves: sums[1]}
		}
	}
	return nil
}
