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

// cgroup is a control group (v2) of the job's own, below that of this process. Workers are
// born into it. The processes that they start are in it too, and cannot leave it without
// special rights. The kernel kills all of them by one write (cgroup.kill). To make the group,
// this process must be root, or be in a delegated group, as in a systemd user unit. Otherwise
// the cgroup is nil, and its methods do nothing. The group enables no controllers: the
// limits and accounts of this process's group apply.
type cgroup struct {
	dir string
	f   *os.File // of dir
}

// cgroupPath returns the path that the group of a job gets; empty if there can be no group.
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

// openCgroup makes the group of a job. It returns nil if that is not allowed.
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

// cgroupDir finds the directory of this process's group in its list of groups and its
// mounts. It returns the empty path if there is none.
func cgroupDir(list, mounts string) string {
	path, ok := "", false
	for line := range strings.Lines(list) {
		if path, ok = strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			break
		}
	}
	if !ok || strings.HasPrefix(path, "/..") { // this namespace does not show the group
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

// join makes a worker that is started with these attributes be born into the group.
func (c *cgroup) join(attr *syscall.SysProcAttr) {
	if c != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.f.Fd())
	}
}

// works tries whether a process can be born into the group. A filter of system calls may
// forbid that. And if cgroup.kill has ever been used on this group or on the one that this
// process is in, Linux kills such processes at birth.
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

// pids returns the live processes in the group and in the groups below it.
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
			// 0 stands for a process that this PID namespace does not show.
			if pid, err := strconv.Atoi(string(f)); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
	}
	return out
}

// removePatience is how long the kernel may take until an empty group can be removed.
const removePatience = 200 * time.Millisecond

// close removes the group, and kills the processes that are still in it.
func (c *cgroup) close() {
	if c == nil {
		return
	}
	if len(c.pids()) > 0 {
		// Not earlier, because no process can be born into the group after that.
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

// groupsIn lists a group and the groups below it, the innermost first. There are some if
// the job has launched other jobs.
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
