// SPDX-License-Identifier: Apache-2.0

package schedule

import "time"

// MaxActivations returns the most activations that a rank holds at once: forward passes of a
// stage whose backward passes are not at their end. With fewer microbatches than fill the
// pipeline a rank may hold fewer.
func (s *Schedule) MaxActivations(rank int) int {
	f, err := formOf(s.Name)
	if err != nil {
		return 0
	}
	return min(f.activations(s, rank), s.NumMicrobatches*s.NumStages/s.NumRanks())
}

// Idle returns for how long a rank does not compute in a step, if all stages take the same
// time and messages take none. forward, input and weight are the times of a forward pass
// and of the parts of a backward pass of one stage. It reports false if the theory of the
// schedule does not cover the numbers: fewer microbatches than fill the pipeline, and for
// zbv and dualpipev parts that take different times. [Schedule.Simulate] covers all.
func (s *Schedule) Idle(forward, input, weight time.Duration) (idle time.Duration, ok bool) {
	f, err := formOf(s.Name)
	if err != nil || s.NumMicrobatches < f.fill(s.NumRanks()) {
		return 0, false
	}
	behind := time.Duration(s.NumRanks() - 1)
	switch f.fillIn {
	case nothing:
		return behind * (forward + input + weight), true
	case oneWeight:
		return behind * max(forward, input, forward+input-weight), true
	}
	return behind * forward, forward == input && input == weight
}

// fillIn is the work that a schedule puts into the time in which a rank would wait.
type fillIn int

const (
	nothing    fillIn = iota
	oneWeight         // a weight part for each rank before or behind
	allWeights        // weight parts until no rank waits within its step
)

// fullRound is the number of microbatches that fill a pipeline of stages in turn.
func fullRound(numRanks int) int { return numRanks }

// fullV is the number of microbatches that fill a pipeline in the shape of a V.
func fullV(numRanks int) int { return 2*numRanks - 1 }

func one(int) int { return 1 }
