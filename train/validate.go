// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"strings"
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
