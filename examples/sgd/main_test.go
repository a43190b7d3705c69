// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/sgd`.
func TestStartsItsRanks(t *testing.T) {
	stdout := exampletest.Run(t, nil)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines, want 6, from rank 0 only:\n%s", len(lines), stdout)
	}
	for i, line := range lines {
		var step int
		var loss float64
		if _, err := fmt.Sscanf(line, "[rank0] step %d loss %f", &step, &loss); err != nil || step != 200*i {
			t.Fatalf("line %d is %q: %v", i, line, err)
		}
		if i == 0 && loss < 0.4 || i == 5 && loss > 0.03 {
			t.Errorf("the loss is %v at step %d, want from about 0.6 to below 0.03", loss, step)
		}
	}
}

// TestRanksDoNotMatter: one rank, two and seven end with the same weights up to
// rounding, although seven cannot share the batch evenly. The ranks of one group
// have the same bits.
func TestRanksDoNotMatter(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var alone []float32
	for _, size := range []int{1, 2, 7} {
		var mu sync.Mutex
		ofRanks := make([][]float32, size)
		err := dist.Spawn(ctx, size, func(ctx context.Context, group *dist.Group) error {
			params, err := train(ctx, group)
			mu.Lock()
			defer mu.Unlock()
			for _, p := range params {
				ofRanks[group.Rank()] = append(ofRanks[group.Rank()], p.Data().Float32s()...)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if size == 1 {
			alone = ofRanks[0]
		}
		most := 0.0
		for rank, weights := range ofRanks {
			if !slices.Equal(weights, ofRanks[0]) {
				t.Errorf("rank %d of %d ends with other weights than rank 0", rank, size)
			}
			for i, w := range weights {
				most = max(most, math.Abs(float64(w-alone[i])))
			}
		}
		t.Logf("%d ranks: the weights differ by at most %.2g from those of one", size, most)
		if most > 1e-4 {
			t.Errorf("%d ranks end with weights that differ by %v from those of one", size, most)
		}
	}
}
