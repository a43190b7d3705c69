// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/nn"
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

// checkDecay reports a weight decay that turns weights into others: a step of AdamW
// takes lr × decay of each away.
func checkDecay(task string, lr, decay float64) error {
	if lr > 1 || lr*decay < 1 { // a rate that no model bears is told of by the loss
		return nil
	}
	return fmt.Errorf("train %s: --lr %v × --weight-decay %v is %.3g, the share of a weight that a step takes away: want less than 1", task, lr, decay, lr*decay)
}

// checkPatience reports patience with evaluations of which there are none.
func checkPatience(task string, patience, every int) error {
	if patience == 0 || every > 0 {
		return nil
	}
	return fmt.Errorf("train %s: --patience is %d, and without --eval-every there is one evaluation, at the end: give --eval-every", task, patience)
}

// checkMemory reports a model, made on the meta device, whose parameters and what an optimizer
// keeps beside them need more memory than there is on a machine that has all ranks. each
// is how many bytes a parameter takes.
func checkMemory(task string, model any, each uint64, ranks int, have uint64) error {
	params := nn.NumParams(model)
	need := float64(params) * float64(each) * float64(ranks)
	if have == 0 || need <= float64(have) {
		return nil
	}
	return fmt.Errorf("train %s: a model of %.3g parameters takes %s on %d %s, with its gradients and what the optimizer keeps, and there are %s of memory: make it smaller, or use fewer --ranks",
		task, float64(params), data.ByteSize(int64(min(need, math.MaxInt64/2))), ranks, plural(ranks, "rank"), data.ByteSize(int64(have)))
}

// Bytes of a parameter: weights, and with AdamW gradients and two averages; the gradients of tables
// go by rows, and Adagrad keeps one sum.
const (
	adamBytes    = 16
	adagradBytes = 8
)
