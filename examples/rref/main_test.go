// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/rref`. Nothing leaks: the shutdown would say so.
func TestStartsItsRanks(t *testing.T) {
	exampletest.Run(t, []string{
		"[rank0] the walk at worker1 has come to 32\n",
		"[rank0] the walk at worker1 has come to 2\n",
		"[rank0] worker2 has added up what worker1 made: 328350\n",
		"[rank0] rpc: ToHere at worker1 (rank 1): released: ",
	})
}

// TestGoroutines: the same program, whose ranks are goroutines.
func TestGoroutines(t *testing.T) {
	if err := dist.Spawn(t.Context(), 4, run); err != nil {
		t.Error(err)
	}
}
