// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// guards lists the running guards of a job.
func guards(job string) (out []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.HasPrefix(b, []byte("cohort-guard\x00")) && bytes.Contains(b, []byte(job)) {
			out = append(out, filepath.Base(filepath.Dir(f)))
		}
	}
	return out
}

// Processes that fall to the agent and end do not stay as zombies.
func TestAgentReaps(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2, Exclusive: true}, "daemons")
	a.out.await(t, 2, "ready")
	eventually(t, func() string {
		if n := len(children(a.Process.Pid)); n != 3 { // two workers and the guard
			return fmt.Sprintf("the agent has %d children", n)
		}
		return ""
	})
	_ = a.Process.Signal(syscall.SIGTERM)
	a.end(t)
}

// kill -9 of the agent: workers, their children and daemons, the guard and the
// built file go.
func TestAgentKilled(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2, Exclusive: true}, "parent:group,daemon+wait")
	a.out.await(t, 2, "ready")
	pids := append(a.out.numbers("ready"), a.out.numbers("child")...)
	if len(pids) != 6 {
		t.Fatalf("output %q", a.out.String())
	}
	job := jobOf(t, pids[0])
	if len(guards(job)) != 1 {
		t.Fatalf("guards of the running job: %v", guards(job))
	}
	_ = a.Process.Kill()
	start := time.Now()
	a.end(t)
	waitGone(t, a.mark)
	eventually(t, func() string {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Sprintf("process %d is left", pid)
			}
		}
		if g := guards(job); len(g) > 0 {
			return fmt.Sprintf("guard %v is left", g)
		}
		return ""
	})
	t.Logf("all gone %v after the kill of the agent", time.Since(start).Round(time.Millisecond))
}

// A guard that has been killed is missed only if the agent is killed as well.
func TestGuardKilled(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2, Exclusive: true}, "parent:group,daemon+wait")
	a.out.await(t, 2, "ready")
	for _, pid := range guards(jobOf(t, a.out.numbers("ready")[0])) {
		out, err := exec.Command("kill", "-KILL", pid).CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	_ = a.Process.Signal(syscall.SIGINT)
	if code, _ := a.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// alive says whether a process runs; one that waits to be reaped does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func jobOf(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for kv := range strings.SplitSeq(string(b), "\x00") {
		if v, ok := strings.CutPrefix(kv, "COHORT_JOB="); ok {
			return v
		}
	}
	t.Fatalf("process %d has no COHORT_JOB", pid)
	return ""
}
