// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"sync/atomic"
	"time"
)

// flag is a counter in memory that ranks share: one rank raises it, others
// wait for it. It only ever grows while somebody may wait for it, and may
// wrap around.
type flag struct {
	value    atomic.Uint32
	sleepers atomic.Int32 // how many wait for value in a parking
}

// reached reports whether the flag has come to want.
func (f *flag) reached(want uint32) bool { return int32(f.value.Load()-want) >= 0 }

// parking is where the waiting sleep when looking has not helped.
type parking interface {
	// alarms counts the calls of wakeAll.
	alarms() uint32
	// sleep returns when the flag no longer has the value seen, when somebody
	// calls wake, when the alarms are no longer those heard, when ctx ends,
	// after limit, or for no reason.
	sleep(ctx context.Context, f *flag, seen, heard uint32, limit time.Duration)
	// wake wakes all that sleep on the flag.
	wake(f *flag)
	// wakeAll wakes all that sleep in this process, to look for trouble.
	wakeAll()
	// look is called between two looks at a flag, i counting from 0, and may
	// let others run; false means that it is time to sleep. start is when the
	// wait began, and background says that this process has other work.
	look(i int, start time.Time, background bool) bool
}

// raise sets the flag and wakes those that sleep on it.
func raise(p parking, f *flag, value uint32) {
	// Both sides use sequentially consistent atomics, so that either the
	// sleeper sees the new value or this side sees the sleeper.
	f.value.Store(value)
	if f.sleepers.Load() > 0 {
		p.wake(f)
	}
}

// ring wakes who waits for a bell, if somebody does. Anybody may ring it; what
// it is rung for must be there before.
func ring(p parking, bell *flag) {
	if bell.sleepers.Load() > 0 {
		bell.value.Add(1)
		p.wake(bell)
	}
}

// doze waits in p until the flag may have come to want, once. heard is the
// number of alarms before the caller last looked for trouble.
func doze(ctx context.Context, p parking, f *flag, want, heard uint32, limit time.Duration) {
	f.sleepers.Add(1)
	if seen := f.value.Load(); int32(seen-want) < 0 {
		p.sleep(ctx, f, seen, heard, limit)
	}
	f.sleepers.Add(-1)
}
