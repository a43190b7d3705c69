// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// How long a thread looks at a flag before it sleeps. Falling asleep and being
// woken costs some 50 µs, so looking about as long loses at most half. Between
// looks it first does nothing, if every rank has a core of its own, and then
// offers the core to the other ranks, which costs little if nobody wants it.
// Where other goroutines of the process compute meanwhile, it sleeps soon.
const (
	lookTime       = 100 * time.Microsecond
	lookBackground = 4 * time.Microsecond
	looksAlone     = 2000 // looks before the first offer
	looksPerTime   = 8    // looks between two readings of the clock
)

// sharedMemory reports whether ranks of several processes can share memory here.
const sharedMemory = true

// futexParking parks threads of several processes on the flags themselves.
type futexParking struct {
	looks int // before it offers its core to others
}

// newProcessParking returns the parking of a rank. alone says that every local
// rank has a core of its own.
func newProcessParking(alone bool) parking {
	if alone {
		return &futexParking{looksAlone}
	}
	return &futexParking{}
}

func (p *futexParking) sleep(ctx context.Context, f *flag, seen, _ uint32, limit time.Duration) {
	if ctx.Err() != nil {
		return
	}
	t := unix.NsecToTimespec(int64(min(limit, nap)))
	// All outcomes (woken, value changed, interrupted, time over) mean: look again.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&f.value)), futexWait, uintptr(seen),
		uintptr(unsafe.Pointer(&t)), 0, 0)
}

func (p *futexParking) wake(f *flag) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&f.value)), futexWake, math.MaxInt32, 0, 0, 0)
}

func (p *futexParking) alarms() uint32 { return 0 }

// wakeAll does nothing: who knows no flag to wake leaves it to the nap's end.
func (p *futexParking) wakeAll() {}

func (p *futexParking) look(i int, start time.Time, background bool) bool {
	if i >= p.looks && !background {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	if i%looksPerTime != looksPerTime-1 {
		return true
	}
	if background {
		return time.Since(start) < lookBackground
	}
	return time.Since(start) < lookTime
}
