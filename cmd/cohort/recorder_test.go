// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
)

// TestRecorderCommand prints the view of two ranks of three, one of which waits
// for the others.
func TestRecorderCommand(t *testing.T) {
	dir := t.TempDir()
	for rank := range 2 {
		d := &flightlog.Dump{Version: flightlog.Version, Rank: rank, WorldSize: 3, Host: "h", PID: 10 + rank, Reason: "asked", Start: time.Now(), TimeNS: 2e9,
			Sites: []string{"", "app/train.go:88 main.train"}, Groups: []flightlog.Group{{Name: "world", Key: "world", Rank: rank, Size: 3}}}
		if rank == 0 {
			d.Groups[0].Called, d.Groups[0].Begun = 1, 1
			d.Entries = []flightlog.Entry{{Op: "barrier", Seq: 1, CalledNS: 5e8, BegunNS: 5e8, State: flightlog.Begun, Site: 1}}
		}
		if err := flightlog.Write(dir, d); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rank-2.json"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir()) // where no job is found
	var out, errs bytes.Buffer
	if code := run([]string{"recorder", dir}, &out, &errs); code != 0 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	want := `group "world": barrier 1 waits for ranks 1-2 of 3, 1.5s (app/train.go:88 main.train)`
	if first, _, _ := strings.Cut(out.String(), "\n"); first != want {
		t.Errorf("the first line is\n%s\nwant\n%s", first, want)
	}
	for _, want := range []string{"the last collectives of group \"world\", the newest first:", "      1  rank 0: barrier, begun (app/train.go:88 main.train)", "      1  not called by rank 1"} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("the text has no line %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(errs.String(), "rank-2.json") {
		t.Errorf("the standard error does not name the file that cannot be read: %s", errs.String())
	}
	out.Reset()
	if code := run([]string{"recorder", "--json", filepath.Join(dir, "rank-0.json"), filepath.Join(dir, "rank-1.json")}, &out, &errs); code != 0 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	var report struct {
		NoDump string `json:"no_dump"`
		Groups []struct {
			Waiting struct {
				Missing string
				Absent  []struct {
					Rank int
					Why  string
				}
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || report.NoDump != "2" || len(report.Groups) != 1 || report.Groups[0].Waiting.Missing != "1-2" ||
		report.Groups[0].Waiting.Absent[0].Why != "elsewhere" {
		t.Errorf("the JSON gives %+v (%v):\n%s", report, err, out.String())
	}
	for _, args := range [][]string{{"recorder"}, {"recorder", filepath.Join(dir, "no")}} {
		if code := run(args, &out, &errs); code == 0 {
			t.Errorf("%q is taken", args)
		}
	}
}
