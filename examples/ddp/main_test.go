// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/launch"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/ddp`.
func TestStartsItsRanks(t *testing.T) {
	check(t, exampletest.Run(t, nil))
}

// TestLaunched is `cohort run --nproc-per-node 3 ./examples/ddp`: the launcher
// says how many ranks there are.
func TestLaunched(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err := launch.Run(ctx, launch.Config{
		Program: os.Args[0], Direct: true, NumRanks: 3, Env: exampletest.Env(),
		Stdout: &stdout, Stderr: &stderr, LeaveSignals: true,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	check(t, stdout.String())
}

// check reads what the example printed.
func check(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines, want 6, from rank 0 only:\n%s", len(lines), out)
	}
	var first, last float64
	for i, line := range lines {
		var step int
		if _, err := fmt.Sscanf(line, "[rank0] step %d loss %f", &step, &last); err != nil || step != 100*i {
			t.Fatalf("line %d is %q: %v", i, line, err)
		}
		if i == 0 {
			first = last
		}
	}
	if first < 0.6 || last > 0.1 {
		t.Errorf("the loss went from %v to %v, want from about 0.7 to below 0.1", first, last)
	}
}
