// SPDX-License-Identifier: Apache-2.0

package schedule

import "fmt"

// PartitionError says that layers cannot be cut into stages.
type PartitionError struct {
	NumLayers, NumStages int
	Problem              string
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("schedule: %s cannot be cut into %s: %s", count(e.NumLayers, "layer"), count(e.NumStages, "stage"), e.Problem)
}

// Partition cuts layers into stages so that the costliest stage costs as little as
// possible. costs are those of the layers, such as measured times or numbers of parameters.
// It returns the first layer of each stage, and the cost of the costliest stage. Each stage
// has at least one layer. Of the cuts with the same greatest cost it takes one whose stages
// cost about the same. The error is a [*PartitionError].
func Partition[C ~int | ~int64](costs []C, numStages int) (starts []int, most C, err error) {
	fail := func(format string, args ...any) ([]int, C, error) {
		return nil, 0, &PartitionError{NumLayers: len(costs), NumStages: numStages, Problem: fmt.Sprintf(format, args...)}
	}
	switch {
	case numStages < 1:
		return fail("take at least 1 stage")
	case len(costs) < numStages:
		return fail("each stage has at least one layer, and %d < %d", len(costs), numStages)
	}
	low, sum := C(0), C(0) // most is at least low
	for i, c := range costs {
		if c < 0 {
			return fail("layer %d has the negative cost %d", i, c)
		}
		if sum+c < sum {
			return fail("the sum of the costs up to layer %d is too large for %T", i, c)
		}
		low, sum = max(low, c), sum+c
	}
	high := sum
	for low < high {
		if middle := low + (high-low)/2; stagesWithin(costs, middle) <= numStages {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return evenly(costs, numStages, low, sum), low, nil
}

// stagesWithin returns how many stages the layers need if no stage may cost more than most.
func stagesWithin[C ~int | ~int64](costs []C, most C) int {
	stages, left := 0, C(0)
	for i, c := range costs {
		if i == 0 || c > left {
			stages, left = stages+1, most
		}
		left -= c
	}
	return stages
}

// evenly cuts the layers so that no stage costs more than most. A stage takes its share of
// what is left, and more if the other stages could not take the rest.
func evenly[C ~int | ~int64](costs []C, numStages int, most, sum C) []int {
	starts, at := make([]int, numStages), 0
	for stage := range starts {
		starts[stage] = at
		others := numStages - stage - 1
		share := sum / C(others+1)
		taken := costs[at]
		at++
		for others > 0 && len(costs)-at > others && (taken+costs[at] <= share || stagesWithin(costs[at:], most) > others) {
			taken += costs[at]
			at++
		}
		sum -= taken
	}
	return starts
}
