// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// orphans finds the processes that workers have left behind. While it is open,
// this process is the one that orphans below it fall to, so that what workers
// started is always among its descendants, even where it has made itself a daemon.
type orphans struct {
	exclusive bool
	marker    []byte       // a NUL-terminated entry of the environment
	before    map[int]bool // children that this process had already
	known     map[int]bool // children that the agent waits for itself
	sessions  map[int]bool // of the workers
	cgroup    *cgroup      // may be nil
	caught    map[int]bool // strays that only the cgroup has told of
	restore   bool
}

func openOrphans(exclusive bool, job string, group *cgroup) *orphans {
	o := &orphans{
		exclusive: exclusive, cgroup: group, marker: []byte(envvar.Job.Assign(job) + "\x00"),
		before: map[int]bool{}, known: map[int]bool{}, sessions: map[int]bool{}, caught: map[int]bool{},
	}
	for _, pid := range children(os.Getpid()) {
		o.before[pid] = true
	}
	var was int32
	if unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&was)), 0, 0, 0) == nil && was == 0 {
		o.restore = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
	}
	return o
}

func (o *orphans) close() {
	if o.restore {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
}

// worker says that pid is a worker; keep, that pid is another child to leave alone.
func (o *orphans) worker(pid int) { o.known[pid], o.sessions[pid] = true, true }
func (o *orphans) keep(pid int)   { o.known[pid] = true }

// signal sends sig (unless 0) to every stray, reaps the ended ones, and returns
// how many are left. It is for when all workers have ended.
func (o *orphans) signal(sig syscall.Signal) int {
	seen := map[int]bool{}
	o.strays(sig, seen)
	for _, pid := range o.cgroup.pids() {
		if !seen[pid] {
			seen[pid], o.caught[pid] = true, true
			if sig != 0 {
				_ = syscall.Kill(pid, sig)
			}
		}
	}
	return len(seen)
}

// strays is signal for the strays that are children of this process and what is
// below them, which it adds to those seen.
func (o *orphans) strays(sig syscall.Signal, seen map[int]bool) {
	for _, pid := range o.roots() {
		signalTree(pid, sig, seen)
	}
}

// roots returns the strays that are children of this process, and reaps those that
// have ended.
func (o *orphans) roots() (out []int) {
	for _, pid := range children(os.Getpid()) {
		if o.known[pid] || o.before[pid] {
			continue
		}
		state, session := procStat(pid)
		if !o.exclusive && !o.sessions[session] && !o.caught[pid] && !o.marked(pid) {
			continue
		}
		if state == 'Z' {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			continue
		}
		out = append(out, pid)
	}
	return out
}

// suspendPasses bounds how often suspend looks for processes that were made meanwhile.
const suspendPasses = 5

// suspend stops the workers and all that they have started, and returns which processes
// SIGCONT is for: not those that had been stopped before.
func (o *orphans) suspend(workers []int) (stopped []int) {
	seen := map[int]bool{}
	stop := func(pid int) {
		if !seen[pid] {
			seen[pid] = true
			if state, _ := procStat(pid); state != 'T' && state != 't' && syscall.Kill(pid, syscall.SIGSTOP) == nil {
				stopped = append(stopped, pid)
			}
		}
	}
	var halt func(pid int)
	halt = func(pid int) {
		stop(pid)
		for _, kid := range children(pid) {
			halt(kid)
		}
	}
	for _, pid := range workers { // all at once: they wait for each other
		stop(pid)
	}
	for range suspendPasses {
		known := len(seen)
		for _, pid := range slices.Concat(workers, o.roots(), o.cgroup.pids()) {
			halt(pid)
		}
		if len(seen) == known {
			break
		}
	}
	return stopped
}

// reap removes ended orphans while workers still run: a worker that makes many
// daemons must not fill the process table with them.
func (o *orphans) reap() { o.strays(0, map[int]bool{}) }

// ticks sums up the processor time of the strays.
func (o *orphans) ticks() (sum uint64) {
	for _, pid := range slices.Concat(o.roots(), o.cgroup.pids()) {
		sum += ticksOf(pid)
	}
	return sum
}

func (o *orphans) marked(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && (bytes.HasPrefix(env, o.marker) || bytes.Contains(env, append([]byte{0}, o.marker...)))
}
