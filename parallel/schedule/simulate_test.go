// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	draws        = flag.Int("draws", 1000, "how many steps with random delays TestRandomDelays plays")
	seed         = flag.Uint64("seed", 1, "the seed of TestRandomDelays")
	stages       = flag.Int("stages", 64, "the number of stages of TestLarge")
	microbatches = flag.Int("microbatches", 256, "the number of microbatches of TestLarge")
)

// eachSmall calls a function for the schedules of a grid.
func eachSmall(t *testing.T, f func(s *Schedule, perRank int)) {
	for _, name := range Names() {
		n := 0
		for _, ranks := range []int{1, 2, 3, 4, 5, 8} {
			for perRank := 1; perRank <= 3; perRank++ {
				for _, microbatches := range []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 24} {
					if s, err := New(name, ranks, ranks*perRank, microbatches); err == nil {
						f(s, perRank)
						n++
					}
				}
			}
		}
		if n < 30 {
			t.Errorf("%s: only %d steps were played", name, n)
		}
	}
}

// TestBubble: a rank waits for as long as the theory says, and the activations are within
// the schedule's bound.
func TestBubble(t *testing.T) {
	costs := [][3]time.Duration{{10, 10, 10}, {10, 12, 9}, {9, 14, 10}, {7, 5, 20}}
	exact := map[string]int{}
	eachSmall(t, func(s *Schedule, perRank int) {
		for _, c := range costs {
			sim, err := s.Simulate(SimulateOptions{Cost: parts(c)})
			if err != nil {
				t.Fatalf("%s for %d ranks, %d stages, %d microbatches: %v", s.Name, s.NumRanks(), s.NumStages, s.NumMicrobatches, err)
			}
			for rank, most := range sim.Activations {
				if bound := s.MaxActivations(rank); most > bound || most < bound && s.NumMicrobatches >= 2*s.NumRanks() {
					t.Errorf("%s for %d ranks, %d stages, %d microbatches: rank %d holds %d activations, the bound is %d",
						s.Name, s.NumRanks(), s.NumStages, s.NumMicrobatches, rank, most, bound)
				}
			}
			work := time.Duration(perRank*s.NumMicrobatches) * (c[0] + c[1] + c[2])
			if idle, ok := s.Idle(c[0], c[1], c[2]); ok {
				exact[s.Name]++
				if sim.Time != work+idle {
					t.Errorf("%s for %d ranks, %d stages, %d microbatches, costs %v: the step takes %d, the theory says %d + %d",
						s.Name, s.NumRanks(), s.NumStages, s.NumMicrobatches, c, sim.Time, work, idle)
				}
			}
		}
	})
	for _, name := range Names() {
		if t.Logf("%s: %d steps equal the theory", name, exact[name]); exact[name] < 15 {
			t.Errorf("%s: only %d steps were compared with the theory", name, exact[name])
		}
	}
}

// parts returns the costs of a forward pass and of the two parts of a backward pass.
func parts(c [3]time.Duration) func(Action) time.Duration {
	return func(a Action) time.Duration {
		switch a.Kind {
		case Forward:
			return c[0]
		case BackwardInput:
			return c[1]
		case BackwardWeight:
			return c[2]
		}
		return c[1] + c[2]
	}
}

// TestNoGaps: no rank of a full ZB-V waits between its first and its last action.
func TestNoGaps(t *testing.T) {
	s, err := New("zbv", 6, 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := s.Simulate(SimulateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for rank, spans := range sim.Spans {
		if first, last := spans[0].Start, spans[len(spans)-1].End; last-first != sim.Busy[rank] || first != time.Duration(rank)*time.Millisecond {
			t.Errorf("rank %d works %v of the time from %v to %v", rank, sim.Busy[rank], first, last)
		}
	}
}

// TestRandomDelays: with random costs, random delays of the links and without memory for
// messages that nobody awaits, every step ends. The activations do not depend on time.
func TestRandomDelays(t *testing.T) {
	t.Logf("seed %d", *seed)
	rng := rand.New(rand.NewPCG(*seed, 0))
	played := map[string]int{}
	for range *draws {
		name := Names()[rng.IntN(len(Names()))]
		ranks, perRank, microbatches := 1+rng.IntN(9), 1+rng.IntN(3), 1+rng.IntN(24)
		s, err := New(name, ranks, ranks*perRank, microbatches)
		if err != nil {
			continue
		}
		plain, err := s.Simulate(SimulateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slowest := rng.IntN(200)
		sim, err := s.Simulate(SimulateOptions{
			Cost:       func(Action) time.Duration { return time.Duration(1 + rng.IntN(20)) },
			Delay:      func(int, int, Action) time.Duration { return time.Duration(rng.IntN(1 + slowest)) },
			Ahead:      rng.IntN(4),
			Rendezvous: rng.IntN(4) > 0,
		})
		if err != nil {
			t.Fatalf("%s for %d ranks, %d stages, %d microbatches: %v", name, ranks, s.NumStages, microbatches, err)
		}
		if !slices.Equal(sim.Activations, plain.Activations) {
			t.Fatalf("%s for %d ranks, %d stages, %d microbatches: activations %v, without delays %v", name, ranks, s.NumStages, microbatches, sim.Activations, plain.Activations)
		}
		played[name]++
	}
	t.Logf("played %v", played)
	for _, name := range Names() {
		if played[name] < *draws/100 {
			t.Errorf("%s was played only %d times", name, played[name])
		}
	}
}

// TestLarge: the steps of large pipelines end, hold what the bound says, and wait as the theory
// says.
func TestLarge(t *testing.T) {
	for _, name := range Names() {
		f, err := formOf(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(name, *stages/f.defaultStages, *stages, *microbatches)
		if err != nil {
			t.Fatal(err)
		}
		sim, err := s.Simulate(SimulateOptions{Cost: parts([3]time.Duration{10, 10, 10}), Rendezvous: true, Ahead: 1})
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for rank, n := range sim.Activations {
			if most = max(most, n); n > s.MaxActivations(rank) {
				t.Errorf("%s: rank %d holds %d activations, the bound is %d", name, rank, n, s.MaxActivations(rank))
			}
		}
		idle, ok := s.Idle(10, 10, 10)
		if work := time.Duration(30 * f.defaultStages * *microbatches); !ok || sim.Time != work+idle {
			t.Errorf("%s: the step takes %d, the theory says %d + %d (%v)", name, sim.Time, work, idle, ok)
		}
		t.Logf("%s: %d ranks, %d stages, %d microbatches: bubble %.4f, at most %d activations", name, s.NumRanks(), s.NumStages, s.NumMicrobatches, sim.Bubble, most)
	}
}

// TestLimitedSends: ranks that let only one message be on its way to another rank can wait
// for each other, and the error says so. gpipe and 1f1b cannot.
func TestLimitedSends(t *testing.T) {
	eachSmall(t, func(s *Schedule, _ int) {
		_, err := s.Simulate(SimulateOptions{Rendezvous: true, MaxSends: 1})
		if (s.Name == "gpipe" || s.Name == "1f1b") && err != nil {
			t.Errorf("%s for %d ranks, %d microbatches: %v", s.Name, s.NumRanks(), s.NumMicrobatches, err)
		}
	})
	s, err := New("interleaved", 2, 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Simulate(SimulateOptions{Rendezvous: true, MaxSends: 1})
	var e *DeadlockError
	if want := "schedule: 2 of 2 ranks wait for each other: rank 0 before 0SEND_F3, rank 1 before 1SEND_F2"; !errors.As(err, &e) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestWrongOrders: orders that no runtime could execute are found.
func TestWrongOrders(t *testing.T) {
	for _, c := range []struct {
		ranks []string
		want  string
	}{
		{[]string{"0F0 0B0 0B0", "1F0 1B0"}, "rank 0 cannot do 0B0: it is out of turn, or done twice"},
		{[]string{"0B0 0F0", "1F0 1B0"}, "schedule: 2 of 2 ranks wait for each other: rank 0 before 0B0, rank 1 before 1F0"},
		{[]string{"0F0 0B0", "1B0 1F0"}, "rank 1 cannot do 1B0: it is out of turn"},
		{[]string{"0F0 0I0", "1F0 1B0"}, "rank 0 cannot do 0B0: it has no such action"},
		{[]string{"0F0 0W0 0I0", "1F0 1B0"}, "rank 0 cannot do 0W0: it is out of turn"},
		{[]string{"0F0 0B0 1F0 1B0"}, "rank 0 cannot do 0B0: what it needs comes later on the same rank"},
	} {
		s := &Schedule{Name: "odd", NumStages: 2, NumMicrobatches: 1}
		for _, line := range c.ranks {
			s.Ranks = append(s.Ranks, actions(t, line))
		}
		if _, err := s.Simulate(SimulateOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.ranks, err, c.want)
		}
	}
}

// TestSimulateDelay: times that can be checked by hand.
func TestSimulateDelay(t *testing.T) {
	s, err := New("1f1b", 2, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	// Rank 0 forwards until 10 and 20, rank 1 from 15 on: 25 forward, 45 backward, which is
	// at rank 0 at 50; 55 forward, 75 backward, at rank 0 at 80.
	sim, err := s.Simulate(SimulateOptions{
		Cost:  parts([3]time.Duration{10, 10, 10}),
		Delay: func(int, int, Action) time.Duration { return 5 },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]Span{{{0, 10}, {10, 20}, {50, 70}, {80, 100}}, {{15, 25}, {25, 45}, {45, 55}, {55, 75}}}
	for rank := range want {
		if !slices.Equal(sim.Spans[rank], want[rank]) {
			t.Errorf("rank %d works at %v, want %v", rank, sim.Spans[rank], want[rank])
		}
	}
	if sim.Time != 100 || sim.Busy[0] != 60 || sim.Bubble != 0.4 {
		t.Errorf("the step takes %d, rank 0 works for %d, bubble %g", sim.Time, sim.Busy[0], sim.Bubble)
	}
}
