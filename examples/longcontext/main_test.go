// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestAnswers is `go run ./examples/longcontext`, and the same with heads instead of a ring.
func TestAnswers(t *testing.T) {
	exampletest.Run(t, []string{"sequences, attention by ring", "right answers: 100 %"})
	exampletest.Run(t, []string{"sequences, attention by heads", "step   0  loss 2.8"}, "-attention", "heads", "-ranks", "2", "-steps", "2")
}
