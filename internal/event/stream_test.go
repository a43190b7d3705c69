// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestReaders: a reader gets the events in their order, each once, and knows how many it has missed.
// Many collectives push out no other event.
func TestReaders(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	s := New(time.Now())
	c := s.Channel("world", 1, []int{0, 1})
	reader := s.Read(false)
	late := s.Read(false)
	buffer := make([]Event, 100)
	var last uint64
	seen, emitted := 0, 0
	for range 200 {
		for range r.IntN(200) {
			if emitted++; r.IntN(4) == 0 {
				s.Emit(Event{Kind: Value, Name: "x", Value: 1})
			} else {
				c.Ended(&Call{Name: "all_reduce"})
			}
		}
		for n := reader.Next(buffer); n > 0; n = reader.Next(buffer) {
			for _, e := range buffer[:n] {
				if e.Number != last+1 {
					t.Fatalf("event %d comes after %d", e.Number, last)
				}
				last = e.Number
				seen++
			}
		}
	}
	if seen != emitted || reader.Lost() != 0 {
		t.Errorf("got %d of %d events, lost %d", seen, emitted, reader.Lost())
	}
	got := 0
	for n := late.Next(buffer); n > 0; n = late.Next(buffer) {
		got += n
	}
	if got != RingCalls+RingOthers || got+int(late.Lost()) != emitted {
		t.Errorf("a late reader got %d and lost %d of %d events", got, late.Lost(), emitted)
	}

	s.Emit(Event{Kind: Value, Name: "kept"})
	for range 10 * RingCalls {
		c.Ended(&Call{Name: "all_reduce"})
	}
	found := false
	past := s.Read(true)
	for n := past.Next(buffer); n > 0; n = past.Next(buffer) {
		for _, e := range buffer[:n] {
			found = found || e.Name == "kept"
		}
	}
	if !found {
		t.Error("collectives have pushed out a value")
	}
}

// TestPhasesAreAllOfTheTime: whatever a goroutine does, the phases add up to the time of the clock.
// Time in which it stands still moves to Communication, but for phases that have it as their own.
func TestPhasesAreAllOfTheTime(t *testing.T) {
	seed := seeded.Of(t)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := New(time.Now())
		c := s.Channel("world", 1, []int{0, 1})
		s.Enter(Other)
		var want Times
		begin := time.Now()
		for seq := range uint64(500) {
			p := Phase(r.IntN(int(Communication)))
			if r.IntN(4) == 0 {
				p = Saving
			}
			s.Enter(p)
			for range r.IntN(3) {
				work := time.Duration(r.IntN(1e6))
				time.Sleep(work)
				want[p] += work
				from := c.Now()
				stand := time.Duration(r.IntN(1e6))
				time.Sleep(stand)
				if p.opaque() {
					want[p] += stand
				} else {
					want[Communication] += stand
				}
				if r.IntN(2) == 0 {
					c.Ended(&Call{Name: "all_reduce", Seq: seq, InCaller: true, Span: Span{from, from, c.Now()}})
				} else {
					c.Stood(from, c.Now())
				}
				c.Stood(from, c.Now()) // counts once
			}
		}
		if got := s.Times(); got != want || got.Total() != time.Since(begin) {
			t.Errorf("got %v, %v in all; want %v, %v", got, got.Total(), want, time.Since(begin))
		}
		done := make(chan struct{})
		go func() { // another goroutine's calls are beside the step
			defer close(done)
			from := c.Now()
			time.Sleep(time.Second)
			c.Ended(&Call{Name: "barrier", InCaller: true, Span: Span{from, from, c.Now()}})
		}()
		<-done
		if got := s.Times()[Communication]; got != want[Communication] {
			t.Errorf("a call of another goroutine moved Communication from %v to %v", want[Communication], got)
		}
	})
}

// TestExposed: time to stand still is divided among the calls that ran meanwhile.
func TestExposed(t *testing.T) {
	ms := time.Millisecond
	calls := []doneCall{{id: 2, begun: 10 * ms, ended: 30 * ms}, {id: 4, begun: 0, ended: 10 * ms}, {id: 6, begun: 30 * ms, ended: 35 * ms}, {id: 8, begun: 40 * ms, ended: 60 * ms}}
	got := samples(calls, []stand{{5 * ms, 32 * ms}, {50 * ms, 60 * ms}}, 1)
	want := []Sample{{4, 10 * ms, 5 * ms}, {2, 20 * ms, 20 * ms}, {6, 5 * ms, 2 * ms}, {8, 20 * ms, 10 * ms}}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("call %d: got %v, want %v", i, got[i], want[i])
		}
	}
}

// TestAttribute: the rank that came last is the one that the others waited for, whatever their clocks
// say, and in turns if it is another one each time.
func TestAttribute(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 2))
	const n = 8
	for range 50 {
		ranks := make([][]Sample, n)
		var want, caused [n]time.Duration
		var moving time.Duration
		for id := range uint64(40) {
			var came [n]time.Duration
			last := 0
			for i := range came {
				if came[i] = time.Duration(r.IntN(1e6)); came[i] > came[last] {
					last = i
				}
			}
			move := time.Duration(1 + r.IntN(1e5))
			moving += move
			for i := range came {
				took := came[last] - came[i] + move
				ranks[i] = append(ranks[i], Sample{ID: id, Took: took, Exposed: took})
				if i != last {
					want[i] += came[last] - came[i]
					caused[last] += came[last] - came[i]
				}
			}
		}
		w := Attribute(ranks)
		for i := range n {
			if w.Moving[i] != moving {
				t.Errorf("rank %d: data moved for %v, want %v", i, w.Moving[i], moving)
			}
			if w.Waiting[i] != want[i] || w.Caused[i] != caused[i] {
				t.Errorf("rank %d: waited %v and was waited for %v, want %v and %v", i, w.Waiting[i], w.Caused[i], want[i], caused[i])
			}
		}
	}
	w := Attribute([][]Sample{{{ID: messageBit | 1, Took: 5, Exposed: 4}}, {{ID: messageBit | 7, Took: 3, Exposed: 3}}})
	if w.Waiting[0] != 4 || w.For[0] != 1 || w.Waiting[1] != 0 || w.For[1] != -1 {
		t.Errorf("messages: got %+v", w)
	}
	if got := w.Split(0, Times{Communication: 10}); got[Waiting] != 10 || got[Communication] != 0 {
		t.Errorf("got %v", got)
	}
}

// TestCuts: the cuts of a stream are all of its time, and figures lose nothing where windows do.
func TestCuts(t *testing.T) {
	s := New(time.Now())
	c := s.Channel("world", 3, []int{0, 1})
	s.Enter(Other)
	var sum Times
	calls := 0
	for range 3 {
		for seq := range uint64(2 * maxWindow) {
			c.Ended(&Call{Op: 1, Name: "all_reduce", Seq: seq, Bytes: 8, InCaller: true, Span: Span{c.Now(), c.Now(), c.Now() + 1}})
		}
		cut := s.Cut(16)
		sum, calls = sum.Plus(cut.Times), calls+cut.Calls
		if cut.Missed == 0 || len(cut.Samples) < maxWindow/64 || len(cut.Samples) > maxWindow/4 || cut.Times.Total() != cut.Wall {
			t.Errorf("got %d samples, %d missed, %v of %v", len(cut.Samples), cut.Missed, cut.Times.Total(), cut.Wall)
		}
	}
	f := s.Figures()
	if op := f.Channels[0].Ops[0]; calls != 6*maxWindow || op.Calls != 6*maxWindow || op.Bytes != 8*6*maxWindow || op.Op != "all_reduce" {
		t.Errorf("got %d calls and %+v", calls, op)
	}
	var phases time.Duration
	for _, d := range f.Phases {
		phases += d
	}
	if phases < sum.Total() {
		t.Errorf("the phases are %v, those of the cuts %v", phases, sum.Total())
	}
	before := s.Figures().Phases["communication"]
	s.Waited(0)
	if got := s.Figures().Phases["communication"]; got != before {
		t.Errorf("communication was %v and is %v", before, got)
	}
	c.Ended(&Call{Op: 1, InCaller: true, Span: Span{c.Now(), c.Now(), c.Now() + time.Second}})
	if got := s.Figures().Phases["communication"]; got != before {
		t.Errorf("communication that was not compared is told: %v, want %v", got, before)
	}
	s.Waited(sum[Communication])
	if got := s.Times(); got[Waiting] != sum[Communication] {
		t.Errorf("got %v", got)
	}
}

// TestNothing: a stream that is not there takes everything.
func TestNothing(t *testing.T) {
	var s *Stream
	s.Enter(s.Enter(Data))
	s.Emit(Event{Kind: Note})
	s.StepDone(1, StepNumbers{})
	s.Holds(MemoryNumbers{})
	s.Waited(1)
	c := s.Channel("x", 0, nil)
	c.Ended(&Call{})
	c.Stood(0, c.Now())
	if s.Read(true).Next(make([]Event, 1)) != 0 || s.Times() != (Times{}) || s.Cut(1).Calls != 0 || s.Figures().Step != 0 {
		t.Error("a nil stream has something")
	}
	if From(context.Background()) != nil || From(With(context.Background(), New(time.Now()))) == nil {
		t.Error("contexts")
	}
	if got := Kind(200).String(); !strings.Contains(got, "200") {
		t.Error(got)
	}
}

// TestAtOnce is for the race detector.
func TestAtOnce(t *testing.T) {
	s := New(time.Now())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			c := s.Channel("g", uint64(i), []int{0})
			r := s.Read(true)
			for seq := range uint64(2000) {
				s.Enter(Phase(seq) % Communication)
				c.Ended(&Call{Seq: seq, InCaller: true, Span: Span{0, 0, s.Now()}})
				r.Next(make([]Event, 4))
				if seq%100 == 0 {
					s.Cut(2)
					s.Figures()
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCollective(b *testing.B) {
	s := New(time.Now())
	c := s.Channel("world", 1, []int{0, 1})
	s.Enter(Forward)
	b.ReportAllocs()
	var call Call
	for i := 0; b.Loop(); i++ {
		call = Call{Op: 1, Name: "all_reduce", Seq: uint64(i), Bytes: 4, InCaller: true, Span: Span{time.Duration(i), time.Duration(i), time.Duration(i + 1)}}
		c.Ended(&call)
		if i%1000 == 0 {
			s.Cut(16)
		}
	}
}

func BenchmarkValue(b *testing.B) {
	s := New(time.Now())
	b.ReportAllocs()
	for b.Loop() {
		s.Emit(Event{Kind: Value, Name: "loss", Value: 1})
	}
}

func BenchmarkEnter(b *testing.B) {
	s := New(time.Now())
	b.ReportAllocs()
	for b.Loop() {
		s.Enter(Forward)
		s.Enter(Backward)
	}
}
