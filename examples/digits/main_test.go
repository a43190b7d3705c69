// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
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

// TestStartsItsRanks is `go run ./examples/digits`.
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
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines, want 5, from rank 0 only:\n%s", len(lines), stdout.String())
	}
	for i, line := range lines {
		var step int
		var loss, accuracy float64
		if _, err := fmt.Sscanf(line, "[rank0] step %d loss %f test accuracy %f %%", &step, &loss, &accuracy); err != nil {
			t.Fatalf("line %d is %q: %v", i, line, err)
		}
		if i == len(lines)-1 && accuracy < 97.5 {
			t.Errorf("the test accuracy is %v %%, want at least 97.5 %%", accuracy)
		}
	}
}

// TestRanksAgree: three ranks, which share neither batch nor test images out
// evenly, come as far, and all of them say so.
func TestRanksAgree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	said := map[float64]int{}
	err := dist.Spawn(ctx, 3, func(ctx context.Context, group *dist.Group) error {
		accuracy, err := train(ctx, group)
		mu.Lock()
		defer mu.Unlock()
		said[accuracy]++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for accuracy := range said {
		if len(said) != 1 || accuracy < 0.975 {
			t.Errorf("the ranks say %v, want one accuracy of at least 0.975", said)
		}
	}
}
