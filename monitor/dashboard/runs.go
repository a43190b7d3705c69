// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// runs are the runs of a server.
type runs struct {
	mu          sync.Mutex
	settings    func(dir string) (map[string]string, error)
	environment func(dir string) (map[string]string, error)
	list        []*run
}

// run is a run that is followed.
type run struct {
	dir         string
	follower    *history.Follower
	trouble     string
	version     int // grows whenever something has changed
	settings    map[string]string
	environment map[string]string
	asked       int // the generation in which the settings were read
}

func newRuns(dirs []string, settings, environment func(dir string) (map[string]string, error)) *runs {
	none := func(string) (map[string]string, error) { return nil, nil }
	if settings == nil {
		settings = none
	}
	if environment == nil {
		environment = none
	}
	all := &runs{settings: settings, environment: environment}
	for _, dir := range dirs {
		all.list = append(all.list, &run{dir: dir, follower: history.Follow(dir), asked: -1})
	}
	return all
}

func (all *runs) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, r := range all.list {
		_ = r.follower.Close()
	}
}

// poll reads what is new.
func (all *runs) poll() {
	for _, r := range all.list {
		trouble := ""
		changed, err := r.follower.Poll()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			trouble = "there is no history yet"
		case err != nil:
			trouble = plain(err.Error(), 500)
		}
		if r.follower.Generation() != r.asked {
			r.asked = r.follower.Generation()
			r.settings, _ = all.settings(r.dir) // a run without settings is shown without
			r.environment, _ = all.environment(r.dir)
		}
		if changed || trouble != r.trouble {
			r.trouble = trouble
			r.version++
		}
	}
}

// counts are how many records of each list of a run a page has, of which version and generation.
type counts struct{ version, generation, starts, steps, evaluations, saved, notes, lost, ranks, values, samples int }

func (c *counts) fields() []*int {
	return []*int{&c.version, &c.generation, &c.starts, &c.steps, &c.evaluations, &c.saved, &c.notes, &c.lost, &c.ranks, &c.values, &c.samples}
}

// counts returns what there is of a run.
func (r *run) counts() counts {
	c := counts{version: r.version, generation: r.follower.Generation()}
	if h := r.follower.History(); h != nil {
		c.starts, c.steps, c.evaluations, c.saved = len(h.Runs), len(h.Steps), len(h.Evaluations), len(h.Saved)
		c.notes, c.lost, c.ranks, c.values, c.samples = len(h.Notes), len(h.Lost), len(h.Ranks), len(h.Values), len(h.Samples)
	}
	return c
}

// cursor is up to where a page knows everything.
type cursor struct {
	job  uint64
	runs []counts
}

// maxCursor is how long the text of a cursor may be.
const maxCursor = 8 << 10

func (c cursor) String() string {
	var b strings.Builder
	b.WriteString(strconv.FormatUint(c.job, 10))
	for i := range c.runs {
		for k, f := range c.runs[i].fields() {
			fmt.Fprintf(&b, "%c%d", "_."[min(k, 1)], *f)
		}
	}
	return b.String()
}

// parseCursor reads a cursor. Of one that it cannot read it knows nothing, so that everything is sent.
func parseCursor(text string, numRuns int) (c cursor) {
	parts := strings.Split(text[:min(len(text), maxCursor)], "_")
	none := cursor{runs: make([]counts, numRuns)}
	for i := range none.runs {
		none.runs[i].version = -1
	}
	var err error
	if c.job, err = strconv.ParseUint(parts[0], 10, 64); err != nil || len(parts) != numRuns+1 {
		return none
	}
	for _, part := range parts[1:] {
		var of counts
		fields := of.fields()
		numbers := strings.Split(part, ".")
		if len(numbers) != len(fields) {
			return none
		}
		for k, f := range fields {
			if *f, err = strconv.Atoi(numbers[k]); err != nil || *f < 0 {
				return none
			}
		}
		c.runs = append(c.runs, of)
	}
	return c
}

// add adds what a page does not know to an update, and returns its next cursor.
func (all *runs) add(to *report.Data, known cursor) cursor {
	var next cursor
	changed := false
	for i, r := range all.list {
		now, had := r.counts(), known.runs[i]
		if next.runs = append(next.runs, now); now.version == had.version {
			continue
		}
		changed = true
		d := report.RunDataOf(i, report.Run{Name: r.dir, History: r.follower.History(), Settings: r.settings})
		d.Generation, d.Trouble = now.generation, r.trouble
		if now.generation == had.generation {
			d.Starts, d.Steps, d.Evaluations = after(d.Starts, had.starts), after(d.Steps, had.steps), after(d.Evaluations, had.evaluations)
			d.Saved, d.Notes, d.Lost = after(d.Saved, had.saved), after(d.Notes, had.notes), after(d.Lost, had.lost)
			d.Ranks, d.Values, d.Samples = after(d.Ranks, had.ranks), after(d.Values, had.values), after(d.Samples, had.samples)
		}
		to.Runs = append(to.Runs, d)
	}
	if changed && len(all.list) > 1 {
		var several []report.Run
		for _, r := range all.list {
			several = append(several, report.Run{Name: r.dir, History: r.follower.History(), Settings: r.settings, Environment: r.environment})
		}
		to.Differ = report.Differences(several)
	}
	return next
}

// after returns the records behind the first n.
func after[T any](list []T, n int) []T { return list[min(n, len(list)):] }
