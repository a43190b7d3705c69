// SPDX-License-Identifier: Apache-2.0

package dashboard_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// BenchmarkOpenPage is what an open page of a job of 64 ranks costs its launcher each second, when the history is
// as long as it gets: one update with a new step and a new record of ranks. ms/update is processor time of the
// server and of the client together.
func BenchmarkOpenPage(b *testing.B) {
	const ranks = 64
	dir := b.TempDir()
	w, _, err := history.Create(dir, history.Run{Time: 1, Task: "lm", Ranks: ranks, Steps: 1e6, Unit: "tokens"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close(time.Minute)
	step := 0
	do := func() {
		step++
		at := history.Seconds(step)
		w.Step(history.Step{Step: step, Time: at, Loss: history.Number(1 + 1/float64(step)), LearningRate: 1e-3, GradNorm: 1, Size: 1e5, Seconds: 1})
		if step%32 != 0 {
			return
		}
		r := history.Ranks{Step: step, Steps: 32, Time: at, Seconds: 32, Phases: map[string]history.Column{}, Late: make(history.Column, ranks)}
		for _, name := range []string{"data", "forward", "backward", "optimizer", "communication", "waiting", "other"} {
			c := make(history.Column, ranks)
			for i := range c {
				c[i] = 32.0 / 7
			}
			r.Phases[name] = c
		}
		w.Ranks(r)
	}
	for step < history.MaxSteps-64 {
		do()
	}
	for { // until the file has it
		if h, err := history.ReadDir(dir); err == nil && h.Done() == step {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	job := dashboard.NewJob("p", nil)
	job.Begin(0, ranks)
	s, err := dashboard.Listen(dashboard.Options{Addr: "127.0.0.1:0", Job: job, Runs: []string{dir}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	cursor := ""
	ask := func() (size int) {
		answer, err := http.Get(strings.Replace(s.URL(), "/?", fmt.Sprintf("/updates?after=%s&", cursor), 1))
		if err != nil {
			b.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			b.Fatal(answer.Status, err)
		}
		var d report.Data
		if err := json.Unmarshal(text, &d); err != nil {
			b.Fatal(err)
		}
		cursor = d.Cursor
		return len(text)
	}
	ask()
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, size, n := used(), 0, 0
	for b.Loop() {
		job.Started(n%ranks, 0, 1, "host") // something has changed
		do()
		size += ask()
		n++
		time.Sleep(1100 * time.Millisecond) // as a page does, and the history is written once a second
	}
	b.ReportMetric(float64((used()-before).Microseconds())/1e3/float64(n), "ms/update")
	b.ReportMetric(float64(size)/float64(n), "bytes/update")
}
