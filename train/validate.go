// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"strings"
)

// What the settings of all recipes are checked by. task is the recipe's name.

// whole is a whole number among a recipe's settings.
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

// number is any other. ok is written so that NaN, which compares with nothing, is
// refused too.
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

// checkPolicies looks at what a step is computed in, and what becomes of one that
// is not finite.
func checkPolicies(task, dtype, nan string) error {
	if _, ok := autocasts[dtype]; !ok {
		return fmt.Errorf("train %s: --dtype is %q, want float32 or bfloat16", task, dtype)
	}
	if !isNaNPolicy(nan) {
		return fmt.Errorf("train %s: --nan is %q, want %s", task, nan, strings.Join(nanPolicies, " or "))
	}
	return nil
}

// checkNamed makes sure that there is a name for the run's directory.
func checkNamed(task, out string) error {
	if strings.TrimSpace(out) == "" {
		return fmt.Errorf("train %s: --out must name the run's directory", task)
	}
	return nil
}

// conflicting is the error of settings that a run cannot go on with; nil if there
// are none.
func conflicting(task, out string, conflicts []string) error {
	if len(conflicts) == 0 {
		return nil
	}
	return fmt.Errorf("train %s: the checkpoint in %s is of another run: %s; drop these flags, or give another --out to start afresh",
		task, out, strings.Join(conflicts, "; "))
}
