// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Text writes the summaries of runs for people.
func Text(w io.Writer, runs []Run) error {
	var b strings.Builder
	for i, r := range runs {
		if i > 0 {
			b.WriteByte('\n')
		}
		text(&b, r)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text writes one run.
func text(b *strings.Builder, r Run) {
	s := Summarize(r)
	line := func(title, format string, args ...any) {
		fmt.Fprintf(b, "  %-12s"+format+"\n", append([]any{title}, args...)...)
	}
	fmt.Fprintln(b, r.Name)
	what := []string{s.Task}
	for _, part := range []string{s.Model, s.Data} {
		if part != "" {
			what = append(what, part)
		}
	}
	line("task", "%s", strings.Join(what, "; "))
	state := "the run has not ended by itself"
	if s.Ended {
		state = "ended"
	}
	line("steps", "%d of %d, %s", s.Done, s.Steps, state)
	line("ranks", "%d %s", s.Ranks, s.Strategy)
	if len(r.History.Steps) > 0 {
		line("loss", "%s → %s  %s", number(s.FirstLoss), number(s.LastLoss), history.Sparkline(r.History.Steps, 40))
	}
	if v := s.Validation; v != nil {
		line("validation", "%s %s %s after step %d; best %s after step %d", v.Name, number(v.Value), v.Unit, v.Step, number(v.Best), v.BestStep)
	}
	if s.StepMS.IsFinite() {
		speed := fmt.Sprintf("%s ms a step", number(s.StepMS))
		if s.Unit != "" {
			speed += fmt.Sprintf(", %s %s/s", number(s.PerSecond), s.Unit)
		}
		line("speed", "%s", speed)
	}
	line("time", "%s", s.Time)
	if s.Goodput != nil {
		for _, l := range s.Goodput.lines() {
			line(l[0], "%s", l[1])
		}
	}
	if s.Restarts > 0 {
		line("restarts", "%d: %s in steps that were done again, %s in which nothing ran", s.Restarts, seconds(s.Time.Again), seconds(s.Time.Idle))
	}
	if s.Checkpoint != "" {
		line("checkpoint", "%s", s.Checkpoint)
	}
	for _, d := range s.Doubts {
		line("look at", "%s", d)
	}
}

// String says where the time went.
func (t Time) String() string {
	total := float64(t.Total)
	text := seconds(total)
	if total > 0 {
		text += fmt.Sprintf(": %.0f %% in steps, %.0f %% beside them", 100*t.Steps/total, 100*float64(t.Other)/total)
		if lost := t.Again + t.Idle; lost > 0 {
			text += fmt.Sprintf(", %.0f %% lost by restarts", 100*lost/total)
		}
	}
	return text
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
