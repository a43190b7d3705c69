// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// LoaderStats tells who waits for whom: training for data, or workers for
// training; and what the time of the workers goes into.
type LoaderStats struct {
	Batches int64 // delivered
	Samples int64 // in them
	Skipped int64 // of these, that stand in the place of others ([SkipSample])
	Workers int

	First   time.Duration // until the first batch was delivered
	Waited  time.Duration // that Next was kept waiting for all others together
	Stepped time.Duration // from the return of Next to its next call, together

	// What the workers did, all of them together; Next where there are none.
	Reading   time.Duration // what datasets say of their Get ([Reading])
	Making    time.Duration // the rest of Get: decoding, transforms
	Collating time.Duration
	Idle      time.Duration // the rest of the workers' time: enough was made ahead
}

// WaitShare is the share of the time of training that it waits for data.
func (s LoaderStats) WaitShare() float64 {
	if s.Waited+s.Stepped <= 0 {
		return 0
	}
	return float64(s.Waited) / float64(s.Waited+s.Stepped)
}

// Less waiting than this is not worth a change.
const enoughWaiting = 0.02

// String says in a sentence what the bottleneck is.
func (s LoaderStats) String() string {
	if s.Batches < 2 {
		return fmt.Sprintf("%d batches: too few to tell what the bottleneck is", s.Batches)
	}
	busy := s.Reading + s.Making + s.Collating
	percent := func(part, of time.Duration) string {
		return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(max(of, 1)))
	}
	parts := fmt.Sprintf("reading %s, making samples %s, collating %s of it", percent(s.Reading, busy), percent(s.Making, busy), percent(s.Collating, busy))
	work, where := "", "made between the steps, without workers"
	if s.Workers > 0 {
		work = fmt.Sprintf("its %d workers were", s.Workers)
		if s.Workers == 1 {
			work = "its worker was"
		}
		where = fmt.Sprintf("%s busy %s of the time", work, percent(busy, busy+s.Idle))
	}
	waited := fmt.Sprintf("the step waited for data %.1f %% of the time", 100*s.WaitShare())
	most, advice := "making samples", "more workers or a cheaper transform"
	switch {
	case s.Reading > s.Making && s.Reading > s.Collating:
		most, advice = "reading", "more workers or faster storage"
	case s.Collating > s.Making:
		most, advice = "collating", "more workers or smaller samples"
	}
	skipped := ""
	if s.Skipped > 0 {
		skipped = fmt.Sprintf("; %d of %d samples could not be made and were replaced", s.Skipped, s.Samples)
	}
	switch {
	case s.WaitShare() < enoughWaiting:
		return fmt.Sprintf("the step is the bottleneck, not the loader: %s; %s (%s)%s", waited, where, parts, skipped)
	case s.Workers > 0 && s.Idle > busy:
		return fmt.Sprintf("the loader is the bottleneck at times: %s, though %s (%s); more batches made ahead would help%s", waited, where, parts, skipped)
	case s.Workers == 0:
		advice = "workers"
	}
	return fmt.Sprintf("the loader is the bottleneck, most of all %s: %s; %s (%s); %s would help%s", most, waited, where, parts, advice, skipped)
}

// meter counts what a worker does. It has cache lines of its own.
type meter struct {
	read, made, collated atomic.Int64 // nanoseconds; made includes read
	epoch, index         atomic.Int64 // of the sample in the making; index is one more, and 0 for none
	_                    [88]byte
}

// making notes the sample that is in the making.
func (m *meter) making(k Key) {
	m.epoch.Store(int64(k.Epoch))
	m.index.Store(int64(k.Index) + 1)
}

// rests notes that there is none.
func (m *meter) rests() { m.index.Store(0) }

// at returns the sample in the making.
func (m *meter) at() (k Key, making bool) {
	i := m.index.Load()
	return Key{int(m.epoch.Load()), int(i) - 1}, i > 0
}

func (m *meter) addTo(s *LoaderStats) {
	read := m.read.Load()
	s.Reading += time.Duration(read)
	s.Making += time.Duration(max(m.made.Load()-read, 0))
	s.Collating += time.Duration(m.collated.Load())
}

// meterKey is the key under which the context of a Get has its worker's meter.
type meterKey struct{}

// ReadTimer measures a part of a dataset's Get; see [Reading].
type ReadTimer struct {
	m     *meter
	began time.Time
}

// Reading starts to measure what a dataset's Get needs to read the sample, from
// a disk or a network, until Done is called on what it returns:
//
//	t := data.Reading(ctx)
//	bytes, err := os.ReadFile(name)
//	t.Done()
//
// A [Loader] tells it apart from the rest of Get in its statistics; ctx is the
// one that Get was given. Elsewhere it does nothing.
func Reading(ctx context.Context) ReadTimer {
	m, _ := ctx.Value(meterKey{}).(*meter)
	if m == nil {
		return ReadTimer{}
	}
	return ReadTimer{m, time.Now()}
}

// Done ends the measurement.
func (t ReadTimer) Done() {
	if t.m != nil {
		t.m.read.Add(int64(time.Since(t.began)))
	}
}
