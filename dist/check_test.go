// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestCheckSendsNothing counts the writes of this process: an all-reduce of 4
// bytes of two ranks over TCP is one from each, so that the check for
// mismatched calls has no message of its own.
func TestCheckSendsNothing(t *testing.T) {
	writes := func() (n int) {
		text, err := os.ReadFile("/proc/self/io")
		if err != nil {
			t.Skip("the system does not count a process's writes")
		}
		var chars [2]int
		var reads int
		if _, err := fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\nsyscr: %d\nsyscw: %d", &chars[0], &chars[1], &reads, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const calls, others = 2000, 100 // what else the process writes: a test's log, a wake-up of its poller
	var before, after int
	err := initRanks("tcp")(t.Context(), 2, func(ctx context.Context, g *Group) error {
		x := tensor.Zeros(1)
		for i := range calls + 10 {
			if i == 10 && g.Rank() == 0 {
				before = writes()
			}
			if err := g.AllReduce(ctx, x, Sum); err != nil {
				return err
			}
		}
		if g.Rank() == 0 {
			after = writes()
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d writes for %d all-reduces on two ranks", after-before, calls)
	if n := after - before; n > 2*calls+others {
		t.Errorf("%d writes for %d all-reduces, want 2 for each", n, calls)
	}
}
