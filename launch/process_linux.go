// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// silenceOf says why a process does not answer: "its process is stopped".
func silenceOf(pid int) string {
	switch state, _ := procStat(pid); state {
	case 0, 'Z', 'X':
		return "its process has ended"
	case 'T', 't':
		return "its process is stopped"
	case 'D':
		return "its process waits in the kernel"
	}
	return "it has not called dist.Init, or it keeps no flight recorder, as PyTorch's ranks"
}

// isStopped reports whether a process has been stopped, as by SIGSTOP.
func isStopped(pid int) bool {
	state, _ := procStat(pid)
	return state == 'T'
}

// workerAttr makes a worker the leader of its own session, and so of a process group, which
// gets the signals. The kernel kills the worker when the thread that started it ends.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// selfPath returns the path of this program's binary. It is valid also when the file has
// been replaced.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// signalTree lists the descendants of pid, signals pid, and then signals them.
func signalTree(pid int, sig syscall.Signal, seen map[int]bool) {
	kids := children(pid)
	if sig != 0 {
		_ = syscall.Kill(pid, sig)
	}
	seen[pid] = true
	for _, kid := range kids {
		if state, _ := procStat(kid); state != 'Z' && state != 0 {
			signalTree(kid, sig, seen)
		}
	}
}

// ticksOf returns the processor time of a process in the kernel's units; 0 if there is no
// such process.
func ticksOf(pid int) (sum uint64) {
	const user, system = 11, 12
	f := statFields(pid)
	if len(f) <= system {
		return 0
	}
	for _, i := range []int{user, system} {
		n, _ := strconv.ParseUint(string(f[i]), 10, 64)
		sum += n
	}
	return sum
}

// children lists the children of a process, ended ones included.
func children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := readDirNames(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, task := range tasks {
		b, err := os.ReadFile(dir + "/" + task + "/children")
		if err != nil {
			if _, gone := os.Stat(dir + "/" + task); gone != nil {
				continue // the thread has ended
			}
			return childrenByParent(pid) // a kernel without these files
		}
		for _, f := range bytes.Fields(b) {
			if kid, err := strconv.Atoi(string(f)); err == nil {
				out = append(out, kid)
			}
		}
	}
	return out
}

func childrenByParent(pid int) []int {
	names, err := readDirNames("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, name := range names {
		if kid, err := strconv.Atoi(name); err == nil {
			if f := statFields(kid); len(f) > 1 && string(f[1]) == strconv.Itoa(pid) {
				out = append(out, kid)
			}
		}
	}
	return out
}

// procStat returns the state letter and the session of a process, or 0, 0.
func procStat(pid int) (state byte, session int) {
	f := statFields(pid)
	if len(f) < 4 {
		return 0, 0
	}
	session, _ = strconv.Atoi(string(f[3]))
	return f[0][0], session
}

// statFields splits /proc/PID/stat into fields, from the state (field 3) on. The name before
// the state is in parentheses and may hold any character.
func statFields(pid int) [][]byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil
	}
	return bytes.Fields(b[i+1:])
}

func readDirNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
