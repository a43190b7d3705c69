// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// divisible is an optimizer whose parameters several ranks can share out: every optimizer
// of this package.
type divisible interface {
	Optimizer
	keep(mine func(p *nn.Parameter) bool)
	take(t turn)
}

// Unwrap returns the optimizer that does the updates: o itself, or the one that it has by a
// method Unwrap.
func Unwrap(o Optimizer) Optimizer {
	for {
		w, ok := o.(interface{ Unwrap() Optimizer })
		if !ok {
			return o
		}
		o = w.Unwrap()
	}
}

// Keep makes an optimizer update only the parameters for which mine returns true. The state
// of the others is on tensor.Meta, which has no memory: other ranks update them and have
// their state. State that was there is given up. Keep is an error for an optimizer that is
// not of this package.
//
// parallel.ZeroRedundancyOptimizer divides an optimizer so, and brings the new values to all
// ranks.
func Keep(o Optimizer, mine func(p *nn.Parameter) bool) error {
	d, ok := Unwrap(o).(divisible)
	if !ok {
		return fmt.Errorf("optim: a %T cannot be divided among ranks: use an optimizer of package optim", o)
	}
	d.keep(mine)
	return nil
}

// StepInTurns is o.Step, one list of parameters after the other: after(i) is called when the
// update of list i has been given to the device, and the update of the next list begins when
// it returns. It counts as one step. An error of after ends the step between two lists.
// A parameter that is in no list is left alone.
func StepInTurns(o Optimizer, scale *tensor.Tensor, lists [][]*nn.Parameter, after func(i int) error) error {
	d, ok := Unwrap(o).(divisible)
	if !ok {
		return fmt.Errorf("optim: a %T cannot step in turns: use an optimizer of package optim", o)
	}
	defer d.take(turn{})
	for i, list := range lists {
		in := make(map[*nn.Parameter]bool, len(list))
		for _, p := range list {
			in[p] = true
		}
		d.take(turn{params: in, later: i > 0})
		d.Step(scale)
		if err := after(i); err != nil {
			return err
		}
	}
	return nil
}

// turn is a part of a step. The zero turn is a whole step.
type turn struct {
	params map[*nn.Parameter]bool // nil for all
	later  bool                   // it is not the first of its step
}

func (t turn) has(p *nn.Parameter) bool { return t.params == nil || t.params[p] }

func (b *base[O]) take(t turn) { b.turn = t }

func (b *base[O]) keep(mine func(p *nn.Parameter) bool) {
	for _, g := range b.groups {
		g.elsewhere = make([]bool, len(g.params))
		for i, p := range g.params {
			if g.elsewhere[i] = !mine(p); g.elsewhere[i] {
				g.state[i] = nil
			}
		}
	}
}
