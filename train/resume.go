// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// Resume has a program with a loop of its own go on where it was: on as many ranks
// as there are now, after a restart or a change of the machines that take part. ([Run]
// does so by itself.)
//
//	step, err := train.Resume(ctx, group, dir, func(ck *checkpoint.Checkpoint) error {
//		opt.SetNumSteps(ck.Step)
//		return errors.Join(
//			ck.LoadTensors(checkpoint.Model, nn.StateDict(net).All()),
//			ck.LoadTensors(checkpoint.Optimizer, opt.State().All()),
//			ck.Value("loader", &state), // of the loader, made with it later
//		)
//	})
//	for ; err == nil && step < steps; step++ { … }
//
// Rank 0 looks for the newest good checkpoint in dir, which all ranks see; every
// rank calls load with that one, and Resume returns its step. Without a checkpoint
// the step is 0, and load is not called. Rank 0 says on standard error which damaged ones it passed
// over. When one rank cannot load it, all have an error that names that rank. The launcher
// does not start the ranks again where it is of another model (a *checkpoint.StateDictError),
// or where rank 0 finds none that is good; another error may be over the next time.
func Resume(ctx context.Context, group *dist.Group, dir string, load func(ck *checkpoint.Checkpoint) error) (step int, err error) {
	fail := func(err error) (int, error) { return 0, fmt.Errorf("train: resume from %s: %w", dir, err) }
	// What rank 0 has found, for all.
	var found struct {
		Name string // of the checkpoint
		None bool
		Step int
		Err  string
	}
	var ck *checkpoint.Checkpoint
	if group.Rank() == 0 {
		ck, err = latest(ctx, storage.Dir(dir), func(text string) { fmt.Fprintf(os.Stderr, "train: resume: %s\n", text) })
		switch {
		case errors.Is(err, checkpoint.ErrNone):
			found.None = true
		case err != nil:
			found.Err = err.Error()
		default:
			found.Name, found.Step = ck.Name, ck.Step
		}
	}
	mine := err
	if found, err = dist.BroadcastObject(ctx, group, found, 0); err != nil {
		return fail(err)
	}
	switch {
	case found.Err != "" && group.Rank() == 0:
		return fail(settled(mine))
	case found.Err != "":
		return fail(fmt.Errorf("rank 0: %s", found.Err))
	case found.None:
		return 0, nil
	}
	if group.Rank() != 0 {
		ck, err = checkpoint.Open(ctx, storage.Dir(dir), found.Name)
	}
	if err == nil {
		err = load(ck)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	texts, gathered := dist.AllGatherObject(ctx, group, text)
	switch {
	case errors.As(err, new(*checkpoint.StateDictError)):
		return fail(settled(err))
	case err != nil: // rank 0 has just found it good: a server, a file system that lags behind
		return fail(err)
	case gathered != nil:
		return fail(gathered)
	}
	for rank, text := range texts {
		if text != "" {
			return fail(fmt.Errorf("rank %d: %s", rank, text))
		}
	}
	return found.Step, nil
}
