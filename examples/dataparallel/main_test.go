// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestGroups: two groups and three learn the spirals, as one does.
func TestGroups(t *testing.T) {
	for groups, devices := range map[string]string{"1": "1 device (cpu)", "2": "2 devices (cpu, cpu:1)", "3": "3 devices (cpu, cpu:1, cpu:2)"} {
		out := exampletest.Run(t, []string{"one process over " + devices, " ms a step\n"}, "-groups", groups)
		loss := 1.0
		_, line, ok := strings.Cut(out, "step 200  loss ")
		if _, err := fmt.Sscan(line, &loss); !ok || err != nil || loss > 0.1 {
			t.Errorf("%s groups: the loss is %v after 200 steps (%v):\n%s", groups, loss, err, out)
		}
	}
}
