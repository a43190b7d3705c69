// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/join`.
func TestStartsItsRanks(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(exampletest.Run(t, nil)), "\n")
	slices.Sort(lines)
	if len(lines) != 3 {
		t.Fatalf("%d lines, want one of each rank: %q", len(lines), lines)
	}
	for rank, line := range lines {
		own := []int{5, 13, 2}[rank]
		if want := fmt.Sprintf("[rank%d] rank %d: %d steps of its own and %d of the others; height = 3.00·x -1.00", rank, rank, own, 13-own); line != want {
			t.Errorf("rank %d prints %q, want %q", rank, line, want)
		}
	}
}
