// SPDX-License-Identifier: Apache-2.0

package schedule

// gpipe returns all forward passes and then all backward passes.
func gpipe(s *Schedule, rank int) []Action {
	actions := make([]Action, 0, 2*s.NumMicrobatches)
	for m := range s.NumMicrobatches {
		actions = append(actions, Action{rank, m, Forward})
	}
	for m := range s.NumMicrobatches {
		actions = append(actions, Action{rank, m, Backward})
	}
	return actions
}

// oneForwardOneBackward returns as many forward passes as there are stages behind the
// rank's. Then forward and backward passes alternate.
func oneForwardOneBackward(s *Schedule, rank int) []Action {
	actions := make([]Action, 0, 2*s.NumMicrobatches)
	warmUp := s.NumStages - 1 - rank
	for m := range warmUp {
		actions = append(actions, Action{rank, m, Forward})
	}
	for m := range s.NumMicrobatches {
		if f := warmUp + m; f < s.NumMicrobatches {
			actions = append(actions, Action{rank, f, Forward})
		}
		actions = append(actions, Action{rank, m, Backward})
	}
	return actions
}
