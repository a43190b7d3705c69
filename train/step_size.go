// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// stepSize is the number of samples that a step takes: a batch of every rank in
// every pass. A run that resumes on another number of ranks may have a step that
// these ranks cannot share evenly. Then uneven is the number of its samples, and
// the batches of some ranks have one sample fewer.
type stepSize struct{ ranks, batch, accumulate, uneven int }

func (s stepSize) total() int {
	if s.uneven > 0 {
		return s.uneven
	}
	return s.ranks * s.batch * s.accumulate
}

// pass returns how many samples all ranks take in a pass.
func (s stepSize) pass() int { return s.total() / s.accumulate }

// check reports whether an epoch has enough samples for a step of a new run. If it
// has not, and the user gave no batch, check makes the batch smaller and says so in
// the note.
func (s stepSize) check(samples int, settings *config.Settings, unit string) (note string, err error) {
	if samples < s.ranks {
		return "", fmt.Errorf("%d samples to train on for %d ranks: fewer samples than ranks; use fewer --ranks or more data", samples, s.ranks)
	}
	if s.total() <= samples {
		return "", nil
	}
	batch, given := samples/(s.ranks*s.accumulate), settings.Given()
	takes := fmt.Sprintf("a step takes %d %s (%v), and there are %d to train on", s.total(), unit, s, samples)
	switch {
	case given["batch"] == "" && batch > 0:
		settings.Field("batch").SetInt(batch, "the data")
		return fmt.Sprintf("a step takes %d %s, and there are %d to train on: the batch becomes %d", s.total(), unit, samples, batch), nil
	case batch > 0:
		return "", fmt.Errorf("%s: give a --batch of at most %d", takes, batch)
	}
	return "", fmt.Errorf("%s: give at most --accumulate %d, with --batch 1", takes, samples/s.ranks)
}

// fewSteps is the number of steps below which a run is told to be short: the
// learning rate has no time to rise and fall.
const fewSteps = 10

// tellSteps gives notice that a run has only a few steps, if the user gave its
// batch or its epochs.
func (s stepSize) tellSteps(report Reporter, epochs float64, samples int, given map[string]string, unit string) {
	if steps := int(math.Ceil(epochs * float64(samples) / float64(s.total()))); steps < fewSteps && (given["batch"] != "" || given["epochs"] != "") {
		report.Notice(fmt.Sprintf("the whole run is %d %s of %v of the %d %s: a smaller --batch makes more of them, or more --epochs", steps, plural(steps, "step"), s, samples, unit))
	}
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

// StepShare is what a run knows about its steps besides batch and passes. The run
// saves it with its settings. The user does not set it.
type StepShare struct {
	// Uneven is the number of samples of a step if the ranks cannot share them evenly;
	// else 0.
	Uneven int `json:"uneven,omitempty"`
	// AskedBatch and AskedAccumulate are the batch and the passes of the command that
	// began the run, or of the last command that gave others. The same command resumes
	// the run on any number of ranks. They are 0 in older checkpoints.
	AskedBatch      int `json:"asked_batch,omitempty"`
	AskedAccumulate int `json:"asked_accumulate,omitempty"`
}

// begin notes the batch and the passes that a new run is asked for.
func (c *StepShare) begin(s stepSize) {
	if c.AskedBatch == 0 {
		c.AskedBatch, c.AskedAccumulate = s.batch, s.accumulate
	}
}

// resume calls adopt and updates what is saved about the steps: saved is that of
// the checkpoint, now that of the run.
func (s *stepSize) resume(was stepSize, saved StepShare, now *StepShare, given map[string]string, unit string) (conflict string) {
	saved.begin(was)
	*now = saved
	if given["batch"] != "" {
		now.AskedBatch = s.batch
	}
	if given["accumulate"] != "" {
		now.AskedAccumulate = s.accumulate
	}
	conflict = s.adopt(was, saved, given, unit)
	now.Uneven = s.uneven
	return conflict
}

// adopt makes a run that resumes on another number of ranks take as many samples in
// a step as before. was is the size of its steps so far. begun has the batch and the
// passes that the run was asked for on the ranks that it had then.
//
// The user may give batch and passes. A given value that differs from begun must
// lead to as many samples as before. Of the values that are not given, the batch
// changes first, then the passes. If neither can, the batches of the ranks differ by
// one sample. A batch that is given and equals begun's stays the largest batch of a
// rank, if there are enough samples for more passes.
//
// adopt returns what makes it impossible, or "".
func (s *stepSize) adopt(was stepSize, begun StepShare, given map[string]string, unit string) (conflict string) {
	total := was.total()
	s.uneven = 0
	batch, accumulate := given["batch"] != "", given["accumulate"] != ""
	switch {
	case s.total() == total && s.batch > 0:
		return ""
	case (!batch || s.batch == begun.AskedBatch) && (!accumulate || s.accumulate == begun.AskedAccumulate):
		most := 0
		if batch {
			most = begun.AskedBatch
		}
		s.share(total, most)
	case !batch && s.accumulate > 0 && total%s.accumulate == 0 && total/s.accumulate >= s.ranks:
		s.split(total, s.accumulate)
	case !accumulate && s.batch > 0 && total%(s.ranks*s.batch) == 0:
		s.accumulate = total / (s.ranks * s.batch)
	}
	if s.total() == total {
		return ""
	}
	if total < s.ranks {
		return fmt.Sprintf("it takes %d %s a step: at most %d ranks, not %d", total, unit, total, s.ranks)
	}
	return fmt.Sprintf("ranks × %s: %v a step, the checkpoint's run has %v (set --batch)", unit, *s, was)
}

// share divides the samples of a step among the ranks. A rank's batch has at most
// most samples, if that is possible; 0: any number.
func (s *stepSize) share(total, most int) {
	if most == 0 {
		switch each, passes := s.ranks*s.accumulate, s.ranks*s.batch; {
		case total%each == 0:
			s.batch = total / each
			return
		case total%passes == 0:
			s.accumulate = total / passes
			return
		}
		for n := s.accumulate; n >= 1; n-- { // passes that leave no rank without a sample
			if total%n == 0 && total/n >= s.ranks {
				s.split(total, n)
				return
			}
		}
		return
	}
	// Fewer passes are quicker.
	for n, last := 1, total/s.ranks; n <= last; n++ {
		if total%n != 0 {
			continue
		}
		if s.split(total, n); s.batch <= most {
			return
		}
	}
}

// split divides the samples of a step into passes.
func (s *stepSize) split(total, passes int) {
	s.accumulate, s.uneven = passes, 0
	s.batch = (total/passes + s.ranks - 1) / s.ranks
	if s.ranks*s.batch*passes != total {
		s.uneven = total
	}
}

// divide makes more passes of the samples of a step, if it can: as many as fits accepts, up to
// most. It reports whether it did.
func (s *stepSize) divide(most int, fits func(passes int) bool) bool {
	total := s.total()
	for _, even := range []bool{true, false} {
		for n := most; n > s.accumulate; n-- {
			if each := total / n; total%n == 0 && each >= s.ranks && (!even || each%s.ranks == 0) && fits(n) {
				s.split(total, n)
				return true
			}
		}
	}
	return false
}

// tell gives notice if the size of a step stays but batch and passes could not stay
// as they were asked for. If steps are small, it says to how many ranks the job can
// grow.
//
// copies is how many ranks share the work on each sample.
func (s stepSize) tell(report Reporter, asked StepShare, given map[string]string, unit string, copies int) {
	if total := s.total(); total < 2*s.ranks && envvar.RestartCount.IsSet() && !envvar.Spawn.IsSet() {
		report.Notice(fmt.Sprintf("a step takes %d %s: the job can go on with at most %d ranks", total, unit, total))
	}
	if asked.AskedBatch == 0 {
		return // a new run
	}
	if given["batch"] == "" && given["accumulate"] == "" || s.batch == asked.AskedBatch && s.accumulate == asked.AskedAccumulate {
		return
	}
	each := fmt.Sprintf("%d a rank", s.batch)
	if s.uneven > 0 {
		each = fmt.Sprintf("at most %d a rank", s.batch)
	}
	if s.accumulate > 1 {
		each += fmt.Sprintf(" in each of %d passes", s.accumulate)
	}
	among := fmt.Sprintf("%d %s", s.ranks, plural(s.ranks, "rank"))
	if copies > 1 {
		among = fmt.Sprintf("%d × %d ranks", s.ranks, copies)
	}
	report.Notice(fmt.Sprintf("a step stays %d %s on %s: --batch %d becomes %s", s.total(), unit, among, asked.AskedBatch, each))
}
