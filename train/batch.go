// SPDX-License-Identifier: Apache-2.0

package train

import "fmt"

// stepSize is how many samples a step takes: those of a batch on every rank in
// every pass. Where a run goes on with a number of ranks among which its samples
// cannot be shared out evenly, uneven is how many they are, and some ranks'
// batches have one fewer.
type stepSize struct{ ranks, batch, accumulate, uneven int }

func (s stepSize) total() int {
	if s.uneven > 0 {
		return s.uneven
	}
	return s.ranks * s.batch * s.accumulate
}

// pass is how many samples all ranks take in a pass.
func (s stepSize) pass() int { return s.total() / s.accumulate }

// check says whether there are enough samples in an epoch.
func (s stepSize) check(samples int) error {
	if samples < s.ranks {
		return fmt.Errorf("%d samples to train on for %d ranks: fewer samples than ranks; use fewer --ranks or more data", samples, s.ranks)
	}
	return nil
}

func (s stepSize) String() string {
	if s.uneven > 0 {
		return fmt.Sprintf("%d among %d ranks", s.uneven, s.ranks)
	}
	if s.accumulate == 1 {
		return fmt.Sprintf("%d × %d = %d", s.ranks, s.batch, s.total())
	}
	return fmt.Sprintf("%d × %d × %d passes = %d", s.ranks, s.batch, s.accumulate, s.total())
}

// adopt makes a run that resumes on another number of ranks take as many samples
// a step as before, where the user has not given batch and passes: by the batch
// or else by the passes, and if neither can be, unevenly, in fewer passes if
// there are more ranks than samples in one. It returns what is in the way; "" if
// nothing.
func (s *stepSize) adopt(was stepSize, given map[string]string, unit string) (conflict string) {
	total := was.total()
	s.uneven = 0
	most := s.accumulate // passes that leave no rank without a sample
	for most > 1 && given["accumulate"] == "" && (total%most != 0 || total/most < s.ranks) {
		most--
	}
	switch each, passes := s.ranks*s.accumulate, s.ranks*s.batch; {
	case given["batch"] == "" && each > 0 && total%each == 0:
		s.batch = total / each
	case given["accumulate"] == "" && passes > 0 && total%passes == 0:
		s.accumulate = total / passes
	case given["batch"] == "" && each > 0 && total%most == 0 && total/most > s.ranks:
		s.accumulate = most
		s.batch, s.uneven = (total+s.ranks*most-1)/(s.ranks*most), total
	case given["batch"] == "" && each > 0 && total == s.ranks*most:
		s.accumulate, s.batch = most, 1
	}
	if s.total() == total {
		return ""
	}
	if total < s.ranks {
		return fmt.Sprintf("it takes %d %s a step: at most %d ranks, not %d", total, unit, total, s.ranks)
	}
	return fmt.Sprintf("ranks × %s: %v a step, the checkpoint's run has %v (set --batch)", unit, *s, was)
}
