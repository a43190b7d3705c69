// SPDX-License-Identifier: Apache-2.0

package native

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// playSteps has ranks make steps of which each takes as long as compute says,
// and meet in one collective a step, and returns the tables that the hub makes
// of what they report every other step.
func playSteps(numRanks, numSteps int, compute func(rank, step int) time.Duration) (t *tracker, tables [][]RankSkew) {
	t = newTracker(numRanks)
	waited := make([]time.Duration, numRanks)
	now := time.Duration(1)
	for step := range numSteps {
		var longest time.Duration
		for r := range numRanks {
			longest = max(longest, compute(r, step))
		}
		const transfer = 2 * time.Millisecond
		for r := range numRanks {
			waited[r] += longest - compute(r, step) + transfer
		}
		now += longest + transfer
		if step%2 == 1 {
			for r := range numRanks {
				t.add(r, Progress{Steps: uint64(step + 1), Calls: 3 * uint64(step+1), Waited: waited[r], At: now})
			}
			if table := t.table(); table != nil {
				tables = append(tables, table)
			}
		}
	}
	return t, tables
}

func TestTrackerFindsTheLate(t *testing.T) {
	_, tables := playSteps(4, 20, func(rank, _ int) time.Duration {
		if rank == 2 {
			return 130 * time.Millisecond
		}
		return 100 * time.Millisecond
	})
	if len(tables) == 0 {
		t.Fatal("20 steps give no table")
	}
	for _, table := range tables {
		for r, row := range table {
			want := RankSkew{Rank: r, Step: 132 * time.Millisecond}
			if r == 2 {
				want.Late, want.Share = 10*time.Millisecond, 30.0/132
			}
			if row.Rank != r || (row.Late-want.Late).Abs() > time.Microsecond || math.Abs(row.Share-want.Share) > 1e-3 || (row.Step-want.Step).Abs() > time.Microsecond {
				t.Errorf("rank %d is %+v, want %+v", r, row, want)
			}
		}
	}
}

// TestTrackerForgivesOneStep: a rank that saves a checkpoint is not slow.
func TestTrackerForgivesOneStep(t *testing.T) {
	_, tables := playSteps(3, 60, func(rank, step int) time.Duration {
		if rank == 0 && step == 31 {
			return 5 * time.Second
		}
		return 100 * time.Millisecond
	})
	for _, table := range tables {
		for _, row := range table {
			if row.Share > 0.01 {
				t.Errorf("a rank with one slow step is %+v", row)
			}
		}
	}
}

// TestTrackerIgnoresNoise: ranks that differ at random are not late.
func TestTrackerIgnoresNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	times := map[[2]int]time.Duration{}
	_, tables := playSteps(4, 400, func(rank, step int) time.Duration {
		d, ok := times[[2]int{rank, step}]
		if !ok {
			d = 100*time.Millisecond + time.Duration(rng.IntN(10))*time.Millisecond
			times[[2]int{rank, step}] = d
		}
		return d
	})
	if len(tables) < 150 {
		t.Fatalf("400 steps give %d tables", len(tables))
	}
	for _, table := range tables {
		for _, row := range table {
			if row.Share > 0.08 {
				t.Errorf("a rank like the others is %+v", row)
			}
		}
	}
}

// TestTrackerTakesAnything: numbers that no honest rank sends give no nonsense.
func TestTrackerTakesAnything(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	number := func() uint64 { return rng.Uint64() >> rng.IntN(64) >> 1 }
	for range 2000 {
		tr := newTracker(3)
		for range 100 {
			tr.add(rng.IntN(3), Progress{Steps: number(), Calls: number(), Waited: time.Duration(number()), At: time.Duration(number())})
			for _, row := range tr.table() {
				if !(row.Share >= 0 && row.Share <= 1) || row.Late < 0 || row.Step < 0 {
					t.Fatalf("a row is %+v", row)
				}
			}
		}
		for _, past := range tr.past {
			if len(past) > maxProgress {
				t.Fatalf("%d reports are kept", len(past))
			}
		}
	}
}

func TestSkewTravels(t *testing.T) {
	var table []RankSkew
	for r := range 100 {
		table = append(table, RankSkew{Rank: r, Late: time.Duration(r), Share: float64(r) / 128, Step: time.Second})
	}
	got, err := parseSkew(encodeSkew(nil, table), 100)
	if err != nil || !slices.Equal(got, table[100-maxTold:]) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = parseSkew(encodeSkew(nil, table[:5]), 5); err != nil || !slices.Equal(got, table[:5]) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestProcState reads what the system says of processes, this one among them.
func TestProcState(t *testing.T) {
	s, ok := parseState([]byte("4711 (a) b (c)) T 1 4711 4711 0 -1 4194560 100 0 0 0 17 4 0 0 20 0 5 0 100"))
	if !ok || s != (procState{'T', 21}) || s.why() != "; its process is stopped" {
		t.Errorf("%+v, %t", s, ok)
	}
	for _, bad := range []string{"", "1 (x", "1 (x)", "1 (x) R 1", "1 (x) R 1 2 3 4 5 6 7 8 9 10 a b"} {
		if s, ok := parseState([]byte(bad)); ok {
			t.Errorf("%q is %+v", bad, s)
		}
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		if s, ok := stateOf(os.Getpid()); !ok || s.state == 'T' {
			t.Errorf("this process is %+v, %t", s, ok)
		}
	}
}

// FuzzBeat: what a beat or a table says that is accepted makes sense, and is
// read as it was written.
func FuzzBeat(f *testing.F) {
	f.Add(encodeProgress(nil, Progress{Steps: 1, Calls: 2, Waited: 3, At: 4}))
	f.Add([]byte("4711 (a) b (c)) T 1 4711 4711 0 -1 4194560 100 0 0 0 17 4 0 0 20 0 5 0 100"))
	f.Add([]byte("4711 (a) \x00 1 4711 4711 0 -1 4194560 100 0 0 0 17 4 0 0 20 0 5 0 100"))
	f.Add(encodeSkew(nil, []RankSkew{{Rank: 1, Late: 2, Share: 0.5, Step: 3}, {Rank: 2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseProgress(b); err == nil {
			if again := encodeProgress(nil, p); !slices.Equal(again, b) || p.Waited < 0 || p.At < 0 {
				t.Errorf("%x is %+v", b, p)
			}
		}
		if table, err := parseSkew(b, 3); err == nil {
			for _, row := range table {
				if row.Rank < 0 || row.Rank > 2 || !(row.Share >= 0 && row.Share <= 1) || row.Late < 0 || row.Step < 0 {
					t.Errorf("%x has %+v", b, row)
				}
			}
		}
		if s, ok := parseState(b); ok && (s.state < 'A' || s.state > 'z') {
			t.Errorf("%q is %+v", b, s)
		}
	})
}
