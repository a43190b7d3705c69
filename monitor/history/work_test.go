// SPDX-License-Identifier: Apache-2.0

package history

import (
	"slices"
	"testing"
)

// TestWorkIsMerged: operations and calls of two neighbours add up, and the peak is the last one's.
func TestWorkIsMerged(t *testing.T) {
	a := Ranks{Steps: 1, Seconds: 1, GFLOP: Column{1, 2}, Peak: Column{10, 10}, Links: []Link{{Group: "world", Ranks: 2, Op: "all-reduce", Calls: 1, Bytes: 100, Seconds: 0.5, Best: 300}}}
	b := Ranks{Steps: 1, Seconds: 1, GFLOP: Column{3, 4}, Again: Column{1, 0}, Peak: Column{10, 12}, Links: []Link{
		{Group: "world", Ranks: 2, Op: "all-reduce", Calls: 2, Bytes: 50, Seconds: 0.25, Best: 400}, {Group: "world", Ranks: 2, Op: "barrier", Calls: 1},
	}}
	got := mergedRanks(a, b)
	if !slices.Equal(got.GFLOP, Column{4, 6}) || !slices.Equal(got.Again, Column{1, 0}) || !slices.Equal(got.Peak, Column{10, 12}) {
		t.Errorf("merged: %+v", got)
	}
	want := []Link{{Group: "world", Ranks: 2, Op: "all-reduce", Calls: 3, Bytes: 150, Seconds: 0.75, Best: 400}, {Group: "world", Ranks: 2, Op: "barrier", Calls: 1}}
	if !slices.Equal(got.Links, want) {
		t.Errorf("merged links: %+v, want %+v", got.Links, want)
	}
	many := Ranks{Links: make([]Link, MaxLinks+1)}
	if many.check() == nil {
		t.Error("too many links are taken")
	}
}
