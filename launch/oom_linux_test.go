// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/internal/memlimit"
)

// TestOutOfMemory has the kernel kill a rank, in a cgroup of a little memory.
func TestOutOfMemory(t *testing.T) {
	parent, limit := memlimit.Cgroup("/proc/self/cgroup", "/sys/fs/cgroup")
	if parent == "" || os.Getuid() != 0 {
		t.Skip("needs root and a memory cgroup")
	}
	dir := filepath.Join(parent, "cohort-test-"+randomHex(8))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		eventually(t, func() string {
			if err := os.Remove(dir); err != nil {
				return err.Error()
			}
			return ""
		})
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(fmt.Sprint(200<<20)), 0o644); err != nil {
		t.Skip(err)
	}
	a := startAgentIn(t, dir, "greedy")
	if code, _ := a.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"rank 1 was killed by SIGKILL", "the kernel killed it because memory ran out", "cohort train --fsdp"} {
		if !strings.Contains(a.errs.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, a.errs.String())
		}
	}
}

// startAgentIn starts an agent of two ranks in a cgroup.
func startAgentIn(t *testing.T, dir, workerRole string) *process {
	t.Helper()
	p := &process{mark: newMark(t)}
	p.Cmd = exec.Command("/bin/sh", "-c", `echo $$ > "$1" && exec "$2" -test.run=none`, "sh", filepath.Join(dir, "cgroup.procs"), os.Args[0])
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":2,"FailGrace":1}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER="+workerRole)
	p.Stdout, p.Stderr = &p.out, &p.errs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func TestMemoryEvidence(t *testing.T) {
	const log = "Out of memory: Killed process 41 (x) total-vm:1kB\nMemory cgroup out of memory: Killed process 4242 (train) total-vm:9kB, anon-rss:7kB\n"
	for pid, want := range map[int]string{4242: "Memory cgroup out of memory: Killed process 4242 (train) total-vm:9kB, anon-rss:7kB", 242: "", 4: ""} {
		if got := killedBy(log, pid); got != want {
			t.Errorf("pid %d: %q", pid, got)
		}
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"v1":                                    "7:cpu,cpuacct:/a\n4:memory:/job/1\n",
		"v2":                                    "0::/job/2\n",
		"container":                             "0::/not/mounted/here\n",
		"none":                                  "1:cpu:/\nnonsense\n",
		"mount/memory/job/1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		"mount/job/2/memory.events":             "low 0\noom 9\noom_kill 5\noom_group_kill 1\n",
	})
	mount := filepath.Join(dir, "mount")
	for list, want := range map[string]struct {
		dir, limit string
		kills      int64
	}{
		"v1":   {mount + "/memory/job/1", "memory.limit_in_bytes", 3},
		"v2":   {mount + "/job/2", "memory.max", 5},
		"none": {"", "", -1}, "missing": {"", "", -1}, "container": {"", "", -1},
	} {
		got, limit := memlimit.Cgroup(filepath.Join(dir, list), mount)
		if got != want.dir || limit != want.limit || killsInCgroup(got) != want.kills {
			t.Errorf("%s: %q, %q, %d kills, want %+v", list, got, limit, killsInCgroup(got), want)
		}
	}
	// What the counters tell.
	m := &oomWatch{cgroup: mount + "/job/2", limit: "memory.max", inGroup: 4, inAll: killsIn("/proc/vmstat")}
	writeFiles(t, m.cgroup, map[string]string{"memory.max": "1073741824\n"})
	fs := []Failure{{Code: -1, Signal: syscall.SIGKILL}, {Code: 1}, {Code: -1, Signal: syscall.SIGKILL, Stopped: true}}
	m.explain(fs)
	if !strings.Contains(fs[0].Memory, "the kernel killed it because memory ran out: 1 of the processes in "+m.cgroup+" since the start, which may use 1024 MiB") ||
		!strings.HasPrefix(fs[1].Memory, "memory had run out") || fs[2].Memory != "" {
		t.Errorf("%+v", fs)
	}
	m.inGroup = 5
	fs = []Failure{{Code: -1, Signal: syscall.SIGKILL}}
	if m.explain(fs); fs[0].Memory != "" {
		t.Errorf("nobody was killed: %q", fs[0].Memory)
	}
}
