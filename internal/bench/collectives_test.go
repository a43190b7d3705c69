// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// collectivesOf runs Collectives on goroutine ranks and returns what rank 0 emits.
func collectivesOf(t *testing.T, numRanks int, o CollectivesOptions) []Result {
	t.Helper()
	var out []Result
	err := dist.Spawn(t.Context(), numRanks, func(ctx context.Context, g *dist.Group) error {
		return Collectives(ctx, g, o, func(r Result) error {
			if g.Rank() == 0 {
				out = append(out, r)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCollectives(t *testing.T) {
	all := ExpandOps([]string{"all"})
	o := CollectivesOptions{Ops: all, Bytes: []int{4, 4000}, Memory: MemoryKinds(), Reps: 3}
	var cases []string
	for _, r := range collectivesOf(t, 3, o) {
		want := "bench case backend transport memory dtype ranks bytes median_us min_us p99_us gb_per_s"
		if r.Case == barrierOp {
			want = "bench case backend transport ranks median_us min_us p99_us"
		}
		checkPrinted(t, r, want)
		cases = append(cases, r.Case)
	}
	want := slices.Concat(all[:len(all)-1], all[:len(all)-1], all[:len(all)-1], all)
	if !slices.Equal(cases, want) {
		t.Errorf("measured %v\nwant     %v", cases, want)
	}
}

func TestCollectiveDTypes(t *testing.T) {
	for _, dtype := range CollectiveDTypes() {
		// One element, or as many as there are ranks, is enough for an error.
		o := CollectivesOptions{Ops: []string{"broadcast", "all_gather"}, Bytes: DefaultBytes(dtype)[:1], DType: dtype, Memory: []string{"private"}, Reps: 1}
		for _, r := range collectivesOf(t, 2, o) {
			if r.DType != dtype || r.Bytes%4 != 0 {
				t.Errorf("measured %s of %d bytes, want %s", r.DType, r.Bytes, dtype)
			}
		}
	}
}

// TestLate: the rank that waits is measured, not the one that is late.
func TestLate(t *testing.T) {
	got := collectivesOf(t, 2, CollectivesOptions{Ops: []string{lateOp}, LateBy: time.Millisecond})
	if len(got) != 2 {
		t.Fatalf("%d results, want 2: %+v", len(got), got)
	}
	for i, want := range []Result{{Case: "late_all_reduce", Bytes: 1 << 20}, {Case: "late_barrier"}} {
		r := got[i]
		if r.Case != want.Case || r.Bytes != want.Bytes || r.MedianMicros <= 0 || r.WaitCPUMicros < 0 {
			t.Errorf("got %+v, want %+v and its figures", r, want)
		}
	}
}

func TestRawSocket(t *testing.T) {
	o := CollectivesOptions{Ops: []string{rawSocketOp}, Bytes: []int{4, 1 << 20}, Memory: MemoryKinds(), Reps: 3}
	got := collectivesOf(t, 2, o)
	if len(got) != 2 {
		t.Fatalf("%d results, want one a size: %+v", len(got), got)
	}
	for i, r := range got {
		checkPrinted(t, r, "bench case backend transport ranks bytes median_us min_us p99_us gb_per_s")
		if r.Bytes != o.Bytes[i] || r.Backend != "none" || r.Transport != "tcp" {
			t.Errorf("got %+v", r)
		}
	}
	if err := o.CheckRanks(3); err == nil || !strings.Contains(err.Error(), "between 2 ranks, not 3") {
		t.Errorf("3 ranks gave %v", err)
	}
}

// TestWrongResult: an operation that leaves something else than what ones give
// is an error, not a figure.
func TestWrongResult(t *testing.T) {
	good := operations
	defer func() { operations = good }()
	operations = []operation{{"all_reduce", func(b *bed) prepared {
		x := b.ones(b.elems())
		return prepared{func() error { return nil }, x, x, b.sum()}
	}}}
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		b := &bed{ctx: ctx, group: g, dtype: tensor.Float32, memory: "private", bytes: 16}
		return b.measureOp("all_reduce", 1, func(Result) error { return nil })
	})
	if want := "all_reduce of 16 bytes of ones over 2 ranks gave 1, want 2"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a call that does nothing gave %v, want %q", err, want)
	}
}
