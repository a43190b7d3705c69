// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPartition: cuts that can be checked by hand.
func TestPartition(t *testing.T) {
	for _, c := range []struct {
		costs  []int
		stages int
		want   []int
		most   int
	}{
		{[]int{1, 1, 1, 1, 1, 1, 1, 1, 1}, 4, []int{0, 2, 4, 6}, 3},
		{[]int{5, 1, 1, 1, 1, 1}, 2, []int{0, 1}, 5},
		{[]int{1, 1, 1, 1, 1, 5}, 2, []int{0, 5}, 5},
		{[]int{0, 0, 0}, 3, []int{0, 1, 2}, 0},
		{[]int{2, 5, 5, 5, 9}, 3, []int{0, 2, 4}, 10},
		{[]int{7}, 1, []int{0}, 7},
	} {
		starts, most, err := Partition(c.costs, c.stages)
		if err != nil || !slices.Equal(starts, c.want) || most != c.most {
			t.Errorf("%v into %d: %v with at most %d, %v; want %v with %d", c.costs, c.stages, starts, most, err, c.want, c.most)
		}
	}
}

// TestPartitionIsBest: no cut has a smaller greatest cost, by trying them all.
func TestPartitionIsBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		costs := make([]time.Duration, 1+rng.IntN(10))
		for i := range costs {
			costs[i] = time.Duration(rng.IntN(12))
		}
		stages := 1 + rng.IntN(len(costs))
		starts, most, err := Partition(costs, stages)
		if err != nil {
			t.Fatal(err)
		}
		if got := costliest(costs, starts); len(starts) != stages || got != most {
			t.Fatalf("%v into %d: %v cost at most %d, and %d is returned", costs, stages, starts, got, most)
		}
		if best := best(costs, stages); most != best {
			t.Fatalf("%v into %d: %v cost at most %d, and %d is possible", costs, stages, starts, most, best)
		}
	}
}

// costliest returns the cost of the costliest stage.
func costliest(costs []time.Duration, starts []int) time.Duration {
	most := time.Duration(0)
	for i, start := range starts {
		end := len(costs)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		sum := time.Duration(0)
		for _, c := range costs[start:end] {
			sum += c
		}
		if start == end {
			return -1
		}
		most = max(most, sum)
	}
	return most
}

// best returns the least greatest cost over all cuts.
func best(costs []time.Duration, stages int) time.Duration {
	if stages == 1 {
		return costliest(costs, []int{0})
	}
	least, first := time.Duration(math.MaxInt64), time.Duration(0)
	for i := range len(costs) - stages + 1 {
		first += costs[i]
		least = min(least, max(first, best(costs[i+1:], stages-1)))
	}
	return least
}

// TestPartitionErrors: layers that cannot be cut are refused.
func TestPartitionErrors(t *testing.T) {
	for _, c := range []struct {
		costs  []int64
		stages int
		want   string
	}{
		{[]int64{1, 2}, 3, "schedule: 2 layers cannot be cut into 3 stages: each stage has at least one layer, and 2 < 3"},
		{[]int64{1, 2}, 0, "take at least 1 stage"},
		{[]int64{1, -2}, 1, "layer 1 has the negative cost -2"},
		{[]int64{math.MaxInt64, 2}, 1, "the sum of the costs up to layer 1 is too large for int64"},
	} {
		_, _, err := Partition(c.costs, c.stages)
		var e *PartitionError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v into %d: %v, want %s", c.costs, c.stages, err, c.want)
		}
	}
}
