// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestIslands: islands learn the spirals, and all end with the same weights.
func TestIslands(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		out := exampletest.Run(t, []string{"30 exchanges"}, "-islands", fmt.Sprint(n))
		weights := map[string]bool{}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for _, line := range lines {
			island, loss := 0, 1.0
			if _, err := fmt.Sscanf(line, "island %d  loss %f", &island, &loss); err != nil || loss > 0.3 {
				t.Errorf("%d islands: loss %v (%v): %s", n, loss, err, line)
			}
			_, weight, _ := strings.Cut(line, "first weight ")
			weights[weight] = true
		}
		if len(lines) != n || len(weights) != 1 {
			t.Errorf("%d islands have %d different weights:\n%s", n, len(weights), out)
		}
	}
}
