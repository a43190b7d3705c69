// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestMoE is `go run ./examples/moe`: ranks that share the experts learn, two and four of them.
func TestMoE(t *testing.T) {
	for ranks, want := range map[string]string{
		"2": ": a rank holds 63104 of 112256 parameters",
		"4": ": a rank holds 38528 of 112256 parameters",
	} {
		out := exampletest.Run(t, []string{want}, "-ranks", ranks, "-steps", "101")
		if first, last := lossOf(t, out, 0), lossOf(t, out, 100); first < 3 || last > 1.3 {
			t.Errorf("%s ranks: the loss goes from %v to %v in 101 steps", ranks, first, last)
		}
	}
}

// lossOf returns the loss of a step that the output has.
func lossOf(t *testing.T, out string, step int) (loss float64) {
	t.Helper()
	_, line, ok := strings.Cut(out, fmt.Sprintf("step %3d  loss ", step))
	if _, err := fmt.Sscan(line, &loss); !ok || err != nil {
		t.Fatalf("no loss of step %d in\n%s", step, out)
	}
	return loss
}
