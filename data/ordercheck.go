// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CheckOptions say what is known of a run besides its logs.
type CheckOptions struct {
	Steps int         // that the logs must have, those of the newest checkpoint; 0 if unknown
	State LoaderState // that it has; the zero value if unknown
}

// OrderReport is what the order logs of a run prove.
type OrderReport struct {
	Order    string        `json:"order"`    // what was promised
	Steps    int           `json:"steps"`    // of the run, each done once in the end
	Samples  int64         `json:"samples"`  // that all ranks took in them
	Len      int           `json:"len"`      // of the dataset
	Epochs   int64         `json:"epochs"`   // that are complete
	Rest     int64         `json:"rest"`     // samples of the one after these
	Once     bool          `json:"once"`     // the order has every sample once in an epoch, none more and none less
	Attempts []OrderStart  `json:"attempts"` // that did steps, in order
	Redone   []StepRange   `json:"redone"`   // steps that were done again
	Replaced int64         `json:"replaced"` // samples of the run that could not be made ([SkipSample])
	Ended    bool          `json:"ended"`    // the last attempt wrote that the run is complete
	Problems []*OrderError `json:"problems"` // none if all is right
	NumMore  int           `json:"num_more"` // problems that are not listed
}

// OrderStart is an attempt of a run.
type OrderStart struct {
	Attempt int64 `json:"attempt"`
	World   int   `json:"world"`
	Batch   int   `json:"batch"`
	StepRange
}

// StepRange is the steps from From to To.
type StepRange struct {
	From    int   `json:"from"`
	To      int   `json:"to"`
	Attempt int64 `json:"-"` // that had done them before
}

func (r StepRange) String() string {
	if r.From == r.To {
		return fmt.Sprintf("step %d", r.From)
	}
	return fmt.Sprintf("steps %d to %d", r.From, r.To)
}

// maxOrderProblems is how many problems a report lists.
const maxOrderProblems = 100

// maxOrderGap is how many missing steps are made up for by what comes after.
const maxOrderGap = 1000

// Err is nil if the logs prove what they should.
func (r *OrderReport) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	return fmt.Errorf("data: the order logs do not prove the order: %d problems, the first in %s: %s", len(r.Problems)+r.NumMore, r.Problems[0].where(), r.Problems[0].Text)
}

// String tells the report to people, in several lines.
func (r *OrderReport) String() string {
	var b strings.Builder
	if len(r.Problems) > 0 {
		n, s := len(r.Problems)+r.NumMore, "s"
		if n == 1 {
			s = ""
		}
		fmt.Fprintf(&b, "WRONG: %d problem%s\n", n, s)
		for _, p := range r.Problems {
			fmt.Fprintf(&b, "  %s: %s\n", p.where(), p.Text)
		}
		if r.NumMore > 0 {
			fmt.Fprintf(&b, "  and %d more\n", r.NumMore)
		}
		if r.Steps == 0 {
			b.WriteString("no step could be checked\n")
			return b.String()
		}
	}
	fmt.Fprintf(&b, "%d steps took %d samples of a dataset of %d", r.Steps, r.Samples, r.Len)
	if len(r.Problems) == 0 {
		b.WriteString(": in each step those of the promised order")
	}
	fmt.Fprintf(&b, "\n  the order is {%s}\n", r.Order)
	for _, a := range r.Attempts {
		ranks := "ranks"
		if a.World == 1 {
			ranks = "rank"
		}
		fmt.Fprintf(&b, "  attempt %d: %v on %d %s with batches of %d\n", a.Attempt, a.StepRange, a.World, ranks, a.Batch)
	}
	for _, s := range r.Redone {
		fmt.Fprintf(&b, "  %v of attempt %d: done again by the next, the first time does not count\n", s, s.Attempt)
	}
	if len(r.Problems) == 0 {
		switch {
		case r.Once && r.Epochs > 0:
			fmt.Fprintf(&b, "  %d epochs are complete: every sample was taken once in each; %d samples of the next\n", r.Epochs, r.Rest)
		case r.Once:
			fmt.Fprintf(&b, "  %d samples of the first epoch, each once\n", r.Rest)
		default:
			fmt.Fprintf(&b, "  %d epochs are complete, and %d samples of the next; this order repeats or leaves out samples\n", r.Epochs, r.Rest)
		}
	}
	if r.Replaced > 0 {
		fmt.Fprintf(&b, "  %d samples could not be made and were replaced\n", r.Replaced)
	}
	if !r.Ended {
		b.WriteString("  the end of the run is not logged: it goes on, was stopped, or crashed\n")
	}
	return b.String()
}

func (r *OrderReport) problem(path string, line int, format string, args ...any) {
	if len(r.Problems) == maxOrderProblems {
		r.NumMore++
		return
	}
	r.Problems = append(r.Problems, &OrderError{Path: path, Line: line, Text: fmt.Sprintf(format, args...)})
}

// CheckOrder merges the order logs of all ranks and attempts of a run, and
// compares them with the order that they name, computed anew. It finds steps
// whose batch was another, samples that were taken twice or never, logs that
// are missing, were changed or cut off. The steps of the run are those of the
// last attempt that did them.
//
// The error is that of reading the files; what the logs fail to prove is in
// the report, see [OrderReport.Err].
func CheckOrder(dir string, o CheckOptions) (*OrderReport, error) {
	files, err := orderFiles(dir)
	if err != nil {
		return nil, err
	}
	c := &orderCheck{report: &OrderReport{}, attempts: map[int64]*attempt{}, dir: dir}
	for _, rank := range slices.Sorted(maps.Keys(files)) {
		if err := c.read(rank, files[rank]); err != nil {
			return nil, err
		}
	}
	c.merge()
	if err := c.blame(files); err != nil {
		return nil, err
	}
	c.agree(o)
	return c.report, nil
}

// agree compares the logs with a checkpoint.
func (c *orderCheck) agree(o CheckOptions) {
	r := c.report
	at := o.Steps - c.base
	switch {
	case r.Steps < o.Steps:
		r.problem(c.dir, 0, "the run has a checkpoint of step %d, the logs end at step %d: they were cut off", o.Steps, r.Steps)
	case o.State.Order == "" || at < 0 || at >= len(c.history):
	case o.State.Order != r.Order:
		r.problem(c.dir, 0, "the run has a checkpoint of another order, {%s}", o.State.Order)
	case o.State.Position != c.history[at].position:
		r.problem(c.dir, 0, "the run has a checkpoint of step %d at position %d, in the logs that step ended at %d", o.Steps, o.State.Position, c.history[at].position)
	}
}

// orderFiles finds the logs in a directory.
func orderFiles(dir string) (map[int]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &SourceError{Path: dir, Problem: Missing, Advice: "give the directory of a run that has order logs"}
		}
		return nil, unreadable(dir, err)
	}
	files := map[int]string{}
	for _, e := range entries {
		text, found := strings.CutPrefix(strings.TrimSuffix(e.Name(), orderEnding), "rank-")
		rank, err := strconv.Atoi(text)
		if !found || err != nil || rank < 0 || rank >= maxOrderRank || orderFile(rank) != e.Name() {
			continue
		}
		files[rank] = filepath.Join(dir, e.Name())
	}
	if len(files) == 0 {
		return nil, &SourceError{Path: dir, Problem: Empty, Detail: "no " + orderFile(0) + " in it", Advice: "give the directory of a run that has order logs"}
	}
	return files, nil
}

// orderCheck is a check on its way.
type orderCheck struct {
	report   *OrderReport
	dir      string
	attempts map[int64]*attempt
	bad      map[stepOf]int64 // steps whose batch is wrong, with the position before them
	sequence sequence
	base     int         // the step that the logs begin after
	history  []orderDone // entry i is after step base+i of the run
}

// attempt is what the ranks have logged of an attempt, added up.
type attempt struct {
	OrderAttempt
	steps []stepSum
	done  map[int]int // number of steps by rank
	ended map[int]bool
	path  string // of the first log that has it, and where
	line  int
}

// stepSum is what the ranks have logged of a step.
type stepSum struct {
	position int64
	samples  int64
	keys     uint64
	replaced int64
}

type stepOf struct {
	attempt int64
	step    int
}

// read adds a rank's log to the attempts.
func (c *orderCheck) read(rank int, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return unreadable(path, err)
	}
	defer f.Close()
	var a *attempt
	var skipped int64
	var last int64
	r := c.report
	_, err = readOrder(path, f, func(line int, rec orderRecord, problem string) error {
		if problem != "" {
			r.problem(path, line, "%s", problem)
		}
		if rec.kind == "" {
			return nil
		}
		if rec.kind != orderBegin && a == nil {
			r.problem(path, line, "a %s before any attempt has begun", rec.kind)
			return nil
		}
		switch rec.kind {
		case orderBegin:
			if rec.rank != rank {
				r.problem(path, line, "this is the log of rank %d", rec.rank)
			}
			if rec.attempt <= last {
				r.problem(path, line, "attempt %d after attempt %d", rec.attempt, last)
				return nil
			}
			last, skipped = rec.attempt, 0
			a = c.begin(rank, path, line, rec)
		case orderSkip:
			skipped++
			c.checkSkip(path, line, rec)
		case orderStep:
			a.add(c, rank, path, line, rec, skipped)
			skipped = 0
		case orderEnd:
			if done := a.Step + a.done[rank]; rec.step != done {
				r.problem(path, line, "the end is at step %d, but the last step is %d", rec.step, done)
			}
			a.ended[rank] = true
		}
		return nil
	})
	return err
}

// begin notes that a rank has begun an attempt.
func (c *orderCheck) begin(rank int, path string, line int, rec orderRecord) *attempt {
	mine := OrderAttempt{
		Attempt: rec.attempt, World: rec.world, Batch: rec.batch, Total: rec.total, Step: rec.step, From: LoaderState{Position: rec.position, Order: rec.order},
	}
	a := c.attempts[rec.attempt]
	if a == nil {
		a = &attempt{OrderAttempt: mine, done: map[int]int{}, ended: map[int]bool{}, path: path, line: line}
		c.attempts[rec.attempt] = a
	}
	if mine != a.OrderAttempt {
		c.report.problem(path, line, "attempt %d does not begin as in %s:%d", rec.attempt, a.path, a.line)
	}
	a.done[rank] = 0
	if c.sequence.at == nil {
		c.sequence, _ = parseSequence(rec.order) // merge says what is wrong with it
	}
	return a
}

// checkSkip makes sure that what replaced a sample is what may.
func (c *orderCheck) checkSkip(path string, line int, rec orderRecord) {
	if c.sequence.at == nil {
		return // the order is not known, which is a problem of its own
	}
	for try := range numSubstitutes {
		if Substitute(rec.key, c.sequence.len, try).Index == rec.by {
			return
		}
	}
	c.report.problem(path, line, "sample %d of epoch %d is never replaced by sample %d", rec.key.Index, rec.key.Epoch, rec.by)
}

// add adds a rank's step.
func (a *attempt) add(c *orderCheck, rank int, path string, line int, rec orderRecord, skipped int64) {
	i := a.done[rank]
	if want := a.Step + i + 1; rec.step != want {
		c.report.problem(path, line, "step %d where step %d should be", rec.step, want)
		if rec.step < want || rec.step-want > maxOrderGap {
			return
		}
		i = rec.step - a.Step - 1 // what comes after a gap is still of use
	}
	a.done[rank] = i + 1
	for len(a.steps) <= i {
		a.steps = append(a.steps, stepSum{})
	}
	s := &a.steps[i]
	if s.position == 0 {
		s.position = rec.position
	}
	if rec.position != s.position {
		c.report.problem(path, line, "step %d ends at position %d, for other ranks at %d", rec.step, rec.position, s.position)
	}
	s.samples += rec.samples
	s.keys += rec.keys
	s.replaced += skipped
}

// merge goes through the attempts, each from where it began.
func (c *orderCheck) merge() {
	r := c.report
	c.bad = map[stepOf]int64{}
	for _, number := range slices.Sorted(maps.Keys(c.attempts)) {
		a := c.attempts[number]
		if !c.sameOrder(a) {
			return
		}
		if len(c.history) == 0 {
			if a.Step != 0 || a.From.Position != 0 {
				r.problem(a.path, a.line, "the logs begin after step %d: nothing proves the steps before", a.Step)
			}
			c.base = a.Step
			c.history = append(c.history, orderDone{position: a.From.Position})
		}
		at := a.Step - c.base
		switch {
		case at < 0:
			r.problem(a.path, a.line, "attempt %d goes on after step %d, but the logs begin after step %d: some are missing", number, a.Step, c.base)
			return
		case at >= len(c.history):
			r.problem(a.path, a.line, "attempt %d goes on after step %d, but the logs end at step %d: they were cut off, or some are missing", number, a.Step, c.base+len(c.history)-1)
			return
		case a.From.Position != c.history[at].position:
			r.problem(a.path, a.line, "attempt %d begins at position %d, but step %d ended at %d", number, a.From.Position, a.Step, c.history[at].position)
		}
		complete := c.complete(a)
		if again := min(len(c.history)-1-at, complete); again > 0 {
			r.Redone = append(r.Redone, StepRange{a.Step + 1, a.Step + again, c.history[at+1].attempt})
		}
		c.history = c.history[:at+1]
		before := a.From.Position
		for i, s := range a.steps[:complete] {
			c.compare(a, a.Step+i+1, before, s)
			before = s.position
			c.history = append(c.history, orderDone{s.position, number, s.replaced})
		}
		if complete > 0 {
			r.Attempts = append(r.Attempts, OrderStart{number, a.World, a.Batch, StepRange{From: a.Step + 1, To: a.Step + complete}})
		}
		r.Ended = len(a.ended) > 0
	}
	if len(c.history) == 0 {
		r.problem(c.dir, 0, "the logs are empty")
		return
	}
	r.Steps = c.base + len(c.history) - 1
	r.Samples = c.history[len(c.history)-1].position
	for _, h := range c.history {
		r.Replaced += h.replaced
	}
	r.Len, r.Once = c.sequence.len, c.sequence.once
	r.Epochs, r.Rest = r.Samples/c.sequence.epoch, r.Samples%c.sequence.epoch
}

// orderDone is a step of the run.
type orderDone struct {
	position int64
	attempt  int64
	replaced int64
}

// sameOrder takes the order from the first attempt; all others have the same.
func (c *orderCheck) sameOrder(a *attempt) bool {
	r := c.report
	if r.Order != "" && r.Order != a.From.Order {
		r.problem(a.path, a.line, "attempt %d has another order, {%s}, than those before, {%s}", a.Attempt, a.From.Order, r.Order)
		return false
	}
	r.Order = a.From.Order
	if c.sequence.at != nil {
		return true
	}
	var err error
	if c.sequence, err = parseSequence(a.From.Order); err != nil {
		r.problem(a.path, a.line, "%v", err)
	}
	return err == nil
}

// complete is the number of steps that all ranks of an attempt have done. When
// a job ends all at once, a rank may miss the last one, no more.
func (c *orderCheck) complete(a *attempt) int {
	r, most := c.report, len(a.steps)
	least, missing := most, 0
	for rank := 0; rank < a.World && missing <= maxOrderProblems; rank++ {
		done, began := a.done[rank]
		if !began {
			if missing++; most > 0 && missing <= 3 {
				r.problem(filepath.Join(c.dir, orderFile(rank)), 0, "attempt %d of %d ranks has no log of rank %d", a.Attempt, a.World, rank)
			}
			continue
		}
		if done < most-1 || done < most && len(a.ended) > 0 {
			r.problem(filepath.Join(c.dir, orderFile(rank)), 0, "attempt %d ends at step %d, for other ranks at step %d: the log was cut off", a.Attempt, a.Step+done, a.Step+most)
		}
		least = min(least, done)
	}
	if missing > 0 {
		return 0
	}
	return least
}

// compare computes what a step should have had.
func (c *orderCheck) compare(a *attempt, step int, before int64, s stepSum) {
	if s.samples != s.position-before || s.samples < 0 {
		c.bad[stepOf{a.Attempt, step}] = before
		return
	}
	var want uint64
	for p := before; p < s.position; p++ {
		want += mixKey(c.sequence.at(p))
	}
	if want != s.keys {
		c.bad[stepOf{a.Attempt, step}] = before
	}
}

// blame reads the logs again to say which ranks made steps wrong.
func (c *orderCheck) blame(files map[int]string) error {
	if len(c.bad) == 0 {
		return nil
	}
	found := map[stepOf]bool{}
	for _, rank := range slices.Sorted(maps.Keys(files)) {
		f, err := os.Open(files[rank])
		if err != nil {
			return unreadable(files[rank], err)
		}
		var number int64
		_, err = readOrder(files[rank], f, func(line int, rec orderRecord, _ string) error {
			if rec.kind == orderBegin {
				number = rec.attempt
			}
			at := stepOf{number, rec.step}
			before, bad := c.bad[at]
			if rec.kind == orderStep && bad && !c.shareIsRight(c.attempts[number], rank, before, rec) {
				found[at] = true
				c.report.problem(files[rank], line, "step %d of attempt %d: the samples of rank %d are not those of positions %d to %d", rec.step, number, rank, before, rec.position-1)
			}
			return nil
		})
		f.Close()
		if err != nil {
			return err
		}
	}
	for at := range c.bad {
		if !found[at] {
			c.report.problem(c.dir, 0, "step %d of attempt %d: the samples of all ranks together are not those of the order", at.step, at.attempt)
		}
	}
	return nil
}

// shareIsRight reports whether a rank took what it takes when ranks take turns,
// which is how every sampler of this package shares out a step.
func (c *orderCheck) shareIsRight(a *attempt, rank int, before int64, rec orderRecord) bool {
	all := rec.position - before
	if a.share(rank, all) != rec.samples {
		return false
	}
	total := all
	if a.Total > 0 {
		total = int64(a.Total)
	}
	var want uint64
	for ; before < rec.position; before += total {
		for p := before + int64(rank); p < before+total; p += int64(a.World) {
			want += mixKey(c.sequence.at(p))
		}
	}
	return want == rec.keys
}
