// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// stateOf says why a process may not answer: ": its process is stopped".
func stateOf(pid int) string {
	switch stateLetter(pid) {
	case 0:
		return ": its process has ended"
	case 'T', 't':
		return ": its process is stopped"
	case 'Z', 'X':
		return ": its process has ended"
	case 'D':
		return ": its process waits in the kernel"
	}
	return ": it has not called dist.Init, or it keeps no flight recorder, as PyTorch's ranks"
}

// isStopped reports whether a process has been stopped, as by SIGSTOP.
func isStopped(pid int) bool { return stateLetter(pid) == 'T' }

// stateLetter is a process's state as the kernel writes it, 0 if there is none.
func stateLetter(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The state follows the name, which is in parentheses and may hold some.
	rest := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}

// workerAttr makes a worker the leader of a session of its own (and so of a
// process group, which gets the signals), to be killed when the thread that
// started it ends.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// selfPath is this program's own binary, also when its file has been replaced since.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// signalTree signals pid after its descendants have been listed, and then those.
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

// ticksOf is the processor time of a process in the kernel's units, 0 if it is not there.
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

// statFields splits /proc/PID/stat from the state (field 3) on; the name before
// it is in parentheses and may hold anything.
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
