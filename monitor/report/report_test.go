// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"html"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// keep is where TestHTML leaves its page, to be looked at.
var keep = flag.String("keep", "", "the file in which TestHTML leaves its page")

// run makes a run of steps whose losses fall as 1/√step, validated every 10 steps.
func run(name string, steps int) report.Run {
	h := &history.History{Runs: []history.Run{{Version: history.Version, Time: 1000, Task: "lm", Model: "GPT", Data: "words", DType: "float32", Ranks: 2, Threads: 1, Strategy: "DDP over 2 ranks", Unit: "tokens", Steps: steps}}}
	for i := 1; i <= steps; i++ {
		at := history.Seconds(1000 + float64(i)/2)
		h.Steps = append(h.Steps, history.Step{Step: i, Steps: 1, Time: at, Loss: history.Number(4 / math.Sqrt(float64(i))), LearningRate: 1e-3, GradNorm: 1, Size: 100, Seconds: 0.5, Epoch: history.Number(float64(i) / 50)})
		if i%10 == 0 {
			h.Evaluations = append(h.Evaluations, history.Evaluation{Step: i, Time: at, Metrics: []history.Metric{{Name: "loss", Value: history.Number(4.5 / math.Sqrt(float64(i))), Unit: "nats"}}})
		}
	}
	h.End = &history.End{Step: steps, Time: h.Steps[steps-1].Time}
	return report.Run{Name: name, History: h, Settings: map[string]string{"lr": "0.001", "steps": "100"}}
}

// TestSummary: the numbers of a run that is known are these.
func TestSummary(t *testing.T) {
	s := report.Summarize(run("out/a", 100))
	if s.Done != 100 || !s.Ended || s.StepMS != 500 || s.PerSecond != 200 || s.Time.Total != 50 || s.Time.Steps != 50 || s.Time.Other != 0 || len(s.Doubts) != 0 {
		t.Errorf("got %+v", s)
	}
	if v := s.Validation; v == nil || v.Step != 100 || v.BestStep != 100 || v.Value != 0.45 {
		t.Errorf("got the validation %+v", v)
	}
	if want := (4 + 4/math.Sqrt2 + 4/math.Sqrt(3) + 2 + 4/math.Sqrt(5)) / 5; math.Abs(float64(s.FirstLoss)-want) > 1e-12 {
		t.Errorf("the first loss is %v, want %v", s.FirstLoss, want)
	}
}

// TestDoubts: each fault is named, and a healthy run has none (TestSummary).
func TestDoubts(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(h *history.History)
		want  string
	}{
		"overfits": {func(h *history.History) {
			for i := 5; i < len(h.Evaluations); i++ {
				h.Evaluations[i].Metrics[0].Value = history.Number(0.6 + float64(i)/10)
			}
		}, "best after step 50"},
		"does not learn": {func(h *history.History) {
			for i := range h.Steps {
				h.Steps[i].Loss = 4
			}
		}, "the loss does not fall (4 at the beginning, 4 at the end)"},
		"not finite": {func(h *history.History) {
			h.Steps[50].Loss, h.Steps[50].NonFinite = history.Number(math.NaN()), 1
		}, "1 of 100 steps were not finite"},
		"restarts": {func(h *history.History) {
			h.Runs = append(h.Runs, h.Runs[0])
			h.Runs[1].Time = 2000
			for i := 50; i < 100; i++ {
				h.Steps[i].Time += 1000 - 25
			}
			h.Evaluations = h.Evaluations[:5]
			h.End.Time = 2025
			h.Lost = []history.Lost{{Time: 2000, Step: 50, Until: 60, Last: 1030, Seconds: 5, Times: 1}}
		}, "restarts cost 95 % of the time"},
		"beside steps": {func(h *history.History) { h.End.Time += 50 }, "50 % of the time passed outside of steps"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run("out/a", 100)
			c.fault(r.History)
			if d := report.Summarize(r).Doubts; len(d) != 1 || !strings.Contains(d[0], c.want) {
				t.Errorf("got the doubts %q, want one with %q", d, c.want)
			}
		})
	}
}

// TestAfterTheEnd: the time between the end of a run and a process that goes on with more steps is
// no loss.
func TestAfterTheEnd(t *testing.T) {
	r := run("out/a", 100)
	h := r.History
	h.Runs = append(h.Runs, h.Runs[0])
	h.Runs[1].Time, h.Runs[1].AfterEnd = 5000, true
	h.End.Time = 5010
	if s := report.Summarize(r); s.Restarts != 0 || s.Time.Idle != 0 || s.Time.Total != 60 || s.Time.Other != 10 {
		t.Errorf("got %+v", s.Time)
	}
}

// TestText: the summary of a run as a person reads it.
func TestText(t *testing.T) {
	var b strings.Builder
	if err := report.Text(&b, []report.Run{run("out/a", 100), run("out/b", 1)}); err != nil {
		t.Fatal(err)
	}
	want := `out/a
  task        lm; GPT; words
  steps       100 of 100, ended
  ranks       2 DDP over 2 ranks
  loss        2.585 → 0.4041  █▅▄▃▃▃▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
  validation  loss 0.45 nats after step 100; best 0.45 after step 100
  speed       500 ms a step, 200 tokens/s
  time        50s: 100 % in steps, 0 % beside them

out/b
`
	if got := b.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestHTML: the page has the data of all runs as JSON, and what differs. Names and texts of others
// cannot end its script or add markup.
func TestHTML(t *testing.T) {
	a, b := run("out/a", 100), run("out/</script><b>b", 60)
	b.Settings["lr"] = "<i>0.01</i>"
	b.History.Notes = []history.Note{{Step: 3, Time: 1002, Text: "<img src=x onerror=alert(1)>"}}
	b.History.Steps[7].Loss = history.Number(math.Inf(1))
	var page strings.Builder
	if err := report.HTML(&page, "Report of a, b", []report.Run{a, b}); err != nil {
		t.Fatal(err)
	}
	if *keep != "" {
		if err := os.WriteFile(*keep, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	found := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page.String())
	if found == nil {
		t.Fatal("the page has no data")
	}
	var d report.Data
	if err := json.Unmarshal([]byte(found[1]), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Runs) != 2 || d.Live || d.Runs[1].Name != b.Name || len(d.Runs[0].Steps) != 100 || len(d.Runs[1].Evaluations) != 6 || !math.IsNaN(float64(d.Runs[1].Steps[7].Loss)) {
		t.Errorf("got %d runs, the second %q", len(d.Runs), d.Runs[1].Name)
	}
	if want := []report.Difference{{Name: "lr", Values: []string{"0.001", "<i>0.01</i>"}}}; !reflect.DeepEqual(d.Differ, want) {
		t.Errorf("what differs is %+v, want %+v", d.Differ, want)
	}
	for _, bad := range []string{"<b>b", "<i>0.01", "<img"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the page has the markup %s of a run", bad)
		}
	}
	// The policy allows the style and the script of the page by their hashes, and nothing else.
	policy := regexp.MustCompile(`Content-Security-Policy" content="(.*?)"`).FindStringSubmatch(page.String())
	if policy == nil || strings.Contains(policy[1], "unsafe") || strings.Contains(policy[1], "connect-src") {
		t.Fatalf("got the policy %q", policy)
	}
	for _, tag := range []string{"style", "script"} {
		text := regexp.MustCompile(`(?s)<` + tag + `>(.*?)</` + tag + `>`).FindStringSubmatch(page.String())
		sum := sha256.Sum256([]byte(text[1]))
		if !strings.Contains(html.UnescapeString(policy[1]), tag+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
			t.Errorf("the policy does not allow the %s of the page: %s", tag, policy[1])
		}
	}
}

// TestVerdicts: what a person asks is answered from the history.
func TestVerdicts(t *testing.T) {
	r := run("out/a", 100)
	answers := func() (all []string) {
		for _, v := range report.Verdicts(r.History) {
			all = append(all, v.State+": "+v.Answer)
		}
		return all
	}
	if got, want := answers(), []string{"good: yes, the loss falls", "good: no", "good: 200 tokens/s", "unknown: not known", "good: nothing, there was none"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	h := r.History
	for i := 5; i < len(h.Evaluations); i++ {
		h.Evaluations[i].Metrics[0].Value = history.Number(0.6 + float64(i)/10)
	}
	// Step 60 was done when the process ended; the next one begins 30 s later at step 50, and needs
	// 2 s for its start.
	h.Runs = append(h.Runs, h.Runs[0])
	h.Runs[1].Time, h.Runs[1].FirstStep = 1060, 50
	for i := 50; i < 100; i++ {
		h.Steps[i].Time = history.Seconds(1062 + float64(i-49)/2)
	}
	h.Lost = []history.Lost{{Time: 1060, Step: 50, Until: 60, Last: 1030, Seconds: 5, Times: 1}}
	h.Evaluations, h.End = h.Evaluations[:5:5], nil
	for i := 6; i <= 10; i++ {
		h.Evaluations = append(h.Evaluations, history.Evaluation{Step: 10 * i, Time: h.Steps[10*i-1].Time, Metrics: []history.Metric{{Name: "loss", Value: history.Number(1 + float64(i)/10)}}})
	}
	if got, want := report.LastRestart(h), (report.Restart{Step: 50, Again: 5, Stopped: 30, Starting: 2}); got != want {
		t.Errorf("the last restart is %+v, want %+v", got, want)
	}
	if got, want := answers(), []string{"good: yes, the loss falls", "look: yes, since step 50", "good: 200 tokens/s", "unknown: not known", "look: the last one 37s"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := report.Verdicts(nil); len(got) != 1 || got[0].State != report.Unknown {
		t.Errorf("of no history: got %+v", got)
	}
}

// TestWhoIsSlow: a planted delay is named with its rank and its phase; even ranks name nobody.
func TestWhoIsSlow(t *testing.T) {
	for _, c := range []struct {
		name    string
		phase   string // that takes longer on rank 3
		seconds float64
		want    string
	}{
		{"even", "forward", 0, "good: nobody"},
		{"a little", "forward", 0.01, "good: nobody"},
		{"forward", "forward", 0.3, `look: rank 3: the others wait 23 % of their time for it: it spends 46 % of its time in the forward pass, the others 23 %`},
		{"data", "data", 0.2, `look: rank 3: the others wait 17 % of their time for it: it spends 17 % of its time waiting for data, the others 0.0 %`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run("out/a", 100)
			const n = 8
			for i := range 20 {
				rec := history.Ranks{Step: i, Steps: 1, Time: history.Seconds(1001 + i), Seconds: 1 + c.seconds, Late: make(history.Column, n), Phases: map[string]history.Column{}}
				for name, s := range map[string]float64{"data": 0, "forward": 0.3, "backward": 0.6, "optimizer": 0.1, "waiting": c.seconds} {
					column := make(history.Column, n)
					for rank := range column {
						column[rank] = s
					}
					rec.Phases[name] = column
				}
				rec.Phases["waiting"][3] = 0
				rec.Phases[c.phase][3] += c.seconds
				rec.Late[3] = c.seconds * (n - 1)
				r.History.Ranks = append(r.History.Ranks, rec)
			}
			for _, v := range report.Verdicts(r.History) {
				if v.Question != "Who is slow?" {
					continue
				}
				got := v.State + ": " + v.Answer
				if v.State == report.Look {
					got += ": " + v.Why
				}
				if got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			}
			for _, g := range report.Readings(r.History) {
				if waits := g.Name == "waiting for other ranks"; waits && (g.State == report.Look) != (c.seconds > 0.1) || g.State == report.Look && g.Do == "" {
					t.Errorf("got the reading %+v", g)
				}
			}
		})
	}
}
