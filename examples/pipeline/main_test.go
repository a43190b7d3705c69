// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestPipeline is `go run ./examples/pipeline`: two stages learn, and every schedule has the losses of
// one rank.
func TestPipeline(t *testing.T) {
	out := exampletest.Run(t, []string{
		"2 stages by 1f1b, cut at transformer.h.2", "this rank holds 102976 of 203072 parameters", "this rank holds 102080 of 203072 parameters",
	}, "-steps", "101")
	if first, last := lossOf(t, out, 0), lossOf(t, out, 100); first < 3 || last > 1.5 {
		t.Errorf("the loss goes from %v to %v in 101 steps", first, last)
	}
	one := lossOf(t, exampletest.Run(t, nil, "-ranks", "1", "-steps", "21"), 20)
	for _, order := range []string{"gpipe", "interleaved", "interleaved-zb", "zbv", "dualpipev"} {
		if two := lossOf(t, exampletest.Run(t, nil, "-steps", "21", "-schedule", order), 20); math.Abs(two-one) > 2e-3 {
			t.Errorf("%s: after 21 steps the loss is %v, on one rank %v", order, two, one)
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
