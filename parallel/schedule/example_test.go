// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"fmt"
	"log"
	"time"

	"github.com/cohort-ml/cohort/parallel/schedule"
)

// The order of 1F1B on two ranks, and the step in virtual time.
func ExampleNew() {
	s, err := schedule.New("1f1b", 2, 2, 3)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Ranks[0])
	fmt.Println(s.Lower(1, 0))
	step, err := s.Simulate(schedule.SimulateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(s.Text(step, 80))
	fmt.Printf("%v, bubble %.0f %%, activations %v\n", step.Time, 100*step.Bubble, step.Activations)
	// Output:
	// [0F0 0F1 0B0 0F2 0B1 0B2]
	// [1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2]
	// rank 0 F0 F1 ·  ·  B0 == F2 B1 == ·  B2 ==
	// rank 1 ·  F0 B0 == F1 B1 == F2 B2 == ·  ·
	// 12ms, bubble 25 %, activations [2 1]
}

// Five layers in three stages.
func ExamplePartition() {
	costs := []time.Duration{2 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond, 9 * time.Millisecond}
	starts, most, err := schedule.Partition(costs, 3)
	fmt.Println(starts, most, err)
	// Output: [0 2 4] 10ms <nil>
}
