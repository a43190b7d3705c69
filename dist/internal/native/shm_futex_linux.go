// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"math"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// How long a thread looks at a flag before it sleeps. Falling asleep and being
// woken costs some 50 µs, so looking about as long loses at most half. Where
// ranks share cores, it offers its core to the others between looks: handing it
// over costs a few µs, and next to nothing if nobody wants it. Where every rank
// has a core of its own it does not: two that happened to be on one core would
// stay there, while a sleeper is woken on an idle one. And where other
// goroutines of the process have work meanwhile, it sleeps soon.
const (
	lookTime       = 64 * time.Microsecond
	lookBackground = 4 * time.Microsecond
	looksPerTime   = 64 // looks between two readings of the clock
)

// sharedMemory reports whether ranks of several processes can share memory here.
const sharedMemory = true

// futexParking parks threads of several processes on the flags themselves.
type futexParking struct {
	alone bool // every local rank has a core of its own
}

// newProcessParking returns the parking of one of several processes on this
// node's cores.
func newProcessParking(numLocal int) parking {
	return &futexParking{alone: numLocal <= runtime.NumCPU()}
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

// wakeAll does nothing: without a flag to wake, sleepers look up at the end of their nap.
func (p *futexParking) wakeAll() {}

func (p *futexParking) look(i int, start time.Time, background bool) bool {
	limit := lookTime
	switch {
	case background:
		limit = lookBackground
	case !p.alone:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		i = -1 // the clock costs little beside it
	}
	return (i+1)%looksPerTime != 0 || time.Since(start) < limit
}
