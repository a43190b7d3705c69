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

// TestTensor is `go run ./examples/tensor`: two copies of two ranks learn, and two ranks that share
// the matrices have the losses of one.
func TestTensor(t *testing.T) {
	out := exampletest.Run(t, []string{
		"layers, vocabulary, loss", ": a rank holds 10000 of 19711 parameters",
	}, "-steps", "101")
	if first, last := lossOf(t, out, 0), lossOf(t, out, 100); first < 2 || last > 0.3 {
		t.Errorf("the loss goes from %v to %v in 101 steps", first, last)
	}
	one := lossOf(t, exampletest.Run(t, nil, "-ranks", "1", "-tp", "1", "-steps", "21"), 20)
	if two := lossOf(t, exampletest.Run(t, nil, "-ranks", "2", "-steps", "21"), 20); math.Abs(two-one) > 2e-3 {
		t.Errorf("after 21 steps two ranks have the loss %v, one has %v", two, one)
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
