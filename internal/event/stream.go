// SPDX-License-Identifier: Apache-2.0

package event

import (
	"sync"
	"time"
)

// Sizes of the rings, in events.
const (
	RingCalls  = 2048 // collectives and phases
	RingOthers = 1024
	firstRing  = 32 // room at first: a job of thousands of goroutine ranks pays for what it uses
)

// Stream is what happens on one rank. The zero value is not to be used: [New] makes one.
type Stream struct {
	start time.Time

	mu     sync.Mutex
	last   uint64 // the number of the newest event
	step   int    // steps done
	calls  ring[brief]
	others ring[Event]
	byKind [numKinds]uint64 // events so far

	clock    clock
	channels []*Channel
	window   window
	divided  Times // at the last cut: Communication and Waiting are told apart
	compared bool  // there was one
	memory   MemoryNumbers
	lastStep StepNumbers
}

// New returns a stream whose times count from a moment.
func New(start time.Time) *Stream {
	s := &Stream{start: start, calls: ring[brief]{most: RingCalls}, others: ring[Event]{most: RingOthers}}
	s.clock.since = s.Now()
	s.window.since = s.clock.since
	return s
}

// Start is the moment from which the times of events count.
func (s *Stream) Start() time.Time { return s.start }

// Now returns the time since the start.
func (s *Stream) Now() time.Duration { return time.Since(s.start) }

// ring keeps the newest events. The stream's lock guards it.
type ring[E any] struct {
	most   int
	events []E
	count  uint64 // of events so far: the next one is at count % most
}

// next returns the place of the next event, which still has what was there.
func (r *ring[E]) next() *E {
	r.count++
	if len(r.events) < r.most {
		if r.events == nil {
			r.events = make([]E, 0, firstRing)
		}
		r.events = append(r.events, *new(E))
		return &r.events[len(r.events)-1]
	}
	return r.at(r.count - 1)
}

// at returns the event of a place, counted from the first event that there was.
func (r *ring[E]) at(i uint64) *E { return &r.events[i%uint64(r.most)] }

// oldest returns the place of the oldest event that is kept.
func (r *ring[E]) oldest() uint64 { return r.count - uint64(len(r.events)) }

// brief is a collective or a phase, which are many: it is quick to write.
type brief struct {
	number     uint64
	step       int
	channel    *Channel // nil of a phase
	seq        uint64
	bytes      int64
	span       Span
	peer       int32 // rank in the job, -1 for none
	op         uint8 // or the phase
	background bool
}

// event returns it as others see it. The stream is locked.
func (b *brief) event() Event {
	e := Event{Number: b.number, Kind: PhaseEnded, Time: b.span.Ended, Step: b.step, Span: b.span}
	if b.channel == nil {
		e.Name = Phase(b.op).String()
		return e
	}
	e.Key, e.Peer = b.channel.key, int(b.peer)
	e.Kind, e.Name, e.Group, e.Seq, e.Bytes, e.Background = Collective, b.channel.names[b.op], b.channel.name, b.seq, b.bytes, b.background
	return e
}

// emit keeps an event. The stream is locked.
func (s *Stream) emit(e *Event) {
	s.last++
	s.byKind[e.Kind]++
	at := s.others.next()
	*at = *e
	at.Number, at.Step = s.last, s.step
}

// emitPhase keeps the end of the phase that the clock is in. The stream is locked.
func (s *Stream) emitPhase(now time.Duration) {
	s.last++
	s.byKind[PhaseEnded]++
	*s.calls.next() = brief{number: s.last, step: s.step, op: uint8(s.clock.phase), span: Span{s.clock.begun, s.clock.begun, now}}
}

// Emit keeps an event: its number, its time and its step are filled in. Events of the kinds Step, Memory
// and Collective have methods of their own, which also add them to the figures.
func (s *Stream) Emit(e Event) {
	if s == nil {
		return
	}
	e.Time = s.Now()
	s.mu.Lock()
	s.emit(&e)
	s.mu.Unlock()
}

// StepDone says that a step was done, and what it came to.
func (s *Stream) StepDone(step int, done StepNumbers) {
	if s == nil {
		return
	}
	now := s.Now()
	s.mu.Lock()
	s.step, s.lastStep = step, done
	s.emit(&Event{Kind: Step, Time: now, Done: done})
	s.mu.Unlock()
}

// Holds says what the rank holds now.
func (s *Stream) Holds(m MemoryNumbers) {
	if s == nil {
		return
	}
	now := s.Now()
	s.mu.Lock()
	s.memory = m
	s.emit(&Event{Kind: Memory, Time: now, Held: m})
	s.mu.Unlock()
}

// Reader takes events from a stream in their order. It is for one goroutine.
type Reader struct {
	s             *Stream
	calls, others uint64 // places of the next
	lost          uint64
	logged        bool // it passes collectives and phases over
}

// ReadLogged returns a reader of the events from now on but collectives and phases, which are many.
func (s *Stream) ReadLogged() *Reader {
	r := s.Read(false)
	r.logged = true
	return r
}

// Read returns a reader of the events from now on, and of those that are still there if past is true.
func (s *Stream) Read(past bool) *Reader {
	r := &Reader{s: s}
	if s == nil {
		return r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.calls, r.others = s.calls.count, s.others.count
	if past {
		r.calls, r.others = s.calls.oldest(), s.others.oldest()
	}
	return r
}

// Next copies the next events to a list, as many as there are and fit, and returns how many. It does not
// wait for any.
func (r *Reader) Next(to []Event) (n int) {
	s := r.s
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.logged {
		r.calls = s.calls.count
	}
	r.lost += skip(&r.calls, s.calls.oldest()) + skip(&r.others, s.others.oldest())
	for ; n < len(to); n++ {
		call, other := r.calls < s.calls.count, r.others < s.others.count
		switch {
		case call && (!other || s.calls.at(r.calls).number < s.others.at(r.others).Number):
			to[n] = s.calls.at(r.calls).event()
			r.calls++
		case other:
			to[n] = *s.others.at(r.others)
			r.others++
		default:
			return n
		}
	}
	return n
}

// skip goes to the oldest event that is there, and returns how many were passed over.
func skip(at *uint64, oldest uint64) (lost uint64) {
	if *at < oldest {
		lost, *at = oldest-*at, oldest
	}
	return lost
}

// Lost returns how many events the reader has missed.
func (r *Reader) Lost() uint64 { return r.lost }
