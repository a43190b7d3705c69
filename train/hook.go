// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/parallel"
)

// hookOf returns the communication hook of a setting: bf16, fp16 or powersgd:RANK; nil for "".
func hookOf(setting string) (parallel.Hook, error) {
	name, rank, _ := strings.Cut(setting, ":")
	switch {
	case setting == "":
		return nil, nil
	case setting == "bf16":
		return parallel.BF16Hook(), nil
	case setting == "fp16":
		return parallel.FP16Hook(), nil
	case name == "powersgd":
		if n, err := strconv.Atoi(rank); err == nil && n >= 1 && n <= 1<<16 {
			return parallel.PowerSGDHook(parallel.PowerSGD{Rank: n}), nil
		}
	}
	return nil, fmt.Errorf("the hook is %q, want bf16, fp16 or powersgd:RANK, such as powersgd:4", setting)
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
	opts := []parallel.DDPOption{parallel.WithOnStraggler(func(s parallel.Straggler) { r.report.Notice(s.String()) })}
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

// tellHook says what of a hook a checkpoint does not have.
func (r *trainer[B]) tellHook() {
	if strings.HasPrefix(r.o.Hook, "powersgd") {
		r.report.Notice(fmt.Sprintf("the hook %s begins anew: a checkpoint has not what a rank has not sent yet, and the first 1000 steps are not compressed", r.o.Hook))
	}
}
