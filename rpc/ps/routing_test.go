// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The numbers are a part of the protocol: clients in other languages compute them.
func TestRoutingGolden(t *testing.T) {
	var got []string
	for _, k := range []int64{0, 1, 2, 1 << 40, -1, math.MinInt64} {
		got = append(got, fmt.Sprint(partitionOf(k)))
		for _, n := range []int{2, 3, 7} {
			r, err := NewRouting(n)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(r.ServerOf(k, 0)))
		}
	}
	if want := "[0 0 0 0 812 1 1 3 999 1 2 5 758 1 1 4 801 1 1 3 147 0 0 6]"; fmt.Sprint(got) != want {
		t.Errorf("partitions and servers are %v, want %s", got, want)
	}
}

func TestRoutingIsBalancedAndMovesLeast(t *testing.T) {
	before := spread(1)
	for n := 1; n <= 64; n++ {
		now := spread(n)
		has := make([]int, n)
		for p, s := range now {
			has[s]++
			if s != before[p] && int(s) != n-1 {
				t.Fatalf("from %d to %d servers partition %d moves from server %d to %d, which is not the new one", n-1, n, p, before[p], s)
			}
		}
		if slices.Max(has)-slices.Min(has) > 1 {
			t.Errorf("%d servers have %v partitions", n, has)
		}
		before = now
	}
	if _, err := NewRouting(0); err == nil {
		t.Error("there is a routing over no servers")
	}
}

func TestRoutingOfDenseTables(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 1024} {
		r, err := NewRouting(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, numRows := range []int{1, 2, 5, 100, 1025} {
			for s := range n {
				lo, hi := r.Range(s, numRows)
				for k := range int64(numRows) {
					if in := lo <= k && k < hi; in != (r.ServerOf(k, numRows) == s) || in != r.Owns(s, numRows)(k) {
						t.Fatalf("%d servers, %d rows: key %d, whose server is %d; server %d has %d to %d", n, numRows, k, r.ServerOf(k, numRows), s, lo, hi-1)
					}
				}
			}
		}
	}
}

func TestUnique(t *testing.T) {
	for _, keys := range [][]int64{nil, {3}, {1, 2, 3}, {5, -5, 5, math.MaxInt64, math.MinInt64, 0}} {
		checkUnique(t, keys)
	}
	var many []int64
	for i := range int64(1000) {
		many = append(many, i*i*7919%311-150, i<<53)
	}
	checkUnique(t, many)
}

// distinct gives each key once if many come again, and where it is.
func TestDistinct(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		keys := make([]int64, r.IntN(300))
		among := r.Int64N(2000) + 1
		for i := range keys {
			keys[i] = r.Int64N(among) << r.IntN(50) >> 10
		}
		once, at := distinct(keys)
		sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
		again := len(keys) - len(sorted)
		if at == nil {
			if !slices.Equal(once, keys) || again > len(keys)/fewAgain {
				t.Fatalf("%d keys, of which %d come again, travel as they are", len(keys), again)
			}
			continue
		}
		if got := slices.Sorted(slices.Values(once)); !slices.Equal(got, sorted) {
			t.Fatalf("the keys %v are %v once each, want %v", keys, got, sorted)
		}
		for i, k := range keys {
			if once[at[i]] != k {
				t.Fatalf("key %d, %d, is said to be %d", i, k, once[at[i]])
			}
		}
	}
}

// Of many keys a sample says whether some come again.
func TestDistinctOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, among := range []int64{1000, 20_000, 1 << 50} {
		keys := make([]int64, 4096)
		for i := range keys {
			keys[i] = r.Int64N(among)
		}
		once, at := distinct(keys)
		if (at == nil) != (among == 1<<50) {
			t.Fatalf("4096 of %d keys: %d travel", among, len(once))
		}
		for i, a := range at {
			if once[a] != keys[i] {
				t.Fatalf("key %d, %d, is said to be %d", i, keys[i], once[a])
			}
		}
	}
}

func checkUnique(t *testing.T, keys []int64) {
	t.Helper()
	once, at := unique(keys)
	want := slices.Clone(keys)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(once, want) {
		t.Errorf("the keys %v are %v once each, want %v", keys, once, want)
	}
	for i, k := range keys {
		if once[at[i]] != k {
			t.Fatalf("key %d, %d, is said to be %d", i, k, once[at[i]])
		}
	}
}
