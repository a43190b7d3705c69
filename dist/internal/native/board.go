// SPDX-License-Identifier: Apache-2.0

package native

import (
	"sync"
	"time"
)

// board is where ranks that are goroutines of one process show how far they
// have come.
type board struct {
	mu     sync.Mutex
	track  *tracker
	looked time.Time
	table  []RankSkew
}

// note takes a rank's progress, and now and then looks who is late.
func (b *board) note(rank int, report func() Progress) {
	if report == nil {
		return
	}
	p := report()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.track.add(rank, p)
	if now := time.Now(); now.Sub(b.looked) >= nudgeGap {
		b.looked = now
		if table := b.track.table(); table != nil {
			b.table = table
		}
	}
}

func (b *board) latest() []RankSkew {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.table
}

// SetProgress says how far this rank has come, before its first call.
func (s *Shm) SetProgress(report func() Progress) { s.cfg.Progress = report }
