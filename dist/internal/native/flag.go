// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"sync"
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
	// look is called between two looks at a flag, i counting from 0; false
	// means that it is time to sleep: after limit since start.
	look(i int, start time.Time, limit time.Duration) bool
	// patience returns the longest that looking makes sense.
	patience() time.Duration
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

// doze waits in p until the flag may have come to want, once. heard is the
// number of alarms before the caller last looked for trouble.
func doze(ctx context.Context, p parking, f *flag, want, heard uint32, limit time.Duration) {
	f.sleepers.Add(1)
	if seen := f.value.Load(); int32(seen-want) < 0 {
		p.sleep(ctx, f, seen, heard, limit)
	}
	f.sleepers.Add(-1)
}

// goParking parks goroutines of one process: it needs nothing of the system
// and sees a context end at once.
type goParking struct {
	looks  int
	rung   atomic.Uint32
	shards [16]struct {
		mu      sync.Mutex
		waiting map[*flag]chan struct{}
	}
}

func newGoParking(looks int) *goParking {
	p := &goParking{looks: looks}
	for i := range p.shards {
		p.shards[i].waiting = map[*flag]chan struct{}{}
	}
	return p
}

func (p *goParking) shard(f *flag) (mu *sync.Mutex, waiting map[*flag]chan struct{}) {
	s := &p.shards[flagHash(f)%uintptr(len(p.shards))]
	return &s.mu, s.waiting
}

func (p *goParking) sleep(ctx context.Context, f *flag, seen, heard uint32, limit time.Duration) {
	mu, waiting := p.shard(f)
	mu.Lock()
	if f.value.Load() != seen || p.rung.Load() != heard {
		mu.Unlock()
		return
	}
	ch := waiting[f]
	if ch == nil {
		ch = make(chan struct{})
		waiting[f] = ch
	}
	mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ch:
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (p *goParking) wake(f *flag) {
	mu, waiting := p.shard(f)
	mu.Lock()
	if ch := waiting[f]; ch != nil {
		close(ch)
		delete(waiting, f)
	}
	mu.Unlock()
}

func (p *goParking) alarms() uint32 { return p.rung.Load() }

func (p *goParking) wakeAll() {
	p.rung.Add(1) // before the locks: who falls asleep later sees it
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for f, ch := range s.waiting {
			close(ch)
			delete(s.waiting, f)
		}
		s.mu.Unlock()
	}
}
