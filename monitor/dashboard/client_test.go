// SPDX-License-Identifier: Apache-2.0

package dashboard_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/history"
)

// TestClient: a client of a server, and one of the directory, know what a page that is opened knows,
// while the history grows.
func TestClient(t *testing.T) {
	dir := t.TempDir()
	job := dashboard.NewJob("p", nil)
	s, _ := listen(t, dashboard.Options{Title: "a job", Runs: []string{dir}, Job: job})
	far, err := dashboard.Dial(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near := dashboard.Open("a job", []string{dir})
	defer near.Close()
	for first := 0; first < 300; first += 100 {
		w, _, err := history.Create(dir, begin(max(0, first-10)))
		if err != nil {
			t.Fatal(err)
		}
		for n := max(0, first-10) + 1; n <= first+100; n++ {
			w.Step(history.Step{Step: n, Time: history.Seconds(n), Loss: 1, Size: 1, Seconds: 1})
			w.Note(history.Note{Step: n, Text: "note"})
		}
		w.Close(patience)
		job.Started(0, 0, first+1, "h")
		want := update(t, s, "")
		for name, c := range map[string]*dashboard.Client{"far": far, "near": near} {
			got, err := c.Ask(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, _ := json.Marshal(got.Runs)
			b, _ := json.Marshal(want.Runs)
			if string(a) != string(b) || got.Title != "a job" || name == "far" && got.Job.Ranks[0].PID != first+1 {
				t.Errorf("%s: it knows %d steps of %d, and %+v", name, len(got.Runs[0].Steps), len(want.Runs[0].Steps), got.Job)
			}
		}
	}
	wrong, err := dashboard.Dial(s.URL() + "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.Ask(t.Context()); err == nil || !strings.Contains(err.Error(), "403") || strings.Contains(err.Error(), "token=") {
		t.Errorf("with a wrong token: %v", err)
	}
	s.Close()
	if _, err := far.Ask(t.Context()); err == nil || strings.Contains(err.Error(), "token=") {
		t.Errorf("after the end: %v", err)
	}
	for _, bad := range []string{"", "127.0.0.1:1", "http://127.0.0.1:1/", "ftp://x/?token=1"} {
		if _, err := dashboard.Dial(bad); err == nil {
			t.Errorf("%q is an address", bad)
		}
	}
}

// TestJobs: jobs that run are found, and what is left of those that were killed goes.
func TestJobs(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	if jobs, err := dashboard.Jobs(); err != nil || len(jobs) != 0 {
		t.Fatalf("got %v, %v", jobs, err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	end, err := dashboard.Register(dashboard.Running{PID: os.Getpid(), Begun: 1, Title: "mine", Runs: []string{"/out"}, URL: "u"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dashboard.Register(dashboard.Running{PID: ended.Process.Pid, Begun: 2, Title: "killed"}); err != nil {
		t.Fatal(err)
	}
	jobs, err := dashboard.Jobs()
	if err != nil || len(jobs) != 1 || jobs[0].Title != "mine" || jobs[0].URL != "u" {
		t.Errorf("got %+v, %v", jobs, err)
	}
	end()
	if jobs, err = dashboard.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("after the end: %+v, %v", jobs, err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("files stay: %v, %v", left, err)
	}
	if err := os.Mkdir(filepath.Join(tmp, fmt.Sprintf("cohort-jobs-%d", os.Getuid())), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := dashboard.Jobs(); err == nil {
		t.Error("a directory that others can read is used")
	}
}
