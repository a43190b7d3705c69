// SPDX-License-Identifier: Apache-2.0

package schedule

import "fmt"

// divided asks for as many stages on each rank, and for rounds of equal length.
func divided(numRanks, numStages, numMicrobatches int) string {
	if left := numStages % numRanks; left != 0 {
		fits := fmt.Sprintf("%d or %d stages", numStages-left, numStages-left+numRanks)
		if numStages < numRanks {
			fits = count(numRanks, "stage")
		}
		return fmt.Sprintf("each rank has as many stages, and %d %% %d = %d: cut the model into %s", numStages, numRanks, left, fits)
	}
	rounds := numRounds(numRanks, numMicrobatches)
	if left := numMicrobatches % rounds; left != 0 {
		return fmt.Sprintf("the microbatches go in %d / %d = %d rounds of equal length, and %d %% %d = %d: take %d or %d microbatches",
			numMicrobatches, numRanks, rounds, numMicrobatches, rounds, left, numMicrobatches-left, nextDivided(numRanks, numMicrobatches))
	}
	return ""
}

// numRounds returns in how many rounds the microbatches go. In a round each stage of a rank
// has as many microbatches as there are ranks, or a few more.
func numRounds(numRanks, numMicrobatches int) int { return max(1, numMicrobatches/numRanks) }

// nextDivided returns the next greater number of microbatches that is a multiple of its
// number of rounds.
func nextDivided(numRanks, numMicrobatches int) int {
	n := numMicrobatches + 1
	for n%numRounds(numRanks, n) != 0 {
		n++
	}
	return n
}

// interleaved returns the order of 1F1B for several stages a rank. A rank goes through its
// stages in turn, with the microbatches of a round for each.
func interleaved(s *Schedule, rank int) []Action {
	return newInterleaving(s, rank, 2).actions(func(int) bool { return false }, Backward)
}

// interleavedZeroBubble returns the order of interleaved with split backward passes. The
// rank warms up for half as long, because the gradient of its output comes back sooner. It
// does the weight parts when as many input parts are done as there are ranks before it.
func interleavedZeroBubble(s *Schedule, rank int) []Action {
	return newInterleaving(s, rank, 1).actions(func(numDone int) bool { return numDone >= rank }, BackwardInput)
}

// interleaving is the work of a rank with several stages.
type interleaving struct {
	numRanks, rank    int
	perRank, perRound int // stages of a rank, microbatches of a round
	total             int // forward passes of the rank
	warmUp            int // forward passes before the first backward pass
}

func newInterleaving(s *Schedule, rank, hop int) *interleaving {
	n := &interleaving{numRanks: s.NumRanks(), rank: rank, perRank: s.NumStages / s.NumRanks()}
	n.perRound = s.NumMicrobatches / numRounds(n.numRanks, s.NumMicrobatches)
	n.total = n.perRank * s.NumMicrobatches
	n.warmUp = min((n.perRank-1)*n.perRound+hop*(n.numRanks-1-rank), n.total)
	return n
}

// at returns the stage and the microbatch of the i-th pass. The stages of a round come in
// ascending order in forward passes, and in descending order in backward passes.
func (n *interleaving) at(i int, backward bool) (stage, microbatch int) {
	local := i / n.perRound % n.perRank
	if backward {
		local = n.perRank - 1 - local
	}
	round := i / (n.perRound * n.perRank)
	return local*n.numRanks + n.rank, round*n.perRound + i%n.perRound
}

// actions returns the order. backward is the kind of the backward passes. If weights(i),
// the oldest weight part follows the i-th of them; the weight parts that are left come last.
func (n *interleaving) actions(weights func(i int) bool, backward Kind) []Action {
	actions := make([]Action, 0, 3*n.total)
	numWeights := 0
	weight := func() {
		stage, microbatch := n.at(numWeights, true)
		actions = append(actions, Action{stage, microbatch, BackwardWeight})
		numWeights++
	}
	for i := range n.warmUp + n.total {
		if i < n.total {
			stage, microbatch := n.at(i, false)
			actions = append(actions, Action{stage, microbatch, Forward})
		}
		if done := i - n.warmUp; done >= 0 {
			stage, microbatch := n.at(done, true)
			actions = append(actions, Action{stage, microbatch, backward})
			if weights(done) {
				weight()
			}
		}
	}
	for backward == BackwardInput && numWeights < n.total {
		weight()
	}
	return actions
}
