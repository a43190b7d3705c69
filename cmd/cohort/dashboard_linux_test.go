// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/monitor/report"
)

// dashboardOf waits for the address that a job prints.
func dashboardOf(t *testing.T, j *job) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		_, stderr := j.output()
		if found := regexp.MustCompile(`the dashboard is at (http://127\.0\.0\.1:\d+/\?token=[0-9a-f]{32})\n`).FindStringSubmatch(stderr); found != nil {
			return found[1]
		}
		if time.Now().After(deadline) {
			t.Fatalf("no address of a dashboard in %q", stderr)
		}
	}
}

// ask asks a dashboard for what it knows until it is as wanted.
func ask(t *testing.T, url string, wanted func(d report.Data) bool) report.Data {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var d report.Data
		answer, err := http.Get(strings.Replace(url, "/?", "/updates?", 1))
		if err == nil {
			err = json.NewDecoder(answer.Body).Decode(&d)
			answer.Body.Close()
		}
		if err == nil && wanted(d) {
			return d
		}
		if time.Now().After(deadline) {
			t.Fatalf("the dashboard says %+v, %v", d, err)
		}
	}
}

func interrupt(t *testing.T, j *job) {
	t.Helper()
	if err := j.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// TestDashboardOfTraining: the page of a job at work shows its steps and ranks, and the end of the job.
// That of cohort report shows the same run.
func TestDashboardOfTraining(t *testing.T) {
	out := filepath.Join(t.TempDir(), "lm")
	j := start(t, nil, "train", "lm", "--ranks", "2", "--steps", "1000000", "--width", "16", "--heads", "2", "--layers", "1", "--batch", "2", "--context", "16", "--out", out, "--dashboard", "127.0.0.1:0")
	url := dashboardOf(t, j)
	d := ask(t, url, func(d report.Data) bool { return len(d.Runs) == 1 && len(d.Runs[0].Steps) > 20 && d.Job != nil })
	if r := d.Runs[0]; r.Name != out || r.Summary.Ranks != 2 || r.Settings["width"] != "16" || len(r.Verdicts) < 4 {
		t.Errorf("got the run %+v", r.Summary)
	}
	if job := d.Job; len(job.Ranks) != 2 || job.Ranks[1].State != "running" || job.Mesh[1] != (report.Axis{Name: "replicate", Size: 2}) {
		t.Errorf("got the job %+v", job)
	}
	interrupt(t, j)
	d = ask(t, url, func(d report.Data) bool { return d.Job != nil && d.Job.Over })
	if d.Job.Ranks[1].State == "running" {
		t.Errorf("after the end there is %+v", d.Job.Ranks)
	}
	j.wait(t)
	again := start(t, nil, "report", "--dashboard", "0", out)
	if d := ask(t, dashboardOf(t, again), func(report.Data) bool { return true }); len(d.Runs) != 1 || len(d.Runs[0].Steps) < 20 || d.Job != nil {
		t.Errorf("the report shows %d runs", len(d.Runs))
	}
	interrupt(t, again)
	if code := again.wait(t); code != 0 {
		t.Errorf("the report ends with %d", code)
	}
}

// TestDashboardOfRun: the page of cohort run shows what ranks print, without the token, and how they
// fail; a rank that is started with --dashboard is told where the flag belongs.
func TestDashboardOfRun(t *testing.T) {
	j := start(t, nil, "run", "--nproc-per-node", "2", "--max-restarts", "1", "--dashboard", "127.0.0.1:0", "/bin/sh", "-c",
		`echo "rank $RANK says $COHORT_TOKEN"; if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 3; fi; sleep 1000`)
	url := dashboardOf(t, j)
	d := ask(t, url, func(d report.Data) bool {
		return d.Job != nil && d.Job.Attempt == 1 && len(d.Job.Ranks) == 2 && d.Job.Ranks[0].State == "running" && d.Job.Ranks[1].State == "running"
	})
	failed := false
	for _, e := range d.Job.Events {
		failed = failed || e.Bad && strings.Contains(e.Text, "rank 1 ") && strings.Contains(e.Text, "exited with code 3")
	}
	if !failed || d.Job.Ranks[1].Starts != 2 {
		t.Errorf("got %+v", d.Job)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(strings.Replace(url, "/?", "/log?q=says&", 1))
		if err != nil {
			t.Fatal(err)
		}
		var a struct{ Lines []struct{ Text string } }
		err = json.NewDecoder(answer.Body).Decode(&a)
		answer.Body.Close()
		if err == nil && len(a.Lines) == 4 {
			if !regexp.MustCompile(`^rank [01] says \*+$`).MatchString(a.Lines[3].Text) {
				t.Errorf("got the line %q", a.Lines[3].Text)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got the lines %+v, %v", a.Lines, err)
		}
	}
	interrupt(t, j)
	j.wait(t)

	j = start(t, nil, "run", "--nproc-per-node", "1", os.Args[0], "train", "lm", "--dashboard", "0")
	if code := j.wait(t); code == 0 {
		t.Error("a rank took --dashboard")
	}
	if _, stderr := j.output(); !strings.Contains(stderr, "give --dashboard to that one") {
		t.Errorf("got %q", stderr)
	}
}
