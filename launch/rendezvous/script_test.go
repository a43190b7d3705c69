// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var agents = flag.Int("agents", 2000, "how many agents meet in TestManyAgents; 10000 take 15 s")

var update = flag.Bool("update", false, "write the golden files of the scripts anew")

// TestScripts plays the scripts of testdata, in which a line is a time and what
// happens then, and compares what the agents do with what is written below each.
// Latency is 1 ms and ranks stop in 100 ms, so that figures can be read:
//
//	nodes 2:4 restarts 1 work 60
//	0 join a b
//	5.5 kill a
//
// The other verbs are cut, heal, freeze, thaw, fail and leave.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, _, _ := strings.Cut(string(text), "----\n")
			var out bytes.Buffer
			w := playScript(t, script, &out)
			for _, p := range w.problems {
				t.Error(p)
			}
			got := script + "----\n" + out.String()
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s: other actions than written there; go test -run TestScripts ./launch/rendezvous -update shows them in git diff. Now:\n%s", file, out.String())
			}
		})
	}
}

func playScript(t *testing.T, script string, out *bytes.Buffer) *world {
	var w *world
	byName, pending := map[string]*host{}, 0
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for line := range strings.Lines(script) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if w == nil {
			lo, hi, _ := strings.Cut(f[1], ":")
			w = newWorld(1, settings(number(lo), number(hi), number(f[3])))
			w.work = time.Duration(number(f[5])) * time.Second
			w.latency = func() time.Duration { return time.Millisecond }
			w.stopTime = func() time.Duration { return 100 * time.Millisecond }
			w.log = func(format string, args ...any) {
				fmt.Fprintf(out, "%7.3f %s\n", w.now.Sub(w.start).Seconds(), fmt.Sprintf(format, args...))
			}
			continue
		}
		at, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		pending++
		w.after(time.Duration(at*float64(time.Second)), func() {
			pending--
			for _, name := range f[2:] {
				h := byName[name]
				switch f[1] {
				case "join":
					byName[name] = w.join(name, 2)
				case "kill":
					h.kill()
				case "cut", "heal":
					h.setCut(f[1] == "cut")
				case "freeze", "thaw":
					h.setFrozen(f[1] == "freeze")
				case "fail":
					h.failRank()
				case "leave":
					h.step(Leave{"it got SIGTERM"})
				default:
					t.Errorf("no such verb: %s", line)
				}
			}
		})
	}
	w.run(20*time.Minute, func() bool { return pending == 0 && numLive(w) == 0 })
	return w
}

// TestAbsorbed: what happens to a job that runs, one thing at a time, is over
// within five seconds, the defaults of all settings given.
func TestAbsorbed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		what func(w *world)
	}{
		{"join", func(w *world) { w.join("new", 2) }},
		{"join two", func(w *world) { w.join("new", 2); w.join("newer", 2) }},
		{"rank fails", func(w *world) { w.nodes[1].failRank() }},
		{"kill the agent that decides", func(w *world) { w.nodes[0].kill() }},
		{"kill another", func(w *world) { w.nodes[1].kill() }},
		{"cut off who decides", func(w *world) { w.nodes[0].setCut(true) }},
		{"cut off another", func(w *world) { w.nodes[1].setCut(true) }},
		{"freeze another", func(w *world) { w.nodes[2].setFrozen(true) }},
		{"leave", func(w *world) { w.nodes[1].step(Leave{"asked"}) }},
		{"who decides leaves", func(w *world) { w.nodes[0].step(Leave{"asked"}) }},
		{"store out of reach for a second", func(w *world) {
			for _, h := range w.nodes {
				h.setCut(true)
				w.after(time.Second, func() { h.setCut(false) })
			}
		}},
	} {
		var worst time.Duration
		for seed := range uint64(20) {
			w := newWorld(seed, settings(1, 5, 3))
			w.work = time.Hour
			for i := range 3 {
				w.join(fmt.Sprintf("n%d", i), 2)
			}
			w.run(3*time.Second+time.Duration(w.rng.IntN(1000))*time.Millisecond, nil)
			if !w.whole() {
				t.Fatalf("%s, seed %d: the job does not run", c.name, seed)
			}
			if seed%2 == 1 { // the store has forgotten nobody's place meanwhile
				w.nodes[0], w.nodes[1] = w.nodes[1], w.nodes[0]
			}
			w.after(0, func() { c.what(w) })
			at := w.now
			w.run(w.now.Sub(w.start), nil)
			w.run(at.Sub(w.start)+time.Minute, w.whole)
			worst = max(worst, w.now.Sub(at))
			if restarts := w.state.Restarts; restarts > 0 && c.name != "rank fails" {
				t.Errorf("%s, seed %d: counted as %d failures", c.name, seed, restarts)
			}
			for _, p := range w.problems {
				t.Errorf("%s, seed %d: %s", c.name, seed, p)
			}
		}
		if worst > 5*time.Second {
			t.Errorf("%s: absorbed in %v, want 5s at most", c.name, worst)
		}
		t.Logf("%s: absorbed within %v", c.name, worst.Round(time.Millisecond))
	}
}

// TestManyAgents: as many as -agents says meet, lose one in a hundred and the one
// that decides, and meet again, with a bounded number of calls each.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	n := *agents
	w := newWorld(1, settings(n/2, n, 0))
	w.work = time.Hour
	for i := range n {
		w.after(time.Duration(w.rng.IntN(1000))*time.Millisecond, func() { w.join(fmt.Sprintf("n%d", i), 1) })
	}
	var last time.Time
	whole := func() bool { // looked at every 5 ms, for it takes a while itself
		if w.now.Sub(last) < 5*time.Millisecond {
			return false
		}
		last = w.now
		return w.whole()
	}
	w.run(30*time.Second, whole)
	if !w.whole() || len(w.state.Members) != n {
		t.Fatalf("no round of all %d nodes", n)
	}
	formed, calls := w.now, w.calls
	t.Logf("%d agents met in %v of their time, with %d calls of the store each", n, formed.Sub(w.start), calls/n)
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"one in a hundred dies", func() {
			for i := range n / 100 {
				if h := w.nodes[i*97]; !h.m.decides() {
					h.kill()
				}
			}
		}},
		{"who decides dies", func() {
			for _, h := range w.nodes {
				if !h.dead && h.m.decides() {
					h.kill()
					return
				}
			}
		}},
	} {
		began, calls := w.now, w.calls
		w.after(0, c.do)
		w.run(w.now.Sub(w.start), nil)
		w.run(w.now.Sub(w.start)+time.Minute, whole)
		took := w.now.Sub(began)
		if !w.whole() || took > 5*time.Second {
			t.Errorf("%s: those that are left run after %v, want 5s", c.what, took)
		}
		t.Logf("%s: %d that are left met in %v, with %.1f calls each a second", c.what, len(w.state.Members), took, float64(w.calls-calls)/float64(n)/took.Seconds())
	}
	for _, p := range w.problems[:min(len(w.problems), 10)] {
		t.Error(p)
	}
}
