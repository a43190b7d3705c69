// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/doctor"
)

// TestDoctor: exit codes and both forms of what is printed.
func TestDoctor(t *testing.T) {
	failed, calm := t.TempDir(), t.TempDir()
	for dir, text := range map[string]string{failed: "OSError: [Errno 28] No space left on device\x1b[2J\n", calm: "step 1 loss 2\n"} {
		if err := os.WriteFile(filepath.Join(dir, "stderr.log"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{failed}, 1, []string{"problem: disk full: ", "in stderr.log", "  > stderr.log: OSError", "^[[2J", "  why: ", "  mend: df -h", "1 finding"}},
		{[]string{calm}, 0, []string{"nothing found"}},
		{[]string{t.TempDir()}, 2, []string{"has no logs"}},
		{[]string{"--ranks", "0"}, 2, []string{"--ranks 0"}},
		{[]string{failed, calm}, 2, []string{"one directory"}},
	} {
		j := start(t, nil, append([]string{"doctor"}, c.args...)...)
		code := j.wait(t)
		stdout, stderr := j.output()
		if code != c.code {
			t.Errorf("%q: code %d, want %d", c.args, code, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%q: no %q in %q, %q", c.args, want, stdout, stderr)
			}
		}
	}
	// This host, whatever its faults are.
	j := start(t, nil, "doctor", "--json", "--port", "0", "--dir", t.TempDir())
	code := j.wait(t)
	stdout, stderr := j.output()
	var got struct {
		Findings []doctor.Finding
		Host     doctor.Facts
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != min(1, len(got.Findings)) || got.Host.Print == nil || got.Host.Rates == nil {
		t.Errorf("code %d, %v: %s %s", code, err, stdout, stderr)
	}
	for _, f := range got.Findings {
		t.Logf("this host: %s: %s", f.Check, f.What)
	}
}
