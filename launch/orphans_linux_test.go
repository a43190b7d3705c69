// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
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

// TestKilledEarly: an agent that is killed while it begins, at whatever moment, leaves no
// directory and no cgroup: the guard is there before they are.
func TestKilledEarly(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 4))
	group := cgroupPath("")
	before := emptyGroups(group)
	for i := range 24 {
		tmp := t.TempDir()
		p := startProcess(t, `agent:{"NumRanks":2}`, "LAUNCH_TEST_WORKER=wait", "TMPDIR="+tmp)
		if i%2 == 0 { // as soon as there is something to leave
			eventually(t, func() string {
				if made, _ := os.ReadDir(tmp); len(made) == 0 && len(emptyGroups(group)) <= len(before) {
					return "nothing was made"
				}
				return ""
			})
		} else {
			time.Sleep(time.Duration(r.IntN(80)) * time.Millisecond) // the point: at any moment
		}
		_ = p.Process.Kill()
		_ = p.Wait()
		eventually(t, func() string {
			if left, _ := filepath.Glob(tmp + "/*"); len(left) > 0 {
				return fmt.Sprintf("%v is left", left)
			}
			if left := emptyGroups(group); slices.ContainsFunc(left, func(dir string) bool { return !slices.Contains(before, dir) }) {
				return fmt.Sprintf("cgroups are left: %v", left)
			}
			return ""
		})
	}
}

// emptyGroups are the cgroups of jobs without a process.
func emptyGroups(prefix string) (out []string) {
	dirs, _ := filepath.Glob(prefix + "*")
	for _, dir := range dirs {
		if len((&cgroup{dir: dir}).pids()) == 0 && prefix != "" {
			out = append(out, dir)
		}
	}
	return out
}
