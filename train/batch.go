// SPDX-License-Identifier: Apache-2.0

package train

import "fmt"

// stepSize is how many samples a step takes: those of a batch on every rank in
// every pass.
type stepSize struct{ ranks, batch, accumulate int }

func (s stepSize) total() int { return s.ranks * s.batch * s.accumulate }

func (s stepSize) String() string {
	if s.accumulate == 1 {
		return fmt.Sprintf("%d × %d", s.ranks, s.batch)
	}
	return fmt.Sprintf("%d × %d × %d passes", s.ranks, s.batch, s.accumulate)
}

// adopt makes a run that resumes on another number of ranks take as many samples
// a step as before, by the batch or else by the passes, where the user has not
// given them. It returns what is in the way; "" if nothing.
func (s *stepSize) adopt(was stepSize, given map[string]string, unit string) (conflict string) {
	total := was.total()
	if each := s.ranks * s.accumulate; given["batch"] == "" && each > 0 && total%each == 0 {
		s.batch = total / each
	} else if each := s.ranks * s.batch; given["accumulate"] == "" && each > 0 && total%each == 0 {
		s.accumulate = total / each
	}
	if s.total() == total {
		return ""
	}
	return fmt.Sprintf("ranks × %s: %v = %d a step, the checkpoint's run has %v = %d (set --batch)", unit, *s, s.total(), was, total)
}
