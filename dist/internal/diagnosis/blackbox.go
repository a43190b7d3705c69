// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/tensor"
)

// BlackBox is a rank's flight recorder and its events, which its groups share, and the files
// that they are written to. A nil BlackBox writes nothing.
type BlackBox struct {
	who      flight.Who
	recorder *flight.Recorder
	stream   *event.Stream

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

// NewBlackBox returns the box of a rank.
func NewBlackBox(rank, worldSize int, host string, pid int) *BlackBox {
	who := flight.Who{Rank: rank, WorldSize: worldSize, Host: host, PID: pid}
	r := flight.New(who)
	return &BlackBox{who: who, recorder: r, stream: event.New(r.Start())}
}

// Failed writes the dump because a group has failed, if the environment says where to.
func (b *BlackBox) Failed(err error) {
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

// Answer writes the dump or the figures that the launcher asks for.
func (b *BlackBox) Answer(e agentpipe.Event) {
	dir, ok := envvar.RecorderDir.Lookup()
	if b == nil || !ok {
		return
	}
	if e.Kind == agentpipe.KindFigures {
		if os.MkdirAll(dir, 0o700) == nil {
			figures := b.stream.Figures()
			figures.Memory.FLOPs, figures.Memory.Again = tensor.FLOPs()
			_ = event.Write(dir, event.File{Rank: b.who.Rank, WorldSize: b.who.WorldSize, Host: b.who.Host, PID: b.who.PID, Request: e.Request, Figures: figures})
		}
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = e.Request
	b.write(dir)
}

// write writes the dump. An error goes nowhere: there is no caller to tell, and
// the launcher names ranks whose dump is missing.
func (b *BlackBox) write(dir string) {
	d := b.dump()
	if os.MkdirAll(dir, 0o700) == nil {
		_ = flightlog.Write(dir, d)
	}
}

// Stream returns the rank's events, whose times count as those of the recorder.
func (b *BlackBox) Stream() *event.Stream {
	if b == nil {
		return nil
	}
	return b.stream
}

// Recorder returns the flight recorder.
func (b *BlackBox) Recorder() *flight.Recorder { return b.recorder }

// Dump takes a dump.
func (b *BlackBox) Dump() *flightlog.Dump {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dump()
}

// dump takes a dump. The box is locked.
func (b *BlackBox) dump() *flightlog.Dump {
	reason := b.reason
	if reason == "" {
		reason = flight.Asked
	}
	d := b.recorder.Dump(reason)
	d.Asked = b.asked
	return d
}

// DumpOn writes the dump on each of a signal until stop is called. Without a
// signal it does nothing.
func (b *BlackBox) DumpOn(sig os.Signal) (stop func()) {
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
