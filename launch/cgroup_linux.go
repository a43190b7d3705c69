// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroup is a control group (v2) of a job's own, below this process's, into which
// workers are born. What they start is in it too, wherever it hides, and
// cannot get out without the rights to; the kernel kills all of it at one word.
// It needs the right to make one: root's, or a delegated group's, as of a systemd
// user unit. Elsewhere it is nil, whose methods do nothing. No controller is
// enabled in it: limits and accounts stay those of this process's group.
type cgroup struct {
	dir string
	f   *os.File // of dir
}

// cgroupPath is where the group of a job is to be, empty where there can be none.
func cgroupPath(job string) string {
	list, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	parent := cgroupDir(string(list), string(mounts))
	if parent == "" {
		return ""
	}
	return filepath.Join(parent, "cohort-"+job)
}

// openCgroup makes the group of a job, nil where that is not allowed.
func openCgroup(dir string) *cgroup {
	if os.Mkdir(dir, 0o755) != nil {
		return nil
	}
	c := &cgroup{dir: dir}
	var err error
	if _, err = os.Stat(filepath.Join(dir, "cgroup.kill")); err == nil { // Linux 5.14
		c.f, err = os.Open(dir)
	}
	if err != nil {
		_ = os.Remove(dir)
		return nil
	}
	if !c.works() {
		c.close()
		return nil
	}
	return c
}

// cgroupDir finds the directory of this process's group, from its list of groups
// and its mounts; empty if there is none.
func cgroupDir(list, mounts string) string {
	path, ok := "", false
	for line := range strings.Lines(list) {
		if path, ok = strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			break
		}
	}
	if !ok || strings.HasPrefix(path, "/..") { // outside of what this namespace shows
		return ""
	}
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		f := strings.Fields(left)
		if len(f) < 5 || !strings.HasPrefix(right, "cgroup2 ") {
			continue
		}
		const root, point = 3, 4
		rest, below := strings.CutPrefix(path, strings.TrimSuffix(f[root], "/"))
		if below && (rest == "" || rest[0] == '/') {
			return filepath.Join(f[point], rest)
		}
	}
	return ""
}

// join has a worker with these attributes be born into the group.
func (c *cgroup) join(attr *syscall.SysProcAttr) {
	if c != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.f.Fd())
	}
}

// works tries whether processes live that are born into the group: a filter of
// system calls may forbid it, and Linux kills them at birth if it has ever
// killed the group that this process is in (cgroup.kill), or this one.
func (c *cgroup) works() bool {
	attr := &syscall.SysProcAttr{}
	c.join(attr)
	proc, err := os.StartProcess("/bin/sh", []string{"sh", "-c", ":"}, &os.ProcAttr{Dir: "/", Env: []string{}, Sys: attr})
	if err != nil {
		return false
	}
	st, err := proc.Wait()
	return err == nil && st.Success()
}

// pids are the live processes in the group and in those below it.
func (c *cgroup) pids() (out []int) {
	if c == nil {
		return nil
	}
	for _, dir := range groupsIn(c.dir) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // it has just gone
		}
		for _, f := range bytes.Fields(b) {
			// 0 stands for one that this namespace of processes does not show.
			if pid, err := strconv.Atoi(string(f)); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
	}
	return out
}

// removePatience is how long the kernel may take to let go of an empty group.
const removePatience = 200 * time.Millisecond

// close removes the group, and kills who is still in it.
func (c *cgroup) close() {
	if c == nil {
		return
	}
	if len(c.pids()) > 0 {
		// Not earlier: nobody can be born into it after that.
		_ = os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
	}
	c.f.Close()
	for deadline := time.Now().Add(removePatience); ; time.Sleep(time.Millisecond) {
		left := false
		for _, dir := range groupsIn(c.dir) {
			err := syscall.Rmdir(dir)
			left = left || err != nil && !errors.Is(err, syscall.ENOENT)
		}
		if !left || time.Now().After(deadline) {
			return
		}
	}
}

// groupsIn lists a group and those below it, the innermost first: a job may
// have launched jobs.
func groupsIn(dir string) (out []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, groupsIn(filepath.Join(dir, e.Name()))...)
		}
	}
	return append(out, dir)
}
