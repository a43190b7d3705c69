// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/internal/memlimit"
)

// oomWatch finds out whether the kernel has killed processes because memory ran out
// (out of memory, OOM), in this process's memory cgroup or on the machine, since the watch
// was made. The kernel counts such kills in files that everybody may read. Its log names the
// processes, but on many systems only root may read the log.
type oomWatch struct {
	cgroup  string // the directory of the memory cgroup; empty: not known
	limit   string // the name of the file with its limit
	inGroup int64
	inAll   int64
	log     *os.File
}

// maxKernelLog is how many bytes of the kernel's log are read after a failure.
const maxKernelLog = 4 << 20

func watchOOM() *oomWatch {
	m := &oomWatch{}
	m.cgroup, m.limit = memlimit.Cgroup("/proc/self/cgroup", "/sys/fs/cgroup")
	m.inGroup, m.inAll = killsInCgroup(m.cgroup), killsIn("/proc/vmstat")
	if f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
		m.log = f
		_, _ = f.Seek(0, io.SeekEnd)
	}
	return m
}

func (m *oomWatch) close() {
	if m.log != nil {
		m.log.Close()
	}
}

// killsInCgroup returns how many processes of a cgroup have been killed; -1 if that is not
// known.
func killsInCgroup(dir string) int64 {
	if dir == "" {
		return -1
	}
	return max(killsIn(filepath.Join(dir, "memory.oom_control")), killsIn(filepath.Join(dir, "memory.events")))
}

// killsIn reads the counter oom_kill in a file of counters; -1 if there is none.
func killsIn(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "oom_kill" {
			if n, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// explain sets Memory of the failures of ranks that the kernel has killed, or has probably
// killed, because memory ran out.
func (m *oomWatch) explain(failures []Failure) {
	if len(failures) == 0 {
		return
	}
	log := m.readLog()
	groupKills := killsInCgroup(m.cgroup) - m.inGroup
	allKills := killsIn("/proc/vmstat") - m.inAll
	for i := range failures {
		f := &failures[i]
		if f.Stopped {
			continue
		}
		killed := f.Signal == syscall.SIGKILL
		switch line := killedBy(log, f.PID); {
		case line != "":
			f.Memory = "the kernel killed it because memory ran out: " + line
		case m.inGroup >= 0 && groupKills > 0 && killed:
			f.Memory = fmt.Sprintf("the kernel killed it because memory ran out: %d of the processes in %s since the start%s", groupKills, m.cgroup, m.limitText())
		case m.inGroup >= 0 && groupKills > 0:
			f.Memory = fmt.Sprintf("memory had run out: the kernel has killed %d processes in %s since the start%s", groupKills, m.cgroup, m.limitText())
		case m.inAll >= 0 && allKills > 0 && killed:
			f.Memory = fmt.Sprintf("memory had run out: the kernel has killed %d processes of this machine since the start, and this was probably one", allKills)
		}
	}
}

func (m *oomWatch) limitText() string {
	b, err := os.ReadFile(filepath.Join(m.cgroup, m.limit))
	if err != nil {
		return ""
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil || n > 1<<50 { // "max", or a limit that is none
		return ""
	}
	return fmt.Sprintf(", which may use %d MiB", n>>20)
}

// readLog returns the kernel's messages since the watch was made, one a line.
func (m *oomWatch) readLog() string {
	if m.log == nil {
		return ""
	}
	raw, err := m.log.SyscallConn()
	if err != nil {
		return ""
	}
	var out strings.Builder
	buf := make([]byte, 8<<10)
	for out.Len() < maxKernelLog {
		n := 0
		// A read does not wait: it returns an error when there are no more messages.
		if e := raw.Read(func(fd uintptr) bool { n, err = syscall.Read(int(fd), buf); return true }); e != nil {
			break
		}
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) { // messages were lost meanwhile
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		// A record is "priority,number,time,flags;message", then lines of details.
		if _, text, ok := bytes.Cut(buf[:n], []byte(";")); ok {
			line, _, _ := bytes.Cut(text, []byte("\n"))
			out.Write(line)
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// killedBy finds the kernel's message about the kill of a process:
// "Memory cgroup out of memory: Killed process 123 (name) total-vm:…, anon-rss:…".
func killedBy(log string, pid int) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, fmt.Sprintf("Killed process %d (", pid)) || strings.Contains(line, fmt.Sprintf("Killed process %d, ", pid)) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
