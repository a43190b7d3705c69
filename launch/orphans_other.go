// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

import "syscall"

// orphans finds the strays in the process groups of the workers. It does not find a process
// that has left its group.
type orphans struct{ groups []int }

func openOrphans(bool, string, *cgroup) *orphans { return &orphans{} }

func (o *orphans) close()         {}
func (o *orphans) worker(pid int) { o.groups = append(o.groups, pid) }
func (o *orphans) keep(int)       {}
func (o *orphans) reap()          {}
func (o *orphans) ticks() uint64  { return 0 }

// suspend stops the process groups of the workers, and returns to what SIGCONT must go.
func (o *orphans) suspend(workers []int) (stopped []int) {
	for _, pid := range workers {
		if syscall.Kill(-pid, syscall.SIGSTOP) == nil {
			stopped = append(stopped, -pid)
		}
	}
	return stopped
}

// signal sends sig (unless it is 0) to every group that has a process left, and returns the
// number of these groups.
func (o *orphans) signal(sig syscall.Signal) int {
	n := 0
	for _, g := range o.groups {
		if syscall.Kill(-g, sig) == nil {
			n++
		}
	}
	return n
}
