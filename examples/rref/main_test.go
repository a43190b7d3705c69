// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

// asProgram makes the test's binary, and so its ranks, run the example.
const asProgram = "COHORT_TEST_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestStartsItsRanks is `go run ./examples/rref`. Nothing leaks: the shutdown would say so.
func TestStartsItsRanks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for _, want := range []string{
		"[rank0] the walk at worker1 has come to 32\n",
		"[rank0] the walk at worker1 has come to 2\n",
		"[rank0] worker2 has added up what worker1 made: 328350\n",
		"[rank0] rpc: ToHere at worker1 (rank 1): released: ",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is missing from\n%s", want, stdout.String())
		}
	}
	if strings.Contains(stderr.String(), "refer") {
		t.Errorf("references leak:\n%s", stderr.String())
	}
}

// TestGoroutines: the same program, whose ranks are goroutines.
func TestGoroutines(t *testing.T) {
	if err := dist.Spawn(t.Context(), 4, run); err != nil {
		t.Error(err)
	}
}
