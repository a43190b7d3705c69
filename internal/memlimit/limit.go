// SPDX-License-Identifier: Apache-2.0

// Package memlimit finds out how much memory a process may use, and who says so:
// the memory cgroup (v1 or v2) that the process is in or one above it, a limit of the
// shell (ulimit), or the machine itself. So a job that cannot fit ends with an error
// that has numbers before the kernel kills it.
package memlimit

// Limit is a bound of memory.
type Limit struct {
	Bytes uint64 // how much may be used
	Used  uint64 // how much of it is used now and cannot be given back
	// Source says who sets the limit: "memory.max of the cgroup /job".
	Source string
	// Scope names the processes for which it holds together, the same on all of
	// them; "" for a limit of each process.
	Scope string
	// Mapped says that memory of other processes counts too, once it is mapped here.
	Mapped bool
}

// Room returns how much memory is left.
func (l Limit) Room() uint64 {
	if l.Used > l.Bytes {
		return 0
	}
	return l.Bytes - l.Used
}

// Limits returns what bounds the memory of this process; none where nobody says.
func Limits() []Limit { return limits("/proc", "/sys/fs/cgroup") }
