// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// flag is a counter in memory that ranks share: one rank raises it, others wait for it.
// While a rank may wait for it, the counter only grows; it may wrap around.
type flag struct {
	value    atomic.Uint32
	sleepers atomic.Int32 // how many wait for value in a parking
}

// reached reports whether the flag has come to want.
func (f *flag) reached(want uint32) bool { return int32(f.value.Load()-want) >= 0 }

// parking is how ranks wait for a flag: they spin (look), and then sleep.
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
	// look is called between two looks at a flag, with i counting from 0. It may let
	// others run, and returns false when it is time to sleep. start is when the wait
	// began. background says that this process has other work.
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

// ring wakes the ranks that wait for a bell. Any rank may ring it, after what it rings for
// has been written.
func ring(p parking, bell *flag) {
	if bell.sleepers.Load() > 0 {
		bell.value.Add(1)
		p.wake(bell)
	}
}

// doze sleeps in p once, unless the flag has come to want. heard is the number of alarms
// before the caller last looked for a fault.
func doze(ctx context.Context, p parking, f *flag, want, heard uint32, limit time.Duration) {
	f.sleepers.Add(1)
	if seen := f.value.Load(); int32(seen-want) < 0 {
		p.sleep(ctx, f, seen, heard, limit)
	}
	f.sleepers.Add(-1)
}

// goschedLooks is how often a rank that is a goroutine looks before it sleeps. Between two
// looks it lets another goroutine run.
const goschedLooks = 40

// nap is how long a thread sleeps before it looks up. A fault without a wake-up, or the end
// of a context, is noticed after that time at the latest.
const nap = 50 * time.Millisecond

// goParking parks goroutines of one process: it needs nothing of the system
// and sees a context end at once.
type goParking struct {
	looks  int
	rung   atomic.Uint32
	shards [16]shard
	spares sync.Pool // sleepers: a wait needs no memory of its own
}

// shard holds the sleepers of some of the flags.
type shard struct {
	mu      sync.Mutex
	waiting map[*flag]*sleeper // the last who fell asleep on a flag, and so on
}

// sleeper is a goroutine that sleeps, or a spare one.
type sleeper struct {
	next  *sleeper
	woken chan struct{} // of one token
	timer *time.Timer
}

// newGoParking returns the parking of n ranks. Between two looks the other ranks can run;
// where each has a core, that costs next to nothing.
func newGoParking(n int) *goParking {
	p := &goParking{looks: min(goschedLooks, 4*goschedLooks*runtime.GOMAXPROCS(0)/n)}
	for i := range p.shards {
		p.shards[i].waiting = map[*flag]*sleeper{}
	}
	p.spares.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &sleeper{woken: make(chan struct{}, 1), timer: t}
	}
	return p
}

// shard returns the shard with the sleepers of a flag. Flags lie cache lines apart.
func (p *goParking) shard(f *flag) *shard {
	h := uintptr(unsafe.Pointer(f)) / 8
	return &p.shards[(h^h>>7^h>>13)%uintptr(len(p.shards))]
}

func (p *goParking) sleep(ctx context.Context, f *flag, seen, heard uint32, limit time.Duration) {
	s := p.shard(f)
	s.mu.Lock()
	if f.value.Load() != seen || p.rung.Load() != heard {
		s.mu.Unlock()
		return
	}
	me := p.spares.Get().(*sleeper)
	me.next = s.waiting[f]
	s.waiting[f] = me
	s.mu.Unlock()
	me.timer.Reset(limit)
	select {
	case <-me.woken:
		me.timer.Stop()
		p.spares.Put(me)
		return
	case <-ctx.Done():
	case <-me.timer.C:
	}
	me.timer.Stop()
	s.mu.Lock()
	s.leave(f, me)
	s.mu.Unlock()
	select {
	case <-me.woken: // somebody was about to wake it
	default:
	}
	p.spares.Put(me)
}

// leave takes a sleeper that was not woken off the list; the shard is locked.
func (s *shard) leave(f *flag, me *sleeper) {
	if s.waiting[f] == me && me.next == nil {
		delete(s.waiting, f)
	}
	for at := s.waiting[f]; at != nil; at = at.next {
		if at == me {
			s.waiting[f] = me.next
			return
		}
		if at.next == me {
			at.next = me.next
			return
		}
	}
}

func (p *goParking) wake(f *flag) {
	s := p.shard(f)
	s.mu.Lock()
	s.wake(f)
	s.mu.Unlock()
}

// wake wakes all that sleep on a flag; the shard is locked.
func (s *shard) wake(f *flag) {
	for at := s.waiting[f]; at != nil; {
		next := at.next
		at.next = nil
		at.woken <- struct{}{}
		at = next
	}
	delete(s.waiting, f)
}

func (p *goParking) alarms() uint32 { return p.rung.Load() }

func (p *goParking) wakeAll() {
	p.rung.Add(1) // before the locks: who falls asleep later sees it
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for f := range s.waiting {
			s.wake(f)
		}
		s.mu.Unlock()
	}
}

// look yields to other goroutines, among which are the ranks waited for.
func (p *goParking) look(i int, _ time.Time, _ bool) bool {
	if i >= p.looks {
		return false
	}
	runtime.Gosched()
	return true
}
