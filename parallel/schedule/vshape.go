// SPDX-License-Identifier: Apache-2.0

package schedule

import "fmt"

// twoStages asks for two stages a rank.
func twoStages(name string) func(int, int, int) string {
	return func(numRanks, numStages, _ int) string {
		if numStages == 2*numRanks {
			return ""
		}
		return fmt.Sprintf("%s has two stages a rank, and %d ≠ 2·%d: cut the model into %d stages", name, numStages, numRanks, 2*numRanks)
	}
}

// vOrder makes the order of a rank whose two stages lie in the shape of a V: the microbatches
// come down through the lower stages of the ranks, and go up through their upper stages. So
// the first rank has the first and the last stage.
type vOrder struct {
	lower, upper int // stages
	actions      []Action
	done         [2][BackwardWeight + 1]int // passes of the lower and the upper stage, by kind
	owed         []Action                   // weight parts whose input parts are done, oldest first
}

func newVOrder(s *Schedule, rank int) *vOrder {
	return &vOrder{lower: rank, upper: s.NumStages - 1 - rank, actions: make([]Action, 0, 6*s.NumMicrobatches)}
}

// do appends the next passes of a kind of a stage. The microbatches of a stage come in
// ascending order. A whole backward pass counts as an input part and a weight part.
func (o *vOrder) do(stage int, kinds ...Kind) {
	done := &o.done[0]
	if stage == o.upper {
		done = &o.done[1]
	}
	for _, kind := range kinds {
		counted := kind
		if kind == Backward {
			counted = BackwardInput
			done[BackwardWeight]++
		}
		o.actions = append(o.actions, Action{stage, done[counted], kind})
		done[counted]++
	}
}

// input appends the input part of the next backward pass, and remembers its weight part.
func (o *vOrder) input(stage int) {
	o.do(stage, BackwardInput)
	last := o.actions[len(o.actions)-1]
	o.owed = append(o.owed, Action{stage, last.Microbatch, BackwardWeight})
}

// weight appends the oldest weight part that is owed, if there is one.
func (o *vOrder) weight() {
	if len(o.owed) > 0 {
		o.actions, o.owed = append(o.actions, o.owed[0]), o.owed[1:]
	}
}

// zeroBubbleV returns the order of ZB-V. If forward passes, input parts and weight parts take
// the same time, no rank waits between its first and its last action. The order is made for
// 2·ranks-1 microbatches or more; of fewer, the actions of the others are left out.
func zeroBubbleV(s *Schedule, rank int) []Action {
	o, numRanks := newVOrder(s, rank), s.NumRanks()
	numMicrobatches := max(2*numRanks-1, s.NumMicrobatches)
	lower, upper := &o.done[0], &o.done[1]

	for range 2*(numRanks-rank) - 1 { // until the first microbatch is back
		o.do(o.lower, Forward)
	}
	for range rank {
		o.do(o.upper, Forward)
		o.do(o.lower, Forward)
	}
	for range numRanks - rank {
		o.do(o.upper, Forward, BackwardInput, BackwardWeight)
	}
	for upper[Forward] < lower[Forward] || lower[Forward] < numMicrobatches {
		if lower[Forward] < numMicrobatches {
			o.do(o.lower, Forward)
		}
		o.do(o.lower, BackwardInput, BackwardWeight)
		o.do(o.upper, Forward, BackwardInput, BackwardWeight)
	}
	for range rank { // the weight parts are kept for the time in which the rank would wait
		o.do(o.lower, BackwardInput)
		o.do(o.upper, BackwardInput)
	}
	for range numRanks - rank {
		o.do(o.lower, BackwardInput, BackwardWeight)
	}
	for upper[BackwardWeight] < upper[BackwardInput] {
		o.do(o.upper, BackwardWeight)
	}
	for lower[BackwardWeight] < lower[BackwardInput] {
		o.do(o.lower, BackwardWeight)
	}
	if numMicrobatches == s.NumMicrobatches {
		return o.actions
	}
	kept := o.actions[:0]
	for _, a := range o.actions {
		if a.Microbatch < s.NumMicrobatches {
			kept = append(kept, a)
		}
	}
	return kept
}

// dualPipeV returns the order of DualPipe-V: a forward pass of one stage is beside a backward
// pass of the other, so that the messages of one overlap with the work of the other.
func dualPipeV(s *Schedule, rank int) []Action {
	o, numRanks := newVOrder(s, rank), s.NumRanks()
	behind := numRanks - 1 - rank

	for range 2 * behind {
		o.do(o.lower, Forward)
	}
	for range rank + 1 {
		o.do(o.lower, Forward)
		o.do(o.upper, Forward)
	}
	for range behind {
		o.input(o.upper)
		o.weight()
		o.do(o.upper, Forward)
	}
	for range s.NumMicrobatches - 2*numRanks + rank + 1 {
		o.do(o.lower, Forward)
		o.do(o.upper, Backward)
		o.do(o.upper, Forward)
		o.do(o.lower, Backward)
	}
	for range behind {
		o.do(o.upper, Backward)
		o.do(o.upper, Forward)
		o.do(o.lower, Backward)
	}
	// From the middle of the last passes on the weight parts are kept: the ranks before wait
	// for input parts alone. Odd ranks begin with the upper stage, even ones with the lower.
	backward := func(stage int, split bool) {
		if split {
			o.input(stage)
		} else {
			o.do(stage, Backward)
		}
	}
	middle := (rank + 1) / 2
	for i := range rank + 1 {
		backward(o.upper, i > middle || i == middle && rank%2 == 1)
		backward(o.lower, i >= middle)
	}
	for range behind {
		o.weight()
		backward(o.lower, true)
	}
	for range rank + 1 {
		o.weight()
	}
	return o.actions
}
