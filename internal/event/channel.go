// SPDX-License-Identifier: Apache-2.0

package event

import (
	"cmp"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/goroutine"
)

// numOps bounds the numbers of operations.
const numOps = 32

// Channel is the part of a stream that is about one group of ranks.
type Channel struct {
	s     *Stream
	name  string
	key   uint64
	world []int // the members' ranks in the job

	// The stream's lock guards them.
	names [numOps]string
	ops   [numOps]OpFigures
}

// OpFigures is what the calls of one operation in one group have come to.
type OpFigures struct {
	Calls   uint64        `json:"calls"`
	Bytes   int64         `json:"bytes"`      // of data of this rank
	Running time.Duration `json:"running_ns"` // from their beginning to their end
	Fastest time.Duration `json:"fastest_ns"` // the least time of calls of the size Largest
	Largest int64         `json:"largest"`    // bytes of the largest call
}

// Channel returns the part of the stream for a group, by its name, the number of the key by which its
// members know it, and the ranks in the job that they are.
func (s *Stream) Channel(name string, key uint64, world []int) *Channel {
	if s == nil {
		return nil
	}
	c := &Channel{s: s, name: name, key: key, world: world}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = append(s.channels, c)
	if len(s.channels) > maxChannels {
		s.channels = slices.Delete(s.channels, 1, 2) // the first is the group of all ranks
	}
	return c
}

// maxChannels bounds the groups of which figures are kept: a program may make ever new ones.
const maxChannels = 64

// Call is a call of a group that has ended.
type Call struct {
	Op         uint8  // the number of the operation
	Name       string // its name
	Seq        uint64
	Bytes      int64
	Span       Span
	Background bool // the program went on beside it
	InCaller   bool // it ran on the goroutine that called it, which stood still for all of Span
	Message    bool // it has one peer: a send or a receive
	Peer       int  // of a message, its rank in the group; -1 for none
}

// Ended says that a call has ended, on the goroutine that has run it.
func (c *Channel) Ended(call *Call) {
	if c == nil {
		return
	}
	s, by := c.s, goroutine.ID()
	s.mu.Lock()
	defer s.mu.Unlock()
	op := min(call.Op, numOps-1)
	f := &c.ops[op]
	c.names[op] = call.Name
	f.Calls++
	f.Bytes += call.Bytes
	took := call.Span.Ended - call.Span.Begun
	f.Running += took
	if call.Bytes > f.Largest || call.Bytes == f.Largest && (took < f.Fastest || f.Calls == 1) {
		f.Largest, f.Fastest = call.Bytes, took
	}
	s.last++
	s.byKind[Collective]++
	peer := int32(-1)
	if call.Message && call.Peer >= 0 && call.Peer < len(c.world) {
		peer = int32(c.world[call.Peer])
	}
	*s.calls.next() = brief{number: s.last, step: s.step, channel: c, seq: call.Seq, peer: peer, bytes: call.Bytes, span: call.Span, op: op, background: call.Background}
	if call.Background || !s.clock.phase.opaque() { // else it belongs to the phase
		s.window.ended(c.id(call), call.Span)
	}
	if call.InCaller {
		s.stood(by, call.Span.Called, call.Span.Ended)
	}
}

// Stood says that this goroutine has stood still for calls of the group, from a moment up to another.
func (c *Channel) Stood(from, to time.Duration) {
	if c == nil {
		return
	}
	s, by := c.s, goroutine.ID()
	s.mu.Lock()
	s.stood(by, from, to)
	s.mu.Unlock()
}

// Now returns the time since the start of the stream; 0 of no channel.
func (c *Channel) Now() time.Duration {
	if c == nil {
		return 0
	}
	return c.s.Now()
}

// messageBit marks the ids of messages, whose other bits are the rank of the peer in the job.
const messageBit = 1 << 63

// id is what the members of the group call a call by.
func (c *Channel) id(call *Call) uint64 {
	if call.Message {
		if call.Peer < 0 || call.Peer >= len(c.world) {
			return messageBit | uint64(messageBit-1)
		}
		return messageBit | uint64(c.world[call.Peer])
	}
	h := (c.key ^ call.Seq*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	return (h ^ h>>32) &^ messageBit
}

// maxWindow bounds what a window keeps of calls, and of times to stand still.
const maxWindow = 4096

// window is what ranks compare of the time since the last comparison. The stream's lock guards it.
type window struct {
	since   time.Duration
	before  Times // at since
	step    int   // at since
	calls   []doneCall
	stands  []stand
	missed  int           // calls that did not fit
	stoodTo time.Duration // the end of the last stand
}

type doneCall struct {
	id           uint64
	begun, ended time.Duration
}

type stand struct{ from, to time.Duration }

func (w *window) ended(id uint64, at Span) {
	if len(w.calls) == maxWindow {
		w.missed++
		return
	}
	w.calls = append(w.calls, doneCall{id, at.Begun, at.Ended})
}

func (w *window) stood(from, to time.Duration) {
	w.stoodTo = to
	if len(w.stands) == maxWindow {
		return
	}
	w.stands = append(w.stands, stand{from, to})
}

// Sample is what a call took of a rank.
type Sample struct {
	ID      uint64        // the same on all ranks of the call
	Took    time.Duration // from its beginning on this rank to its end
	Exposed time.Duration // of that, how long the program stood still
}

// Cut is what a rank has done since the cut before.
type Cut struct {
	Steps   int
	Wall    time.Duration
	Times   Times // with Waiting in Communication
	Running time.Duration
	Calls   int      // that have ended
	Samples []Sample // of every n-th of them
	Missed  int      // calls that did not fit
	Held    MemoryNumbers
}

// Cut ends a window, and begins the next. every says of how many calls one is a sample: the ranks must
// say the same.
func (s *Stream) Cut(every uint64) Cut {
	if s == nil {
		return Cut{}
	}
	now := s.Now()
	s.mu.Lock()
	s.clock.advance(now)
	w := s.window
	cut := Cut{Steps: s.step - w.step, Wall: now - w.since, Times: s.clock.times.Minus(w.before), Missed: w.missed, Held: s.memory}
	s.window = window{since: now, before: s.clock.times, step: s.step, stoodTo: w.stoodTo}
	s.mu.Unlock()
	cut.Calls = len(w.calls) + w.missed
	for _, c := range w.calls {
		cut.Running += c.ended - c.begun
	}
	cut.Samples = samples(w.calls, w.stands, max(1, every))
	s.mu.Lock()
	if s.window.calls == nil { // the memory is used again
		s.window.calls, s.window.stands = w.calls[:0], w.stands[:0]
	}
	s.mu.Unlock()
	return cut
}

// samples divides the time of stands among the calls: up to its end, time belongs to the call that
// ends first.
func samples(calls []doneCall, stands []stand, every uint64) []Sample {
	slices.SortFunc(calls, func(a, b doneCall) int { return cmp.Compare(a.ended, b.ended) })
	var out []Sample
	at := 0
	for _, c := range calls {
		var exposed time.Duration
		for at < len(stands) {
			st := &stands[at]
			if from, to := max(st.from, c.begun), min(st.to, c.ended); to > from {
				exposed += to - from
			}
			if st.to > c.ended { // the rest belongs to calls that end later
				st.from = max(st.from, c.ended)
				break
			}
			at++
		}
		if c.id%every == 0 || c.id&messageBit != 0 && len(out) < maxMessages {
			out = append(out, Sample{ID: c.id, Took: c.ended - c.begun, Exposed: exposed})
		}
	}
	return out
}

// maxMessages bounds the messages among samples.
const maxMessages = 128
