// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	programs    = flag.Int("programs", 200, "random programs to play; 10000 take two minutes")
	firstSeed   = flag.Uint64("seed", 1, "seed of the first of them")
	showProgram = flag.Bool("program", false, "print what happens in each")
)

// TestPrograms plays random programs over 4 nodes: they put values behind
// references, leave results at others, pass references on, release them at once
// or later, while messages are lost, doubled and reordered, nodes die, stand
// still or are cut off. No value in use is freed and no good handle lost; and when
// all handles are released, every value is freed, exactly once, in the time that
// the faults allow.
func TestPrograms(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		name   string
		faults faults
		// how long after the last release the last value is freed
		within time.Duration
	}{
		{"reordered", faults{delay: time.Second}, 10 * time.Second},
		{"lost and doubled", faults{delay: time.Second, loss: 0.3, twice: 0.3, failure: 0.1}, 0},
		{"dead nodes", faults{delay: time.Second, loss: 0.1, twice: 0.1, failure: 0.05, kills: 2}, 0},
		{"dead nodes that are started again", faults{delay: time.Second, loss: 0.1, twice: 0.1, failure: 0.05, kills: 2, reborn: true}, 0},
		{"absent nodes", faults{delay: time.Second, loss: 0.1, twice: 0.1, failure: 0.05, absences: 3}, 0},
		{"all of it", faults{delay: 2 * time.Second, loss: 0.2, twice: 0.2, failure: 0.1, kills: 1, absences: 2}, 0},
	}
	var values, handles, lost int
	if testing.Short() {
		*programs = min(*programs, 20)
	}
	for i := range *programs {
		seed := *firstSeed + uint64(i)
		k := kinds[seed%uint64(len(kinds))]
		w := newWorld(seed, 4, k.faults)
		span := time.Minute
		if k.faults.absences > 0 {
			span = 2 * time.Minute
		}
		w.trouble(span)
		w.run(span)
		end := span
		if k.faults.absences > 0 { // until all are back
			end += 2 * w.config.Lease
			w.run(end)
		}
		w.end()
		end += callTime + 3*w.config.Beat
		w.run(end) // until nothing is on its way any more, and all know what they have
		w.checkTold()
		w.finish()
		within := k.within
		if within == 0 { // a lost call, and what waits for it
			within = 2*w.config.Lease + 2*callTime + 10*time.Second
		}
		w.run(end + within)
		if len(w.wrong) == 0 {
			w.checkFreed()
		}
		w.run(end + within + 4*w.config.Lease)
		if len(w.wrong) == 0 {
			w.checkIdle()
		}
		if *showProgram || len(w.wrong) > 0 {
			t.Logf("seed %d, %s:\n%s", seed, k.name, strings.Join(w.lines, "\n"))
		}
		if len(w.wrong) > 0 {
			t.Fatalf("seed %d (go test -run TestPrograms ./rpc/internal/rref -programs 1 -seed %d -program -v):\n%s", seed, seed, strings.Join(w.wrong, "\n"))
		}
		values += len(w.values)
		for _, n := range w.nodes {
			handles += len(n.handles)
			for _, h := range n.handles {
				if h.lost {
					lost++
				}
			}
		}
	}
	t.Logf("%d programs, %d values, %d handles, of which %d were lost to faults", *programs, values, handles, lost)
}

// checkTold says which handles are of values that are gone, though their nodes
// have had the time to hear of it.
func (w *world) checkTold() {
	for _, n := range w.nodes {
		for _, h := range n.handles {
			if w.owner(h.h.Ref) != nil && !n.dead && !h.released && !h.lost && w.values[h.h.Ref].freed {
				w.problem("node %d does not know that %v is gone", n.id, h.h)
			}
		}
	}
}

// checkFreed says which values of live nodes are still there.
func (w *world) checkFreed() {
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		for r, o := range n.m.owned {
			w.problem("node %d still has %v: holds %d, forks %d, passes %d, running %v, awaited %v",
				n.id, r, o.holds, o.forks, o.passes, o.running, o.awaited)
		}
	}
	for r, v := range w.values {
		if v.created && !v.freed && w.owner(r) != nil {
			w.problem("%v was never freed", r)
		}
	}
}

// checkIdle says what is left of the protocol when all is over.
func (w *world) checkIdle() {
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		if n.m.Busy() {
			w.problem("node %d is still busy", n.id)
		}
		for _, p := range n.m.peers {
			left := fmt.Sprintf("node %d about %d: forks %d, uses %d, given %d, post %d, gaps %d and %d", n.id, p.node,
				len(p.forks), len(p.uses), len(p.given), len(p.post), len(p.gone.runs), len(p.done.runs))
			if len(p.forks)+len(p.uses)+len(p.given)+len(p.post)+len(p.done.runs) > 0 {
				w.problem("%s", left)
			}
		}
	}
}
