// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// blackBox is a rank's flight recorder, which its groups share, and the file
// that it is written to. A nil blackBox writes nothing.
type blackBox struct {
	recorder *flight.Recorder

	mu       sync.Mutex // one file after the other: the last written is the latest
	reason   string     // of the first failure
	asked    uint64     // the launcher's last request
	failures int        // groups of which the failure has been written
	written  time.Time  // when the last of them was
}

// A rank may be in very many groups, all of which fail when one of its peers
// dies: from manyFailures on, they are written only so often.
const (
	manyFailures    = 16
	failureInterval = time.Second
)

func newBlackBox(rank, worldSize int, host string, pid int) *blackBox {
	return &blackBox{recorder: flight.New(flight.Who{Rank: rank, WorldSize: worldSize, Host: host, PID: pid})}
}

// openLog gives the group its part of this rank's flight recorder. Who the
// members are is known by then.
func (g *Group) openLog() {
	if g.parent != nil {
		g.box = g.parent.box
	}
	if g.box == nil {
		me := g.members[g.rank]
		g.box = newBlackBox(g.rank, g.size, me.Host, me.PID)
	}
	g.log = g.box.recorder.Group(g.name, g.key, g.rank, g.members, g.world, g.describe)
}

// describe adds to a dump what the group knows of itself.
func (g *Group) describe(d *flightlog.Group) {
	g.mu.Lock()
	d.Transport = g.transport
	b, ok := g.comm.(backend.Timekeeper)
	g.mu.Unlock()
	if !ok {
		return
	}
	for _, s := range b.Skew() {
		if s.Rank >= 0 && s.Rank < len(g.world) {
			d.Skew = append(d.Skew, flightlog.Skew{Rank: g.world[s.Rank], LateNS: int64(s.Late), Share: s.Share, StepNS: int64(s.Step)})
		}
	}
}

func (b *blackBox) failed(err error) {
	dir, ok := envvar.RecorderDir.Lookup()
	if b == nil || !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason == "" {
		b.reason = "failed: " + err.Error()
	}
	if b.failures >= manyFailures && time.Since(b.written) < failureInterval {
		return
	}
	b.write(dir)
	b.failures++
	b.written = time.Now()
}

// answer writes the dump that the launcher asks for.
func (b *blackBox) answer(request uint64) {
	dir, ok := envvar.RecorderDir.Lookup()
	if b == nil || !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = request
	b.write(dir)
}

// write writes the dump. An error goes nowhere: there is no caller to tell, and
// the launcher names ranks whose dump is missing.
func (b *blackBox) write(dir string) {
	d := b.dump()
	if os.MkdirAll(dir, 0o700) == nil {
		_ = flightlog.Write(dir, d)
	}
}

// dump takes a dump. The box is locked.
func (b *blackBox) dump() *flightlog.Dump {
	reason := b.reason
	if reason == "" {
		reason = flight.Asked
	}
	d := b.recorder.Dump(reason)
	d.Asked = b.asked
	return d
}

// Dump writes what this rank's flight recorder holds, of all groups that the
// rank is in: its last calls with their times, states and call sites. It is a
// JSON object, which package flightlog documents, reads and merges with those
// of other ranks. It may be called at any time, also while calls are under way.
func (g *Group) Dump(w io.Writer) error {
	g.box.mu.Lock()
	d := g.box.dump()
	g.box.mu.Unlock()
	text, err := json.Marshal(d)
	if err == nil {
		_, err = w.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("dist: dump of group %q on rank %d: %w", g.name, g.rank, err)
	}
	return nil
}

// dumpOn writes the dump on each of a signal until stop is called. Without a
// signal it does nothing.
func (b *blackBox) dumpOn(sig os.Signal) (stop func()) {
	if sig == nil {
		return func() {}
	}
	ch, done, ended := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(ch, sig)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-ch:
			}
			b.mu.Lock()
			if dir, ok := envvar.RecorderDir.Lookup(); ok {
				b.write(dir)
			} else {
				_ = flightlog.Merge([]*flightlog.Dump{b.dump()}).WriteText(os.Stderr)
			}
			b.mu.Unlock()
		}
	}()
	return func() {
		signal.Stop(ch)
		close(done)
		<-ended
	}
}
