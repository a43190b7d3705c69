// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/digits`.
func TestStartsItsRanks(t *testing.T) {
	stdout := exampletest.Run(t, nil)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines, want 5, from rank 0 only:\n%s", len(lines), stdout)
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

// TestRanksAgree: three ranks cannot share the batch and the test images evenly. They
// reach the same accuracy, and all of them report it.
func TestRanksAgree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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
