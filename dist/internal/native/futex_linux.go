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

// sharedMemory reports whether ranks of several processes can share memory here.
const sharedMemory = true

// futexParking parks threads of several processes on the flags themselves.
type futexParking struct {
	alone bool // every local rank has a core of its own
}

func newProcessParking(alone bool) parking { return &futexParking{alone: alone} }

func (p *futexParking) sleep(ctx context.Context, f *flag, seen, _ uint32, limit time.Duration) {
	if ctx.Err() != nil {
		return
	}
	t := unix.NsecToTimespec(int64(min(limit, futexNap)))
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

func (p *futexParking) look(i int, start time.Time, limit time.Duration) bool {
	return lookFor(i, start, limit)
}

func (p *futexParking) patience() time.Duration {
	if p.alone {
		return lookAlone
	}
	return lookShared
}
