// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// TestTorch: the order of each rank is the one of PyTorch's class, for a grid of ranks,
// stages and microbatches, and what PyTorch refuses is refused. testdata/torch_schedules.py
// has written the grid.
func TestTorch(t *testing.T) {
	for name, grid := range torchOrders(t) {
		same, refused := 0, 0
		for numbers, want := range grid {
			var ranks, stages, microbatches int
			if _, err := fmt.Sscan(numbers, &ranks, &stages, &microbatches); err != nil {
				t.Fatal(err)
			}
			s, err := New(name, ranks, stages, microbatches)
			if want == nil || err != nil {
				if want != nil || err == nil {
					t.Errorf("%s %s: the error is %v, and PyTorch takes the numbers: %v", name, numbers, err, want != nil)
				}
				refused++
				continue
			}
			for rank, actions := range s.Ranks {
				if got := text(actions); got != want[rank] {
					t.Errorf("%s %s: rank %d does\n%s, PyTorch's does\n%s", name, numbers, rank, got, want[rank])
				}
			}
			same++
		}
		t.Logf("%s: %d orders equal PyTorch's, %d are refused by both", name, same, refused)
		if same < 50 {
			t.Errorf("%s: only %d orders were compared", name, same)
		}
	}
}

// torchOrders returns PyTorch's orders: by name, and by "ranks stages microbatches", a text
// for each rank, nil for numbers that PyTorch refuses.
func torchOrders(t *testing.T) map[string]map[string][]string {
	file, err := os.Open("testdata/torch_schedules_2.15.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	orders := map[string]map[string][]string{}
	if err := json.NewDecoder(text).Decode(&orders); err != nil {
		t.Fatal(err)
	}
	if len(orders) != len(Names()) {
		t.Errorf("the grid has %d schedules, the package %d", len(orders), len(Names()))
	}
	return orders
}
