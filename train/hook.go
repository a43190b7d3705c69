// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/parallel"
)

// hookSection has what a hook keeps between steps, such as what a rank has not sent yet.
const hookSection = "hook"

// hookOf returns the communication hook of a setting: bf16, fp16 or powersgd:RANK, which may say
// the first step that compresses (powersgd:RANK:STEP); nil for "".
func hookOf(setting string) (parallel.Hook, error) {
	name, numbers, _ := strings.Cut(setting, ":")
	rank, start, hasStart := strings.Cut(numbers, ":")
	switch {
	case setting == "":
		return nil, nil
	case setting == "bf16":
		return parallel.BF16Hook(), nil
	case setting == "fp16":
		return parallel.FP16Hook(), nil
	case name == "powersgd":
		o, err := parallel.PowerSGD{}, error(nil)
		if o.Rank, err = strconv.Atoi(rank); err != nil || o.Rank < 1 || o.Rank > 1<<16 {
			break
		}
		if hasStart {
			if o.StartStep, err = strconv.Atoi(start); err != nil || o.StartStep < 1 {
				break
			}
		}
		return parallel.PowerSGDHook(o), nil
	}
	return nil, fmt.Errorf("the hook is %q, want bf16, fp16 or powersgd:RANK, such as powersgd:4, or powersgd:4:100 to compress from step 100 on", setting)
}

// checkHook refuses a hook that is none, one beside axes on which no hook runs, and Join.
func (c MeshConfig) checkHook(task string) error {
	if c.Join {
		return fmt.Errorf("train %s: --join is for ranks whose data end at different steps, and this run deals out its samples so that all ranks end at the same step: leave --join out (a program of yours calls DDP.Join, see examples/join)", task)
	}
	if _, err := hookOf(c.Hook); err != nil {
		return fmt.Errorf("train %s: --hook: %w", task, err)
	}
	for _, name := range axisNames {
		if n := *c.size(name); c.Hook != "" && name != axisReplicate && n > 1 {
			return fmt.Errorf("train %s: --hook %s averages the gradients of replicas of the whole model, and --%s is %d: leave one of them out", task, c.Hook, name, n)
		}
	}
	return nil
}

// ddpOptions are the options of a run on replicas.
func (r *trainer[B]) ddpOptions() ([]parallel.DDPOption, error) {
	opts := []parallel.DDPOption{parallel.WithOnStraggler(nil)} // the ledger tells, for all strategies
	hook, err := hookOf(r.o.Hook)
	if err != nil {
		return nil, r.errorf("Options.Hook: %w", err)
	}
	if hook != nil {
		opts = append(opts, parallel.WithHook(hook))
	}
	return opts, nil
}

// checkHooked refuses a hook where the model is spread in a way that has none.
func (r *trainer[B]) checkHooked() error {
	switch r.model.(type) {
	case *parallel.DDP, *parallel.Single:
		return nil
	}
	if r.o.Hook != "" {
		return r.errorf("the hook %s averages the gradients of replicas, and the model is spread as %v: leave the hook (--hook) out", r.o.Hook, r.model)
	}
	return nil
}

// hookParts returns what a checkpoint has of the hook; nil for one that keeps nothing.
func (r *trainer[B]) hookParts() (parts []checkpoint.Part) {
	d, is := r.model.(*parallel.DDP)
	if !is || r.o.Hook == "" || r.axes.Data.Size() != r.axes.World.Size() {
		return nil
	}
	for _, t := range d.HookState() {
		parts = append(parts, checkpoint.Part{Name: t.Name, Tensor: t.Tensor})
	}
	return parts
}

// savedHook returns hookParts if a checkpoint has them all. If it has not, it says why the hook
// begins anew: what a rank has not sent is the rank's own.
func (r *trainer[B]) savedHook(ck *checkpoint.Checkpoint) []checkpoint.Part {
	parts := r.hookParts()
	if parts == nil {
		return nil
	}
	why := "has no state of the hook"
	if src, err := ck.Source(hookSection); err == nil {
		saved := make(map[string][]int)
		for _, info := range src.Infos() {
			saved[info.Name] = info.Shape
		}
		other := slices.ContainsFunc(parts, func(p checkpoint.Part) bool { return !slices.Equal(saved[p.Name], p.Shape) })
		if !other && len(saved) == len(parts) {
			return parts
		}
		why = "has the state of another hook"
		if ranks := ck.Manifest().Ranks; ranks != r.axes.World.Size() {
			why = fmt.Sprintf("has what %d ranks have not sent yet, and this run has %d", ranks, r.axes.World.Size())
		}
	}
	r.tellHookAnew(ck.Step, why)
	return nil
}

// tellHookAnew says why a hook does not go on from the checkpoint of a step.
func (r *trainer[B]) tellHookAnew(step int, why string) {
	r.report.Notice(fmt.Sprintf("the hook %s begins anew, with whole gradients first: the checkpoint of step %d %s", r.o.Hook, step, why))
}

// resumeHook has the hook go on with what was loaded.
func (r *trainer[B]) resumeHook() error {
	if d, is := r.model.(*parallel.DDP); is {
		if err := d.HookResumed(); err != nil {
			return r.errorf("resume: %w", err)
		}
	}
	return nil
}
