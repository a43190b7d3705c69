// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/rpc`.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{
		"[rank1] row 1 has the sum 4\n",
		"[rank2] row 2 has the sum 4\n",
		"[rank1] rpc: table.Read at table (rank 0): row 1000: the table has no such row\n",
	})
}

// TestGoroutines: the same program, whose ranks are goroutines.
func TestGoroutines(t *testing.T) {
	if err := dist.Spawn(t.Context(), 4, run); err != nil {
		t.Error(err)
	}
}
