// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestCannot: a node that cannot come leaves word where the others meet, and who waits for it
// says so, once.
func TestCannot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	n := &Nodes{Settings: Settings{Job: "job"}, Meeting: Meeting{File: file}}
	n.Cannot(t.Context(), "", errors.New("no program\n there"))
	var out bytes.Buffer
	a := &participant{out: &out, m: &Machine{}, ctx: t.Context(), events: make(chan Event, 1), store: newStoreClient(openFile(file), "job", time.Minute)}
	defer a.store.close()
	ask := func(state State, comes bool) {
		t.Helper()
		a.m.state = &state
		a.askWhoCannot()
		a.running.Wait()
		select {
		case e := <-a.events:
			a.step(e)
		default:
			if comes {
				t.Error("nothing is told")
			}
		}
	}
	ask(State{Phase: Gathering, Min: 2}, true)
	ask(State{Phase: Gathering, Min: 2}, true)
	if want := regexp.MustCompile(`^cohort: a node cannot join: \S+ \(pid \d+\) at [0-9:]+: no program  there\n$`); !want.MatchString(out.String()) {
		t.Errorf("it says %q", out.String())
	}
	// That node has come since, and another one is waited for.
	a.cannot = ""
	out.Reset()
	ask(State{Phase: Running, Min: 2}, false)
	ask(State{Phase: Gathering, Min: 2}, false)
	if out.Len() > 0 {
		t.Errorf("after the job has run it says %q", out.String())
	}
	n.Cannot(t.Context(), "", errors.New("no disk"))
	ask(State{Phase: Gathering, Min: 2}, true)
	ask(State{Phase: Running, Min: 2}, false)
	ask(State{Phase: Gathering, Min: 2}, false)
	if want := "no disk\n"; !strings.HasSuffix(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("it says %q, want one line, %q", out.String(), want)
	}
}
