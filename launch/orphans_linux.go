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

// orphans finds the strays: processes that workers have started and left behind. While it
// is open, this process is a subreaper: it becomes the parent of orphaned descendants. So
// everything that workers have started stays among its descendants, daemons included.
type orphans struct {
	exclusive bool         // Config.Exclusive
	marker    []byte       // the job's entry of the environment, with its NUL
	before    map[int]bool // children that this process had before
	known     map[int]bool // children for which the agent waits itself
	sessions  map[int]bool // the sessions of the workers
	cgroup    *cgroup      // may be nil
	caught    map[int]bool // strays that only the cgroup has shown
	restore   bool         // close makes this process no subreaper again
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

// worker says that pid is a worker.
func (o *orphans) worker(pid int) { o.known[pid], o.sessions[pid] = true, true }

// keep says that pid is a child that is no stray.
func (o *orphans) keep(pid int) { o.known[pid] = true }

// signal sends sig (unless it is 0) to every stray, reaps the strays that have ended, and
// returns how many are left. It may be called when all workers have ended.
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

// strays does what signal does, for the strays that are children of this process and for
// their descendants. It adds them to seen.
func (o *orphans) strays(sig syscall.Signal, seen map[int]bool) {
	for _, pid := range o.roots() {
		signalTree(pid, sig, seen)
	}
}

// roots returns the strays that are children of this process, and reaps the strays that have
// ended.
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

// suspendPasses is how often suspend looks for processes that were started meanwhile.
const suspendPasses = 5

// suspend stops the workers and all that they have started. It returns the processes to
// which SIGCONT must go, which are not those that had been stopped before.
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
	for _, pid := range workers { // first these, because they wait for each other
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

// reap reaps ended strays while workers still run. A worker that starts many daemons must
// not fill the process table with them.
func (o *orphans) reap() { o.strays(0, map[int]bool{}) }

// ticks returns the sum of the processor time of the strays.
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
