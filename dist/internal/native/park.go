// SPDX-License-Identifier: Apache-2.0

package native

import (
	"runtime"
	"time"
	"unsafe"
)

// How long a rank looks at a flag before it sleeps. Falling asleep and being
// woken costs some 50 µs, so looking about as long loses at most half; but
// where ranks share cores, or other goroutines compute while this one waits,
// the core is better used by them. In between, a rank learns.
const (
	lookAlone      = 64 * time.Microsecond
	lookShared     = 4 * time.Microsecond
	looksPerTime   = 64 // looks between two readings of the clock
	goschedPerLook = 40 // looks of a goroutine rank, each yielding
)

// futexNap is how long a thread sleeps before it looks up: the time in which
// a fault without a wake-up, or the end of a context, is noticed.
const futexNap = 50 * time.Millisecond

// flagHash spreads flags, which lie cache lines apart, over shards.
func flagHash(f *flag) uintptr {
	h := uintptr(unsafe.Pointer(f)) / 8
	return h ^ h>>7 ^ h>>13
}

// look yields to other goroutines, among which are the ranks waited for.
func (p *goParking) look(i int, _ time.Time, _ time.Duration) bool {
	if i >= p.looks {
		return false
	}
	runtime.Gosched()
	return true
}

func (p *goParking) patience() time.Duration { return lookShared }

// lookFor spins, reading the clock now and then.
func lookFor(i int, start time.Time, limit time.Duration) bool {
	return i%looksPerTime != looksPerTime-1 || time.Since(start) < limit
}
