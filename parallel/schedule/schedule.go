// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/nearest"
)

// Kind says what an action does.
type Kind uint8

// The kinds of actions. The first four compute; the others are messages, which
// [Schedule.Lower] adds.
const (
	Forward        Kind = iota // the forward pass of a stage
	Backward                   // the whole backward pass of a stage
	BackwardInput              // the part of a backward pass that computes the gradient of the input
	BackwardWeight             // the part of a backward pass that computes the gradients of the weights

	SendForward  // starts sending the output of a stage to the next stage
	RecvForward  // posts the receive of a stage's input from the stage before
	SendBackward // starts sending the gradient of a stage's input to the stage before
	RecvBackward // posts the receive of the gradient of a stage's output from the next stage
)

var kindNames = [...]string{"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"}

// String returns the short name: F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Computes reports whether an action of the kind computes, and is no message.
func (k Kind) Computes() bool { return k <= BackwardWeight }

// Action is one thing that a rank does: the work of a stage on a microbatch, or a message.
// The stage of a message is the one that sends it (SendForward, SendBackward) or needs it
// (RecvForward, RecvBackward).
type Action struct {
	Stage, Microbatch int
	Kind              Kind
}

// String returns the action as stage, kind and microbatch, such as 2F0.
func (a Action) String() string {
	return strconv.Itoa(a.Stage) + a.Kind.String() + strconv.Itoa(a.Microbatch)
}

// Schedule is the order of the actions of each rank in a step.
type Schedule struct {
	Name            string
	NumStages       int
	NumMicrobatches int
	// Ranks are the actions of each rank, in the order in which it executes them.
	Ranks [][]Action

	vShape bool // the stages of a rank r are r and NumStages-1-r
}

// form is what a schedule asks of the numbers, and how its actions are made.
type form struct {
	name   string
	vShape bool
	// fits returns why the numbers do not fit, with the equation, or "".
	fits func(numRanks, numStages, numMicrobatches int) string
	// actions returns the actions of a rank.
	actions func(s *Schedule, rank int) []Action
	// defaultStages is the number of stages of a rank if the caller names none.
	defaultStages int
	// activations is the most that a rank holds at once, with enough microbatches.
	activations func(s *Schedule, rank int) int
	// fill returns how many microbatches fill the pipeline.
	fill   func(numRanks int) int
	fillIn fillIn
}

// forms returns the schedules in the order in which they are listed.
func forms() []form {
	return []form{
		{
			name: "gpipe", fits: oneStage("gpipe"), actions: gpipe, defaultStages: 1, fill: one,
			activations: func(s *Schedule, _ int) int { return s.NumMicrobatches },
		}, {
			name: "1f1b", fits: all(oneStage("1f1b"), filled), actions: oneForwardOneBackward, defaultStages: 1, fill: one,
			activations: func(s *Schedule, rank int) int { return s.NumRanks() - rank },
		}, {
			name: "interleaved", fits: divided, actions: interleaved, defaultStages: 2, fill: fullRound,
			activations: func(s *Schedule, rank int) int { return newInterleaving(s, rank, 2).warmUp + 1 },
		}, {
			name: "interleaved-zb", fits: divided, actions: interleavedZeroBubble, defaultStages: 2, fill: fullRound, fillIn: oneWeight,
			activations: func(s *Schedule, rank int) int { return newInterleaving(s, rank, 1).warmUp + 1 + rank },
		}, {
			name: "zbv", vShape: true, fits: twoStages("zbv"), actions: zeroBubbleV, defaultStages: 2, fill: fullV, fillIn: allWeights,
			activations: func(s *Schedule, _ int) int { return 2 * s.NumRanks() },
		}, {
			name: "dualpipev", vShape: true, fits: all(twoStages("dualpipev"), filled), actions: dualPipeV, defaultStages: 2, fill: fullV, fillIn: allWeights,
			activations: func(s *Schedule, _ int) int { return 2*s.NumRanks() + 1 },
		},
	}
}

// Names returns the names of the schedules.
func Names() []string {
	var names []string
	for _, f := range forms() {
		names = append(names, f.name)
	}
	return names
}

// NameError says that there is no schedule of a name.
type NameError struct {
	Name    string
	Known   []string // the names of the schedules
	Nearest string   // the one of them that is most like Name, "" if none is
}

func (e *NameError) Error() string {
	hint := ": the"
	if e.Nearest != "" {
		hint = fmt.Sprintf(", did you mean %q? The", e.Nearest)
	}
	return fmt.Sprintf("schedule: there is no schedule %q%s schedules are %s", e.Name, hint, strings.Join(e.Known, ", "))
}

// CountError says that a schedule does not fit the numbers of ranks, stages and
// microbatches.
type CountError struct {
	Name                                 string
	NumRanks, NumStages, NumMicrobatches int
	Problem                              string // what is wrong, with the equation, and what to do
}

func (e *CountError) Error() string {
	return fmt.Sprintf("schedule: %s for %s, %s and %s: %s", e.Name, count(e.NumRanks, "rank"), count(e.NumStages, "stage"), count(e.NumMicrobatches, "microbatch"), e.Problem)
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "ch") {
		noun += "e"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// New returns the schedule of a name for a step. With numStages 0 each rank has as many
// stages as the schedule is made for: one, or two. The errors are a [*NameError] and a
// [*CountError].
func New(name string, numRanks, numStages, numMicrobatches int) (*Schedule, error) {
	f, err := formOf(name)
	if err != nil {
		return nil, err
	}
	if numStages == 0 {
		numStages = f.defaultStages * numRanks
	}
	problem := positive(numRanks, numStages, numMicrobatches)
	if problem == "" {
		problem = f.fits(numRanks, numStages, numMicrobatches)
	}
	if problem != "" {
		return nil, &CountError{Name: name, NumRanks: numRanks, NumStages: numStages, NumMicrobatches: numMicrobatches, Problem: problem}
	}
	s := &Schedule{Name: name, NumStages: numStages, NumMicrobatches: numMicrobatches, Ranks: make([][]Action, numRanks), vShape: f.vShape}
	for rank := range s.Ranks {
		s.Ranks[rank] = f.actions(s, rank)
	}
	return s, nil
}

func formOf(name string) (form, error) {
	for _, f := range forms() {
		if f.name == name {
			return f, nil
		}
	}
	return form{}, &NameError{Name: name, Known: Names(), Nearest: nearest.Name(name, Names())}
}

// positive returns what is wrong with numbers that no schedule takes.
func positive(numRanks, numStages, numMicrobatches int) string {
	switch {
	case numRanks < 1:
		return "a pipeline has at least 1 rank"
	case numStages < 1:
		return "a pipeline has at least 1 stage"
	case numMicrobatches < 1:
		return "a step has at least 1 microbatch"
	}
	return ""
}

// all returns the first problem that one of the conditions finds.
func all(conditions ...func(numRanks, numStages, numMicrobatches int) string) func(int, int, int) string {
	return func(numRanks, numStages, numMicrobatches int) string {
		for _, c := range conditions {
			if problem := c(numRanks, numStages, numMicrobatches); problem != "" {
				return problem
			}
		}
		return ""
	}
}

// oneStage asks for one stage a rank.
func oneStage(name string) func(int, int, int) string {
	return func(numRanks, numStages, _ int) string {
		if numStages == numRanks {
			return ""
		}
		return fmt.Sprintf("%s has one stage a rank, and %d ≠ %d: cut the model into %s, or take interleaved", name, numStages, numRanks, count(numRanks, "stage"))
	}
}

// filled asks for microbatches that fill the pipeline.
func filled(_, numStages, numMicrobatches int) string {
	if numMicrobatches >= numStages {
		return ""
	}
	return fmt.Sprintf("it needs as many microbatches as stages, and %d < %d: accumulate over %d passes or more, or take gpipe", numMicrobatches, numStages, numStages)
}

// NumRanks returns the number of ranks.
func (s *Schedule) NumRanks() int { return len(s.Ranks) }

// RankOf returns the rank on which a stage lies.
func (s *Schedule) RankOf(stage int) int {
	if s.vShape && stage >= len(s.Ranks) {
		return s.NumStages - 1 - stage
	}
	return stage % len(s.Ranks)
}

// StagesOf returns the stages of a rank, in ascending order.
func (s *Schedule) StagesOf(rank int) []int {
	var stages []int
	for stage := range s.NumStages {
		if s.RankOf(stage) == rank {
			stages = append(stages, stage)
		}
	}
	return stages
}
