// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// TestFrame: at any size a frame fits, says what counts, and has no control characters.
func TestFrame(t *testing.T) {
	r := run("out/\x1b[2Ja", 100)
	for i := range 20 {
		rec := history.Ranks{Step: i, Steps: 1, Time: history.Seconds(1001 + i), Seconds: 1, Late: make(history.Column, 40), Phases: map[string]history.Column{"forward": make(history.Column, 40), "waiting": make(history.Column, 40), "data": make(history.Column, 40)}}
		for rank := range 40 {
			rec.Phases["forward"][rank], rec.Phases["waiting"][rank] = 0.7, 0.3
		}
		rec.Phases["waiting"][30], rec.Phases["data"][30], rec.Late[30] = 0, 0.3, 0.3*39
		r.History.Ranks = append(r.History.Ranks, rec)
	}
	r.History.Notes = []history.Note{{Step: 3, Time: 1002, Text: "two\nlines\x07"}}
	d := report.Data{Title: r.Name, Live: true, Now: 2000, Runs: []report.RunData{report.RunDataOf(0, r)}}
	d.Job = &report.JobData{Ranks: []report.RankData{{Rank: 0, State: "running"}, {Rank: 1, State: "failed", How: "exited with code 3"}}}
	for _, size := range [][2]int{{80, 24}, {1, 1}, {20, 4}, {200, 60}, {40, 10}} {
		lines := report.Frame(d, size[0], size[1])
		if len(lines) > max(size[1], 4) {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > max(size[0], 20) || strings.ContainsFunc(l, func(r rune) bool { return r < ' ' }) {
				t.Errorf("%v: the line %q", size, l)
			}
		}
	}
	text := strings.Join(report.Frame(d, 80, 24), "\n")
	for _, want := range []string{"ended  step 100 of 100  100 %", "loss 2.585 █", "! Who is slow?", "rank 30: the others wait 30 %", "1 running, 1 failed", "! rank 1 (host , pid 0) exited with code 3", "   30 █", "of 40 ranks, those for which"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if text := strings.Join(report.Frame(report.Data{Title: "none", Runs: []report.RunData{{Trouble: "there is no history yet"}}}, 80, 24), "\n"); !strings.Contains(text, "there is no history yet") {
		t.Errorf("of nothing: %q", text)
	}
}
