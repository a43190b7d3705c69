// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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

// TestDoctorFindsPlants: faults that are planted in this machine, for one process alone, are found,
// and the command that the finding prints mends them.
func TestDoctorFindsPlants(t *testing.T) {
	if out, err := exec.Command("unshare", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
	dir := t.TempDir()
	// examine runs a shell's commands and then doctor, all in a mount namespace of their own.
	examine := func(t *testing.T, commands string) []doctor.Finding {
		t.Helper()
		script := fmt.Sprintf("set -e\n%s\nexec %s doctor --json --port 0 --ranks 2 --dir %s", commands, os.Args[0], dir)
		cmd := exec.Command("unshare", "-m", "bash", "-c", script)
		cmd.Env = append(os.Environ(), cliMain+"=1", "TMPDIR="+t.TempDir())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		text, err := cmd.Output()
		var got struct{ Findings []doctor.Finding }
		if jerr := json.Unmarshal(text, &got); jerr != nil {
			t.Fatalf("%v, %v: %s %s\n%s", err, jerr, text, stderr.String(), commands)
		}
		return got.Findings
	}
	known := map[string]bool{}
	for _, f := range examine(t, ":") {
		known[f.Check+f.What] = true
	}
	// group is a cgroup of a controller in which the shell is.
	group := func(controller, file, value string) string {
		at := filepath.Join("/sys/fs/cgroup", controller, fmt.Sprintf("cohort-test-%d", os.Getpid()))
		t.Cleanup(func() { _ = os.Remove(at) })
		return fmt.Sprintf("mkdir -p %[1]s; echo %[2]s > %[1]s/%[3]s; echo $$ > %[1]s/cgroup.procs", at, value, file)
	}
	for i, c := range []struct {
		check, what, plant string
		mend               string // where the finding's command only looks; "-" where not every root may run it
	}{
		{"disk space", "1 MiB left of 20 MiB", "mount -t tmpfs -o size=20m tmpfs " + dir + "; head -c 19M /dev/zero > " + dir + "/fill", "mount -o remount,size=3g " + dir},
		{"shared memory", "/dev/shm has 64 MiB", "mount -t tmpfs -o size=64m tmpfs /dev/shm", ""},
		{"open files", "may open 100 files", "ulimit -n 100", "-"},
		{"disk space", "room for 49 more files", "mount -t tmpfs -o size=3g,nr_inodes=50 tmpfs " + dir, "mount -o remount,nr_inodes=9999 " + dir},
		{"disk writes", "read-only file system", "mount -t tmpfs -o size=3g,ro tmpfs " + dir, ""},
		{"file size", "may have 488 MiB", "ulimit -S -f 500000", ""},
		{"processors", "0.5 processors, by the quota", group("cpu", "cpu.cfs_quota_us", "50000"), ""},
		{"memory", "left for 2 ranks, by memory.limit_in_bytes", group("memory", "memory.limit_in_bytes", "300M"), ""},
		{"processes", "the cgroup may have 40", group("pids", "pids.max", "40"), ""},
	} {
		if i > 1 && !*allFaults {
			break
		}
		t.Run(c.check, func(t *testing.T) {
			if strings.Contains(c.plant, "/sys/fs/cgroup/") {
				if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err != nil {
					t.Skip("needs version 1 of cgroups:", err)
				}
			}
			mend := c.mend
			found := 0
			for _, f := range examine(t, c.plant) {
				switch {
				case known[f.Check+f.What]:
				case f.Check == c.check && strings.Contains(f.What, c.what):
					found++
					if mend == "" {
						mend = f.Mend
					}
				default:
					t.Errorf("found %+v", f)
				}
			}
			if found != 1 {
				t.Fatalf("%d findings, want one of the check %q with %q", found, c.check, c.what)
			}
			if mend == "-" {
				return
			}
			for _, f := range examine(t, c.plant+"\n"+mend) {
				if !known[f.Check+f.What] {
					t.Errorf("after %q: %+v", mend, f)
				}
			}
		})
	}
}
