// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCgroupDir(t *testing.T) {
	const (
		unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
		hybrid  = "42 24 0:39 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n43 24 0:40 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 none rw\n"
		bound   = "30 24 0:26 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	)
	for _, c := range []struct{ list, mounts, want string }{
		{"0::/\n", unified, "/sys/fs/cgroup"},
		{"0::/user.slice/x.scope\n", unified, "/sys/fs/cgroup/user.slice/x.scope"},
		{"4:memory:/m\n1:cpu:/\n0::/job\n", hybrid, "/sys/fs/cgroup/unified/job"},
		{"0::/a/b/c\n", bound, "/sys/fs/cgroup/c"},
		{"0::/a/b\n", bound, "/sys/fs/cgroup"},
		{"0::/a/bc\n", bound, ""},
		{"0::/../elsewhere\n", unified, ""},
		{"4:memory:/m\n", hybrid, ""},
		{"0::/job\n", "42 24 0:39 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", ""},
		{"", "", ""},
		{"0::/x\n", "garbage - cgroup2 \n - \n", ""},
	} {
		if got := cgroupDir(c.list, c.mounts); got != c.want {
			t.Errorf("%q: %q, want %q", c.list, got, c.want)
		}
	}
}

// needCgroup skips the test where no cgroup can be made.
func needCgroup(t *testing.T) {
	t.Helper()
	c := openCgroup(cgroupPath("test-" + randomHex(8)))
	if c == nil {
		t.Skip("this process may not make cgroups (v2)")
	}
	c.close()
	if _, err := os.Stat(c.dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%s is left: %v", c.dir, err)
	}
}

// groupOf is the directory of the cgroup that a rank was born into.
func groupOf(t *testing.T, pid int) string {
	t.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	dir := cgroupDir(string(list), string(mounts))
	if !strings.HasPrefix(filepath.Base(dir), "cohort-") {
		t.Fatalf("rank %d is in the cgroup %q", pid, dir)
	}
	return dir
}

// A process that has left its session and cleared its environment goes with the
// job, though the agent is not the only thing that its process does: when the agent
// ends it, and when the agent is killed.
func TestCgroupHidden(t *testing.T) {
	needCgroup(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		a := startAgent(t, Config{NumRanks: 2}, "parent:hidden,daemon+wait")
		a.out.await(t, 2, "ready")
		pids := append(a.out.numbers("ready"), a.out.numbers("child")...)
		dir := groupOf(t, pids[0])
		start := time.Now()
		_ = a.Process.Signal(sig)
		a.end(t)
		eventually(t, func() string {
			for _, pid := range pids {
				if alive(pid) {
					return fmt.Sprintf("process %d is left after %v", pid, sig)
				}
			}
			if _, err := os.Stat(dir); err == nil {
				return dir + " is left"
			}
			return ""
		})
		t.Logf("%d processes and the cgroup gone %v after %s to the agent", len(pids), time.Since(start).Round(time.Millisecond), signalName(sig))
	}
}

// kill -9 of the agent of ranks that share memory: no process, segment, socket or
// file is left.
func TestAgentKilledSegments(t *testing.T) {
	tmp := t.TempDir()
	segments := func() []string {
		names, _ := filepath.Glob("/dev/shm/*")
		return names
	}
	before := segments()
	a := startProcess(t, `agent:{"NumRanks":4}`, "LAUNCH_TEST_WORKER=reduce:0", "TMPDIR="+tmp)
	a.out.await(t, 4, "ready")
	var sockets []string
	shared := 0
	for _, pid := range a.out.numbers("ready") {
		sockets = append(sockets, socketsOf(pid)...)
		if maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)); err == nil && bytes.Contains(maps, []byte("/memfd:")) {
			shared++
		}
	}
	if shared != 4 || len(sockets) == 0 {
		t.Fatalf("%d of 4 ranks share memory, %d sockets: there is nothing to look for", shared, len(sockets))
	}
	start := time.Now()
	_ = a.Process.Kill()
	a.end(t)
	waitGone(t, a.mark)
	eventually(t, func() string {
		table, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			return err.Error()
		}
		for _, inode := range sockets {
			if bytes.Contains(table, []byte(" "+inode+" ")) || bytes.Contains(table, []byte(" "+inode+"\n")) {
				return "socket " + inode + " is left"
			}
		}
		if left := slices.DeleteFunc(segments(), func(s string) bool { return slices.Contains(before, s) }); len(left) > 0 {
			return fmt.Sprintf("segments left: %v", left)
		}
		if left, _ := filepath.Glob(tmp + "/*"); len(left) > 0 {
			return fmt.Sprintf("files left: %v", left)
		}
		return ""
	})
	t.Logf("%d sockets, 4 ranks' memory and all files gone %v after the kill of the agent", len(sockets), time.Since(start).Round(time.Millisecond))
}

// socketsOf lists the inodes of a process's unix sockets.
func socketsOf(pid int) (out []string) {
	table, _ := os.ReadFile("/proc/net/unix")
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		name, _ := os.Readlink(fd)
		inode, ok := strings.CutPrefix(strings.TrimSuffix(name, "]"), "socket:[")
		if ok && (bytes.Contains(table, []byte(" "+inode+" ")) || bytes.Contains(table, []byte(" "+inode+"\n"))) {
			out = append(out, inode)
		}
	}
	return out
}
