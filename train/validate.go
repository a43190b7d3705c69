// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/nn"
)

// Checks of settings, for all recipes. task is the name of the recipe.

// whole is a setting that is a whole number from lo to hi.
type whole struct {
	name   string
	value  int
	lo, hi int
}

func checkWholes(task string, all []whole) error {
	for _, f := range all {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("train %s: --%s is %d, want %d to %d", task, f.name, f.value, f.lo, f.hi)
		}
	}
	return nil
}

// number is a setting that is any other number. ok is false for NaN too, because a
// comparison with NaN is false.
type number struct {
	name  string
	value float64
	ok    bool
	want  string
}

func checkNumbers(task string, all []number) error {
	for _, f := range all {
		if !f.ok {
			return fmt.Errorf("train %s: --%s is %v, want %s", task, f.name, f.value, f.want)
		}
	}
	return nil
}

// checkPolicies checks the number type of a pass, and what to do in a step that is
// not finite.
func checkPolicies(task, dtype, nan string) error {
	if _, ok := autocasts[dtype]; !ok {
		return fmt.Errorf("train %s: --dtype is %q, want float32 or bfloat16", task, dtype)
	}
	if !isNaNPolicy(nan) {
		return fmt.Errorf("train %s: --nan is %q, want %s", task, nan, strings.Join(nanPolicies, " or "))
	}
	return nil
}

// checkNamed checks that the run's directory has a name.
func checkNamed(task, out string) error {
	if strings.TrimSpace(out) == "" {
		return fmt.Errorf("train %s: --out must name the run's directory", task)
	}
	return nil
}

// conflicting returns the error of settings with which a run cannot resume, or nil
// if there are none.
func conflicting(task, out string, conflicts []string) error {
	if len(conflicts) == 0 {
		return nil
	}
	return fmt.Errorf("train %s: the checkpoint in %s is of another run: %s; drop these flags, or give another --out to start afresh",
		task, out, strings.Join(conflicts, "; "))
}

// checkDecay reports a weight decay that takes a weight away whole: a step of AdamW
// takes the share lr × decay of each weight.
func checkDecay(task string, lr, decay float64) error {
	if lr > 1 || lr*decay < 1 { // the loss shows a learning rate that is too high
		return nil
	}
	return fmt.Errorf("train %s: --lr %v × --weight-decay %v is %.3g, the share of a weight that a step takes away: want less than 1", task, lr, decay, lr*decay)
}

// checkPatience reports a patience in a run that is evaluated at its end only.
func checkPatience(task string, patience, every int) error {
	if patience == 0 || every > 0 {
		return nil
	}
	return fmt.Errorf("train %s: --patience is %d, and without --eval-every there is one evaluation, at the end: give --eval-every", task, patience)
}

// checkMemory reports a model that needs more memory than the machine has, if all
// ranks are on it. The model is made on the meta device. each is the number of bytes
// that a parameter takes, with what the optimizer keeps for it.
func checkMemory(task string, model any, each uint64, c SharedConfig, have uint64) error {
	params := nn.NumParams(model)
	one := float64(params) * float64(each)
	need := one * float64(c.Ranks/max(1, c.FSDP))
	if have == 0 || need <= float64(have) {
		return nil
	}
	advice := "make it smaller, or use fewer --ranks"
	if one <= float64(have) {
		advice = fmt.Sprintf("shard it, which takes %s in all (--fsdp %d), %s", data.ByteSize(int64(one)), c.Ranks, advice)
	}
	return fmt.Errorf("train %s: a model of %.3g parameters takes %s on %d %s, with its gradients and what the optimizer keeps, and there are %s of memory: %s",
		task, float64(params), data.ByteSize(int64(min(need, math.MaxInt64/2))), c.Ranks, plural(c.Ranks, "rank"), data.ByteSize(int64(have)), advice)
}

// Bytes of a parameter. AdamW: the weight, its gradient and two averages. Adagrad:
// the weight and one sum, because the gradients of tables have only a few rows.
const (
	adamBytes    = 16
	adagradBytes = 8
)
