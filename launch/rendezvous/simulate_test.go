// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	histories   = flag.Int("histories", 500, "random membership histories to play")
	firstSeed   = flag.Uint64("seed", 1, "seed of the first of them")
	showHistory = flag.Bool("history", false, "print the history of each seed")
)

func settings(lo, hi, restarts int) Settings {
	return Settings{Job: "job", Min: lo, Max: hi, MaxRestarts: restarts, Timing: DefaultTiming()}
}

// TestHistories plays random histories of nodes that come, leave, die, are cut off
// or frozen, and ranks that fail. Whatever happens, ranks of one round alone run,
// all nodes of a round know the same of it, and versions and rounds go up by one
// (simulator_test.go). In every third history a node serves the store. When it is over, a round of all nodes runs within the time
// that a change may take, and the job ends well everywhere.
func TestHistories(t *testing.T) {
	t.Parallel()
	var worst time.Duration
	for i := range *histories {
		seed := *firstSeed + uint64(i)
		absorbed, lines, problems := history(seed)
		if *showHistory || len(problems) > 0 {
			t.Logf("seed %d:\n%s", seed, strings.Join(lines, "\n"))
		}
		if len(problems) > 0 {
			t.Fatalf("seed %d (go test -run TestHistories ./launch/rendezvous -histories 1 -seed %d -history -v):\n%s", seed, seed, strings.Join(problems, "\n"))
		}
		worst = max(worst, absorbed)
	}
	t.Logf("%d histories; after the last disturbance all were back within %v", *histories, worst)
}

// history plays one, and returns how long its last disturbance took to be absorbed.
func history(seed uint64) (absorbed time.Duration, lines, problems []string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	lo := 1 + rng.IntN(4)
	hi := lo + 1 + rng.IntN(4)
	w := newWorld(seed, settings(lo, hi, 100))
	w.work = time.Hour
	w.log = func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%8.3fs ", w.now.Sub(w.start).Seconds())+fmt.Sprintf(format, args...))
	}
	w.log("nodes %d to %d", lo, hi)
	var server *host
	if seed%3 == 0 { // one node serves the store, and nothing may happen to it
		server = w.join("s", 1)
		server.m.me.Hosts = true
	}
	for i := range lo + rng.IntN(hi-lo+2) {
		w.after(time.Duration(rng.IntN(3000))*time.Millisecond, func() { w.join(fmt.Sprintf("n%d", i), 1+rng.IntN(3)) })
	}
	at := 3 * time.Second
	for range 3 + rng.IntN(6) {
		at += time.Duration(rng.IntN(8000)) * time.Millisecond
		w.run(at, nil)
		for _, d := range disturb(w, rng, server) {
			at = max(at, w.now.Sub(w.start)+d)
		}
	}
	w.run(at, nil)
	for _, h := range w.nodes { // all is well again
		if h.cut {
			h.setCut(false)
		}
		if h.frozen {
			h.setFrozen(false)
		}
	}
	for numLive(w) < lo {
		w.join(fmt.Sprintf("n%d", len(w.nodes)), 1)
	}
	calm := w.now.Sub(w.start)
	w.log("calm")
	// A node that had been given up comes back as another one, and a change that was
	// under way when the last one happened takes its time too.
	patience := 2*5*time.Second + silence
	w.run(calm+patience, w.whole)
	absorbed = w.now.Sub(w.start) - calm
	if !w.whole() {
		w.problem("no round of all nodes runs %v after the last disturbance", patience)
		return absorbed, lines, w.problems
	}
	w.work = 0
	w.run(calm+absorbed+10*time.Second, func() bool { return numLive(w) == 0 })
	for _, h := range w.nodes {
		switch {
		case h.dead || h.m.leaving:
		case h.end == nil:
			w.problem("%s has not ended", h.name)
		case !h.end.Good:
			w.problem("%s ended badly: %s", h.name, h.end.Text)
		}
	}
	return absorbed, lines, w.problems
}

func numLive(w *world) int {
	n := 0
	for _, h := range w.nodes {
		if !h.dead && h.end == nil && !h.m.leaving {
			n++
		}
	}
	return n
}

// disturb does one thing to a cluster, and says for how long.
func disturb(w *world, rng *rand.Rand, server *host) (lasts []time.Duration) {
	var up []*host
	for _, h := range w.nodes {
		if !h.dead && h.end == nil && !h.m.leaving && h != server {
			up = append(up, h)
		}
	}
	pick := func() *host { return up[rng.IntN(len(up))] }
	while := func(most int) time.Duration {
		d := time.Duration(100+rng.IntN(most)) * time.Millisecond
		lasts = append(lasts, d)
		return d
	}
	if len(up) == 0 {
		w.join(fmt.Sprintf("n%d", len(w.nodes)), 1)
		return nil
	}
	switch rng.IntN(9) {
	case 0, 1:
		w.join(fmt.Sprintf("n%d", len(w.nodes)), 1+rng.IntN(3))
	case 2:
		pick().kill()
	case 3: // the one that decides
		for _, h := range up {
			if h.m.decides() {
				h.kill()
				break
			}
		}
	case 4:
		h := pick()
		h.setCut(true)
		w.after(while(10000), func() { h.setCut(false) })
	case 5:
		h := pick()
		h.setFrozen(true)
		w.after(while(6000), func() {
			if !h.dead {
				h.setFrozen(false)
			}
		})
	case 6:
		pick().failRank()
	case 7:
		h := pick()
		if !h.frozen {
			w.log("%s is asked to leave", h.name)
			h.step(Leave{"it was asked to"})
		}
	case 8: // the store stands still for all
		d := while(2500)
		for _, h := range up {
			h.setCut(true)
			w.after(d, func() { h.setCut(false) })
		}
	}
	return lasts
}
