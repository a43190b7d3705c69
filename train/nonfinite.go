// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// What Options.NaN may say about a step whose loss or gradients are not
// finite: the run ends, or the step's update is left out.
const (
	nanStop = "stop"
	nanSkip = "skip"
)

// maxSkipsInRow is how many steps that follow each other are left out before a
// run ends all the same: then it is not the odd batch.
const maxSkipsInRow = 10

// NonFiniteError says that a step has come to a loss or to gradients that are
// NaN or infinite, and in which parameters. Every rank returns the same one:
// the loss is the mean of all ranks, and the gradients have been averaged.
type NonFiniteError struct {
	Step   int      // that was not done
	Loss   float64  // mean over all ranks
	Norm   float64  // of all gradients together
	Values []string // parameters that are not finite themselves
	Grads  []string // parameters whose gradients are not, or whose squares overflow
	InRow  int      // steps left out one after the other, with this one
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("step %d: %s", e.Step, e.what())
}

// what says it without the step.
func (e *NonFiniteError) what() string {
	parts := []string{fmt.Sprintf("the loss is %v, the norm of the gradients %v", e.Loss, e.Norm)}
	if len(e.Values) > 0 {
		parts = append(parts, "parameters that are not finite: "+listed(e.Values))
	}
	if len(e.Grads) > 0 {
		parts = append(parts, "gradients that are not finite: "+listed(e.Grads))
	}
	return strings.Join(parts, "; ")
}

// listed prints the first few of a model's names.
func listed(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// nonFinite says what is not finite in a step that came to a loss or gradients
// that are not. Where ranks hold different parts of the model, they tell each other.
func (r *trainer[B]) nonFinite(ctx context.Context, all share) (*NonFiniteError, error) {
	e := &NonFiniteError{Step: r.step + 1, Loss: all.loss, Norm: all.norm}
	var here []*nn.Parameter
	for _, p := range r.params {
		if p.Data().Device() != tensor.Meta {
			here = append(here, p)
		}
	}
	if grads := (*optim.NonFiniteError)(nil); errors.As(optim.CheckGradNorm(here, all.norm), &grads) {
		e.Grads = grads.Params
	}
	for _, p := range here {
		if !isFinite(p.Data().SumSquares()) {
			e.Values = append(e.Values, p.Name())
		}
	}
	if !r.sharded {
		return e, nil
	}
	names, err := dist.AllGatherObject(ctx, r.axes.World, [2][]string{e.Values, e.Grads})
	if err != nil {
		return nil, err
	}
	e.Values, e.Grads = nil, nil
	for _, p := range r.params {
		for i, list := range [2]*[]string{&e.Values, &e.Grads} {
			if slices.ContainsFunc(names, func(of [2][]string) bool { return slices.Contains(of[i], p.Name()) }) {
				*list = append(*list, p.Name())
			}
		}
	}
	return e, nil
}

// skip decides about a step that is not finite and whose update was left out: it
// returns nil if the run goes on, and else the error that ends the run. All ranks
// decide alike: what they look at is the same.
func (r *trainer[B]) skip(bad *NonFiniteError) error {
	advice := fmt.Sprintf("nothing of this step was saved: lower %s (now %v) and run again to go on from the last checkpoint", r.o.name("lr"), r.opt.Groups()[0].BaseLR())
	if r.o.NaN != nanSkip {
		return r.errorf("%w; %s, or leave such steps out by %s", bad, advice, r.o.name("nan"))
	}
	r.skipped++
	r.skippedInRow++
	bad.InRow = r.skippedInRow
	if r.skippedInRow == maxSkipsInRow {
		return r.errorf("%w; it is the last of %d steps in a row that were left out; %s", bad, r.skippedInRow, advice)
	}
	r.report.Notice(fmt.Sprintf("step %d is left out (%d so far): %s", bad.Step, r.skipped, bad.what()))
	return nil
}

// nanPolicies are the settings of NaN.
var nanPolicies = []string{nanStop, nanSkip}

func isNaNPolicy(policy string) bool { return slices.Contains(nanPolicies, policy) }
