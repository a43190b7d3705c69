// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/monitor/history"
)

// Frame returns what the page shows as lines for a terminal of so many columns and rows, at most as
// many lines as rows. Lines have no control characters and are not longer than the columns.
func Frame(d Data, columns, rows int) []string {
	f := frame{columns: max(columns, 20), rows: max(rows, 4)}
	f.line("%s", spread(d.Title, clock(d.Now), f.columns))
	for i := range d.Runs {
		f.run(&d, &d.Runs[i], len(d.Runs) > 1)
	}
	if d.Job != nil {
		f.job(d.Job)
	}
	for _, t := range d.Trouble {
		f.line("! %s", t)
	}
	if len(d.Runs) == 1 {
		f.phases(d.Runs[0].Ranks)
	}
	f.events(&d)
	return f.lines
}

type frame struct {
	columns, rows int
	lines         []string
}

// line adds a line, if there is room.
func (f *frame) line(format string, args ...any) {
	if f.left() == 0 {
		return
	}
	text := strings.ReplaceAll(visible.Text(fmt.Sprintf(format, args...)), "\n", " ")
	text = strings.ReplaceAll(text, "\t", " ")
	if utf8.RuneCountInString(text) > f.columns {
		text = string([]rune(text)[:f.columns-1]) + "…"
	}
	f.lines = append(f.lines, text)
}

func (f *frame) left() int { return f.rows - len(f.lines) }

// spread puts one text at the left end of a line and one at the right.
func spread(left, right string, columns int) string {
	gap := columns - utf8.RuneCountInString(left) - utf8.RuneCountInString(right)
	if gap < 1 {
		return left
	}
	return left + strings.Repeat(" ", gap) + right
}

func clock(t history.Seconds) string { return t.Time().Local().Format(time.TimeOnly) }

// run shows how far a run is, its loss as a picture, and what people ask.
func (f *frame) run(d *Data, r *RunData, several bool) {
	if several {
		f.line("%s", r.Name)
	}
	s := r.Summary
	if s == nil {
		f.line("%s", cmp.Or(r.Trouble, "waits for the first step"))
		return
	}
	state := "not ended"
	switch {
	case r.End != nil:
		state = "ended"
	case d.Live:
		state = "running"
	}
	text := fmt.Sprintf("%s  step %d of %d", state, s.Done, s.Steps)
	if s.Steps > 0 {
		text += fmt.Sprintf("  %d %%", 100*s.Done/s.Steps)
	}
	if s.StepMS.IsFinite() {
		text += fmt.Sprintf("  %s ms a step", number(s.StepMS))
		if r.End == nil && s.Done < s.Steps {
			text += "  " + seconds(math.Round(float64(s.Steps-s.Done)*float64(s.StepMS)/1e3)) + " left"
		}
	}
	f.line("%s", text)
	if len(r.Steps) > 0 {
		f.line("loss %s %s %s", number(s.FirstLoss), history.Sparkline(r.Steps, min(f.columns-25, 60)), number(s.LastLoss))
	}
	if several {
		return
	}
	marks := map[string]string{Good: "✓", Look: "!", Unknown: "·"}
	for _, v := range r.Verdicts {
		answer := v.Answer
		if v.Why != "" {
			answer += ": " + v.Why
		}
		f.line("%s %-24s %s", marks[v.State], v.Question, answer)
	}
}

// job shows the states of ranks.
func (f *frame) job(j *JobData) {
	count := map[string]int{}
	for _, r := range j.Ranks {
		count[r.State]++
	}
	var parts []string
	for _, state := range []string{"running", "slow", "stopped", "failed", "ended"} {
		if count[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[state], state))
		}
	}
	f.line("ranks  %s", strings.Join(parts, ", "))
	shown := 0
	for _, r := range j.Ranks {
		if r.State == "failed" || r.State == "stopped" {
			if shown++; shown <= 3 {
				f.line("! rank %d (host %s, pid %d) %s", r.Rank, r.Host, r.PID, cmp.Or(r.How, r.State))
			}
		}
	}
}

// shares are the phases as a terminal shows them, each with the character of its bar.
var shares = []struct {
	name   string
	phases []string
	mark   string
}{
	{"compute", []string{"forward", "backward", "optimizer"}, "█"}, {"communication", []string{"communication"}, "▓"}, {"waiting", []string{"waiting"}, "░"},
	{"data", []string{"data"}, "d"}, {"checkpoint", []string{"checkpoint"}, "c"}, {"evaluation", []string{"evaluation"}, "e"}, {"other", []string{"other"}, "·"},
}

// phases shows where the time of the ranks went: of all if there is room, else of those for which the others
// wait most.
func (f *frame) phases(records []history.Ranks) {
	if len(records) == 0 || f.left() < 4 {
		return
	}
	w := windowOf(&history.History{Runs: []history.Run{{}}, Ranks: records})
	if w == nil {
		return
	}
	f.line("%s", "time of ranks: █ compute ▓ communication ░ waiting d data c checkpoint e evaluation · other")
	ranks := make([]int, w.n)
	for i := range ranks {
		ranks[i] = i
	}
	room := max(1, min(f.left()-3, f.rows/2))
	if w.n > room {
		slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(w.late[b], w.late[a]) })
		ranks = ranks[:room]
	}
	width := max(5, min(f.columns-30, 60))
	for _, rank := range ranks {
		var bar, words strings.Builder
		at := 0.0
		for _, s := range shares {
			sum := 0.0
			for _, p := range s.phases {
				if c := w.byRank[p]; c != nil {
					sum += c[rank]
				}
			}
			sum /= w.seconds
			from := int(at*float64(width) + 0.5)
			at += sum
			bar.WriteString(strings.Repeat(s.mark, max(0, min(width, int(at*float64(width)+0.5))-from)))
			if s.name == "compute" || s.name == "waiting" {
				fmt.Fprintf(&words, " %s %.0f %%", s.name, 100*sum)
			}
		}
		f.line("%5d %-*s%s", rank, width, bar.String(), words.String())
	}
	if w.n > len(ranks) {
		f.line("      … of %d ranks, those for which the others wait most", w.n)
	}
}

// events shows what happened last, in the rows that are left.
func (f *frame) events(d *Data) {
	type event struct {
		at   history.Seconds
		text string
	}
	var all []event
	for i := range d.Runs {
		r := &d.Runs[i]
		for _, n := range r.Notes {
			all = append(all, event{n.Time, n.Text})
		}
		for _, e := range r.Evaluations {
			if len(e.Metrics) > 0 {
				all = append(all, event{e.Time, fmt.Sprintf("step %d: %s %s", e.Step, e.Metrics[0].Name, number(e.Metrics[0].Value))})
			}
		}
		for _, s := range r.Saved {
			all = append(all, event{s.Time, fmt.Sprintf("step %d: saved %s", s.Step, s.Path)})
		}
		for _, l := range r.Lost {
			all = append(all, event{l.Time, fmt.Sprintf("steps %d to %d are done again, %s lost", l.Step+1, l.Until, seconds(l.Seconds))})
		}
	}
	if d.Job != nil {
		for _, e := range d.Job.Events {
			all = append(all, event{e.Time, e.Text})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(b.at, a.at) })
	for _, e := range all[:min(len(all), f.left())] {
		f.line("%s %s", clock(e.at), e.text)
	}
}
