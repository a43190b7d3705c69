// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestTrainsTheTable is `go run ./examples/ps`.
func TestTrainsTheTable(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(exampletest.Run(t, nil)), "\n")
	slices.Sort(lines)
	want := []string{
		"[rank0] server 0 has 307 of the rows",
		"[rank1] server 1 has 293 of the rows",
		"[rank2] step 0: points are 1.00 away from the circle",
		"[rank2] step 149: points are 0.00 away from the circle",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("it prints %q, want %q", lines, want)
	}
}
